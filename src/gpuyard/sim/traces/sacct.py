"""Slurm's accounting: the output of `sacct --parsable2` (or `--parsable`), columns by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.gather import NEVER_RAN, NO_GPUS, NO_RUN_TIME, Gathered, unknown, value
from gpuyard.sim.traces.source import Source, first_line, quoted
from gpuyard.sim.traces.times import Calendar
from gpuyard.units import parse_duration, parse_size

STILL_THERE = "not ended"
_USED = (
    "jobid", "jobidraw", "user", "submit", "start", "end", "elapsedraw", "elapsed", "timelimitraw", "timelimit",
    "alloctres", "reqtres", "allocgres", "reqgres", "nnodes", "ncpus", "alloccpus", "priority", "state",
)  # fmt: skip
_LABELS = ("partition", "account", "state", "qos", "jobname")
_COLUMNS = ("submit", "run", "gpus", "requested", "priority", "cpus", "host_memory")
_CALLED = {"job": "JobID", "submit": "Submit", "run": "Elapsed", "requested": "Timelimit", "priority": "Priority"}
_GPU_COLUMNS = ("alloctres", "reqtres", "allocgres", "reqgres")
_UNENDED = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")


class _Tres(NamedTuple):
    """What a TRES or GRES string asks for."""

    gpus: float
    cpus: float
    memory: float
    models: str


def recognises(head: str) -> bool:
    """A header with a job id and times or resources, parted by bars."""
    names = first_line(head).lower().split("|")
    return len(names) > 1 and bool({"jobid", "jobidraw"} & set(names)) and len(set(names) & set(_USED)) >= 2


def read(source: Source) -> Trace:
    """Jobs in file order, their steps left aside; those without GPUs or an end are left out and counted."""
    rows = _rows(source)
    line, names = next(rows, (0, []))
    _check_header(source, line, names)
    labels = tuple(name for name in _LABELS if name in names)
    pick, where = cells.picker(names, _USED), [names.index(name) for name in labels]
    jobs = Gathered(source, "sacct", _COLUMNS, labels, _CALLED)
    seconds = Calendar().seconds
    for line, row in rows:
        texts = [row[place] for place in where]
        if "state" in labels:
            texts[labels.index("state")] = _state(texts[labels.index("state")])
        try:
            _add(jobs, line, _Row(*pick(row)), tuple(texts), seconds)
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace()


class _Row(NamedTuple):
    """The cells of a line, in the order of `_USED`."""

    jobid: str
    jobidraw: str
    user: str
    submit: str
    start: str
    end: str
    elapsedraw: str
    elapsed: str
    timelimitraw: str
    timelimit: str
    alloctres: str
    reqtres: str
    allocgres: str
    reqgres: str
    nnodes: str
    ncpus: str
    alloccpus: str
    priority: str
    state: str


def _rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Numbered rows of cells, the header first, in small letters; `--parsable` ends each with one more bar."""
    width = 0
    for line, text in source.lines():
        text = text.strip()
        if not text:
            continue
        row = [cell.strip() for cell in text.split("|")]
        if not width:
            row = [cell.lower() for cell in row]
            width = len(row)
        if len(row) != width:
            raise source.error(
                line, f"the header has {width} columns, this line has {len(row)} (a job's name may hold a bar)"
            )
        yield line, row


def _check_header(source: Source, line: int, names: list[str]) -> None:
    for position, name in enumerate(names):
        if name and name in names[:position]:
            raise source.error(line, f"the column {quoted(name)} is there twice")
    for wanted, said in (
        (("jobid", "jobidraw"), "JobID"),
        (("submit",), "Submit"),
        (("elapsedraw", "elapsed", "end"), "ElapsedRaw, or Elapsed, or Start and End"),
        (_GPU_COLUMNS, "AllocTRES"),
    ):
        if not set(wanted) & set(names):
            raise source.error(line, f"a column is missing: {said}")
    if not {"elapsedraw", "elapsed", "start"} & set(names):
        raise source.error(line, "a column is missing: Start, to go with End")


