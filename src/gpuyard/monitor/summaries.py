"""Summaries of what GPUs did and of how jobs ran: numbers, tables and a schedule for the Gantt chart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from gpuyard.api.types import Job
from gpuyard.client.client import Client
from gpuyard.files import csv_text, write_atomically
from gpuyard.recordings.series import Floats, Recording, Series, Subject, energy

if TYPE_CHECKING:
    from gpuyard.sim.result import Result


class GpuSummary(TypedDict):
    """One GPU; sizes in bytes, power in watts, null where not known."""

    index: int
    host: str
    """The machine, where a source knows several; empty: there is one."""
    uuid: str
    name: str
    used: bool
    """Whether what was watched had a process on it."""
    peak_memory: int | None
    peak_process_memory: int | None
    """Of what was watched alone."""
    utilization_mean: float | None
    utilization_max: float | None
    memcopy_mean: float | None
    temperature_max: float | None
    power_mean: float | None
    power_max: float | None
    energy_wh: float | None


def gpu_summaries(recording: Recording) -> list[GpuSummary]:
    """Every GPU of a recording, by index; parts of a GPU that share one are apart."""
    own = [one.subject for one in recording.series if one.subject.job]
    subjects = {
        (one.subject.host, one.subject.gpu, one.subject.uuid): one.subject
        for one in recording.series
        if not one.subject.job
    }
    return [
        _gpu(recording, subjects[place], any(_same(one, subjects[place]) for one in own)) for place in sorted(subjects)
    ]


def used_energy(gpus: list[GpuSummary]) -> float | None:
    """Watt-hours of the used GPUs; None if one of them has no value, or there is none."""
    known = [gpu["energy_wh"] for gpu in gpus if gpu["used"]]
    told = [one for one in known if one is not None]
    return sum(told) if told and len(told) == len(known) else None


def mean(series: Series) -> float | None:
    """The mean over time; gaps do not count."""
    at, values = series.at, series.mean
    known = ~np.isnan(values)
    if not known.any():
        return None
    if len(at) < 2:
        return float(values[known][0])
    width, level = np.diff(at), (values[1:] + values[:-1]) / 2
    told = ~np.isnan(level)
    whole = float(width[told].sum())
    return float((width[told] * level[told]).sum()) / whole if whole > 0 else float(values[known].mean())


def most(series: Series) -> float | None:
    return _largest(series.mean if series.high is None else series.high)


def _largest(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _energy(series: Series) -> float | None:
    return energy(series) if not np.isnan(series.mean).all() else None


def _gpu(recording: Recording, subject: Subject, used: bool) -> GpuSummary:
    def of(metric: str, measure: Callable[[Series], float | None], own: bool = False) -> float | None:
        found = [
            value
            for one in recording.series
            if one.metric == metric and _same(one.subject, subject) and bool(one.subject.job) == own
            if (value := measure(one)) is not None
        ]
        return max(found) if found else None

    return {
        "index": subject.gpu,
        "host": subject.host,
        "uuid": subject.uuid,
        "name": subject.name,
        "used": used,
        "peak_memory": _whole(of("memory_used", most)),
        "peak_process_memory": _whole(of("process_memory", most, own=True)),
        "utilization_mean": _rounded(of("utilization", mean)),
        "utilization_max": of("utilization", most),
        "memcopy_mean": _rounded(of("memcopy", mean)),
        "temperature_max": of("temperature", most),
        "power_mean": _rounded(of("power", mean)),
        "power_max": of("power", most),
        "energy_wh": _rounded(of("power", _energy), 6),
    }


def _same(one: Subject, other: Subject) -> bool:
    """Whether both are of one GPU; a job's series may lack the GPU's UUID."""
    alike = one.uuid == other.uuid or not (one.uuid and other.uuid)
    return alike and (one.host, one.gpu) == (other.host, other.gpu)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or math.isnan(value) else round(value, digits)


def overall(recording: Recording, metric: str) -> float | None:
    found = [value for one in recording.of(metric) if not one.subject.job if (value := mean(one)) is not None]
    return sum(found) / len(found) if found else None


_PAGE = 1000
_ENDS = ("Exited", "Preempted", "Requeued")
JOBS = (
    "id", "name", "state", "submitted", "started", "ended", "wait", "run", "gpus", "attempts", "exit_code",
    "peak_memory", "energy_wh",
)  # fmt: skip
"""Columns of `jobs.csv`: instants in ISO-8601, wait and run in seconds, memory in bytes."""


class Stay(NamedTuple):
    """An attempt on its GPUs, in seconds since the epoch."""

    gpus: tuple[int, ...]
    start: float
    end: float


class JobRun(NamedTuple):
    job: Job
    label: str  # its name; with its id, if others have the same
    submitted: float
    stays: tuple[Stay, ...]
    ended: float | None

    @property
    def run(self) -> float:
        """Seconds on GPUs, of all attempts."""
        return sum(stay.end - stay.start for stay in self.stays)

    @property
    def turnaround(self) -> float | None:
        """Seconds from its submission to its end."""
        return None if self.ended is None else self.ended - self.submitted

    @property
    def wait(self) -> float | None:
        """Seconds of the turnaround without a GPU."""
        return None if self.turnaround is None else max(0.0, self.turnaround - self.run)


def job_runs(client: Client, ids: Iterable[str], now: float) -> list[JobRun]:
    jobs = [client.job(id) for id in ids]
    jobs.sort(key=lambda job: (job["submitted_at"], _number(job["id"])))
    names = Counter(job["name"] or job["id"] for job in jobs)
    return [_job_run(client, job, names, now) for job in jobs]


def _job_run(client: Client, job: Job, names: Mapping[str, int], now: float) -> JobRun:
    name = job["name"] or job["id"]
    stays = _last(job, now) if job["attempt"] <= 1 else stays_of(events_of(client, job["id"]), now)
    ended = None if job["ended_at"] is None else seconds(job["ended_at"])
    label = name if names[name] == 1 else f"{name} {job['id']}"
    return JobRun(job, label, seconds(job["submitted_at"]), tuple(stays), ended)


def _last(job: Job, now: float) -> list[Stay]:
    if job["started_at"] is None:
        return []
    end = now if job["ended_at"] is None else seconds(job["ended_at"])
    return [Stay(tuple(job["gpus"]), seconds(job["started_at"]), end)]


def stays_of(events: Iterable[Mapping[str, Any]], now: float) -> list[Stay]:
    """The stays of a job's attempts, from its events; one that goes on ends now."""
    gpus: dict[int, tuple[int, ...]] = {}
    begun: dict[int, float] = {}
    found: list[Stay] = []
    for event in events:
        attempt, kind = event["attempt"], event["kind"]
        if kind == "Placed":
            gpus[attempt] = tuple(event["gpus"])
        elif kind == "Started":
            begun[attempt] = seconds(event["at"])
        elif kind in _ENDS and attempt in begun:
            found.append(Stay(gpus.get(attempt, ()), begun.pop(attempt), seconds(event["at"])))
    return found + [Stay(gpus.get(attempt, ()), start, now) for attempt, start in begun.items()]


