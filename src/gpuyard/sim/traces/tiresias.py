"""The CSV layout of the Tiresias simulator: job_id, num_gpu, submit_time, duration, and more."""

from __future__ import annotations

from types import MappingProxyType

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import Jobs
from gpuyard.sim.traces.source import Source, first_line

_LABELS = MappingProxyType({"job": "job_id", "submit": "submit_time", "run": "duration", "gpus": "num_gpu"})


def recognises(head: str) -> bool:
    """A header with at least two of the four columns: a missing one is then reported by name."""
    try:
        names = cells.split(first_line(head))
    except UserError:
        return False
    return len(set(names) & set(_LABELS.values())) >= 2


def read(source: Source) -> Trace:
    """Jobs in file order; nothing is known about requested times, users or priorities."""
    found = cells.rows(source)
    names = cells.header(source, found, tuple(_LABELS.values()))
    jobs = Jobs(source, _LABELS)
    for line, row in found:
        jobs.add(line, dict(zip(names, row, strict=True)))
    return jobs.trace("tiresias")
