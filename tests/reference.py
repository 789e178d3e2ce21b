"""A second, naive simulator, written apart from gpuyard: the oracle its tests compare with.

Slow and plain on purpose: lists sorted again at every event, and nothing from gpuyard. GPUs are a number.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Job:
    id: int
    submit: float
    run: float
    gpus: int
    requested: float  # the estimate of `run` that a scheduler may look at


Order = Callable[[Job, float], float]  # (job, now) -> score, smaller first
Key = Callable[[Job, float], float]  # (job, attained seconds) -> score, smaller first
Schedule = dict[int, tuple[float, float]]  # job id -> (first start, end)
Running = list[tuple[Job, float]]  # (job, start)

DISCIPLINES = ("strict", "skip", "easy", "conservative", "commit", "easy-shadow")


def _by_arrival(jobs: Sequence[Job], gpus: int) -> list[Job]:
    if any(job.gpus > gpus for job in jobs):
        raise ValueError("a job asks for more GPUs than there are")
    if len({job.id for job in jobs}) != len(jobs):
        raise ValueError("job ids are not unique")
    return sorted(jobs, key=lambda job: (job.submit, job.id))


def simulate(jobs: Sequence[Job], gpus: int, order: Order, discipline: str) -> Schedule:
    """Non-preemptive. Ties in `order` go to the earlier submit, then to the lower id."""
    arrivals = _by_arrival(jobs, gpus)
    if discipline in ("commit", "easy-shadow"):
        return _rlscheduler(arrivals, gpus, order, backfill=discipline == "easy-shadow")
    plan = {"strict": _strict, "skip": _skip, "easy": _easy, "conservative": _conservative}[discipline]
    waiting: list[Job] = []
    running: Running = []
    schedule: Schedule = {}
    while arrivals or running:
        now = min([job.submit for job in arrivals[:1]] + [start + job.run for job, start in running])
        running = [(job, start) for job, start in running if start + job.run > now]
        while arrivals and arrivals[0].submit <= now:
            waiting.append(arrivals.pop(0))
        waiting.sort(key=lambda job: (order(job, now), job.submit, job.id))
        for job in plan(waiting, running, gpus, now):
            waiting.remove(job)
            running.append((job, now))
            schedule[job.id] = (now, now + job.run)
    return schedule


def _free(running: Running, gpus: int) -> int:
    return gpus - sum(job.gpus for job, _ in running)


def _expected_end(job: Job, start: float, now: float) -> float:
    return max(start + job.requested, now)  # a job that outlives its estimate is expected to end now


# Each plan gets the waiting jobs in policy order and returns those that start now.


def _strict(waiting: list[Job], running: Running, gpus: int, now: float) -> list[Job]:
    free = _free(running, gpus)
    started: list[Job] = []
    for job in waiting:
        if job.gpus > free:
            break
        free -= job.gpus
        started.append(job)
    return started


def _skip(waiting: list[Job], running: Running, gpus: int, now: float) -> list[Job]:
    started: list[Job] = []
    for job in waiting:
        if job.gpus <= gpus - sum(other.gpus for other in [j for j, _ in running] + started):
            started.append(job)
    return started


def _easy(waiting: list[Job], running: Running, gpus: int, now: float) -> list[Job]:
    """Only the first job that does not fit has a reservation; backfilling must not delay it."""
    started = _strict(waiting, running, gpus, now)
    rest = waiting[len(started) :]
    if not rest:
        return started
    running = running + [(job, now) for job in started]
    free = _free(running, gpus)
    ends = [(_expected_end(job, start, now), job.gpus) for job, start in running]

    def free_at(time: float) -> int:
        return free + sum(count for end, count in ends if end <= time)

    shadow = min(end for end, _ in ends if free_at(end) >= rest[0].gpus)
    extra = free_at(shadow) - rest[0].gpus
    for job in rest[1:]:
        if job.gpus > free:
            continue
        if now + job.requested > shadow:
            if job.gpus > extra:
                continue
            extra -= job.gpus
        free -= job.gpus
        started.append(job)
    return started


def _conservative(waiting: list[Job], running: Running, gpus: int, now: float) -> list[Job]:
    """Every waiting job has a reservation, given in policy order; those that are for now start.

    A running job that outlived its estimate is expected to end now, so a reservation for now may count on
    GPUs that are not free yet: that job keeps the reservation but does not start.
    """
    profile = [(now, gpus)]  # (time, GPUs free from then until the next entry)

    def take(count: int, begin: float, end: float) -> None:
        """Take `count` GPUs out of the profile during [begin, end)."""
        for moment in (begin, end):
            if moment not in [time for time, _ in profile]:
                before = [level for time, level in profile if time < moment]
                profile.insert(len(before), (moment, before[-1]))
        for index, (time, level) in enumerate(profile):
            if begin <= time < end:
                assert level >= count
                profile[index] = (time, level - count)

    for job, start in running:
        take(job.gpus, now, _expected_end(job, start, now))
    free = _free(running, gpus)
    started: list[Job] = []
    for job in waiting:
        # The earliest entry from which the job fits all through; entries are the only moments to try.
        begin = now
        for time, level in profile:
            if time >= begin + job.requested and time > begin:
                break
            if level < job.gpus:
                begin = math.inf  # not from any earlier entry
            elif begin == math.inf:
                begin = time
        take(job.gpus, begin, begin + job.requested)
        if begin <= now and job.gpus <= free:
            free -= job.gpus
            started.append(job)
    return started


def _rlscheduler(arrivals: list[Job], gpus: int, order: Order, backfill: bool) -> Schedule:
    """RLScheduler's HPCSimPickJobs: one event at a time, an arrival before a finish at the same time.

    A job that is chosen is kept until it fits. Where it has to wait and `backfill` is on, others may start
    in FCFS order, before each event, if they are expected to end *before* the shadow time, which is
    computed once. Finishes at the same time come in the order of RLScheduler's list of running jobs.
    """
    now = -math.inf
    waiting: list[Job] = []
    running: Running = []
    schedule: Schedule = {}

    def start(job: Job) -> None:
        waiting.remove(job)
        running.append((job, now))
        schedule[job.id] = (now, now + job.run)

    def one_event() -> None:
        nonlocal now
        running.sort(key=lambda pair: pair[1] + pair[0].run)
        if arrivals and (not running or arrivals[0].submit <= running[0][1] + running[0][0].run):
            now = max(now, arrivals[0].submit)
            waiting.append(arrivals.pop(0))
        else:
            job, began = running.pop(0)
            now = max(now, began + job.run)

    while arrivals or waiting:
        if not waiting:
            one_event()
            continue
        head = min(waiting, key=lambda job: (order(job, now), job.submit, job.id))
        if head.gpus > _free(running, gpus):
            running.sort(key=lambda pair: pair[1] + pair[0].requested)
            shadow, free = now, _free(running, gpus)
            for job, began in running:
                if free < head.gpus:
                    free += job.gpus
                    shadow = began + job.requested
            while head.gpus > _free(running, gpus):
                if backfill:
                    for job in sorted(waiting, key=lambda job: (job.submit, job.id)):
                        if now + job.requested < shadow and job.gpus <= _free(running, gpus):
                            start(job)
                one_event()
        start(head)
    return schedule


def simulate_preemptive(jobs: Sequence[Job], gpus: int, key: Key) -> tuple[Schedule, int]:
    """At each event all unfinished jobs are walked in order of `key`; what fits runs, the rest does not."""
    arrivals = _by_arrival(jobs, gpus)
    waiting: list[Job] = []
    running: Running = []  # with the start of the present stint
    before = {job.id: 0.0 for job in jobs}  # seconds attained before the present stint
    first: dict[int, float] = {}
    schedule: Schedule = {}
    preemptions = 0

    def end(job: Job, start: float) -> float:
        return start + (job.run - before[job.id])

    while arrivals or running:
        now = min([job.submit for job in arrivals[:1]] + [end(job, start) for job, start in running])
        for job, start in running:
            if end(job, start) <= now:
                schedule[job.id] = (first[job.id], now)
        running = [(job, start) for job, start in running if job.id not in schedule]
        while arrivals and arrivals[0].submit <= now:
            waiting.append(arrivals.pop(0))

        started = {job.id: start for job, start in running}
        attained = {job.id: before[job.id] for job in waiting}
        attained.update({job.id: before[job.id] + (now - start) for job, start in running})
        everyone = waiting + [job for job, _ in running]
        everyone.sort(key=lambda job: (key(job, attained[job.id]), job.submit, job.id))
        waiting, running = [], []
        for job in everyone:
            if job.gpus <= _free(running, gpus):
                first.setdefault(job.id, now)
                running.append((job, started.get(job.id, now)))
            else:
                waiting.append(job)
                if job.id in started:
                    preemptions += 1
                    before[job.id] = attained[job.id]
    return schedule, preemptions


def round_robin(jobs: Sequence[Job], gpus: int, quantum: float, arrivals_first: bool = False) -> Schedule:
    """Jobs of one GPU each; a slice is min(quantum, what is left), and every GPU has its own slice clock.

    Arrivals are let into the queue when a slice ends, or at once where a GPU is idle: after the job whose
    slice ended (the seed's notebook), or before it (`arrivals_first`, the textbook).
    """
    arrivals = _by_arrival(jobs, gpus)
    left = {job.id: job.run for job in jobs}
    queue: list[Job] = []
    on: list[tuple[Job, float] | None] = [None] * gpus  # per GPU: the job, the end of its slice
    first: dict[int, float] = {}
    schedule: Schedule = {}
    while len(schedule) < len(jobs):
        times = [busy[1] for busy in on if busy is not None]
        if None in on and arrivals:
            times.append(arrivals[0].submit)
        now = min(times)
        preempted: list[Job] = []
        for gpu, busy in enumerate(on):
            if busy is not None and busy[1] <= now:
                on[gpu] = None
                job = busy[0]
                if left[job.id] > 0:
                    preempted.append(job)
                else:
                    schedule[job.id] = (first[job.id], now)
        arrived = [job for job in arrivals if job.submit <= now]
        arrivals = arrivals[len(arrived) :]
        queue += arrived + preempted if arrivals_first else preempted + arrived
        for gpu, busy in enumerate(on):
            if busy is None and queue:
                job = queue.pop(0)
                first.setdefault(job.id, now)
                piece = min(quantum, left[job.id])
                left[job.id] -= piece
                on[gpu] = (job, now + piece)
    return schedule


def _log10(value: float) -> float:
    return math.log10(value if value > 0 else 0.1)


SCORES: dict[str, Order] = {
    "fcfs": lambda job, now: job.submit,
    "sjf": lambda job, now: job.requested,
    "saf": lambda job, now: job.requested * job.gpus,
    "f1": lambda job, now: _log10(job.requested) * job.gpus + 870 * _log10(job.submit),
    "f2": lambda job, now: math.sqrt(job.requested) * job.gpus + 25600 * _log10(job.submit),
    "f3": lambda job, now: job.requested * job.gpus + 6860000 * _log10(job.submit),
    "f4": lambda job, now: job.requested * math.sqrt(job.gpus) + 530000 * _log10(job.submit),
    "wfp3": lambda job, now: -(((now - job.submit) / job.requested) ** 3) * job.gpus,
    "unicep": lambda job, now: -(now - job.submit + 1e-15) / (math.log2(job.gpus + 1e-15) * job.requested),
}

KEYS: dict[str, Key] = {
    "srtf": lambda job, attained: job.run - attained,
    "srsf": lambda job, attained: (job.run - attained) * job.gpus,
}


@dataclass
class Metrics:
    jct: float  # mean time from submit to end
    wait: float  # mean time from submit to end that is not running
    makespan: float  # from the first submit to the last end
    slowdown: float  # mean bounded slowdown


def metrics(jobs: Sequence[Job], schedule: Schedule) -> Metrics:
    jct = [schedule[job.id][1] - job.submit for job in jobs]
    slowdown = [max(1.0, time / max(job.run, 10)) for job, time in zip(jobs, jct, strict=True)]
    return Metrics(
        jct=sum(jct) / len(jobs),
        wait=sum(time - job.run for job, time in zip(jobs, jct, strict=True)) / len(jobs),
        makespan=max(end for _, end in schedule.values()) - min(job.submit for job in jobs),
        slowdown=sum(slowdown) / len(jobs),
    )


def read_swf(path: Path | str) -> list[Job]:
    """In file order."""
    name = str(path)
    jobs: list[Job] = []
    with gzip.open(name, "rt") if name.endswith(".gz") else open(name) as lines:
        for line in (line for line in lines if line.strip() and not line.lstrip().startswith(";")):
            field = [0.0, *(float(text) for text in line.split())]  # SWF counts fields from one
            run = field[4]
            if run > 0:
                gpus = int(field[8] if field[8] > 0 else field[5])
                jobs.append(Job(int(field[1]), field[2], run, gpus, field[9] if field[9] > 0 else run))
    return jobs


def read_tiresias(path: Path | str) -> list[Job]:
    with open(path, newline="") as lines:
        return [
            Job(int(row["job_id"]), float(row["submit_time"]), run, int(row["num_gpu"]), run)
            for row in csv.DictReader(lines)
            for run in [float(row["duration"])]
        ]
