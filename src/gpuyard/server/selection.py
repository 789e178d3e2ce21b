"""Jobs in a row: which of them, in which order, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from gpuyard.arrays import task_id
from gpuyard.core.lending import loans
from gpuyard.core.reasons import Reason
from gpuyard.daemon.progress import Progresses
from gpuyard.daemon.reader import Reader
from gpuyard.daemon.views import JobView
from gpuyard.daemon.yard import Yard
from gpuyard.server import tasks
from gpuyard.server.answers import Sayings, columns_json, job_json, times_are_known


@dataclass(frozen=True, slots=True)
class Choice:
    """Which jobs somebody wants to see."""

    over: bool | None
    """Those that are over (True), or not; None: both."""
    wanted: Mapping[str, str]
    """What columns must say."""
    states: frozenset[str]
    """Any of these; empty: all."""
    text: str
    """What must be somewhere, in lower case."""
    tag: str
    page: slice
    fold: bool
    """Whether the waiting tasks of an array are one entry."""

    def found(self, opened: list[JobView], reader: Reader) -> list[JobView]:
        """The jobs: out of memory if they are open, so that a long queue is quick to list."""
        if self.over is None:
            found = reader.jobs(over=None, wanted=self.wanted, tag=self.tag)
        else:
            found = opened
            for name, value in self.wanted.items():
                found = [v for v in found if getattr(v, name) == value]
            found = [v for v in found if self.tag in v.work.get("tags", ())] if self.tag else found
        if len(self.states) > 1:
            found = [v for v in found if v.state in self.states]
        if self.text:
            found = [v for v in found if self.text in _said(v).casefold()]
        return found


def _said(view: JobView) -> str:
    """Where a text is looked for: line by line, so that nothing is found across two of them."""
    work = view.work
    command = " ".join(work.get("command", ()))
    return "\n".join((view.id, view.name, view.user, view.state, command, *work.get("tags", ())))


class Listed(NamedTuple):
    """A page of jobs."""

    answer: dict[str, Any]
    more: bool
    """Whether there are others behind it."""
    known: bool
    """Whether the reason of everybody who is shown waiting is known: reasons may be a moment old."""


class Listing:
    """Answers for many jobs at once."""

    def __init__(self, yard: Yard, progress: Progresses) -> None:
        self._yard, self._progress = yard, progress

    def of(self, choice: Choice, reader: Reader, reasons: Mapping[str, Reason], columns: bool) -> Listed:
        """Who runs first, then who waits, in the order of the policy; column by column, or job by job."""
        yard = self._yard
        opened = list(yard.store.open.values())
        found = _in_order(choice.found(opened, reader), reasons)
        say = Sayings(times=times_are_known(opened))
        rows = tasks.fold(found) if choice.fold else found
        shown, now = rows[choice.page], yard.clock.now()
        whys = [reasons.get(_first_id(view)) if view.state == "queued" else None for view in shown]
        known = all(why or view.state != "queued" for view, why in zip(shown, whys, strict=True))
        said = [say(why, view) for view, why in zip(shown, whys, strict=True)]
        far = [self._progress.of(view, now) for view in shown]
        more = len(rows) > choice.page.stop
        counts: dict[str, Any] = {"total": len(found), "rows": len(rows), "states": tasks.counts_of(found)}
        if columns:
            answer = {"now": now, **counts, "last": yard.store.last}
            return Listed({**answer, "columns": columns_json(shown, said, far, _since(shown, reader))}, more, known)
        node = yard.machine.node
        live = yard.measures.live
        state = yard.state
        jobs = [
            job_json(*one, node, live(one[0]), loans(state, one[0].id)) for one in zip(shown, said, far, strict=True)
        ]
        return Listed({**counts, "jobs": jobs}, more, known)


def _in_order(views: list[JobView], reasons: Mapping[str, Reason]) -> list[JobView]:
    """Who runs, who waits as the policy has it, who is held, who is over; else in the order of submission."""
    views.sort(key=_NUMBER)
    groups: tuple[list[JobView], ...] = ([], [], [], [])
    for view in views:
        groups[3 if view.ended is not None else _GROUPS.get(view.state, 1)].append(view)
    waiting = groups[1]
    ids = {view.id: view for view in waiting}
    ranked = [ids.pop(job) for job in reasons if job in ids]
    return [*groups[0], *ranked, *ids.values(), *groups[2], *groups[3]]


_NUMBER = attrgetter("number")
_GROUPS = {"running": 0, "queued": 1, "held": 2}


def _since(views: list[JobView], reader: Reader) -> list[float]:
    """When each began to wait, the last time."""
    again = [_first_id(view) for view in views if view.attempt > (view.state not in ("queued", "held"))]
    requeued = reader.requeued(again) if again else {}
    return [requeued.get(_first_id(view), view.submitted) for view in views]


def _first_id(view: JobView) -> str:
    """Its id; of folded tasks, the first one's."""
    return task_id(view.array, view.work["task"]) if view.array else view.id
