"""Whether a job may have GPU memory that others asked for and do not use (Kube-Knots, and a guard of our own).

    1. fit      what it asked for is not promised to others
    2. history  what it needs is left, if all jobs need what similar jobs did
    3. cbp      free memory hardly varies, and four of five samples leave as much as it wants
    4. pp       free memory follows a pattern, and its forecast covers what it wants

3 and 4 look at a window of samples, and only they need one. Without `bound` they are Kube-Knots' own, which let jobs
die: what was free a moment ago may be wanted in the next. With it, no job is admitted that would find no room if all
the others came to what is expected of them.

Percentile, autocorrelation and AR(1) model are those of the Kubernetes scheduler that brought Kube-Knots' rules into
use, so that its numbers can be reproduced. Three errors of it are corrected: a variance is never below 0, a constant
series is no division by 0, and a forecast stays between 0 and the size of a GPU. Any unit works, if all values have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gpuyard.core.loops.pool import Floats
from gpuyard.units import format_size

FIT, HISTORY, CBP, PP = "fit", "history", "cbp", "pp"
OVERCOMMITTED = (HISTORY, CBP, PP)  # ways in which a job is let in although others asked for the memory
_EVEN = 1e-12  # of the level: what varies by less is rounding, not variation


@dataclass(frozen=True, slots=True)
class Thresholds:
    variation: float = 0.5  # free memory that varies by less, relative to its mean, is steady
    share: float = 0.8  # the part of the samples that a steady GPU must have had the memory free in
    autocorrelation: float = 0.35  # above this, the past tells of the future
    lag: int = 10  # samples, and so seconds where there is one in each, that are looked ahead
    samples: int = 20  # with fewer nothing is decided


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
    variation: float = 0.0  # of the free memory: its standard deviation, relative to its mean
    p80_used: float = 0.0
    """What was used at most in most of the samples (four of five, unless the thresholds say otherwise)."""
    harvested: float = 0.0  # what that leaves of the GPU
    autocorrelation: float = 0.0
    phi0: float = 0.0
    phi1: float = 0.0
    forecast: float = 0.0  # what will be free one lag ahead


@dataclass(frozen=True, slots=True)
class Peak:
    """What a job will use of each of its GPUs at most, by what it and similar jobs have used."""

    memory: float  # bytes, with a margin
    bare: float = 0.0  # bytes without it
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
    """Of GPUs whose window is not over: no job was placed there by it yet."""
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    """By job, waiting or running; other jobs count with what they asked for."""
    thresholds: Thresholds = USUAL
    exempt: frozenset[str] = frozenset()  # jobs that are let in by what they ask for alone
    guarded: bool = True  # whether expected use bounds what windows give away. Without that jobs die: for comparisons.


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether admission lets a job onto a GPU, by which rule, and the numbers behind that (bytes)."""

    admitted: bool
    by: str  # `fit`, `history`, `cbp` or `pp`; empty: not at all
    request: float
    available: float  # what is not promised to others; below 0 where more is promised than there is
    harvested: float = 0.0
    forecast: float = 0.0
    variation: float = 0.0
    autocorrelation: float = 0.0
    samples: int = 0
    bound: float | None = None  # what would be left if all the others came to what is expected of them; None: not known
    why: str = ""  # in a sentence
    need: float | None = None  # what the job is expected to need itself; None: not known

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def need(request: float, predicted: float | None) -> float:
    """What a job is charged: what it is expected to use, if that is known, and never more than it asked for."""
    return request if predicted is None or predicted <= 0 else min(request, predicted)


def decide(
    request: float,
    available: float,
    statistics: Statistics | None,
    bound: float | None = None,
    *,
    predicted: float | None = None,
    thresholds: Thresholds = USUAL,
) -> Decision:
    """Whether a job may have `request` bytes. `predicted` is what it is expected to need, where that is known, and
    `bound` what would be left for it if all the others came to what is expected of them."""
    seen, wanted = statistics or Statistics(), need(request, predicted)
    by, why = _rule(request, wanted, available, statistics, bound, predicted, thresholds)
    return Decision(
        bool(by), by, request, available, seen.harvested, seen.forecast, seen.variation, seen.autocorrelation,
        seen.samples, bound, why, predicted if predicted is None else wanted,
    )  # fmt: skip


def _rule(
    request: float,
    wanted: float,
    available: float,
    seen: Statistics | None,
    bound: float | None,
    predicted: float | None,
    thresholds: Thresholds,
) -> tuple[str, str]:
    if request <= available:
        return FIT, f"{format_size(request)} asked for, {_size(available)} left"
    if bound is not None and wanted > bound:
        return "", f"{_size(bound)} would be left if all here came to what is expected of them, {_size(wanted)} needed"
    if predicted is not None and bound is not None:
        return HISTORY, f"{_size(wanted)} needed by what its like used, {_size(bound)} left if all come to theirs"
    if seen is None or seen.samples < thresholds.samples:
        few = 0 if seen is None else seen.samples
        return "", f"{few} of {thresholds.samples} samples since the last start there"
    return _by_window(wanted, seen, thresholds)


def _by_window(wanted: float, seen: Statistics, thresholds: Thresholds) -> tuple[str, str]:
    steady = seen.variation < thresholds.variation
    if steady and wanted <= seen.harvested:
        often = f"{_size(seen.harvested)} free in {100 * thresholds.share:.0f} % of {seen.samples} samples"
        return CBP, f"{often}, which vary by {seen.variation:.2g}"
    regular = seen.autocorrelation > thresholds.autocorrelation
    ahead = f"{_size(seen.forecast)} expected to be free {thresholds.lag} samples ahead"
    if regular and wanted <= seen.forecast:
        return PP, f"{ahead} (autocorrelation {seen.autocorrelation:.2f})"
    cbp = f"{_size(seen.harvested)} harvested" if steady else f"free memory varies by {seen.variation:.2g}"
    pp = ahead if regular else f"no pattern (autocorrelation {seen.autocorrelation:.2f})"
    return "", f"{_size(wanted)} wanted; {cbp}; {pp}"


def _size(size: float) -> str:
    return format_size(size) if size >= 0 else f"-{format_size(-size)}"


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
