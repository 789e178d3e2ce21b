"""What an operation is expected to add to doing nothing: a ridge regression over recorded trees of decisions.

What growing gains or loses is the more, the more time is left; so is what a prediction gets wrong. Therefore gains are
told per budget that is left: half a point with a tenth of the budget left is as much as four and a half at the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuyard.adapt.scorer import FEATURES, Floats, Range, expand, shaken
from gpuyard.adapt.tables import Actions, Table

RIDGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Of which the one is taken that tells environments best that it was not fitted to."""
USUAL_RIDGE = 3e-3
FEW = 4
"""With fewer environments than that, the usual one is taken."""
NEAR = 0.3
"""How far apart situations may be to be alike, in units of features."""
DOUBT = 0.1
"""How little a single record counts: 0 takes it at face value."""
MOST_LOSS = 0.15
"""Worse is taken for that: it is to be avoided alike, and must not bend the fit."""
LEAST_LEFT = 0.05
"""Share of the budget that counts as left at least."""
COPIES = 8
"""Of each situation, shaken: environments that were not recorded are a little different."""
_FRACTION_LEFT = FEATURES.index("fraction_left")


@dataclass(frozen=True)
class Gains:
    """Predicts the accuracy that each option adds to doing nothing from now on."""

    weights: Floats
    ridge: float
    error: float
    """Root mean square of what it gets wrong, per budget left, in environments that it was not fitted to."""
    points: Floats
    """Features of what was recorded."""
    pulls: Floats
    """By how much each of those moves what is predicted beside it."""

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """Of each option, given what is scored of them and of doing nothing; and how wrong that is, usually."""
        near = nearness(rows[:-1, : len(FEATURES)], self.points)
        rates = (rows[:-1] - rows[-1]) @ self.weights + near @ self.pulls
        unsure = self.error * np.sqrt(np.maximum(1.0 - near.max(axis=1, initial=0.0), 0.0))
        return rates * _left(rows), unsure * _left(rows)


def nearness(rows: Floats, points: Floats) -> Floats:
    """How near each row is to each point: 1 is the same, 0 far away."""
    apart = ((rows[:, None] - points[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-apart / (2.0 * NEAR**2)))


def _left(rows: Floats) -> float:
    """The share of the budget that is left, told from what is scored."""
    return max(float(rows[0, _FRACTION_LEFT] + 1.0) / 2.0, LEAST_LEFT)


@dataclass(frozen=True)
class _Sums:
    """What a regression needs of an environment, each of which counts the same."""

    rows: Floats
    rates: Floats
    squares: Floats
    products: Floats
    points: Floats
    measured: Floats
    """Features of what is seen on average, and the rates there."""


class Regression:
    """The regressions over some environments."""

    def __init__(self, tables: Sequence[Table], within: Range, shake: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        self.parts = [_sums(table, within, shake, rng) for table in tables]

    def fit(self) -> Gains:
        """With the ridge that serves best where it was not fitted."""
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
        """The weights, if environments count so much each."""
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
    """Between which values features were in these environments."""
    return Range.of(s for table in tables for seen in table.situations.values() for s in seen)


def best_values(table: Table) -> dict[Actions, float]:
    """What each prefix comes to if the best is done after it."""
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
