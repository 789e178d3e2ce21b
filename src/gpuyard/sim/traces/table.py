"""gpuyard's own formats: one job a line, as CSV with a header or as JSON objects."""

from __future__ import annotations

import json
import re
from typing import Any

from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import LABEL, Jobs
from gpuyard.sim.traces.source import Source, first_line, quoted

COLUMNS = (
    "job", "submit", "run", "gpus", "requested", "priority", "user", "weight", "tickets",
    "memory", "compute", "deadline", "preemptible", "cpus", "host_memory", "gpu_type",
)  # fmt: skip
REQUIRED = COLUMNS[:4]
_BATSIM = re.compile(r'"(?:jobs|profiles|nb_res)"\s*:')


def recognises_csv(head: str) -> bool:
    """A header with at least two of our columns: a wrong one is then reported by name."""
    try:
        names = cells.split(first_line(head).lower())
    except UserError:
        return False
    return len(set(names) & set(COLUMNS)) >= 2


def recognises_jsonl(head: str) -> bool:
    """A whole JSON object on the first line that does not hold a list of jobs itself."""
    line = first_line(head)
    return line.startswith("{") and line.endswith("}") and not _BATSIM.search(line)


def read_csv(source: Source) -> Trace:
    """Read gpuyard's CSV."""
    found = cells.rows(source)
    names = cells.header(source, found, REQUIRED, COLUMNS, free=LABEL)
    jobs = Jobs(source, {name: name for name in names})
    for line, row in found:
        jobs.add(line, dict(zip(names, row, strict=True)))
    return jobs.trace("gpuyard")


def read_jsonl(source: Source) -> Trace:
    """Read gpuyard's JSON lines: the same keys as the CSV's columns."""
    jobs = Jobs(source, {name: name for name in COLUMNS})
    known = set(COLUMNS)
    for line, text in source.lines():
        text = text.strip()
        if not text or text[0] == "#":
            continue
        record = _object(source, line, text)
        if not known.issuperset(record):
            for key in record.keys() - known:
                if not key.startswith(LABEL) or key == LABEL:
                    raise source.error(line, f"unknown key {quoted(key)}{suggest(key, COLUMNS)}")
                jobs.add_label(key)
                known.add(key)
        jobs.add(line, record)
    return jobs.trace("jsonl")


def _object(source: Source, line: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
        if isinstance(record, dict) and text.count(":") > len(record):  # more colons than keys: look closer
            json.loads(text, object_pairs_hook=_pairs)
    except UserError as error:
        raise source.error(line, str(error)) from None
    except json.JSONDecodeError as error:
        raise source.error(line, f"not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise source.error(line, "not valid JSON: a number is too long or brackets are too deep") from None
    if not isinstance(record, dict):
        raise source.error(line, 'each line must be a JSON object, such as {"job": "a", ...}')
    return record


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"the key {quoted(twice)} is there twice")
    return record
