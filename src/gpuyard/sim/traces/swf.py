"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line."""

from __future__ import annotations

import math
import re
import sys
from array import array
from operator import itemgetter

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.columns import MOST_GPUS, MOST_SECONDS, RULES, Jobs, number
from gpuyard.sim.traces.source import Source, first_line, quoted

FIELDS = 18
NO_RUN_TIME = "run time 0 or unknown"
NO_PROCESSORS = "no processors"
_UNKNOWN = (0.0, -1.0)
_PLAIN = "0123456789-. \t\n"
_USED = itemgetter(1, 3, 7, 8)
_SIZE = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*(\d+)", re.IGNORECASE)
_LABELS = {
    "job": "job",
    "user": "user",
    "submit": "submit",
    "run": "run",
    "gpus": "gpus",
    "requested": "requested",
}


def recognises(head: str) -> bool:
    """A `;` header, or columns of numbers parted by blanks."""
    line = first_line(head)
    if line.startswith(";"):
        return True
    cells = line.split()
    return len(cells) > 1 and "," not in line and math.isfinite(number(cells[0]))


def read(source: Source) -> Trace:
    """Jobs in file order; those without a run time or processors are left out and counted."""
    jobs = Jobs(source, _LABELS)
    flat = array("d")
    dropped: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for line, text in source.raw_lines():
        cells = text.split()
        if not cells:
            continue
        if cells[0][0] == ";":
            if match := _SIZE.match(text.strip()):
                sizes.setdefault(match[1].lower(), int(match[2]))
            continue
        try:
            job = _job(text, cells)
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


def _job(text: str, cells: list[str]) -> tuple[float, float, float, float] | str:
    """Submit time, run time, processors and requested time, or why the job is left out."""
    # Stripping is the quick look: nearly all lines are digits, dots and minus signs only.
    if len(cells) < FIELDS or text.strip(_PLAIN):
        _check_fields(cells)
    try:
        submit, run, processors, requested = [float(cell) for cell in _USED(cells)]
        if processors <= 0:
            processors = float(cells[4])
    except ValueError:
        _check_fields(cells)
        raise
    if run in _UNKNOWN:
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
    """All fields are numbers, the unused too: a word among them means that columns are shifted."""
    if len(cells) < FIELDS:
        raise UserError(f"a line has {FIELDS} fields, this one has {len(cells)}")
    for position, cell in enumerate(cells, 1):
        if not math.isfinite(number(cell)):
            raise UserError(f"field {position} must be a number, not {quoted(cell)}")
