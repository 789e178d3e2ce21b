"""What is used of GPUs, as numbers to decide by: percentiles, how much a series varies, and where it is heading.

Percentile, autocorrelation and AR(1) model are those of the Kubernetes scheduler that brought Kube-Knots' rules into
use, so that its numbers can be had again. What it got wrong is put right: a variance is never below 0, a constant
series is no division by 0, and a forecast stays between nothing and all of a GPU. Any unit will do, if it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuyard.core.loops.pool import Floats

_EVEN = 1e-12  # of the level: what varies by less is rounding, not variation


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When usage is known well enough to decide by it."""

    variation: float = 0.5
    """Free memory that varies by less, relative to its mean, is steady."""
    share: float = 0.8
    """The part of the samples that a steady GPU must have had the memory free in."""
    autocorrelation: float = 0.35
    """Above this, the past tells of the future."""
    lag: int = 10
    """Samples, and so seconds where there is one in each, that are looked ahead."""
    samples: int = 20
    """With fewer nothing is decided."""


USUAL = Thresholds()


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of a GPU's memory since a job was last placed there: one value for each second."""

    capacity: float
    used: Floats
    free: Floats


@dataclass(frozen=True, slots=True)
class Statistics:
    samples: int = 0
    mean_free: float = 0.0
    variation: float = 0.0
    """Of the free memory: its standard deviation, relative to its mean."""
    p80_used: float = 0.0
    """What was used at most in most of the samples (four of five, unless the thresholds say otherwise)."""
    harvested: float = 0.0
    """What that leaves of the GPU."""
    autocorrelation: float = 0.0
    phi0: float = 0.0
    phi1: float = 0.0
    forecast: float = 0.0
    """What will be free one lag ahead."""


@dataclass(frozen=True, slots=True)
class Peak:
    """What a job will use of each of its GPUs at most, by what it and similar jobs have used."""

    memory: float
    """Bytes, with a margin."""
    bare: float = 0.0
    """Bytes without it."""
    evidence: str = ""

    @property
    def least(self) -> float:
        """Bytes that it has surely come to use, if all goes as expected."""
        return self.bare or self.memory


@dataclass(frozen=True, slots=True)
class Usage:
    """What a driver knows of usage at one instant: windows by GPU, and jobs that are expected to use less than they
    asked for."""

    statistics: Mapping[int, Statistics] = field(default_factory=dict)
    """Of GPUs whose window is not over: nobody was placed there by it yet."""
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    """By job, waiting or running; who is not here counts with what it asked for."""
    thresholds: Thresholds = USUAL
    exempt: frozenset[str] = frozenset()
    """Jobs that are let in by what they ask for alone."""
    guarded: bool = True
    """Whether what is expected of everybody bounds what windows give away. Without that jobs die: for comparisons."""


def percentile(values: Sequence[float] | Floats, share: float) -> float:
    """The value at place `int(n * share)` of the sorted ones; the last, if there is no such place."""
    ranked = np.sort(np.asarray(values, dtype=np.float64))
    if not len(ranked):
        return 0.0
    return float(ranked[min(max(int(len(ranked) * share), 0), len(ranked) - 1)])


def variation(values: Sequence[float] | Floats) -> float:
    """The coefficient of variation: standard deviation (of a population) by mean.

    0 for a constant series, also one of zeros; infinite where the mean is 0 and the values are not.
    """
    series = np.asarray(values, dtype=np.float64)
    if not len(series):
        return 0.0
    centred = _centred(series)
    deviation, mean = float(np.sqrt((centred * centred).mean())), abs(float(series.mean()))
    if deviation == 0.0:
        return 0.0
    return deviation / mean if mean > 0 else float("inf")


def autocorrelation(values: Sequence[float] | Floats, lag: int) -> float:
    """How much values resemble those `lag` before, from -1 to 1; 0 if the series is constant or too short to tell."""
    series = np.asarray(values, dtype=np.float64)
    if not 0 < lag < len(series):
        return 0.0
    centred = _centred(series)
    spread = float((centred * centred).sum())
    return float((centred[:-lag] * centred[lag:]).sum()) / spread if spread > 0 else 0.0


def ar1(values: Sequence[float] | Floats, lag: int) -> tuple[float, float]:
    """The line `y[i] = phi0 + phi1 * y[i - lag]` that fits best (least squares); level, where nothing varies."""
    series = np.asarray(values, dtype=np.float64)
    if not 0 < lag < len(series):
        return (float(series.mean()) if len(series) else 0.0), 0.0
    before, after = series[:-lag], series[lag:]
    centred = _centred(before)
    spread = float((centred * centred).sum())
    phi1 = float((centred * (after - after.mean())).sum()) / spread if spread > 0 else 0.0
    return float(after.mean()) - phi1 * float(before.mean()), phi1


def forecast(values: Sequence[float] | Floats, lag: int, capacity: float) -> float:
    """What the series will be one lag after its end: at least 0, at most the capacity."""
    series = np.asarray(values, dtype=np.float64)
    if not len(series):
        return 0.0
    return foreseen(ar1(series, lag), float(series[-1]), capacity)


def foreseen(model: tuple[float, float], last: float, capacity: float) -> float:
    """The AR(1) model's next value after `last`: at least 0, at most the capacity."""
    return min(max(model[0] + model[1] * last, 0.0), capacity)


def statistics_of(window: Window, thresholds: Thresholds = USUAL) -> Statistics:
    samples = min(len(window.used), len(window.free))
    if not samples:
        return Statistics()
    phi0, phi1 = ar1(window.free, thresholds.lag)
    used = percentile(window.used, thresholds.share)
    return Statistics(
        samples,
        float(window.free.mean()),
        variation(window.free),
        used,
        window.capacity - used,
        autocorrelation(window.free, thresholds.lag),
        phi0,
        phi1,
        foreseen((phi0, phi1), float(window.free[-1]), window.capacity),
    )


def _centred(series: Floats) -> Floats:
    """A series without its mean; rounding errors of a constant one become 0."""
    mean = series.mean()
    centred = series - mean
    return np.where(np.abs(centred) <= _EVEN * abs(mean), 0.0, centred)
