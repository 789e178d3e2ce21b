"""Views of jobs: what follows from their events, what they ran and asked for, and the energy that they took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuyard.core.events import (
    WAIT_AGAIN,
    Adapted,
    Cancelled,
    ClockSet,
    Edited,
    Exited,
    Granted,
    Held,
    Placed,
    Preempted,
    Recalled,
    Released,
    Requeued,
    Started,
    Submitted,
)
from gpuyard.core.model import Phase, Request
from gpuyard.daemon.store.records import Bases, Record, finite
from gpuyard.spec.work import Work, joined, without

LONGEST_GAP = 60.0
"""Seconds between looks that are counted by what was seen at both ends; a longer gap counts for nothing."""


def split_power(
    power: Mapping[int, float | None], busy: Mapping[int, Mapping[str, float | None]]
) -> dict[str, float | None]:
    """Watts of each job, by those of each GPU, and by percent of it that each job there keeps busy.

    If that is not known of all of them, or none is busy, they share evenly. None where the power of a GPU is not told.
    """
    found: dict[str, float | None] = {}
    for gpu, jobs in busy.items():
        watts = power.get(gpu)
        for job, share in _power_shares(jobs).items():
            before = found.get(job, 0.0)
            found[job] = None if watts is None or before is None else before + watts * share
    return found


def _power_shares(busy: Mapping[str, float | None]) -> dict[str, float]:
    known = {job: percent for job, percent in busy.items() if percent is not None}
    total = sum(known.values())
    if len(known) < len(busy) or total <= 0:
        return dict.fromkeys(busy, 1 / max(1, len(busy)))
    return {job: percent / total for job, percent in known.items()}


def gpu_part(work: Mapping[str, Any], memory: float) -> float:
    """The part of each of its GPUs that a job counts for: all, or its share of the memory of the largest GPU."""
    share = None if work.get("alone") else work.get("gpu_memory")
    return min(1.0, share / memory) if share and memory else 1.0


def energy_totals(before: Mapping[str, Any], measured: Mapping[str, Any], seconds: float, gpus: int) -> dict[str, Any]:
    """Watt-hours and GPU-seconds of all attempts of a job, with one that has just ended."""
    known = [wh for wh in (before.get("total_wh"), measured.get("energy_wh")) if wh is not None]
    spent = before.get("total_gpu_seconds", 0.0) + measured.get("gpu_seconds", seconds * gpus)
    return {"total_wh": round(sum(known), 6) if known else None, "total_gpu_seconds": round(spent, 3)}


def energy_spent(total: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[float | None, float]:
    """Watt-hours and GPU-hours of a job: of its ended attempts and the running one."""
    known = [wh for wh in (total.get("total_wh"), now.get("energy_wh")) if wh is not None]
    seconds = total.get("total_gpu_seconds", 0.0) + now.get("gpu_seconds", 0.0)
    return (round(sum(known), 6) if known else None), round(seconds / 3600, 6)


_LONGEST = 200  # characters of a job's own reason that its line shows


@dataclass(frozen=True, slots=True)
class JobView:
    number: int
    id: str
    name: str
    user: str
    state: str
    submitted: float
    priority: float
    work: Mapping[str, Any] = field(default_factory=dict)  # `Work`, and the numbers of the request, as JSON has them
    attempt: int = 0
    gpus: tuple[int, ...] = ()
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    message: str = ""
    recalled: str = ""
    kind: str = "job"
    array: str = ""
    failures: int = 0  # attempts that failed and were followed by a retry
    preemptions: int = 0
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What the last attempt used, once it is over: peak, mean, samples, period, seconds, utilization, alone; what all
    of them took together; and where usage counts by what the latest one was let in (`admission`)."""

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def ran_before(self) -> float:
        """Seconds that earlier attempts ran, as far as their work was kept: those that were preempted."""
        return float(self.measured.get(RAN_BEFORE, 0.0))

    @property
    def ran(self) -> float | None:
        """Seconds that a job ran which is over; None if it never did, or is not over."""
        return None if self.started is None or self.ended is None else run_seconds(self, self.ended)


def run_seconds(view: JobView, at: float) -> float:
    """Seconds that a job has run at an instant: the latest attempt, and those whose work it goes on with."""
    return view.ran_before + (0.0 if view.started is None else max(0.0, at - view.started))


