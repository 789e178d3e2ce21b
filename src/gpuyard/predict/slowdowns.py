"""How much slower jobs are beside others on the same GPU, by what is seen of them look by look.

Of each attempt, stretches of time are told apart: alone on its GPUs, beside exactly one other job, and in larger
company. The last tell nothing of any pair, since the cause could be any of them. Three kinds of evidence, the
best first: how fast the job says that it gets on, how busy it keeps its GPU, and how long it took from beginning to
end. Each is compared with the same job alone: in the same attempt if that was long enough, else in any of its kind.

Everything is kept in memory, and only the latest; the caller (`interference`) stores the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

EVIDENCE = ("progress", "utilization", "run time")  # what a finding may follow from, the best first
ALONE = ""  # the company of who has its GPUs for itself
_Key = tuple[str, int]  # a job and its attempt
_MOST = 50  # stretches that are remembered of each pair, and of each kind alone
_MOST_KINDS = 2_000  # kinds, and pairs of them, of which anything is
_BUSY = 5.0  # percent: who keeps its GPU less busy than that when alone cannot be judged by it
_MOSTLY = 0.9  # of a run, from which on it counts as one beside its company


class Mark(NamedTuple):
    done: float
    total: float
    source: int
    at: float  # when it said so


class Seen(NamedTuple):
    job: str
    attempt: int
    kind: str  # what similar jobs have in common; empty: unknown
    gpus: tuple[int, ...]
    started: float | None
    mark: Mark | None = None
    busy: tuple[float, int] | None = None
    """Percent of its GPU that it kept busy, added up over all samples, and how many there were."""
    work: float = 1.0  # how much there is to do in all, as far as runs of its kind differ in that: epochs
    name: str = ""


class Finding(NamedTuple):
    sufferer: str
    beside: str
    slowdown: float
    seconds: float  # for how long that was seen
    evidence: str
    at: float  # when it was last seen
    jobs: tuple[str, str]  # at which jobs that was
    names: tuple[str, str]


@dataclass(slots=True)
class _Stretch:
    company: frozenset[_Key]
    beside: str | None  # the kind of the only other; `ALONE`; None: nothing can be learned
    other: Seen | None
    since: float
    until: float
    first: Mark | None = None
    last: Mark | None = None
    busy_first: tuple[float, int] | None = None
    busy_last: tuple[float, int] | None = None

    def see(self, at: float, one: Seen) -> None:
        self.until = at
        if one.busy is not None:
            self.busy_first, self.busy_last = self.busy_first or one.busy, one.busy
        mark = one.mark
        if mark is None or mark.at < self.since:
            return
        if self.last is None or mark[1:3] != self.last[1:3] or mark.done < self.last.done:
            self.first = mark  # it counts something else from now on
        self.last = mark

    def rates(self) -> dict[str, _Rate]:
        """The rate by each kind of evidence, as progress per second, or percent."""
        found = {}
        if self.first and self.last and self.last.done > self.first.done and self.last.at > self.first.at:
            seconds = self.last.at - self.first.at
            found["progress"] = _Rate((self.last.done - self.first.done) / seconds, seconds)
        if self.busy_first and self.busy_last and self.busy_last[1] > self.busy_first[1]:
            samples = self.busy_last[1] - self.busy_first[1]
            found["utilization"] = _Rate((self.busy_last[0] - self.busy_first[0]) / samples, self.until - self.since)
        return found


class _Rate(NamedTuple):
    value: float
    seconds: float


@dataclass(slots=True)
class _Attempt:
    first: Seen
    started: float | None
    stretch: _Stretch
    alone: dict[str, list[_Rate]] = field(default_factory=dict)  # how fast it is when it is alone, by evidence
    spent: dict[str | None, float] = field(default_factory=dict)  # seconds in each company
    beside: Seen | None = None  # the last that it was beside of, alone with it

    @property
    def kind(self) -> str:
        return self.first.kind

    def own(self, evidence: str) -> list[_Rate]:
        now = self.stretch.rates().get(evidence) if self.stretch.beside == ALONE else None
        return [*self.alone.get(evidence, ()), *([now] if now else [])]


class _Sample(NamedTuple):
    rate: _Rate
    attempt: _Attempt
    at: float
    other: Seen


class Slowdowns:
    """The recent observations. For one thread."""

    def __init__(self, enough: float) -> None:
        self._enough = enough  # seconds that evidence must span before it counts
        self._attempts: dict[_Key, _Attempt] = {}
        self._gone: dict[_Key, _Attempt] = {}
        """Attempts that were gone at the last look; how they ended may become known later."""
        self._news: set[str] = set()  # kinds of which something was kept since the last findings
        self._alone: dict[tuple[str, str], deque[_Rate]] = {}  # by evidence and kind
        self._beside: dict[tuple[str, str, str], deque[_Sample]] = {}  # by evidence, sufferer, and whom it was beside

    def look(self, at: float, seen: Iterable[Seen]) -> None:
        there = {(one.job, one.attempt): one for one in seen}
        for key in self._attempts.keys() - there.keys():
            self._gone[key] = self._attempts.pop(key)
            self._close(self._gone[key])
        _bound(self._gone, _MOST)
        company = _companies(there)
        for key, one in there.items():
            if one.kind:
                self._see(at, key, one, company[key], there)

    def ended(self, job: str, attempt: int, at: float) -> None:
        key = job, attempt
        found = self._attempts.pop(key, None) or self._gone.pop(key, None)
        if found is None:
            return
        self._close(found)
        total = sum(found.spent.values())
        if found.started is None or not total:
            return
        beside, spent = max(found.spent.items(), key=lambda entry: entry[1])
        took = at - found.started
        if beside is None or spent < _MOSTLY * total or took < self._enough:
            return
        self._keep("run time", found, beside, _Rate(found.first.work / took, took), at)

    def findings(self) -> Iterator[Finding]:
        """What is known by now of pairs of kinds, by the best evidence that there is enough of.

        Only of those of which anything was seen since this was last asked: there may be thousands.
        """
        live, news = self._live(), self._news | {attempt.kind for attempt in self._attempts.values()}
        self._news = set()
        pairs = dict.fromkeys((mine, theirs) for _, mine, theirs in (*self._beside, *live) if mine in news)
        for sufferer, beside in pairs:
            for evidence in EVIDENCE:
                key = evidence, sufferer, beside
                known = [*self._beside.get(key, ()), *live.get(key, ())]
                if finding := self._finding(key, known):
                    yield finding
                    break

    def _live(self) -> dict[tuple[str, str, str], list[_Sample]]:
        found: dict[tuple[str, str, str], list[_Sample]] = {}
        for attempt in self._attempts.values():
            stretch = attempt.stretch
            other = stretch.other if stretch.beside else None
            if other is None:
                continue
            for evidence, rate in stretch.rates().items():
                sample = _Sample(rate, attempt, stretch.until, other)
                found.setdefault((evidence, attempt.kind, other.kind), []).append(sample)
        return found

    def _finding(self, key: tuple[str, str, str], known: list[_Sample]) -> Finding | None:
        evidence, sufferer, beside = key
        usual = self._usual(evidence, sufferer)
        slower: list[_Rate] = []
        latest: _Sample | None = None
        for sample in known:
            alone = self._own(evidence, sample.attempt) or usual
            if alone and sample.rate.value > 0 and not (evidence == "utilization" and alone < _BUSY):
                slower.append(_Rate(alone / sample.rate.value, sample.rate.seconds))
                latest = sample if latest is None or sample.at >= latest.at else latest
        seconds = sum(rate.seconds for rate in slower)
        if latest is None or seconds < self._enough:
            return None
        first, other = latest.attempt.first, latest.other
        jobs, names = (first.job, other.job), (first.name, other.name)
        return Finding(sufferer, beside, _median(slower), seconds, evidence, latest.at, jobs, names)

    def _own(self, evidence: str, attempt: _Attempt) -> float | None:
        rates = attempt.own(evidence)
        return _median(rates) if sum(rate.seconds for rate in rates) >= self._enough / 2 else None

    def _usual(self, evidence: str, kind: str) -> float | None:
        rates = list(self._alone.get((evidence, kind), ()))
        for attempt in self._attempts.values():
            now = attempt.stretch.rates().get(evidence) if attempt.stretch.beside == ALONE else None
            rates += [now] if attempt.kind == kind and now else []
        return _median(rates) if sum(rate.seconds for rate in rates) >= self._enough / 2 else None

    def _see(self, at: float, key: _Key, one: Seen, company: frozenset[_Key], there: Mapping[_Key, Seen]) -> None:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stretch.company != company:
            stretch = _stretch(at, company, there)
            if attempt is None:
                attempt = self._attempts[key] = _Attempt(one, one.started, stretch)
            else:
                self._close(attempt)
                attempt.stretch = stretch
        attempt.started = one.started if attempt.started is None else attempt.started
        stretch = attempt.stretch
        attempt.beside = stretch.other or attempt.beside
        attempt.spent[stretch.beside] = attempt.spent.get(stretch.beside, 0.0) + at - stretch.until
        stretch.see(at, one)

    def _close(self, attempt: _Attempt) -> None:
        beside = attempt.stretch.beside
        for evidence, rate in attempt.stretch.rates().items() if beside is not None else ():
            if beside == ALONE:
                attempt.alone.setdefault(evidence, []).append(rate)
            self._keep(evidence, attempt, beside or "", rate, attempt.stretch.until)
        attempt.stretch.beside = None

    def _keep(self, evidence: str, attempt: _Attempt, beside: str, rate: _Rate, at: float) -> None:
        self._news.add(attempt.kind)
        if beside == ALONE:
            self._alone.setdefault((evidence, attempt.kind), deque(maxlen=_MOST)).append(rate)
            _bound(self._alone, _MOST_KINDS)
        elif attempt.beside is not None:
            key = evidence, attempt.kind, beside
            self._beside.setdefault(key, deque(maxlen=_MOST)).append(_Sample(rate, attempt, at, attempt.beside))
            _bound(self._beside, _MOST_KINDS)


def _bound(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


def _companies(there: Mapping[_Key, Seen]) -> dict[_Key, frozenset[_Key]]:
    on: dict[int, set[_Key]] = {}
    for key, one in there.items():
        for gpu in one.gpus:
            on.setdefault(gpu, set()).add(key)
    return {key: frozenset().union(*(on[gpu] for gpu in one.gpus)) - {key} for key, one in there.items()}


def _stretch(at: float, company: frozenset[_Key], there: Mapping[_Key, Seen]) -> _Stretch:
    if not company:
        return _Stretch(company, ALONE, None, at, at)
    [first, *others] = company
    other = None if others or not there[first].kind else there[first]
    return _Stretch(company, other.kind if other else None, other, at, at)


def _median(rates: Iterable[_Rate]) -> float:
    ordered = sorted(rates)
    half = sum(rate.seconds for rate in ordered) / 2
    for rate in ordered:
        half -= rate.seconds
        if half <= 0:
            return rate.value
    return ordered[-1].value
