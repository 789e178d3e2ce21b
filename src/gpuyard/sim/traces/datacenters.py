"""Published traces of GPU datacenters: Microsoft's Philly, and Alibaba's PAI (2020) and openb (2023)."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpuyard.core.model import GIB
from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import name_of, number
from gpuyard.sim.traces.gather import NEVER_RAN, NO_GPUS, NO_RUN_TIME, Gathered, unknown, value
from gpuyard.sim.traces.nodes import MIB
from gpuyard.sim.traces.source import Source, first_line
from gpuyard.sim.traces.times import Calendar

_PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_PHILLY_CALLED = {"submit": "timestamp", "run": "duration", "gpus": "num_gpus"}
_JSON = re.compile(r'\s*\[\s*\{.*?"(?:jobid|attempts|submitted_time)"', re.DOTALL)
_SPACE = re.compile(r"[\s,]*")
_LONGEST = 1 << 26
_BLOCK = 1 << 13
NO_END = "end not known"
Seconds = Callable[[str], float]


def is_philly(head: str) -> bool:
    """A header with a timestamp and two of the other columns: a missing one is then reported by name."""
    return cells.has_columns(first_line(head), _PHILLY_COLUMNS, 3)


def read_philly(source: Source) -> Trace:
    """Jobs in file order, numbered from 1; the cluster column is the label `vc`."""
    found = cells.rows(source)
    names = cells.header(source, found, _PHILLY_COLUMNS)
    pick = cells.picker(names, _PHILLY_COLUMNS)
    jobs = Gathered(source, "philly", labels=("vc",), called=_PHILLY_CALLED)
    seconds = Calendar().seconds
    row = 1
    while block := [(line, *pick(row_cells)) for line, row_cells in itertools.islice(found, _BLOCK)]:
        if not _add_block_philly(jobs, row, block):
            for offset, job in enumerate(block):
                _add_row_philly(jobs, row + offset, job, seconds)
        row += len(block)
    return jobs.trace()


def _add_block_philly(jobs: Gathered, row: int, block: list[tuple[Any, ...]]) -> bool:
    """Add many ordinary lines at once, in a quarter of the time; False: nothing done, read them one by one."""
    lines, whens, durations, gpus, vcs = zip(*block, strict=True)
    if set(map(len, whens)) != {len("2017-10-09 07:01:55")} or any("_" in cell for cell in durations + gpus):
        return False
    try:
        numbers = np.array([np.array(whens, "datetime64[s]").astype(np.float64), durations, gpus], dtype=np.float64)
        if np.isfinite(numbers).all() and numbers[1:].all():
            jobs.extend(lines, map(str, range(row, row + len(block))), numbers.T, (vcs,))
            return True
    except (ValueError, UserError):
        pass
    return False


def _add_row_philly(jobs: Gathered, row: int, job: tuple[Any, ...], seconds: Seconds) -> None:
    line, when, duration, gpus, vc = job
    try:
        numbers = seconds(when), value(duration, "duration"), value(gpus, "num_gpus")
        if numbers[1] == 0 or numbers[2] == 0:
            jobs.drop(NO_GPUS if numbers[1] else NO_RUN_TIME)
        else:
            jobs.add(line, str(row), numbers, (vc,))
    except UserError as error:
        raise jobs.source.error(line, str(error)) from None


def is_philly_json(head: str) -> bool:
    return _JSON.match(head) is not None


def read_philly_json(source: Source) -> Trace:
    """Jobs in file order. A job runs as long as its attempts did, added up, on the GPUs of the last one."""
    jobs = Gathered(source, "philly-json", labels=("vc", "status"), called={"job": "jobid"})
    seconds = Calendar().seconds
    jobs.each(_objects(source), lambda line, record: _add_philly(jobs, line, record, seconds))
    return jobs.trace()


def _add_philly(jobs: Gathered, line: int, record: dict[str, Any], seconds: Seconds) -> None:
    attempts = record.get("attempts")
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise UserError("attempts must be a list of objects")
    spans = [_span(attempt, seconds) for attempt in attempts]
    gpus = next((count for count in map(_gpus, reversed(attempts)) if count), 0)
    run = sum(end - start for start, end in spans if start is not None and end is not None)
    if not gpus:
        jobs.drop(NEVER_RAN if not attempts else NO_GPUS)
    elif spans[-1][1] is None:
        jobs.drop(NO_END)
    elif run == 0:
        jobs.drop(NO_RUN_TIME)
    else:
        submitted = record.get("submitted_time")
        if not isinstance(submitted, str):
            raise UserError("submitted_time is missing")
        vc, status, user, job = (name_of(record.get(key), key) for key in ("vc", "status", "user", "jobid"))
        jobs.add(line, job, (seconds(submitted), run, gpus), (vc, status), user)


def _span(attempt: dict[str, Any], seconds: Seconds) -> tuple[float | None, float | None]:
    texts = [attempt.get(key) for key in ("start_time", "end_time")]
    for text in texts:
        if text is not None and not isinstance(text, str):
            raise UserError("start_time and end_time must be text or null")
    start, end = (None if text in (None, "", "None") else seconds(text) for text in texts)
    if start is not None and end is not None and end < start:
        raise UserError(f"an attempt ends before it starts ({texts[1]})")
    return start, end


def _gpus(attempt: dict[str, Any]) -> int:
    detail = attempt.get("detail") or []
    if not isinstance(detail, list) or not all(isinstance(part, dict) for part in detail):
        raise UserError("detail must be a list of objects")
    listed = [part.get("gpus") or [] for part in detail]
    if not all(isinstance(gpus, list) for gpus in listed):
        raise UserError("gpus must be a list")
    return sum(len(gpus) for gpus in listed)


def _objects(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON list with the lines they start on, without holding the whole list."""
    decode, chunks = json.JSONDecoder().raw_decode, source.chunks()
    text, line = next(chunks, "").lstrip("\ufeff"), 1
    start = len(text) - len(text.lstrip())
    line += text.count("\n", 0, start)
    if text[start : start + 1] != "[":
        raise source.error(line, "the file must be a JSON list of jobs")
    position = start + 1
    while True:
        blank = _SPACE.match(text, position)
        after = blank.end() if blank else position
        line += text.count("\n", position, after)
        position = after
        if text[position : position + 1] == "]":
            return
        try:
            record, end = decode(text, position)
        except (ValueError, RecursionError) as error:
            more = next(chunks, "") if len(text) - position < _LONGEST else ""
            if not more:
                raise source.error(*_where(error, line, text, position)) from None
            text, position = text[position:] + more, 0
            continue
        if not isinstance(record, dict):
            raise source.error(line, "each entry of the list must be a JSON object")
        yield line, record
        line += text.count("\n", position, end)
        position = end


