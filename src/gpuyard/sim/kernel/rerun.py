"""The same jobs simulated again and again under policies that differ in their weights only, as training does."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.core.planner import OrderedPlanner
from gpuyard.errors import Bug, UserError
from gpuyard.sim.kernel import drive
from gpuyard.core.pool import Floats
from gpuyard.sim.trace import Trace

_KEPT = frozenset({"asked", "values", "near", "near_keys", "keys", "rows", "gpus", "nodes", "submit", "run"})
"""Arrays that nobody writes, or that are written before they are read: these need not be made anew."""


class Rerun:
    """A simulation whose arrays are laid out once and made new before every run."""

    def __init__(self, trace: Trace, cluster: Cluster, planner: OrderedPlanner, estimates: Floats) -> None:
        if drive.entry_for(planner) != drive.JUDGED:
            raise Bug(f"policy {planner.policy.name} is not judged anew at every plan")
        if reason := drive.why_not(trace, cluster, planner):
            raise UserError(f"this cannot be learned on: {reason}, which the compiled simulator does not do")
        run = drive.Run(trace, cluster, planner, estimates, np.zeros(len(trace)), 0.0, 0)
        self._entry, self._arguments = drive.loop(drive.JUDGED), run.judged_arguments()
        self._start, self._done, self._jobs = run.yard.start, run.yard.done, len(trace)
        self._fresh = [(array, array.copy()) for array in _written(self._arguments)]

    def starts(self, weights: Floats) -> Floats:
        """When each job starts under these weights, NaN if it never can; to be read before the next run."""
        for array, fresh in self._fresh:
            array[...] = fresh
        wrong = self._entry(*self._arguments[:-1], weights)
        if wrong >= 0:
            self._start[:] = np.nan  # a policy without a number for a job is no policy
        elif self._done[0] < self._jobs:
            raise Bug("the simulation came to a halt with jobs waiting")
        return self._start


def _written(value: Any, name: str = "") -> list[np.ndarray[Any, Any]]:
    """The arrays within that a run writes to."""
    if isinstance(value, np.ndarray):
        return [] if name in _KEPT else [value]
    if isinstance(value, tuple):
        names = getattr(value, "_fields", [""] * len(value))
        return [array for part, called in zip(value, names, strict=True) for array in _written(part, called)]
    return []
