"""What a policy is told of run times: the truth, the user's request, or the truth with noise."""

from __future__ import annotations

import math

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Floats, Trace


def default_estimate(trace: Trace) -> str:
    """`requested` where the trace has it, else `actual`."""
    return "actual" if np.isnan(trace.requested).all() else "requested"


def estimates(trace: Trace, kind: str | None = None, seed: int = 0) -> Floats:
    """Expected run times, parallel to the trace: `actual`, `requested`, or `noisy:S`.

    `noisy:S` multiplies the true run time by a seeded log-normal factor with sigma S and median 1.
    """
    kind = kind or default_estimate(trace)
    if kind == "actual":
        return trace.run
    if kind == "requested":
        if np.isnan(trace.requested).all():
            raise UserError(f"{trace.source} has no requested times; use --estimate actual or noisy:S")
        return np.where(np.isnan(trace.requested), trace.run, trace.requested)
    name, _, number = kind.partition(":")
    try:
        sigma = float(number)
    except ValueError:
        sigma = math.nan
    if name != "noisy" or not 0 <= sigma < math.inf:
        raise UserError(f"--estimate takes actual, requested or noisy:S (S a number, such as 0.5), not '{kind}'")
    return trace.run * np.random.default_rng(seed).lognormal(0.0, sigma, len(trace))
