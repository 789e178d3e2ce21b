"""`gpuyard adapt run` and `record`: train a network that may grow, or record every way it could grow."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import Json, LocalOnlyOptions, argument, option, option_groups
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_share

if TYPE_CHECKING:
    from gpuyard.adapt.training_job import Job
    from gpuyard.api.types import Wishes
    from gpuyard.client.client import Client

_TORCH = "this needs torch: pip install 'gpuyard[adapt]'"


def run(
    job: Annotated[Path, argument("JOB.toml", "What to train, on what, and how long.")],
    decider: Annotated[
        str | None, option("--decider", "Who decides on growing: never, early, cost-rule, reinforce:FILE ...")
    ] = None,
    budget: Annotated[str | None, option("--budget", "TIME", "Another budget than the file's.")] = None,
    seed: Annotated[int | None, option("--seed", "N", "Another seed than the file's.", min=0)] = None,
    out: Annotated[
        Path | None, option("--out", "DIR", "Where it goes (adapted/NAME-DECIDER-SEED).", file_okay=False)
    ] = None,
    force: Annotated[bool, option("--force", "Replace a run that is there.")] = False,
    json: Json = False,
) -> None:
    """Train a network within its budget, and let it grow where that pays."""
    given = _read(job)
    given = replace(
        given,
        decider=given.decider if decider is None else decider,
        budget=given.budget if budget is None else parse_duration(budget),
        seed=given.seed if seed is None else seed,
    )
    folder = out or Path("adapted") / f"{given.name}-{given.decider.partition(':')[0]}-{given.seed}"
    if not (given.gpu_changes or given.decide_at or os.environ.get("GPUYARD_ADAPTIVE")):
        output.say(
            "it will not be asked whether to grow: gpu_changes and decide_at are empty, and no scheduler offers more"
        )
    from gpuyard.adapt.training.runner import run as train

    facts = train(given, folder, force=force, say=None if json else _print_event)
    _print(facts, folder, json)
    if os.environ.get("GPUYARD_JOB_ID"):
        _end()


def _end() -> None:
    """Exit at once: all is written, and tearing torch down takes seconds of the job's time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _print(facts: dict[str, Any], folder: Path, json: bool) -> None:
    if json:
        output.print_json({**facts, "folder": str(folder)})
        return
    grown = f"{facts['parameters_before']:,}"
    if facts["parameters"] != facts["parameters_before"]:
        grown += f" -> {facts['parameters']:,}"
    print(f"accuracy {100 * facts['accuracy']:.2f} %  parameters {grown}  steps {facts['steps']:,}  {folder}")
    output.say(f"used {facts['used']:.6g} of {facts['budget']:.6g} {_UNITS[facts['clock']]}")


_UNITS = {"wall": "seconds", "cpu": "CPU seconds", "virtual": "steps of the first network (virtual clock)"}


@option_groups
def record(
    jobs: Annotated[list[Path], argument("JOB.toml...", "Jobs; [environments] says what varies.")],
    daemon: LocalOnlyOptions,
    out: Annotated[
        Path, option("--out", "FILE", "Where rows go; what is there is gone on with.", dir_okay=False)
    ] = Path("recorded.jsonl"),
    seeds: Annotated[int, option("--seeds", "N", "Trainings of everything.", min=1)] = 3,
    processes: Annotated[
        int | None, option("--jobs", "N", "Processes at a time, without a queue (all CPUs).", min=1)
    ] = None,
    here: Annotated[bool, option("--here", "Use no queue, though one runs.")] = False,
    gpu_memory: Annotated[
        str | None, option("--gpu-memory", "SIZE", "In the queue: share GPUs, so much for each job.")
    ] = None,
    json: Json = False,
) -> None:
    """Record every way in which trainings could have grown, for several seeds; what they share is trained once."""
    read = [_read(path) for path in jobs]
    from gpuyard.adapt.training.run_recording import Recording, grow_local, read_rows, savings

    recording = Recording.begun(out, read, seeds)
    count = len(recording.jobs) * seeds
    output.say(
        f"{output.many(len(recording.jobs), 'environment')}, {output.many(seeds, 'seed')} of each: "
        f"{count - len(recording.trees)} of {count} recorded already"
    )
    recording.begin()
    client = None if here else _queue(daemon)
    with output.run_bar("recording") as bar:
        watch = bar or _silent
        if client is None:
            grow_local(recording, processes or os.cpu_count() or 1, watch)
        else:
            from gpuyard.adapt.training.run_recording import grow_queued

            output.say("by jobs of the queue; gpuyard ps shows them, and --here would do without")
            request: Wishes = {"gpus": 1} if gpu_memory is None else {"gpu_memory": parse_share(gpu_memory)}
            grow_queued(recording, client, request, watch)
    recording.end()
    rows = read_rows(out)
    spent, alone = savings(rows)
    facts = {
        "file": str(out), "environments": len(recording.jobs), "seeds": seeds, "rows": len(rows),
        "cpu_seconds": spent, "cpu_seconds_alone": alone, "cheaper": alone / spent if spent else None,
    }  # fmt: skip
    if json:
        output.print_json(facts)
        return
    print(f"{out}  {len(rows):,} trainings")
    output.say(f"{spent:,.1f} CPU seconds; one by one they take {alone:,.1f}, {alone / spent:.2f} times as many")


def visit(
    folder: Annotated[Path, argument("DIR", "Where a tree grows.")],
    node: Annotated[str, argument("NODE", "root, or actions as in 0-2.")],
) -> None:
    """Train one piece of a recording: what its jobs do."""
    _check_torch()
    from gpuyard.adapt.training.run_trees import Tree, parse_node

    Tree.at(folder).visit(parse_node(node))


def _read(path: Path) -> Job:
    _check_torch()
    from gpuyard.adapt.training_job import read_job

    return read_job(path)


def _check_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UserError(_TORCH)


def _queue(daemon: LocalOnlyOptions) -> Client | None:
    from gpuyard.client.transport import NoDaemon

    client = daemon.client()
    try:
        client.gpus()
    except NoDaemon:
        return None
    return client


def _silent(done: float, total: int) -> None:
    """Progress is not shown."""


def _print_event(event: dict[str, Any]) -> None:
    at, what = f"{event['time']:10.4g}", event["event"]
    if what == "evaluation":
        output.say(f"{at}  accuracy {100 * event['accuracy']:.2f} %  loss {event['loss']:.4f}  step {event['step']:,}")
    elif what == "resources":
        output.say(f"{at}  resources {event['change']}: {event['why']}")
    elif what == "grant":
        output.say(f"{at}  budget {event['before']:.6g} -> {event['after']:.6g} {event['why']}".rstrip())
    elif what == "decision":
        chances = " ".join(f"{chance:.2f}" for chance in event["probabilities"])
        action = f"{event['op']} at {event['site']}" if event["site"] is not None else "nothing"
        grown = f"{event['parameters_before']:,} -> {event['parameters']:,} parameters"
        output.say(f"{at}  decided: {action} ({grown}; probabilities {chances}): {event['reason']}")
    elif what in ("shrunk", "resumed", "interrupted"):
        reason = f" ({event['reason']})" if event.get("reason") else ""
        output.say(f"{at}  {what}{reason}: {event['parameters']:,} parameters")