def _where(error: Exception, line: int, text: str, position: int) -> tuple[int, str]:
    if position >= len(text):
        return line, "the list of jobs is cut off"
    if isinstance(error, json.JSONDecodeError):
        return line + text.count("\n", position, error.pos), f"not valid JSON: {error.msg}"
    return line, "not valid JSON: a number is too long or brackets are too deep"


_PAI_ALL = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_PAI_REQUIRED = ("job_name", "task_name", "inst_num", "start_time", "end_time", "plan_gpu")
_PAI_COLUMNS = ("submit", "run", "gpus", "compute", "cpus", "host_memory")
_PAI_CALLED = {
    "job": "job_name",
    "submit": "start_time",
    "run": "end_time - start_time",
    "gpus": "inst_num * plan_gpu",
    "cpus": "plan_cpu",
    "host_memory": "plan_mem",
}
_NO_MODEL = frozenset({"MISC", "CPU"})  # not models: `MISC` stands for several old ones


def is_pai(head: str) -> bool:
    """A header with most of the columns; or ten cells with a word, numbers and a GPU type where they belong."""
    line = first_line(head)
    if cells.has_columns(line, _PAI_ALL, 5):
        return True
    try:
        row = cells.split(line)
    except UserError:
        return False
    if len(row) != len(_PAI_ALL) or not row[3].isalpha():
        return False
    return all(not row[place] or math.isfinite(number(row[place])) for place in (2, 4, 5, 6, 7, 8))


def read_pai(source: Source) -> Trace:
    """Tasks in file order, named after their job, and after the task as well where the job has several."""
    found = cells.rows(source)
    line, first = next(found, (0, []))
    names = list(_PAI_ALL)
    if {"job_name", "plan_gpu", "inst_num"} & set(first):
        names = cells.header(source, iter([(line, first)]), _PAI_REQUIRED)
    else:
        if len(first) != len(_PAI_ALL):
            raise source.error(line, f"a line of pai_task_table has {len(_PAI_ALL)} cells, this one has {len(first)}")
        found = itertools.chain([(line, first)], found)
    pick = cells.picker(names, _PAI_ALL)
    jobs = Gathered(source, "pai", _PAI_COLUMNS, ("task", "status"), _PAI_CALLED)
    tasks: list[str] = []
    jobs.each(
        found,
        lambda line, row: tasks.append(row[names.index("task_name")]) if _add_pai(jobs, line, pick(row)) else None,
    )
    times = Counter(jobs.ids)
    jobs.ids = [
        job if times[job] == 1 or not task else f"{job}/{task}" for job, task in zip(jobs.ids, tasks, strict=True)
    ]
    return jobs.trace()


