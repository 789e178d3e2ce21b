"""SenseTime's Helios clusters: `cluster_log.csv`, what Slurm recorded of each job."""

from __future__ import annotations

from collections.abc import Callable

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.gather import NO_GPUS, NO_RUN_TIME, Gathered, unknown, value
from gpuyard.sim.traces.source import Source, first_line
from gpuyard.sim.traces.times import Calendar

_REQUIRED = ("job_id", "gpu_num", "submit_time")
_KNOWN = (*_REQUIRED, "vc", "cpu_num", "node_num", "state")
_USED = ("job_id", "user", "gpu_num", "cpu_num", "submit_time", "start_time", "end_time", "duration")
_LABELS = ("vc", "state", "jobname", "node_num")
_CALLED = {"job": "job_id", "submit": "submit_time", "run": "duration", "gpus": "gpu_num", "cpus": "cpu_num"}


def recognises(head: str) -> bool:
    """A header with gpu_num, which no other format has, or most of the other columns."""
    line = first_line(head)
    return cells.has_columns(line, _KNOWN, 4) or cells.has_columns(line, _REQUIRED[1:], 2)


def read(source: Source) -> Trace:
    """Jobs in file order; those without GPUs or a run time are left out and counted."""
    found = cells.rows(source)
    names = cells.header(source, found, _REQUIRED)
    if "duration" not in names and not {"start_time", "end_time"} <= set(names):
        raise UserError(f"{source.name}: the column 'duration' is missing, and so are start_time and end_time")
    labels = tuple(name for name in _LABELS if name in names)
    pick, pick_labels = cells.picker(names, _USED), [names.index(name) for name in labels]
    jobs = Gathered(source, "helios", ("submit", "run", "gpus", "cpus"), labels, _CALLED)
    seconds = Calendar().seconds
    for line, row in found:
        try:
            _add(jobs, line, pick(row), tuple([row[position] for position in pick_labels]), seconds)
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace()


def _add(
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
