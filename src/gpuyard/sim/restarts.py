"""What a restart costs a preempted job: the same for all, or more for larger jobs."""

from __future__ import annotations

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Floats, Ints
from gpuyard.units import format_number, parse_duration

NODE = 8
"""Jobs of at most this many GPUs count as jobs of one machine, whatever the simulated nodes are."""

RestartCost = float | tuple[float, float, float]
"""Seconds for every job; or for jobs of one GPU, of at most a machine (`NODE`), and of more."""


def parse_restart_cost(text: str) -> RestartCost:
    """`7` for all jobs, or `7/30/60`: one GPU, up to 8 GPUs, more."""
    parts = [parse_duration(part) for part in text.split("/")]
    if len(parts) not in (1, 3):
        raise UserError(
            f"--restart-cost takes one time, or three as in 7/30/60 (one GPU, up to {NODE} GPUs, more), not '{text}'"
        )
    if min(parts) < 0:
        raise UserError(f"--restart-cost must be 0 or more, not {text}")
    return parts[0] if len(parts) == 1 else (parts[0], parts[1], parts[2])


def format_restart_cost(cost: RestartCost) -> str:
    """As the command line takes it."""
    return "/".join(format_number(part) for part in (cost if isinstance(cost, tuple) else (cost,)))


def restart_costs(gpus: Ints, cost: RestartCost) -> Floats:
    """Seconds without progress at each restart, for jobs of these numbers of GPUs."""
    if not isinstance(cost, tuple):
        return np.full(len(gpus), float(cost))
    return np.asarray(np.select([gpus <= 1, gpus <= NODE], cost[:2], default=cost[2]), dtype=np.float64)
