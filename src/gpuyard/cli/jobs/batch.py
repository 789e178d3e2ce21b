"""`gpuyard batch`:

run the jobs of a file in waves, several on a GPU. With `--policy`, under one or several policies on a daemon of its
own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import DaemonOptions, Json, NoWait, argument, option, subcommand
from gpuyard.cli.jobs.job_options import Options, duration
from gpuyard.cli.parser import QuickGroup, command_group
from gpuyard.cli.terminal import output
from gpuyard.errors import GpuyardError, UserError
from gpuyard.spec.notation import ranges

if TYPE_CHECKING:
    from gpuyard.api.batch_types import BatchSummary, Taken
    from gpuyard.cli.jobs.batch_file import Batch, BatchSettings
    from gpuyard.cli.jobs.batch_results import Results
    from gpuyard.client.client import Client


_NAMES = ("gpu_usage.csv", "summary.json", "jobs.csv", "gantt.png", "comparison.png")
_METRICS = ("utilization", "memory_used", "power", "temperature", "memcopy")
_DAEMON_FOLDER = "yard"
Submit = Callable[["Client"], "str | None"]  # queues the batch; returns its id, or None if no row can run


@dataclass(frozen=True, slots=True)
class RunOptions:
    policy: Annotated[
        list[str] | None,
        option("--policy", "P", "Run it in a yard of its own, under this policy; several: one after another."),
    ] = None
    simulate_gpus: Annotated[
        str | None, option("--simulate-gpus", "2x16G", "With --policy: simulated GPUs for real ones.")
    ] = None
    out: Annotated[
        Path | None, option("--out", "DIR", "Write what the GPUs did: CSV, Gantt chart, plots.", file_okay=False)
    ] = None
    metrics: Annotated[str | None, option("--metrics", "A,B", "What is drawn: utilization, memory, power, all ...")] = (
        None
    )
    force: Annotated[bool, option("--force", "With --policy: also a trained one that has not passed its gate.")] = False
    no_plots: Annotated[bool, option("--no-plots", "Draw only who had which GPU when, and how policies compare.")] = (
        False
    )

    def check(self, **others: Any) -> None:
        if self.simulate_gpus is not None and not self.policy:
            raise UserError(
                "--simulate-gpus is for a yard of the batch's own: give --policy with it, as in --policy fcfs; a "
                "daemon that is up has its GPUs already"
            )
        if self.force and not self.policy:
            raise UserError("--force is for a trained policy: give --policy with it, as in --policy learned:FILE")
        if (self.metrics is not None or self.no_plots) and not self.policy and self.out is None:
            raise UserError("nothing is drawn without --out DIR: give that, or leave out --metrics and --no-plots")
        for flag, given in others.items():
            if given and (self.policy or self.out is not None):
                why = "runs to its end in a yard of its own" if self.policy else "is followed to its end, to be drawn"
                raise UserError(f"a batch with --{'policy' if self.policy else 'out'} {why}; leave out {flag}")

    def folder(self) -> Path:
        """Make the folder for files; files of an earlier run are refused."""
        from gpuyard.monitor.output_folder import prepare

        usual = Path(time.strftime("gpuyard-batch-%Y%m%d-%H%M%S"))
        return prepare(self.out or usual, _NAMES)

    def drawn(self) -> list[str]:
        from gpuyard.cli.monitoring.plot_sources import metrics_of

        if self.no_plots:
            return []
        return list(_METRICS) if self.metrics is None else metrics_of(self.metrics)


def run_under_policies(run_options: RunOptions, submit: Submit, json: bool) -> int:
    """Run a batch under each policy, on a daemon of its own; returns the exit code."""
    from gpuyard.cli.jobs.batch_results import compare
    from gpuyard.cli.monitoring.monitor_run import open_gpus
    from gpuyard.config import settings

    policies, drawn = _policies(run_options), run_options.drawn()
    simulated = settings({"simulate_gpus": run_options.simulate_gpus}).simulate_gpus or None
    open_gpus((simulated, "")).close()
    given = {"simulate_gpus": simulated or "", "record": "true", "force_policy": "true" if run_options.force else ""}
    out = run_options.folder()
    found: dict[str, Results] = {}
    folder = out
    try:
        for policy in policies:
            if len(policies) > 1:
                output.say(f"policy {policy}:")
            folder = out if len(policies) == 1 else out / policy.replace("/", "-")
            folder.mkdir(exist_ok=True)
            found[policy] = _run(policy, given, folder, submit, drawn, json)
    except KeyboardInterrupt:
        with suppress(OSError):  # there is something in it, which stays
            folder.rmdir()
            output.say("interrupted before anything ran")
            out.rmdir()
        raise SystemExit(130) from None
    if len(policies) > 1:
        compare(out, found, drawn)
    if json:
        document: dict[str, Any] = {policy: one.document for policy, one in found.items()}
        output.print_json(document[policies[0]] if len(policies) == 1 else {"policies": document})
    return max(one.code for one in found.values())


def _policies(run_options: RunOptions) -> list[str]:
    from gpuyard.policies.resolver import check_passed, make_planner, split_list

    found = list(dict.fromkeys(split_list(run_options.policy or [])))
    if not found:
        raise UserError("--policy names none; write for example --policy fcfs (gpuyard policies lists them)")
    for policy in found:
        make_planner(policy)
        if not run_options.force:
            check_passed(policy)
    return found


def _run(
    policy: str, settings: dict[str, str], folder: Path, submit: Submit, drawn: list[str], json: bool
) -> Results:  # fmt: skip
    """Run a batch under one policy, on a daemon that lives as long as the batch."""
    from gpuyard.cli.jobs.batch_results import keep_logs, summarise, write_files
    from gpuyard.experiments.private_daemon import private_daemon
    from gpuyard.spec.notation import absolute

    with private_daemon(folder / _DAEMON_FOLDER, {**settings, "policy": absolute(policy)}) as client:
        id = submit(client)
        if id is None:
            raise typer.Exit(1)
        interrupted = _follow_to_end(client, id, json)
        if not json:
            summarise(client, id, False)
        found = write_files(client, id, folder, drawn, policy)
        keep_logs(client, [one["id"] for one in found.document["outcomes"]], folder / "logs")
    if interrupted:
        raise KeyboardInterrupt
    return found


def _follow_to_end(client: Client, id: str, quiet: bool) -> bool:
    """Follow a batch; Ctrl-C cancels it and makes this True."""
    from gpuyard.cli.jobs.batch_results import follow

    try:
        follow(client, id, quiet)
    except KeyboardInterrupt:
        output.say("interrupted: the jobs and their yard are ended")
        with suppress(GpuyardError):  # it is over by now
            client.cancel_batch(id)
        follow(client, id, quiet=True)
        return True
    return False


_START = "start"
_OTHERS = "gpuyard batch follow, list, cancel and report see to batches that are there; each has a --help."


class BatchGroup(QuickGroup):
    """A group with a default command: `gpuyard batch FILE` starts a batch."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            args = [_START, *args]
        return super().parse_args(ctx, args)


