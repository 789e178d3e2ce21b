"""A track: numbers as they come in, in bounded memory. When it is full, every two spans become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuyard.recordings.series import Floats

_FIRST = 256


class Column(NamedTuple):
    """One number over time."""

    at: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None


def broken(column: Column, period: float, longest: float) -> Column:
    """A column with a gap wherever two values are further apart than `longest` seconds; it begins a period later."""
    places = np.flatnonzero(np.diff(column.at) > longest)
    if not len(places):
        return column
    at = np.insert(column.at, places + 1, column.at[places] + period)
    mean, low, high = (None if one is None else np.insert(one, places + 1, np.nan) for one in column[1:])
    assert mean is not None
    return Column(at, mean, low, high)


class Track:
    """Some columns, one row per span of time: what they were on average, at least and at most.

    As long as there is room, a span is a single look. Then its width doubles, so weeks take no more than hours do.
    """

    def __init__(self, columns: int, most: int, bits: Sequence[int] = (), events: Sequence[int] = ()) -> None:
        """`bits` are columns of flags, of which a span has all that were seen; of `events` it has the largest."""
        self._columns, self._most = columns, max(4, most - most % 2)
        self._bits, self._events = list(bits), list(events)
        self.width = 1
        """Looks in a span."""
        self._rows = 0
        self._open = 0  # looks in the last row
        self._at = np.empty(_FIRST)
        self._sum = np.zeros((_FIRST, columns))
        self._known = np.zeros((_FIRST, columns))
        self._low = np.full((_FIRST, columns), np.inf)
        self._high = np.full((_FIRST, columns), -np.inf)

    def __len__(self) -> int:
        return self._rows

    def add(self, at: float, values: Floats) -> None:
        """One look; NaN is what nobody knows. Times only go forward."""
        if self._open == 0 or self._open == self.width:
            self._begin(at)
        row, known = self._rows - 1, ~np.isnan(values)
        told = np.where(known, values, 0.0)
        before = self._sum[row].copy()
        self._sum[row] += told
        self._known[row] += known
        self._low[row] = np.where(known, np.minimum(self._low[row], values), self._low[row])
        self._high[row] = np.where(known, np.maximum(self._high[row], values), self._high[row])
        for column in self._bits:
            self._sum[row, column] = int(before[column]) | int(told[column])
        self._open += 1

    def column(self, number: int) -> Column:
        """What is kept of one number; `low` and `high` where spans hold several looks."""
        rows = self._rows
        known = self._known[:rows, number]
        told = known > 0
        if number in self._bits:
            sums = self._sum[:rows, number]
            return Column(self._at[:rows].copy(), np.where(told, sums, np.nan), None, None)
        low = np.where(told, self._low[:rows, number], np.nan)
        high = np.where(told, self._high[:rows, number], np.nan)
        if number in self._events:
            return Column(self._at[:rows].copy(), high, None, None)
        mean = np.where(told, self._sum[:rows, number] / np.maximum(known, 1.0), np.nan)
        single = self.width == 1
        return Column(self._at[:rows].copy(), mean, None if single else low, None if single else high)

    def _begin(self, at: float) -> None:
        if self._rows == self._most:
            self._halve()
        if self._rows == len(self._at):
            self._grow()
        self._at[self._rows] = at
        self._rows += 1
        self._open = 0

    def _grow(self) -> None:
        more = min(self._most, 2 * self._rows) - self._rows
        self._at = np.concatenate([self._at, np.empty(more)])
        shape = (more, self._columns)
        self._sum = np.concatenate([self._sum, np.zeros(shape)])
        self._known = np.concatenate([self._known, np.zeros(shape)])
        self._low = np.concatenate([self._low, np.full(shape, np.inf)])
        self._high = np.concatenate([self._high, np.full(shape, -np.inf)])

    def _halve(self) -> None:
        """Make one span of every two; the last is full, so that the number of rows is even and all are alike."""
        half = self._rows // 2
        bits = {
            column: self._sum[0 : self._rows : 2, column].astype(np.int64)
            | self._sum[1 : self._rows : 2, column].astype(np.int64)
            for column in self._bits
        }
        self._at[:half] = self._at[0 : self._rows : 2]
        for table, join in (
            (self._sum, np.add),
            (self._known, np.add),
            (self._low, np.minimum),
            (self._high, np.maximum),
        ):
            table[:half] = join(table[0 : self._rows : 2], table[1 : self._rows : 2])
        for column, joined in bits.items():
            self._sum[:half, column] = joined
        self._sum[half:], self._known[half:], self._low[half:], self._high[half:] = 0.0, 0.0, np.inf, -np.inf
        self._rows, self.width = half, self.width * 2
        self._open = self.width
