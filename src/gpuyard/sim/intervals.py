"""Confidence intervals of a mean, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_NORMAL = 1.959963985
_TABLE = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip


class Interval(NamedTuple):
    """A mean, and where it is with 95 % confidence."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of its width: the number after the plus-minus."""
        return (self.high - self.low) / 2.0


def t_95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t distribution."""
    if freedom < 1:
        raise ValueError("a spread needs at least two values")
    if freedom <= len(_TABLE):
        return _TABLE[freedom - 1]
    # The expansion of t around the normal distribution (Abramowitz & Stegun 26.7.5): right to 5 digits from 20 on.
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least two independent values, with its 95 % confidence interval."""
    n = len(values)
    if min(values) == max(values):  # a mean by division may be off in the last digit, and so would be its spread
        return Interval(values[0], values[0], values[0])
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_95(n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)
