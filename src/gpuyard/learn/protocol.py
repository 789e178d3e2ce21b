"""RLScheduler's protocol (Zhang et al., SC'20): ten sequences of 1,024 jobs, an empty cluster, its own backfilling.

The sequences are those that its published numbers are of; on its trace Lublin-1 the best heuristic reaches a mean
bounded slowdown of 53.64 (F4), and RLScheduler 58.64.
"""

from __future__ import annotations

import numpy as np

from gpuyard.errors import UserError
from gpuyard.learn.arena import Arena, heuristic_weights
from gpuyard.learn.file import Learned
from gpuyard.learn.network import BASES
from gpuyard.learn.problem import make_problem
from gpuyard.learn.windows import Window
from gpuyard.sim.trace import Trace

SEQUENCES = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)
LENGTH = 1024
DISCIPLINE = "easy-shadow"


def sequences(trace: Trace) -> list[Window]:
    """The windows of the protocol; positions are those in the file."""
    if len(trace) < max(SEQUENCES) + LENGTH:
        raise UserError(
            f"{trace.source} has {len(trace):,} jobs, and the protocol needs {max(SEQUENCES) + LENGTH:,}: "
            "it is made for traces such as lublin_256.swf"
        )
    if trace.capacity is None:
        raise UserError(f"{trace.source} does not say how many processors there were, which the protocol needs")
    parts = [make_problem(trace.slice(f"{start}:{LENGTH}"), discipline=DISCIPLINE) for start in SEQUENCES]
    return [Window(part, np.arange(len(part.trace)), start) for part, start in zip(parts, SEQUENCES, strict=True)]


def slowdowns(learned: Learned, trace: Trace) -> dict[str, float]:
    """The mean bounded slowdown over the ten sequences, of a trained policy and of every heuristic."""
    arenas = [Arena(window, "slowdown") for window in sequences(trace)]
    weights = {"learned": learned.network.weights, **{name: heuristic_weights(name) for name in BASES}}
    return {name: float(np.mean([arena.outcome(w).cost for arena in arenas])) for name, w in weights.items()}
