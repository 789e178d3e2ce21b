"""Whether a job may have GPU memory that others asked for and do not use (Kube-Knots, and a guard of our own).

    1. fit      what it asked for is not promised to others
    2. history  what it needs is left, if everybody needs what their like did
    3. cbp      free memory hardly varies, and four of five samples leave as much as it wants
    4. pp       free memory follows a pattern, and its forecast covers what it wants

3 and 4 look at a window of samples, and only they need one. Without `bound` they are Kube-Knots' own, which let jobs
die: what was free a moment ago may be wanted in the next. With it, nobody is let in who would find no room if all
the others came to what is expected of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gpuyard.core.usage.percentiles import USUAL, Statistics, Thresholds
from gpuyard.units import format_size

FIT, HISTORY, CBP, PP = "fit", "history", "cbp", "pp"
OVERCOMMITTED = (HISTORY, CBP, PP)
"""Ways in which a job is let in although others asked for the memory."""
NONE = Statistics()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether admission lets a job onto a GPU, by which rule, and the numbers behind that (bytes)."""

    admitted: bool
    by: str
    """`fit`, `history`, `cbp` or `pp`; empty: not at all."""
    request: float
    available: float
    """What is not promised to others; below 0 where more is promised than there is."""
    harvested: float = 0.0
    forecast: float = 0.0
    variation: float = 0.0
    autocorrelation: float = 0.0
    samples: int = 0
    bound: float | None = None
    """What would be left if all the others came to what is expected of them; None: not known."""
    why: str = ""
    """In a sentence."""
    need: float | None = None
    """What the job is expected to need itself; None: not known."""

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
    seen, wanted = statistics or NONE, need(request, predicted)
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
