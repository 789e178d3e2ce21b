"""What a trained policy prefers: its score as one property of a typical job changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuyard.errors import UserError
from gpuyard.policies.features import COLUMNS, GIB, HOUR, MINUTE, NAMES, OF_ALL, OF_JOBS, features
from gpuyard.policies.network import JOB_FEATURES, Network, parameter_count, score, score_queue
from gpuyard.policies.trained_policy import Learned
from gpuyard.sim.trace import Floats
from gpuyard.units import format_duration, format_size

DAY = 24.0 * HOUR
POINTS = 61
LITTLE = 0.05  # importance below this part of the largest is called little
BACK = 0.05  # a curve that goes back by less than this part of its spread still goes one way
LOW, HIGH, MIXED, EITHER, UNSEEN = "low", "high", "mixed", "either", "unseen"
"""Who goes ahead: those with less, those with more, now these and now those, nobody for it; or it never varied."""


@dataclass(frozen=True, slots=True)
class Quantity:
    column: str
    title: str
    kind: str  # `duration`, `count`, `share` or `size`
    few: str  # jobs with little of it
    many: str


QUANTITIES = (
    Quantity("estimate", "expected run time", "duration", "short jobs", "long jobs"),
    Quantity("gpus", "GPUs wanted", "count", "jobs that want few GPUs", "jobs that want many GPUs"),
    Quantity("wait", "time waited", "duration", "jobs that came lately", "jobs that have waited long"),
    Quantity("opening", "time until it fits", "duration", "jobs that fit now or soon", "jobs that do not fit for long"),
    Quantity("shorter", "share of the queue that is shorter", "share", "the queue's shortest", "the queue's longest"),
    Quantity("usage_share", "its user's share of GPU time", "share", "users who had little", "users who had much"),
    Quantity("memory", "memory wanted on each GPU", "size", "jobs with little memory", "jobs with much memory"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preference:
    """The score by one quantity, relative to that of the typical job; less goes first."""

    quantity: Quantity
    values: Floats
    scores: Floats
    base: Floats  # the same of the base heuristic alone
    typical: float
    seen: tuple[float, float]  # between which values it nearly always was in training
    ahead: str  # `LOW`, `HIGH`, `MIXED`, `EITHER` or `UNSEEN`, by what was seen in training

    @property
    def inside(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        low, high = self.seen
        return (self.values >= low * 0.999) & (self.values <= high * 1.001)

    @property
    def spread(self) -> float:
        return _spread(self.scores[self.inside])

    @property
    def base_spread(self) -> float:
        return _spread(self.base[self.inside])

    @property
    def added(self) -> float:
        return _spread((self.scores - self.base)[self.inside])


@dataclass(frozen=True, slots=True)
class Importance:
    feature: str
    about: str
    low: float
    high: float
    importance: float
    """The spread of the score between low and high. Of a feature that is the same for all who wait, which alone
    changes no order: the most by which it changes what another feature counts."""
    ahead: str

    @property
    def shared(self) -> bool:
        return self.feature in OF_ALL


@dataclass(frozen=True, slots=True)
class Explanation:
    base: str
    typical: dict[str, float]
    preferences: list[Preference]
    importances: list[Importance]  # the greatest first
    summary: list[str]

    def facts(self) -> dict[str, Any]:
        curves = [
            {
                "quantity": p.quantity.column, "about": p.quantity.title, "typical": p.typical, "seen": list(p.seen),
                "ahead": p.ahead, "spread": p.spread, "base_spread": p.base_spread, "added": p.added,
                "values": p.values.tolist(), "scores": p.scores.tolist(), "base_scores": p.base.tolist(),
            }
            for p in self.preferences
        ]  # fmt: skip
        kinds = [
            {
                "feature": i.feature, "about": i.about, "low": i.low, "high": i.high, "importance": i.importance,
                "ahead": i.ahead, "shared": i.shared,
            }
            for i in self.importances
        ]  # fmt: skip
        return {
            "base": self.base, "typical": self.typical, "summary": self.summary, "features": kinds,
            "quantities": curves,
        }  # fmt: skip


def explain(learned: Learned) -> Explanation:
    typical = typical_job(learned)
    network = replace(learned.network, starvation=math.inf)  # without starvation
    alone = Network(network.base, 0, math.inf, np.zeros(parameter_count(0)))
    preferences = [_preference(q, learned, network, alone, typical) for q in QUANTITIES]
    importances = sorted(_importances(learned, network, typical), key=lambda one: -one.importance)
    return Explanation(
        network.base, typical, preferences, importances, _summary(learned, network, typical, preferences)
    )


def typical_job(learned: Learned) -> dict[str, float]:
    found = learned.training.get("typical")
    if not isinstance(found, Mapping) or any(name not in found for name in COLUMNS):
        raise UserError(
            "this policy does not say what jobs it was trained on, so that nothing can be told of what it prefers; "
            "train it anew with gpuyard learn train"
        )
    return {name: float(found[name]) for name in COLUMNS}


def _scores(network: Network, typical: Mapping[str, float], **changed: Floats) -> Floats:
    n = len(next(iter(changed.values())))
    columns = {name: np.full(n, value) for name, value in typical.items()} | changed
    if "wait" in changed:  # a job that has waited longer came sooner
        columns["submit"] = np.maximum(typical["submit"] + typical["wait"] - changed["wait"], 1.0)
    found: Floats = score(**columns, weights=network.weights)
    return found


def _preference(
    quantity: Quantity, learned: Learned, network: Network, alone: Network, typical: Mapping[str, float]
) -> Preference:
    name = quantity.column
    values, middle = _grid(name, typical["capacity"]), np.array([typical[name]])
    low, high = _seen(name, dict(zip(NAMES, zip(learned.low, learned.high, strict=True), strict=True)), typical)
    scores, base = (
        _scores(net, typical, **{name: values}) - _scores(net, typical, **{name: middle}) for net in (network, alone)
    )
    kept = (values >= low * 0.999) & (values <= high * 1.001)
    ahead = UNSEEN if kept.sum() < 2 else _ahead(scores[kept])
    return Preference(quantity, values, scores, base, typical[name], (low, high), ahead)


def _grid(name: str, capacity: float) -> Floats:
    if name == "estimate":
        return np.geomspace(10.0, 10.0 * DAY, POINTS)
    if name == "gpus":
        return np.unique(np.round(np.geomspace(1.0, max(capacity, 1.0), POINTS)))
    if name in ("wait", "opening"):
        return np.concatenate(([0.0], np.geomspace(1.0, 10.0 * DAY, POINTS)))
    return np.linspace(0.0, 80.0 * GIB if name == "memory" else 1.0, POINTS)


def _seen(name: str, ranges: Mapping[str, tuple[float, float]], typical: Mapping[str, float]) -> tuple[float, float]:

    def back(feature: str, scale: float) -> tuple[float, float]:  # from t / (t + scale)
        low, high = (min(max(float(x), 0.0), 1.0 - 1e-9) for x in ranges[feature])
        return low / (1.0 - low) * scale, high / (1.0 - high) * scale

    if name in ("estimate", "gpus"):
        feature, factor, offset = ("length", 3.0, 7.0) if name == "estimate" else ("width", 6.0, 0.0)
        low, high = ranges[feature]
        return math.exp(factor * low + offset), math.exp(factor * high + offset)
    if name == "wait":
        return back("standing", typical["queue_work"] / typical["capacity"] + 10.0 * MINUTE)
    if name == "opening":
        return back("far", HOUR)
    if name == "memory":
        return back("memory", 16.0 * GIB)
    low, high = ranges["usage" if name == "usage_share" else "shorter"]
    return float(low), float(high)


def _importances(learned: Learned, network: Network, typical: Mapping[str, float]) -> list[Importance]:
    columns = [np.full(2, typical[name]) for name in COLUMNS]
    middle = np.array([float(np.asarray(x).flat[0]) for x in features(*columns)])
    found = []
    for j, name in enumerate(NAMES):
        low, high = float(learned.low[j]), float(learned.high[j])
        if not high > low:
            curve, importance, ahead = np.zeros(2), 0.0, UNSEEN
        elif name in OF_JOBS:
            curve = _along(network, typical, middle, j, low, high)
            importance, ahead = _spread(curve), _ahead(curve)
        else:
            importance, ahead = _interplay(learned, network, typical, middle, j), EITHER
        found.append(Importance(name, (OF_JOBS | OF_ALL)[name], low, high, importance, ahead))
    return found


def _along(network: Network, typical: Mapping[str, float], middle: Floats, j: int, low: float, high: float) -> Floats:
    points = 2 if NAMES[j] == "fits" else POINTS  # it fits or it does not
    found = np.repeat(middle[:, None], points, axis=1)
    found[j] = np.linspace(low, high, points)
    columns = [np.full(points, typical[name]) for name in COLUMNS]
    return score_queue(columns, list(found), network.weights)


def _interplay(learned: Learned, network: Network, typical: Mapping[str, float], middle: Floats, s: int) -> float:
    most = 0.0
    for j in range(JOB_FEATURES):
        if learned.high[j] > learned.low[j]:
            curves = []
            for end in (learned.low[s], learned.high[s]):
                at = middle.copy()
                at[s] = end
                curves.append(_along(network, typical, at, j, float(learned.low[j]), float(learned.high[j])))
            most = max(most, _spread(curves[1] - curves[0]))
    return most


def _spread(values: Floats) -> float:
    return float(np.ptp(values)) if len(values) else 0.0


def _ahead(scores: Floats) -> str:
    spread, steps = _spread(scores), np.diff(scores)
    if spread < 1e-9:
        return EITHER
    if -steps[steps < 0].sum() <= BACK * spread:
        return LOW
    return HIGH if steps[steps > 0].sum() <= BACK * spread else MIXED


def sentences(value: float, kind: str) -> str:
    if kind == "duration":
        return _round_time(value)
    if kind == "size":
        return format_size(value) if value else "0"
    return f"{value:.0%}" if kind == "share" else f"{value:,.0f}"


def _round_time(seconds: float) -> str:
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= size and abs(seconds / size - round(seconds / size)) < 1e-9:
            return f"{seconds / size:.0f} {unit}"
    return format_duration(seconds)


def _summary(
    learned: Learned, network: Network, typical: Mapping[str, float], preferences: list[Preference]
) -> list[str]:
    most = max([1e-9, *(p.spread for p in preferences)])
    telling = sorted((p for p in preferences if p.spread >= LITTLE * most), key=lambda p: -p.spread)
    ways = {LOW: lambda p: p.quantity.few, HIGH: lambda p: p.quantity.many}
    clear = [f"{ways[p.ahead](p)} ({p.spread:.2f})" for p in telling if p.ahead in ways]
    lines = []
    if clear:
        lines.append(f"Goes ahead, all else alike, what counts most first: {'; '.join(clear)}.")
    for p in (p for p in telling if p.ahead == MIXED):
        inside, scores = p.values[p.inside], p.scores[p.inside]
        first, last = (sentences(float(inside[at]), p.quantity.kind) for at in (scores.argmin(), scores.argmax()))
        lines.append(
            f"By {p.quantity.title} it goes both ways ({p.spread:.2f}): most ahead at {first}, least at {last}."
        )
    if small := [p.quantity.title for p in preferences if p not in telling and p.ahead != UNSEEN]:
        lines.append(f"Counts little or nothing: {', '.join(small)}.")
    if unseen := [p.quantity.title for p in preferences if p.ahead == UNSEEN]:
        lines.append(f"Never varied where it was trained, so that nothing can be said: {', '.join(unseen)}.")
    added = sorted((p for p in preferences if p.added > LITTLE * most), key=lambda p: -p.added)
    changes = ", ".join(f"{p.quantity.title} ({p.added:.2f})" for p in added)
    lines.append(f"On top of {network.base} alone, what it changes most: {changes or 'nothing of these'}.")
    lines += _pair(network, typical, {p.quantity.column: p for p in preferences})
    bound = learned.network.starvation
    patience = bound * (typical["queue_work"] / typical["capacity"] + typical["opening"] + typical["estimate"])
    lines.append(
        f"Whatever its score, a job goes ahead of all once it has waited {bound:g} times what the queue, its GPUs and "
        f"itself take: the typical job after {format_duration(patience)}."
    )
    return lines


def _pair(network: Network, typical: Mapping[str, float], of: Mapping[str, Preference]) -> list[str]:
    low, high = of["estimate"].seen
    short, long = MINUTE, HOUR
    if not low <= short < long <= high:
        short, long = max(low, 10.0), min(high, 10.0 * DAY)
    if not short < long:
        return []
    waits = of["wait"].values[of["wait"].inside]
    ours = _scores(network, typical, estimate=np.array([short]), wait=np.zeros(1))[0]
    theirs = _scores(network, typical, estimate=np.full(len(waits), long), wait=waits)
    a, b = sentences(short, "duration"), sentences(long, "duration")
    if not len(waits):
        return []
    if theirs[0] < ours:
        return [f"A job of {b} goes ahead of one of {a} that comes at the same time, all else alike."]
    line = f"A job of {a} that has just come goes ahead of one of {b}, all else alike,"
    passed = np.flatnonzero(theirs < ours)
    if len(passed):
        return [f"{line} unless that one has waited {format_duration(float(waits[passed[0]]))} or so."]
    edge = format_duration(float(waits[-1]))
    return [f"{line} even if that one has waited {edge}, at the edge of what it saw in training."]
