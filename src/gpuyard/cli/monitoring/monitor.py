"""`gpuyard monitor`: the command and its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, option_groups
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHORTEST = 0.05  # seconds: a driver does not measure more often

Command = Annotated[list[str] | None, argument("[-- COMMAND ARGS]", "What to run and watch.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Target:
    """What is watched, if it is not a command."""

    pid: Annotated[int | None, option("--pid", "PID", "A process, and what it starts, until it ends.", min=1)] = None
    job: Annotated[str | None, option("--job", "ID", "A job of the daemon's, until it is over; or what it was.")] = None
    gpu: Annotated[str | None, option("--gpu", "--gpus", "0,1", "Only these GPUs; alone: until Ctrl-C, or --for.")] = (
        None
    )
    since: Annotated[str | None, option("--since", "WHEN", "What GPUs did since: 1h ago, a time, a date.")] = None
    for_: Annotated[str | None, option("--for", "TIME", "Watch for so long, as in 30s.")] = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    source: Annotated[
        str | None,
        option("--source", "SOURCE", "For --job and --since: recordings (the daemon's), prometheus, FILE.csv."),
    ] = None
    url: Annotated[str | None, option("--url", "URL", "Where Prometheus is ($GPUYARD_PROMETHEUS_URL).")] = None
    simulate_gpus: Annotated[
        str | None, option("--simulate-gpus", "1x16G", "Simulated GPUs in place of real ones.")
    ] = None
    simulate_use: Annotated[
        str | None, option("--simulate-use", "USE", "What the command uses of them: ramp:1G,2G,4G.")
    ] = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    out: Annotated[Path | None, option("--out", "DIR", "Where files go (./gpuyard-monitor-TIME).", file_okay=False)] = (
        None
    )
    period: Annotated[str, option("--period", "TIME", "From one row to the next (1s).")] = "1s"
    metrics: Annotated[str | None, option("--metrics", "A,B", "What is drawn: utilization, memory, power, all ...")] = (
        None
    )
    no_plots: Annotated[bool, option("--no-plots", "Draw nothing.")] = False
    live: Annotated[bool, option("--live", "Show GPUs on the terminal also while a command of yours writes there.")] = (
        False
    )


@option_groups
def monitor(
    daemon: DaemonOptions,
    target: Target,
    origin: SourceOptions,
    outputs: OutputOptions,
    command: Command = None,
    json: Json = False,
) -> None:
    """Run a command, or watch a process, a job or GPUs, and write a CSV and plots of what GPUs did."""
    words = list(command or ())
    _check(words, target, origin)
    period = _time("--period", outputs.period, _SHORTEST)
    from gpuyard.cli.monitoring import monitor_run

    settings = monitor_run.MonitorSettings(
        outputs.out, period, outputs.metrics, not outputs.no_plots, outputs.live, json
    )
    if words:
        machine = _machine(origin, words)
        _check_program(words[0])
        raise SystemExit(monitor_run.watch_command(words, target.gpu, machine, settings))
    if target.job is not None or target.since is not None:
        monitor_run.read_recordings(daemon, target.job, target.since, target.gpu, (origin.source, origin.url), settings)
        return
    seconds = None if target.for_ is None else _time("--for", target.for_, 0.0)
    monitor_run.watch_gpus(target.pid, target.gpu, seconds, _machine(origin, words), settings)


def _machine(origin: SourceOptions, words: Sequence[str]) -> tuple[str | None, str]:
    import os

    from gpuyard.config import settings
    from gpuyard.gpus.simulated import said_use

    simulated = settings({"simulate_gpus": origin.simulate_gpus}).simulate_gpus or None
    if origin.simulate_use and simulated is None:
        raise UserError("--simulate-use is for simulated GPUs; name some by --simulate-gpus 1x16G, or leave it out")
    return simulated, said_use(origin.simulate_use, os.environ, words, simulated=simulated is not None)


def _check(words: Sequence[str], target: Target, origin: SourceOptions) -> None:
    targets = {
        "a command": words, "--pid": target.pid, "--job": target.job, "--since": target.since,
    }  # fmt: skip
    given = [name for name, value in targets.items() if value]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are two things to watch; give one of them")
    what = given[0] if given else ""
    if not what and target.gpu is None and target.for_ is None:
        raise UserError(
            "there is nothing to watch; put a command after --, as in: gpuyard monitor -- python train.py, or name "
            "--pid PID, --job ID, --gpu 0,1 or --since 1h"
        )
    if target.for_ is not None and what not in ("", "--pid"):
        raise UserError(f"--for is for GPUs, or for --pid; with {what} the end is known, so leave it out")
    if target.gpu is not None and what == "--job":
        raise UserError("--job knows its GPUs; leave out --gpu")
    if what not in ("--job", "--since"):
        if origin.source is not None or origin.url is not None:
            option = "--source" if origin.source is not None else "--url"
            raise UserError(
                f"{option} tells of the past: give --since 1h or --job ID with it; the present is looked at"
            )
    elif origin.simulate_gpus is not None or origin.simulate_use is not None:
        raise UserError(f"--simulate-gpus is for what is watched now; {what} is about GPUs that there were")
    if origin.simulate_use is not None and what != "a command":
        raise UserError("--simulate-use says what a command uses; put that after --")


def _time(option: str, text: str, least: float) -> float:
    from gpuyard.units import parse_duration

    try:
        seconds = parse_duration(text)
    except UserError as error:
        raise UserError(f"{option}: {error}") from None
    if not least <= seconds < float("inf") or seconds == 0:
        bound = f"at least {least:g} s" if least else "above 0"
        raise UserError(f"{option} is {bound}, not {text}")
    return seconds


def _check_program(word: str) -> None:
    import os
    import shlex
    import shutil

    if not word or shutil.which(word) is None:
        if "/" in word and os.access(word, os.F_OK):
            if Path(word).is_dir():
                raise UserError(f"'{word}' is a folder, and no program to run")
            raise UserError(f"'{word}' may not be executed; chmod +x {shlex.quote(word)} lets it")
        quoted = f"; write its words without quotes, as in: gpuyard monitor -- {word}" if " " in word else ""
        raise UserError(f"there is no program '{word}' to run{quoted or '; check its name'}")
