"""Jobs of Microsoft's Philly clusters: the CSV that simulators pass around, and the official JSON log."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import name_of
from gpuyard.sim.traces.gather import NEVER_RAN, NO_GPUS, NO_RUN_TIME, Gathered, value
from gpuyard.sim.traces.source import Source, first_line
from gpuyard.sim.traces.times import Calendar

_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_CALLED = {"submit": "timestamp", "run": "duration", "gpus": "num_gpus"}
_JSON = re.compile(r'\s*\[\s*\{.*?"(?:jobid|attempts|submitted_time)"', re.DOTALL)
_SPACE = re.compile(r"[\s,]*")
_LONGEST = 1 << 26
_BLOCK = 1 << 13
NO_END = "end not known"
Seconds = Callable[[str], float]


def recognises(head: str) -> bool:
    """A header with a timestamp and two of the other columns: a missing one is then reported by name."""
    return cells.has_columns(first_line(head), _COLUMNS, 3)


def read(source: Source) -> Trace:
    """Jobs in file order, numbered from 1; the cluster column is the label `vc`."""
    found = cells.rows(source)
    names = cells.header(source, found, _COLUMNS)
    pick = cells.picker(names, _COLUMNS)
    jobs = Gathered(source, "philly", labels=("vc",), called=_CALLED)
    seconds = Calendar().seconds
    row = 1
    while block := [(line, *pick(row_cells)) for line, row_cells in itertools.islice(found, _BLOCK)]:
        if not _add_block(jobs, row, block):
            for offset, job in enumerate(block):
                _add_row(jobs, row + offset, job, seconds)
        row += len(block)
    return jobs.trace()


def _add_block(jobs: Gathered, row: int, block: list[tuple[Any, ...]]) -> bool:
    """Many ordinary lines at once, in a quarter of the time; False: nothing done, they need a closer look."""
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


def _add_row(jobs: Gathered, row: int, job: tuple[Any, ...], seconds: Seconds) -> None:
    line, when, duration, gpus, vc = job
    try:
        numbers = seconds(when), value(duration, "duration"), value(gpus, "num_gpus")
        if numbers[1] == 0 or numbers[2] == 0:
            jobs.drop(NO_GPUS if numbers[1] else NO_RUN_TIME)
        else:
            jobs.add(line, str(row), numbers, (vc,))
    except UserError as error:
        raise jobs.source.error(line, str(error)) from None


def recognises_json(head: str) -> bool:
    """A JSON list of objects that have attempts."""
    return _JSON.match(head) is not None


def read_json(source: Source) -> Trace:
    """Jobs in file order. A job runs as long as its attempts did, added up, on the GPUs of the last one."""
    jobs = Gathered(source, "philly-json", labels=("vc", "status"), called={"job": "jobid"})
    seconds = Calendar().seconds
    for line, record in _objects(source):
        try:
            _add(jobs, line, record, seconds)
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace()


def _add(jobs: Gathered, line: int, record: dict[str, Any], seconds: Seconds) -> None:
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
