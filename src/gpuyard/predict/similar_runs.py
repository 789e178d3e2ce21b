"""What jobs will use and take, by similar jobs: quantiles of the latest runs, a margin, and the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.units import format_duration

LATEST = 50  # the latest runs of a signature that count
MEMORY, TIME = 0.95, 0.90  # the quantiles of a prediction
_FEW = 5  # with fewer runs than that the margin is the one of the settings; with more, three fifths of it are enough
_USUAL = 0.6
_MOST = 0.30
_OTHER_VERSION = 0.10  # the least margin where only an earlier version of the script has run
_LONG = 60.0  # seconds after which a run counts as a whole one, however it ended
_SHORT = 2.0
"""Seconds below which a trial has not seen a job grow: until one has run as a whole, it gets a good part of a GPU."""
_SETTLED = 0.25  # the part of a trial for which its peak must not have risen, if it is to tell how high that gets
_MIB = 2**20


class Run(NamedTuple):
    at: float
    seconds: float
    outcome: str
    peak: float  # bytes on one GPU at most; 0: not known
    epochs: float = 0.0
    predicted_peak: float = 0.0
    predicted_seconds: float = 0.0
    trial: bool = False  # whether it only tried a job out
    settled: float | None = None  # seconds for which its peak had not risen any more; None: not known
    hopeless: bool = False  # whether it ran out of memory although it had the largest GPU for itself


class Prediction(NamedTuple):
    """What is expected of a job: bytes on each GPU, with margin, and seconds; 0 where nothing is known."""

    memory: float = 0.0
    seconds: float = 0.0
    evidence: str = ""
    peak: float = 0.0  # bytes without the margin, where runs of the very same script are the evidence


UNKNOWN = Prediction()


class Errors(NamedTuple):
    """Relative errors of predictions; more than 0: too much was expected."""

    number: int
    median: float  # of how far, either way
    worst: float
    bias: float


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a part `q` of the values does not exceed."""
    ranked = sorted(values)
    return ranked[max(math.ceil(q * len(ranked) - 1e-9), 1) - 1]


def peaks_of(runs: Sequence[Run]) -> list[float]:
    """Peaks that say how much a whole run needs, in the order of the runs.

    A run that was cut short tells only that it takes at least so much; that counts where it is more than others say.
    So it is with one that tried the job out, once there are others.
    """
    measured = [run for run in runs if run.peak > 0]
    whole = [run for run in measured if _is_whole(run, runs)]
    whole = [run for run in whole if not run.trial] or whole
    if not whole:
        return []
    least = quantile([run.peak for run in whole], MEMORY)
    return [run.peak for run in measured if run in whole or run.peak > least]


def _is_whole(run: Run, runs: Sequence[Run]) -> bool:
    if run.trial and run.settled is not None and run.settled < _SETTLED * run.seconds:
        return False  # it was still growing when it was cut short
    if run.outcome in ("succeeded", "timeout"):
        return True
    if run.outcome in ("oom", "requeued"):
        return False
    usual = [other.seconds for other in runs if other.outcome == "succeeded"]
    return run.seconds >= (quantile(usual, 0.5) / 2 if usual else _LONG)


def margin_of(peaks: Sequence[float], few: float) -> float:
    """The margin above the quantile: as much as the runs, one after another, would have exceeded it."""
    least = few if len(peaks) < _FEW else _USUAL * few
    wrong = [peak / quantile(peaks[:n], MEMORY) - 1 for n, peak in enumerate(peaks) if n]
    return math.ceil(100 * min(_MOST, max(least, quantile(wrong, MEMORY) if wrong else 0.0)) - 1e-9) / 100


def seconds_of(runs: Sequence[Run], epochs: float) -> tuple[float, int]:
    """Expected seconds of a job with this number of epochs, and the number of runs that tell."""
    ended = [run for run in runs if run.outcome == "succeeded" and run.seconds > 0]
    if epochs and (scaled := [run.seconds / run.epochs * epochs for run in ended if run.epochs]):
        return quantile(scaled, TIME), len(scaled)
    plain = [run.seconds for run in ended if not (epochs and run.epochs) and run.epochs == epochs]
    return (quantile(plain, TIME), len(plain)) if plain else (0.0, 0)


def _only_short(runs: Sequence[Run]) -> bool:
    return all(run.trial and run.seconds < _SHORT for run in runs if run.peak > 0 and _is_whole(run, runs))


def predict(runs: Sequence[Run], alike: Sequence[Run], epochs: float, few: float, part: float = 0.0) -> Prediction:
    """What to expect of a job by the runs of its signature, or else by those that only its script sets apart.

    `few` is the margin where there are few runs, and `part` the bytes to expect at least after a short trial alone.
    """
    exact = peaks_of(runs)
    peaks = exact or peaks_of(alike)
    seconds, times = seconds_of(runs, epochs)
    if not times:
        seconds, times = seconds_of(alike, epochs)
    if not peaks:
        evidence = f"p90 of {_many(times, 'run time')}: {format_duration(seconds)}" if times else ""
        return Prediction(0.0, seconds, evidence)
    peak, margin = quantile(peaks, MEMORY), margin_of(peaks, few)
    if not exact:
        margin = max(margin, _OTHER_VERSION)
    least = part if exact and _only_short(runs) else 0.0
    if least:
        margin = _MOST
    of = _many(len(peaks), "run") + ("" if exact else " of an earlier version of the script")
    memory = math.ceil(max(peak * (1 + margin), least) / _MIB) * float(_MIB)
    evidence = f"p95 of {of}: {math.ceil(peak / _MIB):,} MiB + {100 * margin:.0f} %"
    if least:
        evidence += f", at least {math.ceil(least / _MIB):,} MiB after so short a trial"
    return Prediction(memory, seconds, evidence, peak if exact else 0.0)


def errors_of(pairs: Sequence[tuple[float, float]]) -> Errors | None:
    found = [predicted / truth - 1 for predicted, truth in pairs if predicted > 0 and truth > 0]
    if not found:
        return None
    return Errors(len(found), quantile([abs(e) for e in found], 0.5), max(found, key=abs), sum(found) / len(found))


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
