"""The promises, checked after the fact: by the store, and by what the jobs stamped themselves."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuyard.core.checkpoint import dump
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.spec.notation import number_of
from tests.chaos.harness import GPU_MEMORY, Stamp, exit_code


def jobs_of(database: Path) -> dict[str, JobView]:
    """All jobs that a store knows."""
    reader = Reader(database)
    try:
        return {view.id: view for view in reader.jobs(over=None, wanted={})}
    finally:
        reader.close()


def check_all(database: Path, stamps: list[Stamp], acknowledged: Collection[str], cancelled: Collection[str]) -> int:
    """Everything that must hold when the queue is empty; how often a job was stopped for another."""
    jobs = jobs_of(database)
    check_acknowledged(jobs, acknowledged, cancelled)
    check_starts(stamps)
    check_ends(jobs, stamps)
    check_gpus(jobs, stamps)
    check_arrays(jobs, stamps)
    check_dependencies(jobs, stamps)
    check_times(database)
    check_projections(database)
    return check_preempted(database, jobs, stamps)


def check_acknowledged(jobs: dict[str, JobView], acknowledged: Collection[str], cancelled: Collection[str]) -> None:
    """What was acknowledged has happened."""
    lost = [job for job in acknowledged if job not in jobs]
    assert not lost, f"acknowledged, and lost: {lost}"
    open_still = [view.id for view in jobs.values() if not view.over]
    assert not open_still, f"not over: {open_still}"
    uncancelled = {job: jobs[job].state for job in cancelled if jobs[job].state != "cancelled"}
    assert not uncancelled, f"their cancel was acknowledged: {uncancelled}"


def check_starts(stamps: Iterable[Stamp]) -> None:
    """No attempt started twice."""
    starts = Counter((stamp.job, stamp.attempt) for stamp in stamps if stamp.kind == "start")
    twice = {attempt: count for attempt, count in starts.items() if count > 1}
    assert not twice, f"started more than once: {twice}"


def check_ends(jobs: dict[str, JobView], stamps: list[Stamp]) -> None:
    """Who ran to its end has the right exit code, and who has an exit code ran to its end."""
    ran = {(stamp.kind, stamp.job, stamp.attempt) for stamp in stamps}
    for view in jobs.values():
        has = tuple((kind, view.id, view.attempt) in ran for kind in ("start", "stop"))
        if view.kind == "lease":  # given up while it waited; else its holder gave it back, or was killed
            assert view.state == "succeeded" or (view.state == "cancelled" and has == (False, False)), f"{view}, {has}"
        if view.state == "cancelled" or view.kind == "lease":
            continue
        code = exit_code(view.id)
        wanted = ("failed" if code else "succeeded", code, True, True)
        assert (view.state, view.exit_code, *has) == wanted, f"job {view.id}: {view}, stamps {has}"


def check_gpus(jobs: dict[str, JobView], stamps: list[Stamp]) -> None:
    """Every job had the GPUs that the store says, and nobody else had them meanwhile, or what was left of their memory,
    by the jobs' own stamps."""
    taken: defaultdict[int, dict[str, float]] = defaultdict(dict)
    ends = {(stamp.job, stamp.attempt) for stamp in stamps if stamp.kind == "stop"}
    for stamp in stamps:
        view = jobs[stamp.job]
        waits_again = view.preemptions > 0 and view.gpus == ()  # or was cancelled while it did
        assert view.attempt != stamp.attempt or waits_again or view.gpus == stamp.gpus, f"{view} ran on {stamp.gpus}"
        for gpu in stamp.gpus:
            if stamp.kind == "stop":
                taken[gpu].pop(stamp.job, None)  # it may have been told to end before it could say that it had begun
                continue
            there = taken[gpu] | {stamp.job: float(view.work.get("gpu_memory") or GPU_MEMORY)}
            assert sum(there.values()) <= GPU_MEMORY, f"jobs and their shares on GPU {gpu} at once: {there}"
            if (stamp.job, stamp.attempt) in ends:  # else it was killed, and could not say when
                taken[gpu] = there


def check_arrays(jobs: dict[str, JobView], stamps: list[Stamp]) -> None:
    """No array ran more tasks at once than it allows."""
    running: defaultdict[str, set[str]] = defaultdict(set)
    ends = {(stamp.job, stamp.attempt) for stamp in stamps if stamp.kind == "stop"}
    for stamp in stamps:
        view = jobs[stamp.job]
        tasks = running[view.array]
        if stamp.kind == "stop":
            tasks.discard(stamp.job)
        elif (stamp.job, stamp.attempt) in ends and (most := view.work.get("at_most")):
            tasks.add(stamp.job)
            assert len(tasks) <= most, f"tasks {tasks} at once, where {most} may"