def fold_view(view: JobView | None, number: int, record: Record) -> JobView | None:
    """The view of a job after one more event; None while there is none."""
    event, details = record.event, record.details
    if isinstance(event, Submitted):
        return _new(number, event, details)
    if view is None:
        return None
    if isinstance(event, Edited):
        return _edited(view, event, details)
    if isinstance(event, Held):
        return replace(view, state="held")
    if isinstance(event, Released):
        return replace(view, state="queued")
    if isinstance(event, Cancelled):
        return replace(view, state="cancelled", ended=event.at, message=details.get("message", ""))
    if isinstance(event, Placed):
        return _let_in(replace(view, state="running", attempt=event.attempt, gpus=event.gpus, message=""), details)
    if getattr(event, "attempt", view.attempt) != view.attempt or view.over:
        return view  # a late report on an attempt that is over
    if isinstance(event, Started):
        return replace(view, started=event.at)
    if isinstance(event, Granted | Adapted):
        stays = view.message and _changed_nothing(event, details)
        return view if stays else replace(view, message=_adapted(event, details))
    if isinstance(event, Recalled):
        return replace(view, recalled=event.cause if view.recalled in ("", *WAIT_AGAIN) else view.recalled)
    if isinstance(event, Preempted | Requeued | Exited):
        view = replace(view, measured=_measured(view, event, details.get("measured", {})))
    if isinstance(event, Preempted | Requeued):
        waits = replace(view, state="queued", gpus=(), started=None, recalled="", message=details.get("message", ""))
        if isinstance(event, Preempted):
            return replace(waits, preemptions=view.preemptions + 1)
        return replace(waits, failures=view.failures + bool(details.get("failed")))
    if isinstance(event, Exited):
        state = event.cause or (Phase.SUCCEEDED if event.code == 0 else Phase.FAILED)
        message = details.get("message", "")
        if state == Phase.SUCCEEDED and view.work.get("adaptive"):  # what it decided is worth remembering
            message = message or view.message
        return replace(view, state=str(state), exit_code=event.code, ended=event.at, message=message)
    return view


def shifted(views: Iterable[JobView], event: ClockSet) -> dict[str, JobView]:
    """The views of what waits or runs after the time of day was set."""
    found = {view.id: replace(view, submitted=view.submitted + event.by) for view in views if not view.over}
    for view in found.values():
        if view.state == "running" and view.started is not None:
            found[view.id] = replace(view, started=view.started + event.by)
    return found


def _adapted(event: Granted | Adapted, details: Mapping[str, Any]) -> str:
    if isinstance(event, Granted):
        return f"was given GPU {', '.join(map(str, event.gpus))}: {details.get('why', '')}"
    reason = str(details.get("reason", ""))
    reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
    decision = "declined a GPU" if details.get("accepted") is False else str(details.get("decision", ""))
    return decision + (f": {reason}" if reason else "")


def _changed_nothing(event: Granted | Adapted, details: Mapping[str, Any]) -> bool:
    """Whether a job decided to stay as it is, and declined nothing: what it did before is worth more to show."""
    before, after = details.get("parameters_before"), details.get("parameters")
    stays = isinstance(event, Adapted) and before is not None and before == after
    return stays and details.get("accepted") is not False


def _let_in(view: JobView, details: Mapping[str, Any]) -> JobView:
    if "admission" not in details and "admission" not in view.measured:
        return view
    before = {name: value for name, value in view.measured.items() if name != "admission"}
    return replace(view, measured={**before, **{n: v for n, v in details.items() if n == "admission"}})


def _measured(view: JobView, event: Preempted | Requeued | Exited, measured: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in view.measured.items() if name in (*TOTALS, "admission")}
    if isinstance(event, Preempted):
        kept[RAN_BEFORE] = round(run_seconds(view, event.at), 3)
    if not measured:  # it never began, or that was not measured then
        return kept
    seconds = 0.0 if view.started is None else max(0.0, event.at - view.started)
    return {**measured, **kept, **energy_totals(view.measured, measured, seconds, len(view.gpus))}


RAN_BEFORE = "ran_before"
TOTALS = ("total_wh", "total_gpu_seconds", RAN_BEFORE)  # of what was measured, what counts for all attempts


