"""Accounting logs of batch systems: the Standard Workload Format, Slurm's `sacct`, and SenseTime's Helios clusters."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import LABEL, MOST_GPUS, MOST_SECONDS, RULES, Jobs, number
from gpuyard.sim.traces.gather import NEVER_RAN, NO_GPUS, NO_RUN_TIME, Gathered, unknown, value
from gpuyard.sim.traces.source import Source, first_line, quoted
from gpuyard.sim.traces.times import Calendar
from gpuyard.units import format_number, parse_duration, parse_size

SWF_FIELDS = 18
NO_PROCESSORS = "no processors"
_SWF_UNKNOWN = (0.0, -1.0)
_SWF_PLAIN = "0123456789-. \t\n"
_SWF_USED = itemgetter(1, 3, 7, 8)
_SWF_SIZE = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*(\d+)", re.IGNORECASE)
_SWF_LABELS = {name: name for name in ("job", "user", "submit", "run", "gpus", "requested")}

_NOT_IN_SWF = (
    "priority", "weight", "tickets", "memory", "compute", "deadline", "preemptible", "cpus",
    "host_memory", "gpu_type",
)  # fmt: skip


def is_swf(head: str) -> bool:
    """A `;` header, or columns of numbers parted by blanks."""
    line = first_line(head)
    if line.startswith(";"):
        return True
    cells = line.split()
    return len(cells) > 1 and "," not in line and math.isfinite(number(cells[0]))


def read_swf(source: Source) -> Trace:
    """Jobs in file order; those without a run time or processors are dropped and counted."""
    jobs = Jobs(source, _SWF_LABELS)
    flat = array("d")
    dropped: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for line, text in source.raw_lines():
        cells = text.split()
        if not cells:
            continue
        if cells[0][0] == ";":
            if match := _SWF_SIZE.match(text.strip()):
                sizes.setdefault(match[1].lower(), int(match[2]))
            continue
        try:
            job = _job_swf(text, cells)
        except UserError as error:
            raise source.error(line, str(error)) from None
        if isinstance(job, str):
            dropped[job] = dropped.get(job, 0) + 1
            continue
        jobs.lines.append(line)
        jobs.ids.append(cells[0])
        jobs.users.append("" if cells[11][0] == "-" else sys.intern(cells[11]))
        flat.extend(job)
    for position, name in enumerate(("submit", "run", "gpus", "requested")):
        jobs.columns[name] = flat[position::4]
    return jobs.trace("swf", dropped, sizes.get("maxprocs") or sizes.get("maxnodes") or None)


def _job_swf(text: str, cells: list[str]) -> tuple[float, float, float, float] | str:
    # Stripping is the quick look: nearly all lines are digits, dots and minus signs only.
    if len(cells) < SWF_FIELDS or text.strip(_SWF_PLAIN):
        _check_fields(cells)
    try:
        submit, run, processors, requested = [float(cell) for cell in _SWF_USED(cells)]
        if processors <= 0:
            processors = float(cells[4])
    except ValueError:
        _check_fields(cells)
        raise
    if run in _SWF_UNKNOWN:
        return NO_RUN_TIME
    if processors <= 0:
        return NO_PROCESSORS
    if requested <= 0:
        requested = run
    if submit < 0 or run < 0 or max(submit, run, requested) > MOST_SECONDS:
        RULES["submit"].check(submit, "submit time")
        RULES["run"].check(run, "run time")
        RULES["requested"].check(requested, "requested time")
    if processors % 1 or processors > MOST_GPUS:
        raise UserError(f"processors must be a whole number of at most {MOST_GPUS:g}, not {processors:g}")
    return submit, run, processors, requested


def _check_fields(cells: list[str]) -> None:
    """All fields must be numbers, the unused too: a word among them means that columns are shifted."""
    if len(cells) < SWF_FIELDS:
        raise UserError(f"a line has {SWF_FIELDS} fields, this one has {len(cells)}")
    for position, cell in enumerate(cells, 1):
        if not math.isfinite(number(cell)):
            raise UserError(f"field {position} must be a number, not {quoted(cell)}")


def swf_lines(trace: Trace, informative: Iterable[str]) -> Iterator[str]:
    """A trace as SWF; a note names the `informative` columns that the format cannot hold."""
    lost = [name for name in informative if name in _NOT_IN_SWF or name.startswith(LABEL)]
    yield f"; Version: 2.2\n; MaxJobs: {len(trace)}\n; MaxRecords: {len(trace)}\n"
    if trace.capacity:
        yield f"; MaxProcs: {trace.capacity}\n"
    if lost:
        yield f"; Note: not in this format, left out: {', '.join(lost)}\n"
    ids = trace.ids if _all_whole(trace.ids) else [str(i) for i in range(1, len(trace) + 1)]
    users = _user_numbers(trace.users)
    requested = np.where(np.isnan(trace.requested), -1.0, trace.requested)
    times = (trace.submit, trace.run, requested)
    rows = zip(ids, users, trace.gpus.tolist(), *(column.tolist() for column in times), strict=True)
    for job, user, gpus, submit, run, wanted in rows:
        first = f"{job} {format_number(submit)} -1 {format_number(run)} {gpus} -1 -1 {gpus}"
        yield f"{first} {format_number(wanted)} -1 1 {user} -1 -1 -1 -1 -1 -1\n"


def _all_whole(names: list[str]) -> bool:
    return all(name.isascii() and name.isdecimal() for name in names)


def _user_numbers(users: list[str]) -> list[str]:
    """Users as SWF wants them: their own numbers, or 1, 2, ... in order of appearance."""
    known = dict.fromkeys(user for user in users if user)
    if _all_whole(list(known)):
        return [user or "-1" for user in users]
    numbers = {user: str(position) for position, user in enumerate(known, 1)}
    return [numbers.get(user, "-1") for user in users]


STILL_THERE = "not ended"
_SACCT_LABELS = ("partition", "account", "state", "qos", "jobname")
_SACCT_COLUMNS = ("submit", "run", "gpus", "requested", "priority", "cpus", "host_memory")
_SACCT_CALLED = {"job": "JobID", "submit": "Submit", "run": "Elapsed", "requested": "Timelimit", "priority": "Priority"}
_GPU_COLUMNS = ("alloctres", "reqtres", "allocgres", "reqgres")
_UNENDED = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")


class _Tres(NamedTuple):
    gpus: float
    cpus: float
    memory: float
    models: str


def is_sacct(head: str) -> bool:
    names = first_line(head).lower().split("|")
    return len(names) > 1 and bool({"jobid", "jobidraw"} & set(names)) and len(set(names) & set(_Row._fields)) >= 2


def read_sacct(source: Source) -> Trace:
    """Jobs in file order, without steps; those without GPUs or an end are dropped and counted."""
    rows = _rows_sacct(source)
    line, names = next(rows, (0, []))
    _check_header(source, line, names)
    labels = tuple(name for name in _SACCT_LABELS if name in names)
    pick, where = cells.picker(names, _Row._fields), [names.index(name) for name in labels]
    jobs = Gathered(source, "sacct", _SACCT_COLUMNS, labels, _SACCT_CALLED)
    seconds = Calendar().seconds

    def add(line: int, row: list[str]) -> None:
        texts = [row[place] for place in where]
        if "state" in labels:
            texts[labels.index("state")] = _state(texts[labels.index("state")])
        _add_sacct(jobs, line, _Row(*pick(row)), tuple(texts), seconds)

    jobs.each(rows, add)
    return jobs.trace()


class _Row(NamedTuple):
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


def _rows_sacct(source: Source) -> Iterator[tuple[int, list[str]]]:
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
    cells.refuse_twice(source, line, [name for name in names if name])
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


def _add_sacct(jobs: Gathered, line: int, row: _Row, labels: tuple[str, ...], seconds: Callable[[str], float]) -> None:
    job = row.jobid or row.jobidraw
    if "." in job:
        return  # a step of the job: its resources are the job's
    wanted = _resources(row)
    if _never_ran(row, seconds):
        jobs.drop(NEVER_RAN)
    elif not wanted.gpus:
        jobs.drop(NO_GPUS)
    elif row.end == "Unknown" or _state(row.state) in _UNENDED:
        jobs.drop(STILL_THERE)
    elif not (run := _run(row, seconds)):
        jobs.drop(NO_RUN_TIME)
    else:
        priority = 0.0 if unknown(row.priority) else value(row.priority, "Priority")
        numbers = seconds(row.submit), run, wanted.gpus, _limit(row), priority, wanted.cpus, wanted.memory
        jobs.add(line, job, numbers, labels, row.user, wanted.models)


def _never_ran(row: _Row, seconds: Callable[[str], float]) -> bool:
    """Whether a job left the queue before it got anything; what it asked for need not be in the file."""
    never_started = row.start in ("Unknown", "None") or unknown(row.submit)
    return never_started or not (row.alloctres or row.allocgres or _run(row, seconds))


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


_HELIOS_REQUIRED = ("job_id", "gpu_num", "submit_time")
_HELIOS_KNOWN = (*_HELIOS_REQUIRED, "vc", "cpu_num", "node_num", "state")
_HELIOS_USED = ("job_id", "user", "gpu_num", "cpu_num", "submit_time", "start_time", "end_time", "duration")
_HELIOS_LABELS = ("vc", "state", "jobname", "node_num")
_HELIOS_CALLED = {"job": "job_id", "submit": "submit_time", "run": "duration", "gpus": "gpu_num", "cpus": "cpu_num"}


def is_helios(head: str) -> bool:
    """A header with gpu_num, which no other format has, or most of the other columns."""
    line = first_line(head)
    return cells.has_columns(line, _HELIOS_KNOWN, 4) or cells.has_columns(line, _HELIOS_REQUIRED[1:], 2)


def read_helios(source: Source) -> Trace:
    """Jobs in file order; those without GPUs or a run time are dropped and counted."""
    found = cells.rows(source)
    names = cells.header(source, found, _HELIOS_REQUIRED)
    if "duration" not in names and not {"start_time", "end_time"} <= set(names):
        raise UserError(f"{source.name}: the column 'duration' is missing, and so are start_time and end_time")
    labels = tuple(name for name in _HELIOS_LABELS if name in names)
    pick, pick_labels = cells.picker(names, _HELIOS_USED), [names.index(name) for name in labels]
    jobs = Gathered(source, "helios", ("submit", "run", "gpus", "cpus"), labels, _HELIOS_CALLED)
    seconds = Calendar().seconds
    jobs.each(
        found,
        lambda line, row: _add_helios(jobs, line, pick(row), tuple([row[place] for place in pick_labels]), seconds),
    )
    return jobs.trace()


def _add_helios(
    jobs: Gathered, line: int, row: tuple[str, ...], labels: tuple[str, ...], seconds: Callable[[str], float]
) -> None:
    job, user, gpu_num, cpu_num, submitted, started, ended, duration = row
    gpus = value(gpu_num, "gpu_num")
    if gpus == 0:
        jobs.drop(NO_GPUS)
        return
    if not unknown(duration):
        run = value(duration, "duration")
    elif unknown(started) or unknown(ended):
        run = 0.0
    else:
        run = seconds(ended) - seconds(started)
    if run == 0:
        jobs.drop(NO_RUN_TIME)
        return
    cpus = 0.0 if unknown(cpu_num) else value(cpu_num, "cpu_num")
    jobs.add(line, job, (seconds(submitted), run, gpus, cpus), labels, user)