def events_of(client: Client, job: str | None = None) -> Iterator[dict[str, Any]]:
    after = 0
    while page := client.events(after, job=job, limit=_PAGE)["events"]:
        yield from page
        after = page[-1]["seq"]


def seconds(instant: str) -> float:
    """Seconds since the epoch of an instant in ISO-8601."""
    return datetime.fromisoformat(instant).timestamp()


def _number(id: str) -> tuple[int, str]:
    return (int(id), "") if id.isdecimal() else (0, id)


def numbers(jobs: Sequence[JobRun]) -> dict[str, Any]:
    """Totals of all jobs: durations in seconds; null where there is nothing to measure."""
    done = [one for one in jobs if one.ended is not None and one.stays]
    makespan = max(one.ended or 0.0 for one in done) - min(one.submitted for one in jobs) if done else None
    return {
        "jobs": len(jobs),
        "completed": len(done),
        "succeeded": sum(one.job["state"] == "succeeded" for one in jobs),
        "makespan": _rounded(makespan),
        "wait_mean": _mean_of([one.wait for one in done]),
        "turnaround_mean": _mean_of([one.turnaround for one in done]),
        "run_mean": _mean_of([one.run for one in done]),
        "throughput": len(done) / makespan if makespan else None,
    }


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(sum(known) / len(known)) if known else None


def write_jobs(path: Path, jobs: Sequence[JobRun]) -> Path:
    write_atomically(path, csv_text(JOBS, map(_job_row, jobs)).encode())
    return path


def _job_row(one: JobRun) -> tuple[Any, ...]:
    job, measured = one.job, one.job["measured"]
    return (
        job["id"], job["name"], job["state"], job["submitted_at"], job["started_at"], job["ended_at"],
        _rounded(one.wait), f"{one.run:.3f}", " ".join(map(str, job["gpus"])), job["attempt"], job["exit_code"],
        measured["peak"] if measured else None, job.get("energy_wh"),
    )  # fmt: skip


def write_allocations(path: Path, jobs: Sequence[JobRun], begin: float) -> Path:
    """`task_allocation_log.csv`: which task got which GPU when, in seconds since the first submission."""
    found = sorted((stay.start, one.label, gpu) for one in jobs for stay in one.stays for gpu in stay.gpus)
    rows = ((f"{at - begin:.3f}", label, gpu) for at, label, gpu in found)
    write_atomically(path, csv_text(("time", "task", "gpu"), rows).encode())
    return path


def schedule(jobs: Sequence[JobRun], memories: Sequence[float], policy: str, begin: float) -> Result:
    """The jobs as a schedule of the simulator, for a Gantt chart; time counts from `begin`."""
    from gpuyard.core.model import Cluster
    from gpuyard.sim.result import Placements, Result, Segments
    from gpuyard.sim.trace import Trace

    ran = [one for one in jobs if one.stays]
    trace = Trace.of(
        [one.submitted - begin for one in ran],
        [max(one.run, 0.001) for one in ran],
        [one.job["gpu_count"] for one in ran],
        ids=[_ended(one) for one in ran],
        users=[one.job["user"] for one in ran],
        memory=[0.0 if one.job["alone"] else one.job["gpu_memory"] or 0.0 for one in ran],
    )
    held = [
        (number, gpu, stay.start - begin, stay.end - begin)
        for number, one in enumerate(ran)
        for stay in one.stays
        for gpu in stay.gpus
    ]
    columns = list(zip(*held, strict=True)) or [(), (), (), ()]
    segments = Segments(
        np.array(columns[0], dtype=np.int64), np.array(columns[1], dtype=np.int64), np.array(columns[2], dtype=float),
        np.array(columns[3], dtype=float),
    )  # fmt: skip
    ends = np.array([one.stays[-1].end - begin for one in ran])
    return Result(
        trace, Cluster((len(memories),), max(memories)), policy, np.array([one.stays[0].start - begin for one in ran]),
        ends, np.array([len(one.stays) - 1 for one in ran], dtype=np.int64),
        Placements.of([one.stays[-1].gpus for one in ran]), {}, segments,
    )  # fmt: skip


def _ended(one: JobRun) -> str:
    state = one.job["state"]
    return one.label if state in ("succeeded", "running") else f"{one.label}: {state}"
