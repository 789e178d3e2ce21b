"""What an operation is expected to add to doing nothing: a ridge regression over recorded trees of decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuyard.adapt.scorer import Floats, describe
from gpuyard.adapt.situation import Situation
from gpuyard.adapt.tables import Actions, Table

RIDGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Of which the one is taken that tells environments best that it was not fitted to."""
USUAL_RIDGE = 3e-3
FEW = 4
"""With fewer environments than that, the usual one is taken."""


@dataclass(frozen=True)
class Gains:
    """Predicts the accuracy that each option adds to doing nothing from now on."""

    weights: Floats
    ridge: float
    error: float
    """Root mean square of what it gets wrong, in environments that it was not fitted to."""

    def predict(self, situation: Situation) -> Floats:
        """Of each option."""
        rows = describe(situation)
        return np.asarray((rows[:-1] - rows[-1]) @ self.weights)


@dataclass(frozen=True)
class _Sums:
    """What a regression needs of an environment, each of which counts the same."""

    rows: Floats
    gains: Floats

    @property
    def squares(self) -> Floats:
        return np.asarray(self.rows.T @ self.rows / len(self.rows))

    @property
    def products(self) -> Floats:
        return np.asarray(self.rows.T @ self.gains / len(self.rows))


def fit_gains(tables: Sequence[Table]) -> Gains:
    """The regression, with the ridge that serves best where it was not fitted."""
    parts = [_sums(table) for table in tables]
    squares, products = [part.squares for part in parts], [part.products for part in parts]
    ridge, error = USUAL_RIDGE, math.nan
    if len(parts) >= FEW:
        errors = {r: _held_out_error(parts, squares, products, r) for r in RIDGES}
        ridge = min(errors, key=lambda r: errors[r])
        error = errors[ridge]
    return Gains(_solve(np.mean(squares, axis=0), np.mean(products, axis=0), ridge), ridge, error)


def best_values(table: Table) -> dict[Actions, float]:
    """What each prefix comes to if the best is done after it."""
    worth = {sequence: float(value) for sequence, value in zip(table.sequences, table.values, strict=True)}
    for prefix in sorted(table.situations, key=len, reverse=True):
        worth[prefix] = max(worth[(*prefix, a)] for a in range(table.situations[prefix][0].nothing + 1))
    return worth


def _sums(table: Table) -> _Sums:
    worth = best_values(table)
    rows, gains = [], []
    for prefix, seen in table.situations.items():
        idle = worth[table.idle(prefix)]
        for situation in seen:
            described = describe(situation)
            rows.append(described[:-1] - described[-1])
            gains += [worth[(*prefix, action)] - idle for action in range(situation.nothing)]
    return _Sums(np.vstack(rows), np.array(gains))


def _solve(squares: Floats, products: Floats, ridge: float) -> Floats:
    return np.asarray(np.linalg.solve(squares + ridge * np.eye(len(squares)), products))


def _held_out_error(parts: Sequence[_Sums], squares: list[Floats], products: list[Floats], ridge: float) -> float:
    wrong = []
    for k, part in enumerate(parts):
        others = [other for other in range(len(parts)) if other != k]
        weights = _solve(
            np.mean([squares[o] for o in others], axis=0), np.mean([products[o] for o in others], axis=0), ridge
        )
        wrong.append(float(np.mean((part.rows @ weights - part.gains) ** 2)))
    return math.sqrt(sum(wrong) / len(wrong))