def _add_pai(jobs: Gathered, line: int, row: tuple[str, ...]) -> bool:
    job, task, inst_num, status, started, ended, cpu, memory, gpu, model = row
    instances = 1.0 if unknown(inst_num) else value(inst_num, "inst_num")
    percent = 0.0 if unknown(gpu) else value(gpu, "plan_gpu")
    if percent < 0 or instances < 0:
        raise UserError("plan_gpu and inst_num must be 0 or more")
    if percent == 0 or instances == 0:
        jobs.drop(NO_GPUS)
        return False
    if unknown(started) or unknown(ended):
        jobs.drop(NEVER_RAN if unknown(started) else NO_RUN_TIME)
        return False
    start, end = value(started, "start_time"), value(ended, "end_time")
    if end == start:
        jobs.drop(NO_RUN_TIME)
        return False
    gpus, compute = (instances * math.ceil(percent / 100.0), 100.0) if percent >= 100 else (instances, percent)
    cores = 0.0 if unknown(cpu) else value(cpu, "plan_cpu") / 100.0 * instances
    size = 0.0 if unknown(memory) else value(memory, "plan_mem") * GIB * instances
    numbers = (start, end - start, gpus, compute, cores, size)
    jobs.add(line, job, numbers, (task, status), gpu_type="" if unknown(model) or model in _NO_MODEL else model)
    return True


_OPENB_REQUIRED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_OPENB_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_OPENB_LABELS = ("qos", "pod_phase")
_OPENB_COLUMNS = ("submit", "run", "gpus", "compute", "cpus", "host_memory")
_OPENB_CALLED = {
    "job": "name",
    "submit": "creation_time",
    "run": "deletion_time - scheduled_time",
    "gpus": "num_gpu",
    "compute": "gpu_milli",
    "cpus": "cpu_milli",
    "host_memory": "memory_mib",
}
_OPENB_WHOLE = 1000.0


def is_openb(head: str) -> bool:
    """A header with two of the resources, which distinguishes a list of nodes given by mistake from a foreign file."""
    return cells.has_columns(first_line(head), _OPENB_REQUIRED[1:], 2)


def read_openb(source: Source) -> Trace:
    """Pods in file order, also those that ask for no GPU; without times every pod arrives at 0 and runs 1 second."""
    found = cells.rows(source)
    names = cells.header(source, found, _OPENB_REQUIRED)
    timed = any(name in names for name in _OPENB_TIMES)
    if timed and not set(_OPENB_TIMES[:2]) <= set(names):
        raise UserError(f"{source.name}: creation_time and deletion_time belong together, and one is missing")
    labels = tuple(name for name in _OPENB_LABELS if name in names)
    pick, pick_times = cells.picker(names, (*_OPENB_REQUIRED, "gpu_spec")), cells.picker(names, _OPENB_TIMES)
    where = [names.index(name) for name in labels]
    jobs = Gathered(source, "openb", _OPENB_COLUMNS, labels, _OPENB_CALLED)

    def add(line: int, row: list[str]) -> None:
        name, cpu, memory, gpus, milli, spec = pick(row)
        times = _times_openb(pick_times(row)) if timed else (0.0, 1.0)
        if times is None:
            jobs.drop(NO_RUN_TIME)
            return
        wanted = _resources_openb(cpu, memory, gpus, milli)
        jobs.add(line, name, (*times, *wanted), tuple([row[place] for place in where]), gpu_type=spec)

    jobs.each(found, add)
    return jobs.trace(gpuless=True)


def _times_openb(row: tuple[str, ...]) -> tuple[float, float] | None:
    """When the pod came, and how long it ran; a pod that was never scheduled counts from its creation.

    Times are whole seconds: a pod that ended in the second in which it came runs for one.
    """
    created, deleted, scheduled = row
    if unknown(created) or unknown(deleted):
        return None
    came, gone = value(created, "creation_time"), value(deleted, "deletion_time")
    run = gone - (came if unknown(scheduled) else value(scheduled, "scheduled_time"))
    return came, run or 1.0


def _resources_openb(cpu: str, memory: str, num_gpu: str, milli: str) -> tuple[float, float, float, float]:
    gpus, part = value(num_gpu, "num_gpu"), value(milli, "gpu_milli")
    if gpus > 0 and not 0 < part <= _OPENB_WHOLE:
        raise UserError(f"gpu_milli must be above 0 and at most 1000, not {milli}")
    compute = part / 10.0 if gpus == 1 else 100.0
    return gpus, compute, value(cpu, "cpu_milli") / 1000.0, value(memory, "memory_mib") * MIB
