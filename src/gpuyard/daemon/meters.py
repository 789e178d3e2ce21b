"""Counters and histograms of the daemon's life, for the metrics route."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from gpuyard.core.events import Cancelled, Exited, Placed, Preempted, Requeued, Started, Submitted
from gpuyard.core.model import Phase
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.views import JobView
from gpuyard.policies.guard import Counts

_LONG = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0)
_SHORT = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        found, so_far = [], 0
        for count in self._counts.copy():
            so_far += count
            found.append(so_far)
        return found


class Meters:
    """Counters since the daemon began."""

    def __init__(self, opened: Mapping[str, JobView], latest_at: Callable[[str], float]) -> None:
        self.submitted = 0
        self.finished: Counter[str] = Counter()  # by outcome
        self.events: Counter[str] = Counter()  # by kind
        self.waits = Histogram(_LONG)  # seconds from when a job began to wait, the last time, to its start
        self.runs: dict[str, Histogram] = {}  # seconds that jobs ran, by outcome
        self.plans = Histogram(_SHORT)
        self.plan_cpu = 0.0  # seconds of CPU time that planning took
        self.commits = Histogram(_SHORT)
        self.learned = Counts()  # what trained policies did that decided before; the present one's guard has its own
        self._since = {
            view.id: latest_at(view.id) if view.attempt and view.state != "running" else view.submitted
            for view in opened.values()
        }
        """Since when each open job waits, or waited; what last happened to one that waits again was that it does."""
        self._attempts: dict[str, tuple[int, float | None]] = {
            view.id: (view.attempt, view.started) for view in opened.values() if view.state == "running"
        }
        """Who is on GPUs: which attempt that is, and when it began."""
        self._ran_before = {view.id: view.ran_before for view in opened.values() if view.ran_before}

    def planned(self, wall: float, cpu: float) -> None:
        self.plans.observe(wall)
        self.plan_cpu += cpu

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            self.events[type(record.event).__name__] += 1
            event = record.event
            if isinstance(event, Submitted):
                self.submitted += 1
                self._since[event.job] = event.at
            elif isinstance(event, Placed):
                self._attempts[event.job] = event.attempt, None
            elif isinstance(event, Cancelled):
                self._over(event.job, "cancelled")
            elif isinstance(event, Started | Exited | Preempted | Requeued):
                self._note_attempt(event)

    def _note_attempt(self, event: Started | Exited | Preempted | Requeued) -> None:
        attempt, started = self._attempts.get(event.job, (0, None))
        if attempt != event.attempt:
            return  # a late report on an attempt that is over
        if isinstance(event, Started):
            self._attempts[event.job] = attempt, event.at
            self.waits.observe(max(0.0, event.at - self._since.get(event.job, event.at)))
            return
        del self._attempts[event.job]
        if not isinstance(event, Exited):
            self._since[event.job] = event.at
            if isinstance(event, Preempted) and started is not None:
                self._ran_before[event.job] = self._ran_before.get(event.job, 0.0) + max(0.0, event.at - started)
            return
        outcome = str(event.cause or (Phase.SUCCEEDED if event.code == 0 else Phase.FAILED))
        if started is not None:
            self.runs.setdefault(outcome, Histogram(_LONG)).observe(
                self._ran_before.get(event.job, 0.0) + max(0.0, event.at - started)
            )
        self._over(event.job, outcome)

    def _over(self, job: str, outcome: str) -> None:
        self.finished[outcome] += 1
        self._since.pop(job, None)
        self._attempts.pop(job, None)
        self._ran_before.pop(job, None)