def check_dependencies(jobs: dict[str, JobView], stamps: list[Stamp]) -> None:
    """Nobody began before those that it follows were over, and had ended as it wants."""
    first, last = dict[str, float](), {stamp.job: stamp.at for stamp in stamps}
    for stamp in stamps:
        first.setdefault(stamp.job, stamp.at)
    for view in jobs.values():
        for how, _, other in (condition.partition(":") for condition in view.work.get("after", ())):
            if view.id not in first or how == "begun":
                continue
            assert last.get(other, 0.0) <= first[view.id], f"job {view.id} began before job {other} was over"
            state = jobs[other].state
            assert how == "any" or (how == "ok") == (state == "succeeded"), f"{view.id} after{how} {other}: {state}"


def check_tags(jobs: dict[str, JobView], tags: Mapping[str, int]) -> None:
    """No request was taken twice: no more jobs have its tag than it asked for."""
    found = Counter(tag for view in jobs.values() for tag in view.work.get("tags", ()))
    twice = {tag: count for tag, count in found.items() if count > tags.get(tag, 0)}
    assert not twice, f"taken more than once: {twice}"


def check_cancelled_together(
    database: Path, jobs: dict[str, JobView], many: Iterable[tuple[str, str, float]], slack: float = 0.5
) -> None:
    """Once the cancel of an array, or of all jobs of a name, was acknowledged, none of these began."""
    connection = sqlite3.connect(database)
    placed = connection.execute("SELECT job, max(at) FROM events WHERE kind = 'Placed' GROUP BY job").fetchall()
    connection.close()
    for what, newest, at in many:
        for job, begun in placed:
            view = jobs[job]
            chosen = (
                view.array == what
                if not newest
                else (view.name == what and view.kind == "job" and number_of(job) <= number_of(newest))
            )
            assert not chosen or begun < at + slack, f"job {job} began though all of {what} were cancelled"


def check_preempted(database: Path, jobs: dict[str, JobView], stamps: list[Stamp]) -> int:
    """Only who may be stopped was stopped for others, and went on where it was; how often that happened."""
    connection = sqlite3.connect(database)
    recalled = connection.execute("SELECT job, attempt FROM events WHERE kind = 'Recalled' AND data LIKE '%preempted%'")
    stopped = set(recalled.fetchall())
    begun = set(connection.execute("SELECT job, attempt FROM events WHERE kind = 'Started'").fetchall())
    connection.close()
    touched = [job for job, _ in stopped if not jobs[job].work.get("preemptible")]
    assert not touched, f"stopped for others, and may not be: {touched}"
    done: dict[str, int] = {}
    for stamp in stamps:
        if stamp.kind == "start":
            reached = done.get(stamp.job, 0)
            assert stamp.done == reached, f"job {stamp.job}, attempt {stamp.attempt}: {stamp.done}, not {reached}"
        done[stamp.job] = stamp.done
    again = [job for job, attempt in begun if (job, attempt - 1) in begun - stopped]
    assert not again, f"ran again, though nobody had stopped them: {again}"
    return len(stopped)


def check_times(database: Path) -> None:
    """No event is before the one that was written before it."""
    latest = 0.0
    connection = sqlite3.connect(database)
    for seq, job, kind, at in connection.execute("SELECT seq, job, kind, at FROM events ORDER BY seq"):
        assert at >= latest, f"event {seq}, {kind} of job {job}, is {latest - at:.6f} s before the former one"
        latest = at
    connection.close()


def check_projections(database: Path) -> None:
    """What was kept beside the log is what follows from the log."""
    copy = database.with_name("copy.db")
    for suffix in ("", "-wal"):
        if (part := database.with_name(database.name + suffix)).exists():
            shutil.copy(part, copy.with_name(copy.name + suffix))
    before = _rows(copy)
    store = Store(copy)
    kept = store.load()
    store.rebuild()
    folded = store.load()
    store.close()
    assert _rows(copy) == before
    assert kept is not None
    assert folded is not None
    assert dump(kept) == dump(folded)
    for suffix in ("", "-wal", "-shm"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def _rows(database: Path) -> list[Any]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT * FROM jobs ORDER BY number").fetchall()
    finally:
        connection.close()
