"""Small queues on one GPU: enough to see who goes first."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace


def order(policy: str, trace: Trace, options: Options | None = None) -> list[str]:
    """Jobs by start, one at a time on one GPU."""
    result, _ = simulate(trace, Cluster((1,)), policy, options)
    return [result.trace.ids[i] for i in np.argsort(result.start, kind="stable")]


def jobs(run: list[float], **columns: Any) -> Trace:
    """Jobs `a`, `b`, ... behind one that keeps the GPU until all are there."""
    n = len(run)
    first: dict[str, float | bool] = {
        "deadline": -1.0,
        "weight": 1.0,
        "tickets": 1.0,
        "priority": 99.0,
        "compute": 100.0,
    }
    columns = {name: [first.get(name, 0.0), *values] for name, values in columns.items() if name != "users"} | {
        "users": ["nobody", *columns["users"]] if "users" in columns else None
    }
    return Trace.of([0, *range(1, n + 1)], [100, *run], [1] * (n + 1), ids=["first", *"abcdefgh"[:n]], **columns)
