"""Samples, minutes and hours: how many values become one, with the least, the mean and the most of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard.recordings.codec import AT, COVERED, HIGH, LOW
from gpuyard.recordings.series import Floats

Columns = Mapping[str, Floats]


class Level(NamedTuple):
    """How fine something is kept."""

    number: int
    name: str
    period: float
    """Seconds that a value stands for; of samples, about."""
    chunk: int
    """Seconds that are kept together."""

    def chunk_of(self, at: float) -> int:
        """When the chunk begins that an instant is in."""
        return int(at // self.chunk * self.chunk)


SAMPLES, MINUTES, HOURS = LEVELS = (
    Level(0, "samples", 1.0, 60),
    Level(1, "minutes", 60.0, 6 * 3600),
    Level(2, "hours", 3600.0, 7 * 86400),
)
QUIET = 10.0
"""Seconds from one sample to the next of a GPU that is idle, and stays as it is."""
APART = 2.5 * QUIET
"""Seconds without a sample after which nobody knows what was between."""

_NO_MEANS = ("throttle", "xid")  # bits, and the number of an error: half of one means nothing


def held(at: Floats, end: float, apart: float = APART) -> Floats:
    """Seconds that each sample stands for: until the next, or, before a gap and at last, as long as usual."""
    if not len(at):
        return np.zeros(0)
    steps = np.diff(at)
    known = steps[steps <= apart]
    usual = float(np.median(known)) if len(known) else 1.0
    spans = np.append(np.where(steps <= apart, steps, usual), min(usual, max(0.0, end - at[-1])))
    found: Floats = np.maximum(spans, 1e-3)
    return found


def condensed(columns: Columns, weights: Floats, bounds: NDArray[np.int64]) -> dict[str, Floats]:
    """Values that follow each other as one for each group, which begin at these places; each mean has its weights.

    Of values that are means already the least and the most are those of what they stand for.
    """
    found = {COVERED: np.add.reduceat(weights, bounds)}
    for name in metrics_in(columns):
        mean = columns[name]
        low, high = columns.get(name + LOW, mean), columns.get(name + HIGH, mean)
        unknown = np.isnan(mean)
        weight = np.where(unknown, 0.0, weights)
        total = np.add.reduceat(weight, bounds)
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = np.add.reduceat(np.where(unknown, 0.0, mean) * weight, bounds) / total
        # fmin and fmax leave gaps out, unless there is nothing else
        found[name + LOW] = np.fmin.reduceat(low, bounds)
        found[name + HIGH] = _joined(high, bounds) if name == "throttle" else np.fmax.reduceat(high, bounds)
        if name in _NO_MEANS:
            found[name] = found[name + HIGH]
    return found


def _joined(bits: Floats, bounds: NDArray[np.int64]) -> Floats:
    """All bits that were set in each group; nothing is known where nothing was known at all."""
    known = ~np.isnan(bits)
    whole = np.where(known, bits, 0.0).astype(np.int64)
    return np.where(np.logical_or.reduceat(known, bounds), np.bitwise_or.reduceat(whole, bounds), np.nan)


def metrics_in(columns: Iterable[str]) -> list[str]:
    """The metrics among the names of columns."""
    return [name for name in columns if name not in (AT, COVERED) and not name.endswith((LOW, HIGH))]


def one_of(columns: Columns, weights: Floats) -> dict[str, float]:
    """All values as one."""
    found = condensed(columns, weights, np.zeros(1, dtype=np.int64))
    return {name: float(values[0]) for name, values in found.items()}
