"""What a trace asks for, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.sim.trace import Floats, Trace


def describe(trace: Trace) -> dict[str, Any]:
    """Counts, times and load of a trace, ready to print or to write as JSON."""
    if not len(trace):
        return {"source": trace.source, "format": trace.format, "jobs": 0, "dropped": dict(trace.dropped)}
    span = float(np.max(trace.submit + trace.run) - np.min(trace.submit))
    gpu_seconds = float(np.sum(_demand(trace) * trace.run))
    sizes, counts = np.unique(trace.gpus, return_counts=True)
    facts: dict[str, Any] = {
        "source": trace.source,
        "format": trace.format,
        "jobs": len(trace),
        "dropped": dict(trace.dropped),
        "capacity": trace.capacity,
        "users": len(set(trace.users) - {""}),
        "span_seconds": span,
        "gpu_seconds": gpu_seconds,
        "mean_gpus": gpu_seconds / span,
        "arrivals_per_hour": _rate(trace.submit),
        "run": _spread(trace.run),
        "max_gpus": int(sizes[-1]),
        "gpu_sizes": {int(size): int(count) for size, count in zip(sizes, counts, strict=True)},
    }
    if trace.capacity:
        facts["load"] = gpu_seconds / (trace.capacity * span)
    said = ~np.isnan(trace.requested)
    if said.any():
        facts["requested_accuracy"] = float(np.mean(trace.run[said] / trace.requested[said]))
    return facts


def _demand(trace: Trace) -> Floats:
    """GPUs each job keeps busy; a share by memory alone counts as the whole GPU."""
    share = np.where(trace.compute > 0, trace.compute / 100.0, 1.0)
    return share * trace.gpus.astype(np.float64)


def _rate(submit: Floats) -> float | None:
    """Arrivals per hour between the first and the last; None when all come at once."""
    wide = float(np.max(submit) - np.min(submit))
    return (len(submit) - 1) * 3600.0 / wide if wide > 0 else None


def _spread(values: Floats) -> dict[str, float]:
    return {
        "mean": float(np.mean(values)),
        "median": float(np.median(values)),
        "p95": float(np.percentile(values, 95)),
        "max": float(np.max(values)),
    }