app = command_group(
    "Run the jobs of a CSV, YAML or TOML file, several on a GPU, and tell what that achieved.",
    BatchGroup,
    subcommand_metavar="FILE | COMMAND [ARGS]...",
)
BatchId = Annotated[str | None, argument("[ID]", "The batch; your newest, if not said.", show_default=False)]
Words = Annotated[
    list[str] | None, argument("FILE | -- COMMAND ARGS", "The file; with --param-file, a command.", show_default=False)
]


@subcommand(app, _START, epilog=_OTHERS)
def start(
    daemon: DaemonOptions,
    options: Options,
    run_options: RunOptions,
    words: Words = None,
    num: Annotated[
        int | None, option("--num", "-N", "N", "Rows of a wave (20 for CSV); 0: all, by priority.", min=0)
    ] = None,
    header: Annotated[
        str, option("--header", "none|N", "No line of names, or which one, from 0 (found out).")
    ] = "auto",
    param_file: Annotated[
        str | None, option("--param-file", "FILE", "A CSV whose rows fill {column} in the command after --.")
    ] = None,
    no_profile: Annotated[
        bool, option("--no-profile", "Do not try out first what is not known; it gets a GPU alone.")
    ] = False,
    detach: Annotated[bool, option("--detach", "Print the batch's id, and do not follow it.")] = False,
    no_wait: NoWait = False,
    again: Annotated[bool, option("--again", "Start it though a batch of this file is open.")] = False,
    json: Json = False,
) -> None:
    """Queue the jobs of a file, follow them, and tell how they ended."""
    from gpuyard.cli.jobs.batch_file import BatchSettings

    flags: dict[str, Any] = {"--detach": detach}
    if run_options.policy:
        flags |= {"--again": again, "--host": daemon.host, "--data-dir": daemon.data_dir, "--socket": daemon.socket}
    run_options.check(**flags)
    client = None if run_options.policy else daemon.client(no_wait=no_wait)
    remote = client is not None and client.host is not None
    batch = _read(words or [], param_file, BatchSettings(options, num, header, not no_profile, remote))
    if client is None:
        raise typer.Exit(
            run_under_policies(run_options, lambda client: _submit(client, batch, True, json)["batch"], json)
        )
    metrics = run_options.drawn()
    drawn = None if run_options.out is None else (run_options.folder(), metrics)
    taken = _submit(client, batch, again, json)
    if taken["batch"] is None:
        raise typer.Exit(1)
    if detach:
        output.print_json(taken) if json else print(taken["batch"])
        return
    _follow(client, taken["batch"], json, drawn)


def _submit(client: Client, batch: Batch, again: bool, json: bool) -> Taken:
    """Submit a batch; with `json`, also print that no row can run."""
    taken = client.submit_batch(batch.jobs, batch.name, waves=batch.waves, same=batch.key, again=again)
    _print_submitted(batch, taken)
    if taken["batch"] is None and json:
        output.print_json(taken)
    return taken


