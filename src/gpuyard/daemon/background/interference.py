"""What jobs that share a GPU do to each other: looked at once a second, and recorded where it is news.

A thread of its own, since it reads what jobs say of themselves, which is in files of theirs. What it finds out becomes
an event (`HarmMeasured`), which is all that plans depend on; a new daemon begins with what the log says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from gpuyard.core.events import Exited, HarmMeasured
from gpuyard.core.state import State
from gpuyard.daemon.context import BackgroundThread, Context
from gpuyard.daemon.jobs.profiles import epochs_in
from gpuyard.daemon.jobs.progress_reader import ProgressReader
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.views import JobView
from gpuyard.predict.slowdowns import EVIDENCE, Finding, Mark, Seen, Slowdowns

Pair = tuple[str, str]  # two kinds of jobs: who suffers, and beside whom
_PERIOD = 1.0  # seconds between looks, unless less is enough for a finding
_LEAST = 0.05
_NEWS = 0.05  # by how much a slowdown must have changed to be recorded again
_MUCH_MORE = 10  # or by how many times as much evidence
_PRIOR = 300.0  # seconds for which findings of earlier daemons count, at most
_WRITTEN = 30.0  # seconds to wait for something to be written


class Interference(BackgroundThread):
    retry = 5.0

    def __init__(self, context: Context, progress: ProgressReader, enough: float) -> None:
        super().__init__("interference")
        self._context, self._progress = context, progress
        self._period = max(_LEAST, min(_PERIOD, enough / 10))
        self._slowdowns = Slowdowns(enough)
        self._enough = enough
        self._begun = False
        self._former: dict[Pair, Finding] = {}
        self._recorded: dict[Pair, Finding] = {}
        self.known: Mapping[Pair, Finding] = {}
        """By sufferer and whom it is beside. For any thread: it is replaced as a whole."""
        self._ends: deque[Exited] = deque(maxlen=10_000)

    def start(self) -> None:
        self._context.listeners.append(self._committed)
        super().start()

    def look(self, now: float) -> None:
        views = [view for view in list(self._context.store.open.values()) if view.state == "running"]
        while self._ends:
            end = self._ends.popleft()
            self._slowdowns.ended(end.job, end.attempt, end.at)
        self._slowdowns.look(now, [self._seen(view, now) for view in views])
        found = {_pair(one): joined(one, self._former.get(_pair(one))) for one in self._slowdowns.findings()}
        self.known = {**self.known, **found}
        self._record([one for one in found.values() if is_news(one, self._recorded.get(_pair(one)), self._enough)])

    def _step(self) -> float:
        if not self._begun:
            self._begin()
            self._begun = True
        self.look(self._context.clock.now())
        return self._period

    def _begin(self) -> None:
        asked = self._context.ask(lambda: recorded(self._context.store, self._context.state), changes=False)
        while not self._over.wait(_LEAST) and not asked.done():
            pass
        if asked.done():
            self._former = asked.result()
            self.known = self._recorded = dict(self._former)

    def _committed(self, records: list[Record]) -> None:
        """Called by the loop's thread."""
        for record in records:
            event = record.event
            if isinstance(event, Exited) and event.code == 0 and not event.cause:
                self._ends.append(event)

    def _seen(self, view: JobView, now: float) -> Seen:
        kind = view.work.get("signature", "")
        if not kind or view.kind != "job":
            return Seen(view.id, view.attempt, "", view.gpus, view.started)
        said = self._progress.said(view, now)
        mark = None if said is None else Mark(said[0].done, said[0].total, said[0].kind, said[1])
        work = epochs_in(view.work.get("command", ())) or 1.0
        made_up = self._context.machine.gpus.simulated and "util=" not in view.work.get("simulate_use", "")
        busy = None if made_up else self._context.measures.busy(view.id)
        return Seen(view.id, view.attempt, kind, view.gpus, view.started, mark, busy, work, view.name)

    def _record(self, news: list[Finding]) -> None:
        if not news:
            return
        context = self._context

        def write() -> None:
            for one in news:
                event = HarmMeasured(context.clock.now(), one.sufferer, one.beside, round(one.slowdown, 4))
                details = {"evidence": one.evidence, "seconds": round(one.seconds, 1)}
                context.record(event, **details, jobs=list(one.jobs), names=list(one.names))

        context.ask(write).result(_WRITTEN)
        self._recorded |= {_pair(one): one for one in news}


def _pair(one: Finding) -> Pair:
    return one.sufferer, one.beside


def is_news(now: Finding, then: Finding | None, apart: float) -> bool:
    """Whether to record a finding; not twice within `apart` seconds."""
    if then is None:
        return True
    if now.at < then.at + apart:
        return False
    return abs(now.slowdown / then.slowdown - 1) > _NEWS or now.seconds >= _MUCH_MORE * then.seconds


def joined(now: Finding, then: Finding | None) -> Finding:
    """A finding of this daemon combined with one of an earlier daemon; better evidence wins."""
    if then is None or then.evidence not in EVIDENCE:
        return now
    if then.evidence != now.evidence:
        return then if EVIDENCE.index(then.evidence) < EVIDENCE.index(now.evidence) else now
    weight = min(then.seconds, _PRIOR)
    slowdown = (weight * then.slowdown + now.seconds * now.slowdown) / (weight + now.seconds)
    return now._replace(slowdown=slowdown, seconds=then.seconds + now.seconds)


def recorded(store: Store, state: State) -> dict[Pair, Finding]:
    found: dict[Pair, Finding] = {}
    for record in store.latest("HarmMeasured"):
        event = record.event
        if isinstance(event, HarmMeasured) and (event.sufferer, event.beside) not in found:
            found[event.sufferer, event.beside] = _of_record(event, record.details)
    return {pair: found[pair] for pair in state.harms if pair in found}


def _of_record(event: HarmMeasured, details: Mapping[str, Any]) -> Finding:
    jobs, names = (tuple(details.get(key, ("", ""))) for key in ("jobs", "names"))
    seconds, evidence = float(details.get("seconds", 0.0)), details.get("evidence", "")
    return Finding(event.sufferer, event.beside, event.slowdown, seconds, evidence, event.at, jobs, names)
