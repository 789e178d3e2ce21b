"""Alibaba's GPU-sharing trace of 2023 (openb): pods with CPUs, memory, and whole GPUs or a part of one."""

from __future__ import annotations

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.gather import NO_RUN_TIME, Gathered, unknown, value
from gpuyard.sim.traces.nodes import MIB
from gpuyard.sim.traces.source import Source, first_line

_REQUIRED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_LABELS = ("qos", "pod_phase")
_COLUMNS = ("submit", "run", "gpus", "compute", "cpus", "host_memory")
_CALLED = {
    "job": "name",
    "submit": "creation_time",
    "run": "deletion_time - scheduled_time",
    "gpus": "num_gpu",
    "compute": "gpu_milli",
    "cpus": "cpu_milli",
    "host_memory": "memory_mib",
}
_WHOLE = 1000.0


def recognises(head: str) -> bool:
    """A header with two of the resources, so that a list of nodes given by mistake is told from a foreign file."""
    return cells.has_columns(first_line(head), _REQUIRED[1:], 2)


def read(source: Source) -> Trace:
    """Pods in file order, those that ask for no GPU too; without times every pod arrives at 0 and runs 1 second."""
    found = cells.rows(source)
    names = cells.header(source, found, _REQUIRED)
    timed = any(name in names for name in _TIMES)
    if timed and not set(_TIMES[:2]) <= set(names):
        raise UserError(f"{source.name}: creation_time and deletion_time belong together, and one is missing")
    labels = tuple(name for name in _LABELS if name in names)
    pick, pick_times = cells.picker(names, (*_REQUIRED, "gpu_spec")), cells.picker(names, _TIMES)
    where = [names.index(name) for name in labels]
    jobs = Gathered(source, "openb", _COLUMNS, labels, _CALLED)
    for line, row in found:
        try:
            name, cpu, memory, gpus, milli, spec = pick(row)
            times = _times(pick_times(row)) if timed else (0.0, 1.0)
            if times is None:
                jobs.drop(NO_RUN_TIME)
                continue
            wanted = _resources(cpu, memory, gpus, milli)
            jobs.add(line, name, (*times, *wanted), tuple([row[place] for place in where]), gpu_type=spec)
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace(gpuless=True)


def _times(row: tuple[str, ...]) -> tuple[float, float] | None:
    """When the pod came, and how long it ran; a pod that was never scheduled counts from its creation.

    Times are whole seconds: a pod that went in the second in which it came is there for one.
    """
    created, deleted, scheduled = row
    if unknown(created) or unknown(deleted):
        return None
    came, gone = value(created, "creation_time"), value(deleted, "deletion_time")
    run = gone - (came if unknown(scheduled) else value(scheduled, "scheduled_time"))
    return came, run or 1.0


def _resources(cpu: str, memory: str, num_gpu: str, milli: str) -> tuple[float, float, float, float]:
    """GPUs, percent of each, CPUs and bytes."""
    gpus, part = value(num_gpu, "num_gpu"), value(milli, "gpu_milli")
    if gpus > 0 and not 0 < part <= _WHOLE:
        raise UserError(f"gpu_milli must be above 0 and at most 1000, not {milli}")
    compute = part / 10.0 if gpus == 1 else 100.0
    return gpus, compute, value(cpu, "cpu_milli") / 1000.0, value(memory, "memory_mib") * MIB
