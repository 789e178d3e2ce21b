"""A batch in a yard of its own, under a policy or several: `gpuyard batch FILE --policy P --out DIR`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.cli.batchresults import Results
    from gpuyard.client import Client

_NAMES = ("gpu_usage.csv", "summary.json", "jobs.csv", "gantt.png", "comparison.png")
_DRAWN = ("utilization", "memory_used", "power", "temperature", "memcopy")
_YARD = "yard"
Submit = Callable[["Client"], "str | None"]
"""Queues the batch; its id, or None if no row of it can run."""


@dataclass(frozen=True, slots=True)
class Own:
    """What a batch leaves, and where it runs."""

    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", metavar="P", help="Run it in a yard of its own, under this policy; several: one after another."
        ),
    ] = None
    simulate_gpus: Annotated[
        str | None,
        typer.Option("--simulate-gpus", metavar="2x16G", help="With --policy: simulated GPUs for real ones."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", file_okay=False, help="Write what the GPUs did: CSV, Gantt chart, plots."),
    ] = None
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="A,B", help="What is drawn: utilization, memory, power, all ...")
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="With --policy: also a trained one that has not passed its gate.")
    ] = False
    no_plots: Annotated[
        bool, typer.Option("--no-plots", help="Draw only who had which GPU when, and how policies compare.")
    ] = False

    def check(self, **others: Any) -> None:
        """Refuse options that mean nothing together."""
        if self.simulate_gpus is not None and not self.policy:
            raise UserError(
                "--simulate-gpus is for a yard of the batch's own: give --policy with it, as in --policy fcfs; a "
                "daemon that is up has its GPUs already"
            )
        if self.force and not self.policy:
            raise UserError("--force is for a trained policy: give --policy with it, as in --policy learned:FILE")
        if (self.metrics is not None or self.no_plots) and not self.policy and self.out is None:
            raise UserError("nothing is drawn without --out DIR: give that, or leave out --metrics and --no-plots")
        for option, given in others.items():
            if given and (self.policy or self.out is not None):
                why = "runs to its end in a yard of its own" if self.policy else "is followed to its end, to be drawn"
                raise UserError(f"a batch with --{'policy' if self.policy else 'out'} {why}; leave out {option}")

    def folder(self) -> Path:
        """Where files go; it is there, and nothing of an earlier run is in the way."""
        from gpuyard.monitor.folder import prepare

        usual = Path(time.strftime("gpuyard-batch-%Y%m%d-%H%M%S"))
        return prepare(self.out or usual, _NAMES)

    def drawn(self) -> list[str]:
        """The metrics to draw."""
        from gpuyard.cli.plotting import metrics_of

        if self.no_plots:
            return []
        return list(_DRAWN) if self.metrics is None else metrics_of(self.metrics)


def run_under_policies(own: Own, submit: Submit, json: bool) -> int:
    """Run a batch in a yard of its own for each policy; the exit code."""
    from gpuyard.cli.batchresults import compare
    from gpuyard.cli.monitoring import open_gpus
    from gpuyard.config import settings

    policies, drawn = _policies(own), own.drawn()
    simulated = settings({"simulate_gpus": own.simulate_gpus}).simulate_gpus or None
    open_gpus((simulated, "")).close()
    given = {"simulate_gpus": simulated or "", "record": "true", "force_policy": "true" if own.force else ""}
    out = own.folder()
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
        told: dict[str, Any] = {policy: one.told for policy, one in found.items()}
        output.print_json(told[policies[0]] if len(policies) == 1 else {"policies": told})
    return max(one.code for one in found.values())


def _policies(own: Own) -> list[str]:
    """Those that are named, each once; a mistake is told before anything runs."""
    from gpuyard.policyfile import check_passed, make_planner, split_list

    found = list(dict.fromkeys(split_list(own.policy or [])))
    if not found:
        raise UserError("--policy names none; write for example --policy fcfs (gpuyard policies lists them)")
    for policy in found:
        make_planner(policy)
        if not own.force:
            check_passed(policy)
    return found


def _run(
    policy: str, settings: dict[str, str], folder: Path, submit: Submit, drawn: list[str], json: bool
) -> Results:  # fmt: skip
    """One policy: a yard that is there for as long as the batch lasts."""
    from gpuyard.cli.batchresults import keep_logs, write_files
    from gpuyard.cli.batchscreen import summarise  # before anything runs: an import is no place to be interrupted in
    from gpuyard.experiments.ownyard import own_yard
    from gpuyard.policytext import absolute

    with own_yard(folder / _YARD, {**settings, "policy": absolute(policy)}) as client:
        id = submit(client)
        if id is None:
            raise typer.Exit(1)
        interrupted = _followed(client, id, json)
        if not json:
            summarise(client, id, False)
        found = write_files(client, id, folder, drawn, policy)
        keep_logs(client, [one["id"] for one in found.told["outcomes"]], folder / "logs")
    if interrupted:
        raise KeyboardInterrupt
    return found


def _followed(client: Client, id: str, quiet: bool) -> bool:
    """Follow a batch to its end, or end it for whoever has had enough; whether so."""
    from gpuyard.cli.batchscreen import follow

    try:
        follow(client, id, quiet)
    except KeyboardInterrupt:
        output.say("interrupted: the jobs and their yard are ended")
        with suppress(GpuyardError):  # it is over by now
            client.cancel_batch(id)
        follow(client, id, quiet=True)
        return True
    return False
