"""Run times as a queue would predict them, by what the same user's jobs of that size took (Tsafrir et al. 2007)."""

from __future__ import annotations

import numpy as np

from gpuyard.sim.trace import Floats, Trace

REMEMBERED = 2
"""How many of a user's latest jobs a prediction is the mean of."""


def predicted(trace: Trace) -> Floats:
    """Expected run times, knowing only jobs that were submitted before; jobs are in the order of arrival.

    A job is known from its submission and its run time on: as if it had not waited; when it ran is not known here.
    Who is new gets the median of all who have ended, and the first of all an hour.
    """
    known: dict[tuple[str, int], list[float]] = {}
    everybody: list[float] = []
    ends = trace.submit + trace.run
    by_end = np.argsort(ends, kind="stable")
    guesses = np.empty(len(trace))
    ended, usual = 0, 3600.0
    for row in range(len(trace)):
        while ended < len(trace) and ends[by_end[ended]] <= trace.submit[row]:
            other = int(by_end[ended])
            known.setdefault((trace.users[other], int(trace.gpus[other])), []).append(float(trace.run[other]))
            everybody.append(float(trace.run[other]))
            ended += 1
            if ended & (ended - 1) == 0:  # at powers of two: a median need not be of this very minute
                usual = float(np.median(everybody))
        past = known.get((trace.users[row], int(trace.gpus[row])), [])
        guesses[row] = float(np.mean(past[-REMEMBERED:])) if past else usual
    asked = np.where(np.isnan(trace.requested), np.inf, trace.requested)
    return np.maximum(np.minimum(guesses, asked), 1.0)
