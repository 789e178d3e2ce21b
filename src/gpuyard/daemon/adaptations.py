"""What a job was granted and what it made of that, told by its events: a fold over the log, so that nothing is lost.

What a running job hears (`changes`) are numbered by the log itself: who asks for those after the last one that it
knows gets each once, whatever daemon answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.daemon.journal import Row
from gpuyard.grantshapes import Decided, GrantChange, Lent, TimeSet

KINDS = frozenset(
    (
        "Submitted", "Edited", "Placed", "Started", "Preempted", "Requeued", "Recalled", "Granted", "Reclaimed",
        "Returned", "Adapted", "Exited",
    )
)  # fmt: skip
"""The events that tell of it."""
_OVER = ("Preempted", "Requeued", "Exited")
_CAUSES = {
    "cancelled": "it was cancelled", "timeout": "its time is over", "preempted": "others come first",
    "oom": "it uses more GPU memory than it may", "crowded": "others want the memory that it was given",
}  # fmt: skip


@dataclass(slots=True)
class Course:
    """How it went with a job so far."""

    attempt: int = 0
    last: int = 0
    """The number of the last event."""
    gpus: list[int] = field(default_factory=list)
    """Its own."""
    lent: list[int] = field(default_factory=list)
    """Those that it may use beside these."""
    started: float | None = None
    grace: float = 10.0
    budget: float | None = None
    wish: float | None = None
    """When it should be done, if somebody said so (`--deadline`)."""
    changes: list[GrantChange] = field(default_factory=list)
    """What its latest attempt has to hear."""
    grants: list[Lent] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    times: list[TimeSet] = field(default_factory=list)

    @property
    def deadline(self) -> float | None:
        """When its time is over, or it should be done; None: never, or it has not begun."""
        return deadline_of(self.started, self.budget, self.wish)

    @property
    def all_gpus(self) -> list[int]:
        """What it may use, its own first."""
        return [*self.gpus, *self.lent]


def deadline_of(started: float | None, budget: float | None, wish: float | None) -> float | None:
    """When a job that has begun is to be done: when its time is over, or before, if that is wanted."""
    end = math.inf if started is None or budget is None else started + budget
    end = min(end, math.inf if wish is None else wish)
    return end if end < math.inf else None


def course_of(events: Iterable[tuple[int, Row]], visible: Sequence[str]) -> Course:
    """How it went with a job, by all of its events in their order; `visible` is what CUDA calls each GPU."""
    course = Course()
    for number, row in events:
        data = json.loads(row.data) if row.data else {}
        _fold(course, number, row, data, data.get("details", {}), visible)
        course.last = number
    return course


def _fold(
    course: Course, number: int, row: Row, data: dict[str, Any], details: dict[str, Any], visible: Sequence[str]
) -> None:
    said = details.get("why", "")
    if row.kind in ("Submitted", "Edited"):
        kind = _wished(course, row.at, data["request"], details.get("work", {}))
        if kind:
            _tell(course, number, row.at, kind, details.get("message", "") or _by(details), visible)
    elif row.kind == "Placed":
        course.attempt, course.gpus, course.lent, course.started = row.attempt or 0, list(data["gpus"]), [], None
        course.changes = []
    elif row.kind == "Started":
        course.started = row.at
    elif row.kind in _OVER:
        for lent in course.grants:
            if lent["until"] is None:
                lent["until"], lent["ended"] = row.at, lent.get("ended") or "the job ended"
        course.lent = []
    elif row.kind == "Granted":
        course.lent += data["gpus"]
        course.grants += [{"gpu": gpu, "since": row.at, "until": None, "why": said} for gpu in data["gpus"]]
        _tell(course, number, row.at, "up", said, visible)
    elif row.kind == "Reclaimed":
        course.lent = [gpu for gpu in course.lent if gpu not in data["gpus"]]
        for lent in _open(course, data["gpus"]):
            lent["told"], lent["ended"] = row.at, said
        _tell(course, number, row.at, "down", said, visible, details.get("grace"))
    elif row.kind == "Returned":
        course.lent = [gpu for gpu in course.lent if gpu not in data["gpus"]]
        for lent in _open(course, data["gpus"]):
            lent["until"], lent["ended"] = row.at, "; ".join(filter(None, (lent.get("ended"), said)))
    elif row.kind == "Recalled":
        _told_to_end(course, number, row, data, details, visible)
    elif row.kind == "Adapted":
        course.decisions.append(_decided(row.at, details))


def _wished(course: Course, at: float, request: dict[str, Any], work: dict[str, Any]) -> str:
    """Take down what a job asks for now; `extend` or `shrink` if that is another time for one that runs."""
    former, before = course.deadline, course.budget
    course.grace, course.budget = work.get("grace", 10.0), work.get("time_limit")
    course.wish = request.get("deadline")
    now = course.deadline
    if course.started is None or now == former:
        return ""
    course.times.append({"at": at, "before": before, "after": course.budget})
    return "extend" if (now or math.inf) > (former or math.inf) else "shrink"


def _told_to_end(
    course: Course, number: int, row: Row, data: dict[str, Any], details: dict[str, Any], visible: Sequence[str]
) -> None:
    grace = details.get("grace", course.grace)
    why = details.get("message") or _CAUSES.get(data["cause"], data["cause"])
    _tell(course, number, row.at, "preempt", why, visible, grace)
    course.changes[-1]["deadline"] = row.at + grace


def _tell(
    course: Course, number: int, at: float, kind: str, why: str, visible: Sequence[str], grace: float | None = None
) -> None:
    course.changes.append(
        {
            "number": number, "kind": kind, "at": at, "budget": course.budget, "deadline": course.deadline,
            "gpus": [visible[gpu] for gpu in course.all_gpus if gpu < len(visible)], "indices": course.all_gpus,
            "grace": course.grace if grace is None else grace, "why": why,
        }
    )  # fmt: skip


def _open(course: Course, gpus: Sequence[int]) -> list[Lent]:
    return [lent for lent in course.grants if lent["gpu"] in gpus and lent["until"] is None]


def _by(details: dict[str, Any]) -> str:
    return f"changed by {details['by']}" if details.get("by") else "its time was changed"


def _decided(at: float, details: dict[str, Any]) -> Decided:
    return {
        "at": at, "decision": details.get("decision", ""), "reason": details.get("reason", ""),
        "accepted": details.get("accepted"), "parameters_before": details.get("parameters_before"),
        "parameters": details.get("parameters"), "cost_ratio": details.get("cost_ratio"),
        "predicted_gain": details.get("predicted_gain"),
    }  # fmt: skip