def _new(number: int, event: Submitted, details: Mapping[str, Any]) -> JobView:
    request = event.request
    work = _request_columns(request, details)
    return JobView(
        number, event.job, work.get("name", ""), request.user, "queued", event.at, request.priority, work,
        kind=work.get("kind", "job"), array=request.array,
    )  # fmt: skip


def _edited(view: JobView, event: Edited, details: Mapping[str, Any]) -> JobView:
    work = _request_columns(event.request, details)
    message = details.get("message", view.message) if view.state == "running" else view.message
    return replace(view, name=work.get("name", ""), priority=event.request.priority, work=work, message=message)


def _request_columns(request: Request, details: Mapping[str, Any]) -> dict[str, Any]:
    """The request as JSON; rare fields only if they are set."""
    seldom = {
        "begin": request.begin or None,
        "deadline": finite(request.deadline),
        "after": list(request.after),
        "preemptible": request.preemptible,
        "at_most": request.at_most,
        "alone": request.whole and request.memory > 0,
    }
    return {
        **details.get("work", {}),
        "gpu_count": request.gpus,
        "estimate": finite(request.estimate),
        "gpu_memory": request.memory or None,
        "from": list(request.scope) or None,
        **{name: value for name, value in seldom.items() if value},
    }


_WORK = frozenset(f.name for f in fields(Work))


def work_of(view: JobView) -> Work:
    return Work.from_json({name: value for name, value in view.work.items() if name in _WORK})


COLUMNS = tuple(f.name for f in fields(JobView))  # the columns of the table `jobs`


FIXED = ("id", "name", "user", "priority", "work", "kind", "array")
"""Those that no event changes, but for `Edited`."""
CHANGING = tuple(name for name in COLUMNS if name not in (*FIXED, "number"))


SHARED = "(SELECT content FROM environments WHERE hash = json_extract(work, '$.shared'))"
"""What a task shares with the others of its array."""
WORK = f"coalesce(json_patch({SHARED}, work), work)"
"""The work of a job in full."""
SELECTED = f"{', '.join(COLUMNS)}, {SHARED}"
"""What `from_row` takes."""
_MOST_KEPT = 256
_shared: dict[str, Mapping[str, Any]] = {}
"""The latest that tasks share, by hash, so that they share it in memory too."""


def to_row(view: JobView, columns: tuple[str, ...] = COLUMNS, bases: Bases | None = None) -> list[Any]:
    if bases is not None and (key := view.work.get("shared")) and "work" in columns:
        view = replace(view, work=without(view.work, bases(key)))
    return [_TO_ROW[name](getattr(view, name)) if name in _TO_ROW else getattr(view, name) for name in columns]


_LEAST = _request_columns(Request(preemptible=False), {})  # what the work of each job has


def from_row(row: tuple[Any, ...], *, repair: bool = False) -> JobView:
    """A job whose work lacks what all have is damage, or gets the defaults."""
    *values, shared = row
    found = dict(zip(COLUMNS, values, strict=True))
    found["gpus"] = tuple(int(index) for index in found["gpus"].split(",") if index)
    found["work"] = json.loads(found["work"])
    if shared is not None:
        found["work"] = joined(found["work"], shared_of(found["work"]["shared"], lambda: shared))
    if lacks := _LEAST.keys() - found["work"].keys():
        if not repair:
            raise KeyError(f"job {found['id']} without {', '.join(sorted(lacks))}")
        found["work"] = {**_LEAST, **found["work"]}
    found["measured"] = json.loads(found["measured"] or "{}")
    return JobView(**found)


def shared_of(key: str, content: Callable[[], str]) -> Mapping[str, Any]:
    """What the tasks of an array share, by its hash, or from its JSON. For any thread."""
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _MOST_KEPT:
            _shared.clear()
        found = _shared[key] = json.loads(content())
    return found


def printable(text: str) -> str:
    """A text without what UTF-8 cannot encode, such as a file's name may hold."""
    return text.encode(errors="replace").decode()


_TO_ROW: dict[str, Callable[[Any], Any]] = {
    "gpus": lambda gpus: ",".join(map(str, gpus)),
    "name": printable,
    "message": printable,
    "work": lambda work: json.dumps(work, separators=(",", ":")),
    "measured": lambda measured: json.dumps(measured, separators=(",", ":")) if measured else "",
}
