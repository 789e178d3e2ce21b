"""Alibaba's PAI trace of 2020: `pai_task_table`, with or without a header; a task is a job here."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from gpuyard.core.model import GIB
from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import number
from gpuyard.sim.traces.gather import NEVER_RAN, NO_GPUS, NO_RUN_TIME, Gathered, unknown, value
from gpuyard.sim.traces.source import Source, first_line

_ALL = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_REQUIRED = ("job_name", "task_name", "inst_num", "start_time", "end_time", "plan_gpu")
_COLUMNS = ("submit", "run", "gpus", "compute", "cpus", "host_memory")
_CALLED = {
    "job": "job_name",
    "submit": "start_time",
    "run": "end_time - start_time",
    "gpus": "inst_num * plan_gpu",
    "cpus": "plan_cpu",
    "host_memory": "plan_mem",
}
_NO_MODEL = frozenset({"MISC", "CPU"})
"""Not models: `MISC` stands for several old ones."""


def recognises(head: str) -> bool:
    """A header with most of the columns; or ten cells with a word, numbers and a GPU type where they belong."""
    line = first_line(head)
    if cells.has_columns(line, _ALL, 5):
        return True
    try:
        row = cells.split(line)
    except UserError:
        return False
    if len(row) != len(_ALL) or not row[3].isalpha():
        return False
    return all(not row[place] or math.isfinite(number(row[place])) for place in (2, 4, 5, 6, 7, 8))


def read(source: Source) -> Trace:
    """Tasks in file order, named after their job, and after the task as well where the job has several."""
    found = cells.rows(source)
    line, first = next(found, (0, []))
    names = list(_ALL)
    if {"job_name", "plan_gpu", "inst_num"} & set(first):
        names = cells.header(source, iter([(line, first)]), _REQUIRED)
    else:
        if len(first) != len(_ALL):
            raise source.error(line, f"a line of pai_task_table has {len(_ALL)} cells, this one has {len(first)}")
        found = itertools.chain([(line, first)], found)
    pick = cells.picker(names, _ALL)
    jobs = Gathered(source, "pai", _COLUMNS, ("task", "status"), _CALLED)
    tasks: list[str] = []
    for line, row in found:
        try:
            if _add(jobs, line, pick(row)):
                tasks.append(pick(row)[1])
        except UserError as error:
            raise source.error(line, str(error)) from None
    times = Counter(jobs.ids)
    jobs.ids = [
        job if times[job] == 1 or not task else f"{job}/{task}" for job, task in zip(jobs.ids, tasks, strict=True)
    ]
    return jobs.trace()


def _add(jobs: Gathered, line: int, row: tuple[str, ...]) -> bool:
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
