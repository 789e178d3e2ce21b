"""How jobs went, from what the daemon told of them: who had which GPU when, in tables, numbers and a Gantt chart."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuyard.client import Client, Job

if TYPE_CHECKING:
    from gpuyard.sim.result import Result

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


class Went(NamedTuple):
    """A job, and where it was."""

    job: Job
    label: str
    """Its name; with its id, if others have the same."""
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
        """Seconds of these that it was on no GPU."""
        return None if self.turnaround is None else max(0.0, self.turnaround - self.run)


def went(client: Client, ids: Iterable[str], now: float) -> list[Went]:
    """How these jobs went up to now, in the order of their submission."""
    jobs = [client.job(id) for id in ids]
    jobs.sort(key=lambda job: (job["submitted_at"], _number(job["id"])))
    names = Counter(job["name"] or job["id"] for job in jobs)
    return [_went(client, job, names, now) for job in jobs]


def _went(client: Client, job: Job, names: Mapping[str, int], now: float) -> Went:
    name = job["name"] or job["id"]
    stays = _last(job, now) if job["attempt"] <= 1 else stays_of(_events(client, job["id"]), now)
    ended = None if job["ended_at"] is None else seconds(job["ended_at"])
    label = name if names[name] == 1 else f"{name} {job['id']}"
    return Went(job, label, seconds(job["submitted_at"]), tuple(stays), ended)


def _last(job: Job, now: float) -> list[Stay]:
    """Where the only attempt of a job was."""
    if job["started_at"] is None:
        return []
    end = now if job["ended_at"] is None else seconds(job["ended_at"])
    return [Stay(tuple(job["gpus"]), seconds(job["started_at"]), end)]


def stays_of(events: Iterable[Mapping[str, Any]], now: float) -> list[Stay]:
    """Where the attempts of a job were, from what happened to it; one that goes on, until now."""
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


def _events(client: Client, id: str) -> Iterable[Mapping[str, Any]]:
    after = 0
    while True:
        page = client.events(after, job=id, limit=_PAGE)
        yield from page["events"]
        if len(page["events"]) < _PAGE:
            return
        after = page["last"]


def seconds(instant: str) -> float:
    """An instant in ISO-8601 as seconds since the epoch."""
    return datetime.fromisoformat(instant).timestamp()


def _number(id: str) -> tuple[int, str]:
    return (int(id), "") if id.isdecimal() else (0, id)


def numbers(jobs: Sequence[Went]) -> dict[str, Any]:
    """What came of all of them: durations in seconds; null where there is nothing to measure."""
    done = [one for one in jobs if one.ended is not None and one.stays]
    makespan = max(one.ended or 0.0 for one in done) - min(one.submitted for one in jobs) if done else None
    return {
        "jobs": len(jobs),
        "completed": len(done),
        "succeeded": sum(one.job["state"] == "succeeded" for one in jobs),
        "makespan": _rounded(makespan),
        "wait_mean": _mean([one.wait for one in done]),
        "turnaround_mean": _mean([one.turnaround for one in done]),
        "run_mean": _mean([one.run for one in done]),
        "throughput": len(done) / makespan if makespan else None,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(sum(known) / len(known)) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def write_jobs(path: Path, jobs: Sequence[Went]) -> Path:
    """`jobs.csv`: a row for each job."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(JOBS)
        for one in jobs:
            job, measured = one.job, one.job["measured"]
            energy = job.get("energy_wh")
            writer.writerow((
                job["id"], job["name"] or "", job["state"], job["submitted_at"], job["started_at"] or "",
                job["ended_at"] or "", _cell(_rounded(one.wait)), f"{one.run:.3f}", " ".join(map(str, job["gpus"])),
                job["attempt"], _cell(job["exit_code"]), _cell(measured["peak"] if measured else None), _cell(energy),
            ))  # fmt: skip
    return path


def _cell(value: Any) -> Any:
    return "" if value is None else value


def write_allocations(path: Path, jobs: Sequence[Went], begin: float) -> Path:
    """`task_allocation_log.csv`: when which task was given which GPU, in seconds since the first submission."""
    found = sorted((stay.start, one.label, gpu) for one in jobs for stay in one.stays for gpu in stay.gpus)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time", "task", "gpu"))
        writer.writerows((f"{at - begin:.3f}", label, gpu) for at, label, gpu in found)
    return path


def schedule(jobs: Sequence[Went], memories: Sequence[float], policy: str, begin: float) -> Result:
    """The same as a schedule of the simulator, from which a Gantt chart can be drawn; time counts from `begin`."""
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


def _ended(one: Went) -> str:
    state = one.job["state"]
    return one.label if state in ("succeeded", "running") else f"{one.label}: {state}"
