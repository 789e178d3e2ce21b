"""Throttle reasons and XID errors: NVML's bits and numbers as named spans and instants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpuyard.recordings.series import Series

REASONS = {
    0x2: "application clocks",
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
    0x100: "display clocks",
    0x1: "idle",
}
"""Bits of NVML's clock throttle reasons; that a GPU has nothing to do is the last of them, for it is no harm."""
ERRORS = {
    13: "graphics engine exception", 31: "GPU memory page fault", 43: "stopped processing", 45: "preemptive cleanup",
    48: "double-bit ECC error", 61: "internal micro-controller breakpoint", 62: "internal micro-controller halt",
    63: "ECC page retirement", 64: "ECC page retirement failed", 74: "NVLink error", 79: "fallen off the bus",
    92: "high single-bit ECC error rate", 94: "contained ECC error", 95: "uncontained ECC error",
    119: "GSP timeout", 120: "GSP error",
}  # fmt: skip
"""What the more frequent XIDs mean."""


class Span(NamedTuple):
    """A span of time, in seconds since the epoch."""

    start: float
    end: float


def throttled(series: Series) -> dict[str, list[Span]]:
    """The spans in which a GPU was slowed down, by reason, in the order of `REASONS`."""
    # Of values that stand for spans the highest says the most: a mean of bits means nothing.
    values = series.mean if series.high is None else series.high
    bits = np.where(np.isnan(values), 0, values).astype(np.int64)
    found = {name: list(_spans(series, (bits & bit) != 0)) for bit, name in REASONS.items()}
    if unknown := int(np.bitwise_or.reduce(bits, initial=0)) & ~sum(REASONS):
        found[f"other (0x{unknown:x})"] = list(_spans(series, (bits & unknown) != 0))
    return {name: spans for name, spans in found.items() if spans}


def _spans(series: Series, holds: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[Span]:
    """The spans in which it holds; a value counts up to the next one, the last for a period."""
    edges = np.diff(np.concatenate([[0], holds.astype(np.int8), [0]]))
    ends = np.append(series.at[1:], series.at[-1:] + series.period)
    for first, after in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        yield Span(float(series.at[first]), float(ends[after - 1]))


class Error(NamedTuple):
    at: float  # seconds since the epoch
    number: int


def errors(series: Series) -> list[Error]:
    """The times of new XID errors; one that is there from the start is older."""
    values = series.mean if series.high is None else series.high
    known = np.isfinite(values)  # what was before a gap may well be what is after it
    at, number = series.at[known], values[known]
    new = np.flatnonzero((number[1:] != 0) & (number[1:] != number[:-1])) + 1
    return [Error(float(at[place]), int(number[place])) for place in new]


def error_text(number: int) -> str:
    """`XID 79: fallen off the bus`."""
    meaning = ERRORS.get(number)
    return f"XID {number}: {meaning}" if meaning else f"XID {number}"
