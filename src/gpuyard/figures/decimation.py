"""Fewer points for a line that looks the same: each stretch keeps its first, last, lowest and highest value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuyard.recordings.series import Floats

Lines = tuple[Floats, Floats, Floats | None, Floats | None]
"""Times, values, and the least and the most where values stand for spans."""


def decimate(at: Floats, mean: Floats, low: Floats | None, high: Floats | None, most: int) -> Lines:
    """At most about `most` points; peaks, gaps and both ends stay where they were."""
    if len(at) <= most:
        return at, mean, low, high
    size = -(-len(at) // max(most // 5, 1))
    kept = _corners(mean, size)
    if low is None or high is None:
        return at[kept], mean[kept], None, None
    gaps, bucket = np.isnan(mean[kept]), kept // size
    least, greatest = (_extremes(low, size, np.fmin)[bucket], _extremes(high, size, np.fmax)[bucket])
    return at[kept], mean[kept], np.where(gaps, np.nan, least), np.where(gaps, np.nan, greatest)


def smooth(at: Floats, mean: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` points, each the mean of a stretch: what a line among many others may be reduced to."""
    if len(at) <= most:
        return at, mean
    begins = np.arange(0, len(at), -(-len(at) // most))
    known = ~np.isnan(mean)
    count = np.add.reduceat(known.astype(np.float64), begins)
    total = np.add.reduceat(np.where(known, mean, 0.0), begins)
    return at[begins], np.divide(total, count, out=np.full(len(begins), np.nan), where=count > 0)


def _corners(values: Floats, size: int) -> NDArray[np.int64]:
    """Of each `size` values: where the first, the last, the least and the most are, and the first gap."""
    gaps = np.isnan(values)
    lowest = _rows(np.where(gaps, np.inf, values), size, np.inf).argmin(axis=1)
    highest = _rows(np.where(gaps, -np.inf, values), size, -np.inf).argmax(axis=1)
    begins = np.arange(len(lowest), dtype=np.int64) * size
    gap = _rows(gaps, size, False).argmax(axis=1)  # the first value, where there is no gap
    ends = np.minimum(begins + size, len(values)) - 1
    return np.unique(np.concatenate([begins, begins + lowest, begins + highest, begins + gap, ends]))


def _rows(values: NDArray[np.generic], size: int, filling: float) -> NDArray[np.generic]:
    """The values in rows of `size`, the last of them filled up."""
    missing = -len(values) % size
    return np.concatenate([values, np.full(missing, filling, values.dtype)]).reshape(-1, size)


def _extremes(values: Floats, size: int, extreme: np.ufunc) -> Floats:
    """The extreme of each `size` values; none where there is none."""
    found: Floats = extreme.reduceat(values, np.arange(0, len(values), size))
    return found
