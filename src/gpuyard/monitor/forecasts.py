"""Accuracy of usage forecasts: the forecast of the admission rules, rolled over what GPUs did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.usage.admission import CBP, PP, Thresholds, Window, decide, forecast, statistics_of
from gpuyard.recordings.series import Floats, Series

_APART = 1.5  # periods from one value to the next that are a gap


class Errors(NamedTuple):
    mae: float
    mse: float
    rmse: float
    mape: float | None  # percent of the truth, either way; None where all of it was 0
    mpe: float | None  # the same with its sign: above 0, too little was foreseen
    zeros: int  # values of 0, which no error can be a percentage of: they count in the first three only


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How often a rule would have admitted a job, and how often there was too little memory then."""

    rule: str
    admitted: int
    wrong: int

    @property
    def share(self) -> float | None:
        """Of the admitted; None if there is none."""
        return self.wrong / self.admitted if self.admitted else None


@dataclass(frozen=True, slots=True)
class Evaluation:
    at: Floats  # seconds since the epoch of what was foreseen
    real: Floats
    foreseen: Floats
    errors: Errors
    period: float
    decisions: int = 0  # instants at which the rules could decide; 0 where it is no memory
    verdicts: list[Verdicts] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "forecasts": len(self.at),
            "period": self.period,
            **self.errors._asdict(),
            "decisions": self.decisions,
            **{one.rule: {**asdict(one), "wrong_share": one.share} for one in self.verdicts},
        }


def errors_of(real: Floats, foreseen: Floats) -> Errors:
    """MAE, MSE and RMSE in the unit of the values; MAPE and MPE in percent of the truth."""
    missed = real - foreseen
    known = real != 0
    parts = 100 * missed[known] / real[known]
    mse = float((missed * missed).mean())
    return Errors(
        float(np.abs(missed).mean()),
        mse,
        math.sqrt(mse),
        float(np.abs(parts).mean()) if len(parts) else None,
        float(parts.mean()) if len(parts) else None,
        int((~known).sum()),
    )


def evaluate(
    series: Series,
    *,
    lag: int = 10,
    window: int = 60,
    capacity: float = math.inf,
    decides: bool = False,
    request: float | None = None,
) -> Evaluation | None:
    """Roll the forecast through a series; None where it is too short to foresee anything.

    With `decides` the values are free memory, out of `capacity`, and the rules' decisions are counted too: with
    `request` for a job of that size, else for one that takes all that they leave.
    """
    thresholds = Thresholds(lag=lag)
    at, real, foreseen = list[float](), list[float](), list[float]()
    decided = 0
    counts = {rule: [0, 0] for rule in (CBP, PP)}
    for times, values in runs(series):
        for end in range(window, len(values) - lag + 1):
            seen = values[end - window : end]
            at.append(float(times[end + lag - 1]))
            real.append(float(values[end + lag - 1]))
            foreseen.append(forecast(seen, lag, capacity))
            if decides and window >= thresholds.samples:
                decided += 1
                for rule, size in _promised(seen, capacity, request, thresholds):
                    counts[rule][0] += 1
                    counts[rule][1] += bool(values[end : end + lag].min() < size)
    if not at:
        return None
    truth, told = np.array(real), np.array(foreseen)
    verdicts = [Verdicts(rule, *numbers) for rule, numbers in counts.items()] if decides else []
    return Evaluation(np.array(at), truth, told, errors_of(truth, told), series.period, decided, verdicts)


def _promised(
    free: Floats, capacity: float, request: float | None, thresholds: Thresholds
) -> Iterator[tuple[str, float]]:
    seen = statistics_of(Window(capacity, capacity - free, free), thresholds)
    if request is not None:
        decision = decide(request, -math.inf, seen, thresholds=thresholds)
        if decision.admitted:
            yield decision.by, request
        return
    if seen.variation < thresholds.variation and seen.harvested > 0:
        yield CBP, seen.harvested
    if seen.autocorrelation > thresholds.autocorrelation and seen.forecast > 0:
        yield PP, seen.forecast


def runs(series: Series) -> Iterator[tuple[Floats, Floats]]:
    """The parts of a series without a gap: times and values."""
    known = ~np.isnan(series.mean)
    at, values = series.at[known], series.mean[known]
    if not len(at):
        return
    period = max(series.period, float(np.median(np.diff(at))) if len(at) > 1 else 0.0)
    cuts = np.flatnonzero(np.diff(at) > _APART * period) + 1
    yield from zip(np.split(at, cuts), np.split(values, cuts), strict=True)


def capacity_of(free: Series, used: Sequence[Series]) -> float:
    """The memory of a GPU: free and used together, where both are known; else the most that was ever free."""
    for other in used:
        if other.subject == free.subject and len(other.mean) == len(free.mean):
            both = free.mean + other.mean
            if np.isfinite(both).any():
                return float(np.nanmax(both))
    return float(np.nanmax(free.mean)) if np.isfinite(free.mean).any() else 0.0