def _add(jobs: Gathered, line: int, row: _Row, labels: tuple[str, ...], seconds: Callable[[str], float]) -> None:
    job = row.jobid or row.jobidraw
    if "." in job:
        return  # a step of the job: its resources are the job's
    wanted = _resources(row)
    if not wanted.gpus:
        jobs.drop(NO_GPUS)
    elif row.start in ("Unknown", "None") or unknown(row.submit):
        jobs.drop(NEVER_RAN)
    elif row.end == "Unknown" or _state(row.state) in _UNENDED:
        jobs.drop(STILL_THERE)
    elif not (run := _run(row, seconds)):
        jobs.drop(NO_RUN_TIME)
    else:
        priority = 0.0 if unknown(row.priority) else value(row.priority, "Priority")
        numbers = seconds(row.submit), run, wanted.gpus, _limit(row), priority, wanted.cpus, wanted.memory
        jobs.add(line, job, numbers, labels, row.user, wanted.models)


def _state(text: str) -> str:
    """`CANCELLED by 1000` is CANCELLED."""
    return text.partition(" ")[0].rstrip("+")


def _run(row: _Row, seconds: Callable[[str], float]) -> float:
    if row.elapsedraw:
        return value(row.elapsedraw, "ElapsedRaw")
    if row.elapsed:
        return _duration(row.elapsed, "Elapsed")
    return 0.0 if unknown(row.start) or unknown(row.end) else seconds(row.end) - seconds(row.start)


def _limit(row: _Row) -> float:
    """Seconds; nan where the job had no limit of its own."""
    if row.timelimitraw and row.timelimitraw[0].isdigit():
        return value(row.timelimitraw, "TimelimitRaw") * 60.0 or math.nan
    if not row.timelimit or not row.timelimit[0].isdigit():  # UNLIMITED, Partition_Limit
        return math.nan
    return _duration(row.timelimit, "Timelimit") or math.nan


def _duration(text: str, label: str) -> float:
    try:
        return parse_duration(text)
    except UserError as error:
        raise UserError(f"{label}: {error}") from None


def _resources(row: _Row) -> _Tres:
    """What was allocated; what was requested where nothing was, and for the models."""
    granted, asked = _tres(row.alloctres), _tres(row.reqtres)
    old = _gres(row.allocgres)
    if not (granted.gpus or asked.gpus or old.gpus):
        old = _gres(row.reqgres)  # counted on each node
        old = old._replace(gpus=old.gpus * (value(row.nnodes, "NNodes") if row.nnodes else 1.0))
    cpus = row.alloccpus or row.ncpus
    return _Tres(
        granted.gpus or asked.gpus or old.gpus,
        value(cpus, "NCPUS") if cpus else granted.cpus or asked.cpus,
        granted.memory or asked.memory,
        asked.models if row.reqtres else granted.models or old.models,
    )


@lru_cache(maxsize=1 << 16)
def _tres(text: str) -> _Tres:
    """`cpu=8,gres/gpu=4,gres/gpu:a100=4,mem=60G`: typed GPUs are counted only where there is no total."""
    found: dict[str, str] = dict(part.partition("=")[::2] for part in text.split(","))
    typed = {key.partition(":")[2]: value(count, key) for key, count in found.items() if key.startswith("gres/gpu:")}
    total = value(found["gres/gpu"], "gres/gpu") if "gres/gpu" in found else sum(typed.values())
    memory = found.get("mem", "")
    return _Tres(
        total,
        value(found["cpu"], "cpu") if "cpu" in found else 0.0,
        parse_size(f"{memory}M" if memory.isdecimal() else memory) if memory else 0.0,
        "|".join(sorted(typed)),
    )


@lru_cache(maxsize=1 << 16)
def _gres(text: str) -> _Tres:
    """The older `gpu:4` or `gpu:a100:2,gpu:v100:1`."""
    gpus, models = 0.0, []
    for part in text.split(","):
        name, *rest = part.removeprefix("gres:").partition("(")[0].split(":")
        if name == "gpu":
            gpus += value(rest[-1], "GRES") if rest and rest[-1].isdecimal() else 1.0
            models += [word for word in rest[:1] if not word.isdecimal()]
    return _Tres(gpus, 0.0, 0.0, "|".join(sorted(set(models))))
