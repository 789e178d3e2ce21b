"""Array tasks: which tasks an id names, their combined state, and how a listing folds waiting tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuyard.api.types import OVER
from gpuyard.daemon.commands import NotNow, over
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.spec.notation import folded, some_of, task_id

STATES = ("running", "queued", "held", "failed", "oom", "timeout", "interrupted", "cancelled", "succeeded")
"""All states; that of an array is the first of these that one of its tasks is in."""


def unknown(job: str, kind: str = "job") -> NoSuchJob:
    return NoSuchJob(f"there is no {kind} {job} (gpuyard ps --all lists them)")


def chosen(reader: Reader, job: str) -> list[JobView]:
    """The job with an id, or the tasks that `12` (an array) or `12_[3-5]` names."""
    if (found := reader.job(job)) is not None:
        return [found]
    some = some_of(job)
    views = reader.jobs(over=None, wanted={"array": some[0] if some else job}) if some or job.isdecimal() else []
    if some is not None:
        wanted = {task_id(some[0], task) for task in some[1]}
        views = [view for view in views if view.id in wanted]
    if not views:
        raise unknown(job)
    return views


def first(reader: Reader, job: str) -> JobView:
    """The job with an id, or the first task that it names: an array may have thousands, which take long to read."""
    if (
        job.isdecimal()
        and reader.job(job) is None
        and (views := reader.jobs(over=None, wanted={"array": job}, limit=1))
    ):
        return views[0]
    return chosen(reader, job)[0]


def alone(reader: Reader, job: str) -> JobView:
    view = first(reader, job)
    if view.id != job and (count := sum(reader.tasks(job).values()) or len(chosen(reader, job))) > 1:
        raise UserError(f"{job} is an array of {count:,} tasks; say which, as in {view.id}")
    return view


def running(reader: Reader, job: str) -> JobView:
    """The job with an id, which must run."""
    if (view := alone(reader, job)).state != "running":
        raise over(view.id, view.state) if view.over else NotNow(f"job {view.id} does not run: it is {view.state}")
    return view


def owner(reader: Reader, job: str) -> str:
    if (found := reader.job(job)) is not None:
        return found.user
    some = some_of(job)
    array = some[0] if some else job
    views = reader.jobs(over=None, wanted={"array": array}, limit=1) if array.isdecimal() else []
    if not views:
        raise unknown(job)
    return views[0].user


def ids(reader: Reader, job: str) -> list[str]:
    """The ids of the jobs that an id names, quick also for thousands."""
    if reader.job(job) is not None:
        return [job]
    if some_of(job) is None and (found := reader.ids(job)):
        return found
    return [view.id for view in chosen(reader, job)]


def progress(reader: Reader, job: str) -> tuple[bool, bool, str]:
    """Whether a job is over, whether it has started, and the array whose tasks the id names, if any."""
    if (view := reader.job(job)) is not None:
        return view.over, view.started is not None, ""
    if (some := some_of(job)) is not None:
        view = together(job, chosen(reader, job))
        return view.over, view.started is not None, some[0]
    if not (counts := reader.tasks(job)):
        raise unknown(job)
    return counts.keys() <= OVER, bool(counts.keys() - {"queued", "held"}), job


def together(job: str, views: list[JobView]) -> JobView:
    if len(views) == 1:
        return views[0]
    state = next(state for state in STATES if any(view.state == state for view in views))
    codes = [view.exit_code for view in views if view.exit_code is not None]
    return replace(
        views[0],
        id=job,
        state=state,
        gpus=tuple(sorted({gpu for view in views if view.state == "running" for gpu in view.gpus})),
        attempt=max(view.attempt for view in views),
        started=min((view.started for view in views if view.started is not None), default=None),
        ended=max(view.ended or 0.0 for view in views) if state in OVER else None,
        exit_code=max(codes) if codes and state in OVER else None,
        message=counted(views),
        recalled="",
        measured={**views[0].measured, **_all_took(views)},
    )


def _all_took(views: Iterable[JobView]) -> dict[str, float | None]:
    known = [wh for view in views if (wh := view.measured.get("total_wh")) is not None]
    seconds = sum(view.measured.get("total_gpu_seconds", 0.0) for view in views)
    return {"total_wh": sum(known) if known else None, "total_gpu_seconds": seconds}


def counted(views: Iterable[JobView]) -> str:
    counts = counts_of(views)
    return ", ".join(f"{counts[state]:,} {state}" for state in STATES if state in counts)


def counts_of(views: Iterable[JobView]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for view in views:
        counts[view.state] = counts.get(view.state, 0) + 1
    return counts


def named(word: str) -> list[str]:
    """The ids that a word like `12`, `12_3` or `12_[3-5]` names; of an array, its own."""
    some = some_of(word)
    return [word] if some is None else [task_id(some[0], task) for task in some[1]]


def fold(views: list[JobView]) -> list[JobView]:
    """The listing with one entry for all waiting tasks of an array, in the place of the first."""
    waiting: dict[tuple[str, str], list[int]] = {}
    for view in views:
        if view.array and view.state in ("queued", "held"):
            waiting.setdefault((view.array, view.state), []).append(view.work["task"])
    if not waiting:
        return views
    found: list[JobView] = []
    for view in views:
        tasks = waiting.get((view.array, view.state))
        if tasks is None:
            found.append(view)
        elif view.work["task"] == tasks[0]:
            id = folded(view.array, sorted(tasks), view.work.get("at_most", 0))
            found.append(replace(view, id=id))
    return found
