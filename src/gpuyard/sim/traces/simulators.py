"""Workload files of other simulators: Gavel (and Shockwave), Pollux, Tiresias and Batsim."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import RULES, Jobs, Rule, name_of
from gpuyard.sim.traces.gather import Gathered, value
from gpuyard.sim.traces.source import Source, first_line, quoted

DEFAULT_TYPE = "v100"
_WIDTHS = (10, 11)  # columns of a line; Shockwave has one more, the mode, before the weight
_LARGEST = 1 << 28
_GAVEL_COLUMNS = ("submit", "run", "gpus", "weight", "deadline")
_GAVEL_CALLED = {
    "submit": "arrival time",
    "run": "total_steps / throughput",
    "gpus": "scale_factor",
    "weight": "weight",
}
Throughputs = dict[tuple[str, int], float]


def is_gavel(head: str) -> bool:
    row = first_line(head).split("\t")
    return len(row) in _WIDTHS and row[5].strip().isdecimal() and row[6].strip().isdecimal()


def read_gavel(source: Source) -> Trace:
    """Jobs in file order, numbered from 1; each runs alone on GPUs of one type, for as long as its steps take."""
    kind = source.option or DEFAULT_TYPE
    speeds = _throughputs(source, kind)
    jobs = Gathered(source, "gavel", _GAVEL_COLUMNS, ("job_type", "mode"), _GAVEL_CALLED)
    number = 0
    for line, text in source.lines():
        row = [cell.strip() for cell in text.rstrip("\r\n").split("\t")]
        if row == [""]:
            continue
        number += 1
        if len(row) not in _WIDTHS:
            raise source.error(line, f"a line has 10 or 11 columns parted by tabs, this one has {len(row)}")
        try:
            _add_gavel(jobs, line, number, row, speeds, kind)
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace()


def _add_gavel(jobs: Gathered, line: int, number: int, row: list[str], speeds: Throughputs, kind: str) -> None:
    steps, gpus = value(row[5], "total_steps"), value(row[6], "scale_factor")
    weight, slo, arrival = value(row[-3], "weight"), value(row[-2], "SLO"), value(row[-1], "arrival time")
    if gpus < 1 or not gpus.is_integer():
        raise UserError(f"scale_factor must be a whole number of GPUs, not {row[6]}")
    if (row[0], 1) not in speeds:
        raise UserError(f"no throughput is known of {quoted(row[0])} on {kind}")
    speed = speeds.get((row[0], int(gpus)), 0.0)
    if speed <= 0:  # it did not fit into the memory of such GPUs, or it was not measured
        jobs.drop(f"no throughput on {kind}")
        return
    run = steps / speed
    # An SLO is a multiple of the run time; -1 says that there is none.
    deadline = arrival + slo * run if slo > 0 else math.inf
    mode = row[7] if len(row) == max(_WIDTHS) else ""
    jobs.add(line, str(number), (arrival, run, gpus, weight, deadline), (row[0], mode))


def _throughputs(source: Source, kind: str) -> Throughputs:
    if source.path is None:
        raise UserError("a Gavel trace needs the throughputs beside it, so it cannot come from standard input")
    folder = source.path.resolve().parent
    found = [path for path in sorted(folder.glob("*.json")) if _looks_measured(path)]
    if not found:
        raise UserError(
            f"{source.name} counts training steps; put Gavel's throughputs beside it, "
            "such as physical_cluster_throughputs.json, to turn them into run times"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{source.name}: several files beside it hold throughputs, keep one there: {names}")
    measured = _loaded_gavel(found[0])
    if kind not in measured:
        raise UserError(
            f"{found[0].name} has no GPU type '{kind}'{suggest(kind, measured)}; "
            f"write --format gavel:TYPE, with TYPE one of {', '.join(measured)}"
        )
    return _alone(found[0], measured[kind])


def _looks_measured(path: Path) -> bool:
    """Whether a JSON file starts like {"v100": {"('ResNet-18 (batch size 16)', 1)": ...."""
    try:
        with path.open("rb") as stream:
            return b"\"('" in stream.read(4096) and path.stat().st_size <= _LARGEST
    except OSError:
        return False


def _loaded_gavel(path: Path) -> dict[str, Any]:
    try:
        measured = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        raise UserError(f"{path} cannot be read as JSON") from None
    if not isinstance(measured, dict):
        raise UserError(f"{path} must be a JSON object: GPU type, then job type, then throughputs")
    return measured


def _alone(path: Path, jobs: Any) -> Throughputs:
    """The throughputs of jobs that share their GPUs with no other: those under `null`."""
    speeds: Throughputs = {}
    for key, partners in jobs.items() if isinstance(jobs, dict) else ():
        name, comma, scale = key.removeprefix("('").removesuffix(")").rpartition("', ")
        speed = partners.get("null") if isinstance(partners, dict) else None
        if comma and scale.isdecimal() and isinstance(speed, int | float) and math.isfinite(speed):
            speeds[name, int(scale)] = float(speed)
    if not speeds:
        raise UserError(f"{path} holds no throughputs of jobs that run alone ('null')")
    return speeds


_POLLUX_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
_POLLUX_REQUIRED = ("name", "time", "num_replicas")
_POLLUX_CALLED = {"job": "name", "submit": "time", "run": "duration", "gpus": "num_replicas"}


def is_pollux(head: str) -> bool:
    return cells.has_columns(first_line(head), _POLLUX_COLUMNS, 4)


def read_pollux(source: Source) -> Trace:
    found = cells.rows(source)
    names = cells.header(source, found, _POLLUX_REQUIRED)
    if "duration" not in names:
        raise UserError(
            f"{source.name} is a Pollux workload, which does not say how long its jobs run: that follows from the "
            "throughputs measured for Pollux and from its choice of batch sizes; add a column 'duration' in seconds"
        )
    labels = tuple(name for name in ("application", "batch_size") if name in names)
    pick, where = cells.picker(names, (*_POLLUX_REQUIRED, "duration")), [names.index(name) for name in labels]
    jobs = Gathered(source, "pollux", labels=labels, called=_POLLUX_CALLED)

    def add(line: int, row: list[str]) -> None:
        name, time, replicas, duration = pick(row)
        numbers = value(time, "time"), value(duration, "duration"), value(replicas, "num_replicas")
        jobs.add(line, name, numbers, tuple([row[place] for place in where]))

    jobs.each(found, add)
    return jobs.trace()


_TIRESIAS_LABELS = MappingProxyType({"job": "job_id", "submit": "submit_time", "run": "duration", "gpus": "num_gpu"})


def is_tiresias(head: str) -> bool:
    """A header with at least two of the four columns: a missing one is then reported by name."""
    return cells.has_columns(first_line(head), tuple(_TIRESIAS_LABELS.values()), 2)


def read_tiresias(source: Source) -> Trace:
    """Jobs in file order; nothing is known about requested times, users or priorities."""
    found = cells.rows(source)
    names = cells.header(source, found, tuple(_TIRESIAS_LABELS.values()))
    jobs = Jobs(source, _TIRESIAS_LABELS)
    for line, row in found:
        jobs.add(line, dict(zip(names, row, strict=True)))
    return jobs.trace("tiresias")


_BATSIM_COUNT = Rule(low=1.0, high=RULES["gpus"].high)


def is_batsim(head: str) -> bool:
    """A JSON object; one whole object per line is jsonl, which is asked first."""
    return first_line(head).startswith("{")


def read_batsim(source: Source) -> Trace:
    """Jobs in file order. A job runs for its delay, or until Batsim kills it at its walltime."""
    workload = _loaded_batsim(source)
    profiles = workload.get("profiles", {})
    listed = workload.get("jobs")
    if not isinstance(listed, list) or not isinstance(profiles, dict):
        raise UserError(f"{source.name}: a Batsim workload needs a list 'jobs' and an object 'profiles'")
    rows: dict[str, tuple[float, float, float, float]] = {}
    for position, job in enumerate(listed):
        name = _name_batsim(source, position, job)
        if name in rows:
            raise UserError(f"{source.name}: two jobs have the id {quoted(name)}")
        try:
            rows[name] = _row_batsim(job, profiles)
        except UserError as error:
            raise UserError(f"{source.name}, job {name}: {error}") from None
    submit, run, gpus, requested = zip(*rows.values(), strict=True) if rows else ((), (), (), ())
    return Trace.of(
        submit,
        run,
        gpus,
        requested=requested,
        ids=list(rows),
        source=source.name,
        format="batsim",
        capacity=_capacity(source, workload),
    )


def _loaded_batsim(source: Source) -> dict[str, Any]:
    text = "".join(line for _, line in source.lines())
    try:
        workload = json.loads(text)
    except json.JSONDecodeError as error:
        raise source.error(error.lineno, f"not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise UserError(f"{source.name}: not valid JSON: a number is too long or brackets are too deep") from None
    if not isinstance(workload, dict):
        raise UserError(f"{source.name}: a Batsim workload is a JSON object")
    return workload


def _name_batsim(source: Source, position: int, job: object) -> str:
    where = f"{source.name}, jobs[{position}]"
    if not isinstance(job, dict):
        raise UserError(f"{where}: a job is a JSON object")
    try:
        name = name_of(job.get("id"), "id")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not name:
        raise UserError(f"{where}: id is missing")
    return name


def _row_batsim(job: dict[str, Any], profiles: dict[str, Any]) -> tuple[float, float, float, float]:
    submit = RULES["submit"].take(job.get("subtime"), "subtime")
    machines = _BATSIM_COUNT.take(job.get("res"), "res")
    if not machines.is_integer():
        raise UserError(f"res must be a whole number, not {machines:g}")
    delay = _delay_batsim(str(job.get("profile", "")), profiles)
    walltime = job.get("walltime")
    if walltime is None or walltime == -1:  # Batsim's own way to say: none
        return submit, delay, machines, math.nan
    limit = RULES["requested"].read(walltime, "walltime")
    return submit, min(delay, limit), machines, limit


def _delay_batsim(name: str, profiles: dict[str, Any]) -> float:
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        raise UserError(f"there is no profile {quoted(name)}")
    if profile.get("type") != "delay":
        kind = quoted(str(profile.get("type")))
        raise UserError(f"profile {quoted(name)} has the type {kind}, and only delay profiles have a known length")
    return RULES["run"].take(profile.get("delay"), "delay")


def _capacity(source: Source, workload: dict[str, Any]) -> int | None:
    if workload.get("nb_res") is None:
        return None
    try:
        return int(_BATSIM_COUNT.take(workload.get("nb_res"), "nb_res"))
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from None
