"""What a trace asks for, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuyard.sim.trace import Floats, Trace
from gpuyard.sim.traces.times import are_dates, format_time

BINS = 60  # steps in which the arrivals are counted
_TOP = 10
_LENGTHS = (
    ("up to 10 s", 10.0), ("1 min", 60.0), ("10 min", 600.0), ("1 h", 3600.0), ("6 h", 21600.0),
    ("1 day", 86400.0), ("1 week", 604800.0), ("longer", np.inf),
)  # fmt: skip
"""Up to how long, with a name."""


def describe(trace: Trace, capacity: int | None = None) -> dict[str, Any]:
    """Counts, times and load of a trace, ready to print or to write as JSON; `capacity`: GPUs, for the load."""
    if not len(trace):
        return {"source": trace.source, "format": trace.format, "jobs": 0, "dropped": dict(trace.dropped)}
    capacity = capacity or trace.capacity
    first, last = float(np.min(trace.submit)), float(np.max(trace.submit))
    span = float(np.max(trace.submit + trace.run) - first)
    gpu_seconds = float(np.sum(demand(trace) * trace.run))
    sizes, counts = np.unique(trace.gpus, return_counts=True)
    facts: dict[str, Any] = {
        "source": trace.source,
        "format": trace.format,
        "jobs": len(trace),
        "dropped": dict(trace.dropped),
        "capacity": capacity,
        "users": len(set(trace.users) - {""}),
        "top_users": _common(user for user in trace.users if user),
        "labels": {name: {"values": len(set(texts)), "top": _common(texts)} for name, texts in trace.labels.items()},
        "first_submit": first,
        "last_submit": last,
        "span_seconds": span,
        "gpu_seconds": gpu_seconds,
        "mean_gpus": gpu_seconds / span,
        "arrivals_per_hour": _rate(trace.submit),
        "arrivals": _counted(trace.submit, first, last),
        "run": {
            "mean": float(np.mean(trace.run)),
            "median": float(np.median(trace.run)),
            "p95": float(np.percentile(trace.run, 95)),
            "max": float(np.max(trace.run)),
        },
        "run_lengths": _by_length(trace.run),
        "max_gpus": int(sizes[-1]),
        "gpu_sizes": {int(size): int(count) for size, count in zip(sizes, counts, strict=True)},
    }
    if are_dates(first, last):
        facts["first_date"], facts["last_date"] = format_time(first), format_time(last)
        hours = (trace.submit // 3600 % 24).astype(np.int64)
        facts["arrivals_by_hour"] = np.bincount(hours, minlength=24).tolist()
    if capacity:
        facts["load"] = gpu_seconds / (capacity * span)
    said = ~np.isnan(trace.requested)
    if said.any():
        facts["requested_accuracy"] = float(np.mean(trace.run[said] / trace.requested[said]))
    return facts


def demand(trace: Trace) -> Floats:
    """GPUs each job keeps busy; a share by memory alone counts as the whole GPU."""
    share = np.where(trace.compute > 0, trace.compute / 100.0, 1.0)
    return share * trace.gpus.astype(np.float64)


def _common(texts: Iterable[str]) -> dict[str, int]:
    return dict(Counter(texts).most_common(_TOP))


def _counted(submit: Floats, first: float, last: float) -> dict[str, Any]:
    if last <= first:
        return {"step_seconds": 0.0, "counts": [len(submit)]}
    counts, _ = np.histogram(submit, bins=BINS, range=(first, last))
    return {"step_seconds": (last - first) / BINS, "counts": counts.tolist()}


def _by_length(run: Floats) -> dict[str, int]:
    places = np.searchsorted([limit for _, limit in _LENGTHS], run)
    counts = np.bincount(places, minlength=len(_LENGTHS)).tolist()
    return {name: count for (name, _), count in zip(_LENGTHS, counts, strict=True)}


def _rate(submit: Floats) -> float | None:
    wide = float(np.max(submit) - np.min(submit))
    return (len(submit) - 1) * 3600.0 / wide if wide > 0 else None