def _read(words: list[str], param_file: str | None, settings: BatchSettings) -> Batch:
    from gpuyard.cli.jobs.batch_file import read_batch, read_sweep

    if settings.options.array:
        raise UserError("the jobs of a batch are in its file; leave out --array, or write it there")
    if param_file is not None:
        return read_sweep(param_file, words, settings)
    if len(words) != 1:
        what = "more than one file is given" if words else "no file is given"
        raise UserError(f"{what}; write gpuyard batch commands.csv (or --param-file sweep.csv -- COMMAND)")
    return read_batch(words[0], settings)


def _print_submitted(batch: Batch, taken: Taken) -> None:
    id = taken["batch"]
    if taken["open"]:
        output.say(f"batch {id} of this file is open, and is followed; --again starts another one")
        return
    for reason, rows in _reasons(taken):
        output.say(f"row{'s' * (len(rows) > 1)} {ranges(rows)}: refused: {reason}")
    if id is None:
        output.say("no row can run here, so there is nothing to do")
        return
    waves = max(job["row"].get("wave", 1) for job in batch.jobs)
    count = f"{output.many(len(taken['ids']), 'job')} in {output.many(waves, 'wave')}"
    output.say(f"batch {id} ({batch.name}): {count if batch.waves else output.many(len(taken['ids']), 'job')}")


def _reasons(taken: Taken) -> Iterable[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for one in taken["refused"]:
        found.setdefault(one["reason"], []).append(one["row"])
    return found.items()


def _follow(client: Client, id: str, json: bool, drawn: tuple[Path, list[str]] | None = None) -> None:
    """Follow a batch to its end; Ctrl-C leaves it running and says how to come back."""
    from gpuyard.cli.jobs.batch_results import follow, summarise

    try:
        follow(client, id, quiet=json)
    except KeyboardInterrupt:
        output.say(f"batch {id} goes on: gpuyard batch follow {id} follows it again, gpuyard batch cancel {id} ends it")
        raise SystemExit(130) from None
    if drawn is None:
        raise typer.Exit(summarise(client, id, json))
    from gpuyard.cli.jobs.batch_results import write_files

    if not json:
        summarise(client, id, False)
    found = write_files(client, id, *drawn)
    if json:
        output.print_json(found.document)
    raise typer.Exit(found.code)


@subcommand(app, "follow")
def follow_(daemon: DaemonOptions, id: BatchId = None, json: Json = False) -> None:
    """Follow a batch until it is over, and tell how its rows ended."""
    client = daemon.client()
    _follow(client, _chosen(client, id, open_first=True), json)


@subcommand(app, "list")
def list_(
    daemon: DaemonOptions,
    limit: Annotated[int, option("--limit", "N", "How many (100).", min=1, max=1000)] = 100,
    json: Json = False,
) -> None:
    """List batches, the newest first."""
    from gpuyard.cli.terminal.text_table import print_list

    heads = ("BATCH", "NAME", "USER", "SUBMITTED", "STATE", "ROWS", "HOW THEY STAND")
    found = daemon.client().batches(limit=limit)
    print_list(found, json, heads, _row, "there are no batches; gpuyard batch FILE starts one")


def _row(one: BatchSummary) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock

    states = {**one["states"], **({"refused": one["refused"]} if one["refused"] else {})}
    counts = ", ".join(f"{count:,} {state}" for state, count in states.items())
    submitted = clock(one["submitted_at"])
    return one["batch"], one["name"], one["user"], submitted, one["state"], f"{one['rows']:,}", counts


@subcommand(app, "cancel")
def cancel(
    daemon: DaemonOptions,
    id: Annotated[str, argument("ID", "The batch, as gpuyard batch list shows it.")],
    grace: Annotated[str | None, option("--grace", "TIME", "From SIGTERM to SIGKILL, as in 10s.")] = None,
) -> None:
    """End all rows of a batch that are not over."""
    found = daemon.client().cancel_batch(id, duration("--grace", grace))
    left = len(found["running"])
    output.say(f"batch {id} is given up" + (f"; {output.many(left, 'job')} of it will have ended soon" if left else ""))


@subcommand(app, "report")
def report(daemon: DaemonOptions, id: BatchId = None, json: Json = False) -> None:
    """Tell what a batch achieved, beside running its rows one after another."""
    from gpuyard.cli.jobs.batch_results import report_lines

    client = daemon.client()
    found = client.batch_report(_chosen(client, id))
    output.print_either(json, found, lambda: print("\n".join(report_lines(found))))


def _chosen(client: Client, id: str | None, open_first: bool = False) -> str:
    if id is not None:
        return id
    found = client.batches(user=client.who_am_i()["user"], limit=100)
    if not found:
        raise UserError("you have no batches; gpuyard batch FILE starts one")
    newest = [one for one in found if one["state"] == "open"] if open_first else []
    return (newest or found)[0]["batch"]
