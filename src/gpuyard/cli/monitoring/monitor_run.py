"""A run of `gpuyard monitor`: watch a command, a process, a job or GPUs, and write CSV and plots."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.cli.common_options import past_time
from gpuyard.cli.terminal import output
from gpuyard.cli.terminal.live_view import LiveView
from gpuyard.cli.terminal.styled_lines import Line, Piece, table, text_columns
from gpuyard.cli.terminal.text_table import lines
from gpuyard.errors import UserError
from gpuyard.units import format_duration, format_plain, format_size

if TYPE_CHECKING:
    from gpuyard.api.types import Job
    from gpuyard.cli.common_options import DaemonOptions
    from gpuyard.client.client import Client
    from gpuyard.gpus.base import Device, Gpus, Reading
    from gpuyard.monitor.live import GpuWatch
    from gpuyard.monitor.output_folder import UsageCsv
    from gpuyard.recordings.series import Recording

_DRAWN = ("utilization", "memory_used", "process_memory", "memcopy", "power", "temperature")


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    out: Path | None
    period: float
    metrics: str | None
    plots: bool
    live: bool
    json: bool

    def drawn(self) -> list[str]:
        from gpuyard.cli.monitoring.plot_sources import metrics_of

        return list(_DRAWN) if self.metrics is None else list(metrics_of(self.metrics))

    def folder(self) -> Path:
        """Make the folder for files; files of an earlier run are refused."""
        from gpuyard.monitor.output_folder import prepare, usual_folder

        return prepare(self.out or usual_folder())


@dataclass(frozen=True, slots=True)
class Result:
    recording: Recording
    who: str
    facts: dict[str, Any]  # facts for the summary besides the metrics
    span: tuple[float, float] | None = None  # when it began and ended
    recorded: bool = False  # whether it is the daemon's recording, which has fewer samples of idle GPUs
    energy: float | None = None  # its own watt-hours, if the daemon knows them


def watch_command(
    words: Sequence[str], gpu: str | None, machine: tuple[str | None, str], settings: MonitorSettings
) -> int:
    """Run a command and watch it; returns its exit code, as a shell has it."""
    from gpuyard.monitor.monitored_command import Command, shell_code

    command = Command()  # before numpy is imported, which starts threads that would take its signals
    try:
        drawn, who = settings.drawn(), _label(words)
        gpus = open_gpus(machine)
        from gpuyard.monitor.monitored_command import ChildTree

        watching, out, csv = _start_watch(gpus, gpu, settings, ChildTree(), who)
        try:
            command.start(words)
        except UserError:
            _undo(out, csv)
            raise
        if occupy := getattr(gpus, "occupy", None):
            occupy(command.pid, who)
        began = watching.now()
        code = _watch(lambda look: command.wait(look, watching.every), watching, settings.live)
        ended = watching.now()
        if leave := getattr(gpus, "leave", None):
            leave()
        watching.look(row=True)
    finally:
        command.release()
    csv.close()
    exit_code = shell_code(code)
    facts = {
        "command": [_readable(word) for word in words],
        "exit_code": exit_code,
        "signal": output.signal_name(code),
        **_span(began, ended, settings.period),
    }
    failed = _finish(out, Result(watching.recording(), who, facts, (began, ended)), drawn, settings)
    return exit_code or failed


def watch_gpus(
    pid: int | None, gpu: str | None, seconds: float | None, machine: tuple[str | None, str], settings: MonitorSettings
) -> None:
    from gpuyard.engines.local.processes import hold
    from gpuyard.monitor.monitored_command import ForeignTree, interruptions, watch

    pidfd = None if pid is None else hold(pid)
    if pid is not None and pidfd is None:
        raise UserError(f"there is no process {pid}; see ps for those that there are")
    drawn, who = settings.drawn(), "GPUs" if pid is None else f"pid {pid}"
    gpus = open_gpus(machine)
    tree = None if pid is None else ForeignTree(pid)
    with interruptions() as woken:  # from the first sample on: what there is of it is written
        watching, out, csv = _start_watch(gpus, gpu, settings, tree, who)
        if seconds is None and pidfd is None:
            output.say("Ctrl-C ends it")
        began = watching.now()
        interrupted = _watch(
            lambda look: watch(look, watching.every, woken, seconds=seconds, pidfd=pidfd), watching, live=True
        )  # fmt: skip
    watching.look(row=True)
    ended = watching.now()
    csv.close()
    if pidfd is not None:
        os.close(pidfd)
    facts = {"pid": pid, "interrupted": interrupted, **_span(began, ended, settings.period)}
    _finish(out, Result(watching.recording(), who, facts, (began, ended)), drawn, settings)


def read_recordings(
    daemon: DaemonOptions, id: str | None, since: str | None, gpu: str | None, origin: tuple[str | None, str | None],
    settings: MonitorSettings,
) -> None:  # fmt: skip
    """What a source has of a job, after its end, or of GPUs since some time."""
    from gpuyard.cli.monitoring.plot_sources import named_gpus
    from gpuyard.monitor.output_folder import refuse_used
    from gpuyard.monitor.sources import open_source
    from gpuyard.monitor.tracks import HELD, to_edges
    from gpuyard.recordings.series import METRICS

    drawn = settings.drawn()
    if settings.out is not None:
        refuse_used(settings.out)  # before a job is followed for hours
    source = open_source(origin[0] or "recordings", daemon.client, url=origin[1] or "")
    recorded = origin[0] in (None, "recordings")
    job = None if id is None else _follow(daemon.client(), id)
    start, end = _since(since or "") if job is None else _window(job)
    gpus = named_gpus(gpu) if job is None else [str(index) for index in job["gpus"]]
    earlier = HELD if recorded and job is None else 0.0
    found = source.read(
        list(METRICS), start - earlier, end, gpus=gpus, job="" if job is None else job["id"], step=settings.period
    )  # fmt: skip
    recording = to_edges(found, start, end) if recorded else found
    if not recording.series:
        why = "; ".join(recording.warnings) or "nothing was recorded then"
        raise UserError(f"{source.name} tells nothing of that time: {why}")
    facts = {"source": source.name, **_span(start, end, None)}
    result = (
        Result(recording, "GPUs", facts, recorded=recorded) if job is None else _of_job(job, recording, facts, recorded)
    )
    _finish(settings.folder(), result, drawn, settings)


def _of_job(job: Job, recording: Recording, facts: dict[str, Any], recorded: bool) -> Result:
    own = {"job": job["id"], "command": job["command"], "state": job["state"], "exit_code": job["exit_code"]}
    energy = job.get("energy_wh") if job["attempt"] == 1 else None  # of several attempts, it is that of all
    who = f"job {job['id']} ({job['name'] or 'no name'})"
    return Result(recording, who, facts | own, _window(job), recorded, energy)


def open_gpus(machine: tuple[str | None, str]) -> Gpus:
    from gpuyard.gpus.base import GpusUnavailable

    simulated, use = machine
    if simulated is not None:
        from gpuyard.gpus.simulated import SimulatedGpus, parse_use
        from gpuyard.monitor.sources.simulated_gpus import ModelledGpus

        found = SimulatedGpus.parse(simulated)
        output.say(f"{output.many(len(found.devices), 'simulated GPU')}: no real GPU is looked at")
        return ModelledGpus(found, parse_use(use) if use else None)
    from gpuyard.gpus import open_gpus as find

    try:
        return find()
    except GpusUnavailable as error:
        why = str(error).partition(", or try gpuyard")[0]
        raise UserError(
            f"there is no GPU to look at here: {why}; or try it with a simulated one: --simulate-gpus 1x16G"
        ) from error


def _start_watch(
    gpus: Gpus, chosen: str | None, settings: MonitorSettings, tree: Any, who: str
) -> tuple[GpuWatch, Path, UsageCsv]:
    from gpuyard.monitor.live import GpuWatch
    from gpuyard.monitor.output_folder import USAGE, UsageCsv
    from gpuyard.units import parse_indices

    only = [] if chosen is None else parse_indices(chosen)
    for index in only:
        if index >= len(gpus.devices):
            have = f"0 to {len(gpus.devices) - 1}" if len(gpus.devices) > 1 else "0 only"
            raise UserError(f"--gpu {chosen}: there is no GPU {index} here, but {have}")
    out = settings.folder()
    csv = UsageCsv(out / USAGE)
    return GpuWatch(gpus, settings.period, csv, only=only, tree=tree, who=who), out, csv


def _undo(out: Path, csv: UsageCsv) -> None:
    """Remove the files of a run that did not begin."""
    from gpuyard.monitor.output_folder import USAGE

    csv.close()
    (out / USAGE).unlink()
    with suppress(OSError):  # it held other files before
        out.rmdir()


def _watch(wait: Callable[[Callable[[], None]], Any], watching: GpuWatch, live: bool) -> Any:
    """Call `wait` with a function that takes a sample, and show a live view if `live`."""
    watching.look()
    with LiveView(_picture, to_stderr=True, live=live) as view:

        def look() -> None:
            watching.look()
            view.show(watching)

        return wait(look)


def _finish(out: Path, result: Result, drawn: Sequence[str], settings: MonitorSettings) -> int:
    """Write and print the result; returns 1 if not all could be written."""
    from gpuyard.monitor import output_folder
    from gpuyard.monitor.tracks import HELD
    from gpuyard.recordings.series import Mark

    recording, who = result.recording, result.who
    if result.span is not None and not any(mark.until is not None for mark in recording.marks):
        recording.marks.append(Mark(result.span[0], who, until=result.span[1]))
    summary = _summary(result)
    problem, held = "", HELD if result.recorded else 0.0
    try:
        files = [*output_folder.write_recorded(out, recording, held=held), output_folder.write_summary(out, summary)]
        files += output_folder.write_drawn(out, recording, who, drawn) if settings.plots else []
    except OSError as error:
        files, problem = [], f"not all could be written to {out}: {error.strerror or error}"
    if settings.json:
        output.print_json({**summary, "files": [str(path) for path in files]})
    print_summary(summary, who, out, files)
    if problem:
        output.say(f"gpuyard: error: {problem}")
    return int(bool(problem))


def _summary(result: Result) -> dict[str, Any]:
    from gpuyard.monitor.summaries import gpu_summaries, used_energy

    gpus = gpu_summaries(result.recording)
    all_processes = all(result.facts.get(key) is None for key in ("command", "pid", "job"))
    for gpu in gpus:
        gpu["used"] |= all_processes or "job" in result.facts  # a recording of a job has only its own GPUs
        if all_processes:
            gpu["peak_process_memory"] = None  # of one unknown process
    return {
        "simulated": result.recording.simulated,
        **result.facts,
        "gpus": gpus,
        "energy_wh": used_energy(gpus) if result.energy is None else result.energy,
        "energy_of": [gpu["index"] for gpu in gpus if gpu["used"]],
        "warnings": result.recording.warnings,
    }


def _follow(client: Client, id: str) -> Job:
    from gpuyard.api.types import OVER
    from gpuyard.client.retry import patiently

    job = client.job(id)
    if "tasks" in job:
        raise UserError(f"{id} is an array; name one of its tasks, as gpuyard ps lists them")
    if job["state"] in OVER:
        return job
    output.say(f"job {id} is {job['state']}, and is followed to its end; Ctrl-C writes what there is")
    try:
        while job["state"] not in OVER:
            job = patiently(client.job, id, wait=30.0, say=output.say)
    except KeyboardInterrupt:
        output.say(f"job {id} goes on; this is what it did so far")
    return client.job(id)


def _window(job: Job) -> tuple[float, float]:
    from gpuyard.cli.monitoring.plot_sources import window_of

    if (window := window_of(job)) is None:
        raise UserError(f"job {job['id']} has not run ({job['state']}), so there is nothing to tell of it")
    return window


def _since(text: str) -> tuple[float, float]:
    start, end = past_time(text).timestamp(), datetime.now(UTC).timestamp()
    if not start < end:
        raise UserError(f"--since {text} is not in the past; write for example 1h")
    return start, end


def _span(began: float, ended: float, period: float | None) -> dict[str, Any]:
    started_at, ended_at = (datetime.fromtimestamp(at, UTC).isoformat() for at in (began, ended))
    found = {"started_at": started_at, "ended_at": ended_at, "seconds": round(ended - began, 3)}
    return found if period is None else {**found, "period": period}


def _label(words: Sequence[str]) -> str:
    """`python train.py`: short enough for a legend, and without arguments that may be secret."""
    words = [_readable(word) for word in words]
    name = os.path.basename(words[0])
    script = words[1] if len(words) > 1 and not words[1].startswith("-") and " " not in words[1] else ""
    found = shlex.join([name, os.path.basename(script)] if script else [name])
    return found if len(found) <= 40 else f"{found[:39]}…"


def _readable(word: str) -> str:
    """A word of a command line as text, whatever bytes it has."""
    return os.fsencode(word).decode(errors="replace")


_HEADS = {"GPU": 9, "NAME": 4, "BUSY": 8, "MEMORY": 7, "OF THAT ITS OWN": 6, "POWER": 5, "TEMPERATURE": 3}


def _picture(watching: GpuWatch, width: int) -> list[Line]:
    gpus = zip(watching.devices, watching.readings, strict=True)
    columns = text_columns(_HEADS, [_cells(*gpu, watching.own) for gpu in gpus], soft=("NAME",))
    head, rows = table(columns, width)
    return [[Piece(head)], *rows]


def _cells(device: Device, reading: Reading, own: Mapping[int, int]) -> Sequence[str]:
    if reading.lost:
        return str(device.index), device.name, "does not answer", "", "", "", ""
    total = f" of {format_size(device.memory)}" if device.memory else ""
    return (
        str(device.index),
        device.name,
        _form(reading.utilization, "{:.0f}%"),
        f"{format_size(reading.memory_used)}{total}",
        format_size(own[device.index]) if own.get(device.index) else "-",
        _form(reading.power, "{:.0f} W"),
        _form(reading.temperature, "{:.0f} °C"),
    )


def _form(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def print_summary(summary: Mapping[str, Any], who: str, out: Path, files: Sequence[Path]) -> None:
    """Print the result to stderr: stdout belongs to the command."""
    for sentence in summary["warnings"]:
        output.say(f"gpuyard: warning: {sentence}")
    gpus = summary["gpus"]
    output.say(_head(summary, who))
    heads = ("GPU", "NAME", "MEMORY", "ITS OWN", "BUSY", "AT MOST", "TEMP.", "POWER", "ENERGY")
    starred = _has_processes(summary)
    output.say("\n".join(lines(heads, [_row(gpu, starred) for gpu in gpus], None)))
    output.say(_energy(summary))
    if files:
        output.say(f"written to {out}: {', '.join(path.name for path in files)}")


def _head(summary: Mapping[str, Any], who: str) -> str:
    took = format_duration(round(summary["seconds"], 1))
    ended = f"exit code {summary['exit_code']}" if summary.get("exit_code") is not None else ""
    if summary.get("signal"):
        ended = f"ended by {summary['signal']}"
    if summary.get("state"):
        ended = summary["state"] + (f", {ended}" if ended and summary["state"] == "failed" else "")
    simulated = "; simulated GPUs" if summary["simulated"] else ""
    return f"{who}: {ended + ', ' if ended else ''}{took}{simulated}"


def _row(gpu: Mapping[str, Any], starred: bool) -> Sequence[str]:
    return (
        f"{gpu['host']}{':' * bool(gpu['host'])}{gpu['index']}{'*' * (starred and gpu['used'])}",
        gpu["name"],
        output.size(gpu["peak_memory"]),
        output.size(gpu["peak_process_memory"]),
        _form(gpu["utilization_mean"], "{:.0f}%"),
        _form(gpu["utilization_max"], "{:.0f}%"),
        _form(gpu["temperature_max"], "{:.0f} °C"),
        _form(gpu["power_mean"], "{:.0f} W"),
        watt_hours(gpu["energy_wh"]) or "-",
    )


def _energy(summary: Mapping[str, Any]) -> str:
    used, amount = summary["energy_of"], watt_hours(summary["energy_wh"])
    energy = f"; {'its own ' if summary.get('job') else ''}energy {amount}" if amount else ""
    if not _has_processes(summary):
        return f"of all that ran there, whoever's it was{energy}"
    if not used:
        return "none of its processes was seen on a GPU"
    which = f"GPU{'s' * (len(used) > 1)} {', '.join(map(str, used))}"
    return f"* {which}: used by it{energy}"


def watt_hours(value: float | None) -> str:
    """`0.7569 Wh`, `11,801 Wh`."""
    return "" if value is None else f"{format_plain(value)} Wh"


def _has_processes(summary: Mapping[str, Any]) -> bool:
    return any(summary.get(key) is not None for key in ("command", "pid", "job"))
