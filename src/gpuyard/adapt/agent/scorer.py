"""Scores of the options in a situation: features, a small network, and a regression of expected gains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuyard.adapt.agent.decision_trees import Actions, Table
from gpuyard.adapt.decisions import Option, Situation

VERSION = 1
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
FEATURES = (
    "nothing", "fraction_left", "steps_left", "steps_after", "lives_after", "steps_unknown", "cost", "cost_unknown",
    "size", "accuracy", "accuracy_unknown", "going_on", "final", "forgone", "slope_unknown", "noise", "overfitting",
    "headroom", "grown", "grown_here", "position", "decision", "decisions_left",
)  # fmt: skip
"""In the order in which networks take them."""
PAIRED = (
    "fraction_left", "steps_after", "lives_after", "cost", "final", "overfitting", "grown", "grown_here", "position",
    "decisions_left",
)  # fmt: skip
"""Features whose products count as well: the effect of one depends on the others."""
_FIRST, _SECOND = np.triu_indices(len(PAIRED))
_PAIRS = np.array([FEATURES.index(name) for name in PAIRED])
WIDTH = len(FEATURES) + len(_FIRST)
FIRM = ("nothing", "steps_unknown", "cost_unknown", "accuracy_unknown", "slope_unknown", "grown", "grown_here",
        "decision", "decisions_left")  # fmt: skip
"""Counts and flags, which have no measurement noise."""
_LOOSE = np.array([float(name not in FIRM) for name in FEATURES])
REACH = 3.0  # features are kept within plus and minus this


@dataclass(frozen=True)
class Range:
    """The range of each feature in the training data: values beyond it are clipped."""

    low: Floats
    high: Floats

    def rows(self, situation: Situation) -> Floats:
        """Clipped features of each option, and last of doing nothing: a row each."""
        return expand(np.clip(describe(situation), self.low, self.high))

    def join(self, other: Range) -> Range:
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    @staticmethod
    def of(situations: Iterable[Situation]) -> Range:
        """The range over situations; doing nothing is always within."""
        rows = np.vstack([describe(situation) for situation in situations])
        return Range(rows.min(axis=0), rows.max(axis=0))


def describe(situation: Situation) -> Floats:
    """Features of each option, and last of doing nothing, the reference for all others: a row each."""
    nothing = [1.0] + [0.0] * (len(FEATURES) - 1)
    rows = np.array([*(_row(situation, option) for option in situation.options), nothing])
    return np.asarray(np.clip(rows, -REACH, REACH))


def expand(rows: Floats) -> Floats:
    return np.hstack([rows, rows[:, _PAIRS[_FIRST]] * rows[:, _PAIRS[_SECOND]]])


def shaken(rows: Floats, nodes: Integers, much: float, rng: np.random.Generator) -> Floats:
    """Expanded rows with measurement noise: rows of one node get the same noise, doing nothing none."""
    plain = rows[:, : len(FEATURES)]
    by = rng.normal(0.0, much, (int(nodes.max()) + 1, len(FEATURES)))[nodes] * _LOOSE
    return expand(plain + by * (plain[:, :1] == 0.0))


def _row(seen: Situation, option: Option) -> list[float]:
    cost, left = option.cost_ratio, seen.fraction_left
    dearer, going_on = _log(cost), expected_rise(seen)
    return [
        0.0,
        2.0 * left - 1.0,
        _log_steps(seen.steps_left),
        _log_steps(seen.steps_left / cost if cost > 0 else math.nan),
        _log(seen.steps_left / cost / lifetime(seen) if cost > 0 else math.nan) / math.log(10.0),
        float(math.isnan(seen.steps_left)),
        2.0 * dearer - 1.0,
        float(math.isnan(cost)),
        2.0 * _log(option.params_ratio),
        _known(2.0 * seen.accuracy - 1.0),
        float(math.isnan(seen.accuracy)),
        5.0 * going_on - 1.0,
        _known(2.0 * (seen.accuracy + going_on) - 1.0),
        10.0 * (going_on - expected_rise(seen, math.exp(dearer))),
        float(math.isnan(seen.slope)),
        20.0 * _known(seen.noise),
        2.0 * _known(seen.loss_gap, 2.0 * _known(seen.train_accuracy - seen.accuracy)),
        2.0 * seen.headroom - 1.0,
        seen.grown - 1.0,
        option.grown - 0.5,
        _known(2.0 * option.position - 1.0),
        2.0 * (seen.decision + 1) / max(seen.decisions, 1) - 1.0,
        seen.decisions - 2.0 - seen.decision,
    ]


def expected_rise(seen: Situation, cost: float = 1.0) -> float:
    """Accuracy that training is expected to add at this cost per step: it rises with the logarithm of steps."""
    if math.isnan(seen.slope):
        return 0.0
    done = max(1.0 - seen.fraction_left, LEAST_DONE)
    rise = max(seen.slope, 0.0) * done * math.log((done + seen.fraction_left / cost) / done)
    return min(max(rise, 0.0), MOST_RISE * (1.0 - _known(seen.accuracy, 0.5)))


def lifetime(seen: Situation) -> float:
    """Steps that this network takes to learn: those after which it is right half of the time, if errors fall as 1/x."""
    right = min(max(seen.accuracy, 0.01), 0.99)
    return seen.steps_done * (1.0 - right) / right if seen.steps_done > 0 and not math.isnan(right) else math.nan


LEAST_DONE = 0.02  # share of the budget that counts as done at least, where a slope is drawn on
MOST_RISE = 0.7  # the largest part of the remaining error that training on removes


def _log_steps(steps: float) -> float:
    """On a scale on which 300 steps are about 0, and ten times as many are 1 more."""
    return _log(max(steps, 1.0)) / math.log(10.0) - 2.5 if not math.isnan(steps) else 0.0


def _log(value: float) -> float:
    """The logarithm; 0 for unknown or zero."""
    return math.log(value) if value > 0 and math.isfinite(value) else 0.0


def _known(value: float, otherwise: float = 0.0) -> float:
    return otherwise if math.isnan(value) else value


@dataclass(frozen=True)
class Network:
    """Members that each score a row by one hidden layer: `v . tanh(x W + b) + x u`; their mean counts."""

    hidden: Floats  # of each member, features by units
    bias: Floats
    out: Floats
    direct: Floats

    @property
    def members(self) -> int:
        return len(self.hidden)

    def scores(self, rows: Floats) -> Floats:
        return np.asarray(
            np.einsum("mrh,mh->mr", np.tanh(rows[:, : len(FEATURES)] @ self.hidden + self.bias[:, None]), self.out)
            + self.direct @ rows.T
        )

    def chances(self, rows: Floats) -> Floats:
        return np.asarray(softmax(self.scores(rows)).mean(axis=0))

    def choose(self, members: Sequence[int]) -> Network:
        at = list(members)
        return Network(self.hidden[at], self.bias[at], self.out[at], self.direct[at])

    @staticmethod
    def random(generator: np.random.Generator, members: int, units: int) -> Network:
        inputs = len(FEATURES)
        return Network(
            generator.normal(0.0, 1.0 / math.sqrt(inputs), (members, inputs, units)) * 2.0,
            generator.normal(0.0, 0.3, (members, units)),
            generator.normal(0.0, 0.05, (members, units)),
            np.zeros((members, WIDTH)),
        )


def softmax(scores: Floats, temperature: float = 1.0) -> Floats:
    powers = np.exp((scores - scores.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


RIDGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # the best on environments left out
USUAL_RIDGE = 3e-3
FEW = 4  # with fewer environments than that, the usual one is taken
NEAR = 0.3  # distance of similar situations, in units of features
DOUBT = 0.1  # shrinkage of a single record; 0: none
MOST_LOSS = 0.15  # larger losses are clipped: they must not bend the fit
LEAST_LEFT = 0.05  # share of the budget that counts as left at least
COPIES = 8  # noisy copies of each situation: environments that were not recorded differ a little
_FRACTION_LEFT = FEATURES.index("fraction_left")


@dataclass(frozen=True)
class Gains:
    weights: Floats
    ridge: float
    error: float  # root mean square of what it gets wrong, per budget left, in environments that it was not fitted to
    points: Floats  # features of what was recorded
    pulls: Floats  # by how much each of those moves what is predicted beside it

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """The gain of each option, from its scored rows; and the usual error of that."""
        near = nearness(rows[:-1, : len(FEATURES)], self.points)
        rates = (rows[:-1] - rows[-1]) @ self.weights + near @ self.pulls
        unsure = self.error * np.sqrt(np.maximum(1.0 - near.max(axis=1, initial=0.0), 0.0))
        return rates * _left(rows), unsure * _left(rows)


def nearness(rows: Floats, points: Floats) -> Floats:
    """How near each row is to each point: 1 is the same, 0 far away."""
    apart = ((rows[:, None] - points[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-apart / (2.0 * NEAR**2)))


def _left(rows: Floats) -> float:
    return max(float(rows[0, _FRACTION_LEFT] + 1.0) / 2.0, LEAST_LEFT)


@dataclass(frozen=True)
class _Sums:
    """Sums that a regression needs of an environment; environments count the same."""

    rows: Floats
    rates: Floats
    squares: Floats
    products: Floats
    points: Floats
    measured: Floats  # features of what is seen on average, and the rates there


class Regression:
    def __init__(self, tables: Sequence[Table], within: Range, shake: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        self.parts = [_sums(table, within, shake, rng) for table in tables]

    def fit(self) -> Gains:
        """With the ridge that predicts best where it was not fitted."""
        ridge, error = USUAL_RIDGE, math.nan
        if len(self.parts) >= FEW:
            errors = {r: self._held_out_error(r) for r in RIDGES}
            ridge = min(errors, key=lambda r: errors[r])
            error = errors[ridge]
        weights = self.solve(np.ones(len(self.parts)), ridge)
        points, left_over = np.vstack([p.points for p in self.parts]), list[Floats]()
        for part in self.parts:
            left_over.append(part.measured - (expand(part.points) - expand(_NOTHING)) @ weights)
        near = nearness(points, points)
        pulls = np.linalg.solve(near + DOUBT * np.eye(len(near)), np.concatenate(left_over))
        return Gains(weights, ridge, error, points, np.asarray(pulls, dtype=float))

    def solve(self, shares: Floats, ridge: float) -> Floats:
        squares = np.average([part.squares for part in self.parts], axis=0, weights=shares)
        products = np.average([part.products for part in self.parts], axis=0, weights=shares)
        return np.asarray(np.linalg.solve(squares + ridge * np.eye(len(squares)), products))

    def _held_out_error(self, ridge: float) -> float:
        wrong = []
        for k, part in enumerate(self.parts):
            weights = self.solve(np.arange(len(self.parts)) != k, ridge)
            wrong.append(float(np.mean((part.rows @ weights - part.rates) ** 2)))
        return math.sqrt(sum(wrong) / len(wrong))


def known(tables: Sequence[Table]) -> Range:
    return Range.of(s for table in tables for seen in table.situations.values() for s in seen)


def best_values(table: Table) -> dict[Actions, float]:
    worth = {sequence: float(value) for sequence, value in zip(table.sequences, table.values, strict=True)}
    for prefix in sorted(table.situations, key=len, reverse=True):
        worth[prefix] = max(worth[(*prefix, a)] for a in range(table.situations[prefix][0].nothing + 1))
    return worth


def _sums(table: Table, within: Range, shake: float, rng: np.random.Generator) -> _Sums:
    worth = best_values(table)
    found, numbers, rates = [], list[int](), list[float]()
    points, measured = [], list[float]()
    for prefix, seen in table.situations.items():
        idle = worth[table.idle(prefix)]
        for situation in seen:
            found.append(within.rows(situation)[:-1])
            left = max(situation.fraction_left, LEAST_LEFT)
            gained = [(worth[(*prefix, action)] - idle) / left for action in range(situation.nothing)]
            rates += [max(rate, -MOST_LOSS) for rate in gained]
            numbers.append(situation.nothing)
        points.append(within.rows(table.typical[prefix])[:-1, : len(FEATURES)])
        left = max(table.typical[prefix].fraction_left, LEAST_LEFT)
        measured += [
            max((worth[(*prefix, action)] - idle) / left, -MOST_LOSS) for action in range(table.typical[prefix].nothing)
        ]
    rows, y = np.vstack(found), np.array(rates)
    if shake:
        nodes = np.repeat(np.arange(len(numbers)), numbers)
        rows, y = np.vstack([shaken(rows, nodes, shake, rng) for _ in range(COPIES)]), np.tile(y, COPIES)
    x = rows - expand(_NOTHING)
    return _Sums(x, y, x.T @ x / len(x), x.T @ y / len(x), np.vstack(points), np.array(measured))


_NOTHING = np.eye(1, len(FEATURES))
