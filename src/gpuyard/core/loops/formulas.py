"""The arithmetic behind the columns, for single numbers and for arrays alike; in numba's subset."""

from __future__ import annotations

from typing import Any

import numpy as np

A = Any  # a number or an array of numbers

ENDLESS = 1e7  # seconds, about four months: longer times, and unknown ones, count as this
OVERDUE = 1.0  # seconds until a job that has outlived its estimate is expected to end
LENGTHS = 32  # number of classes of job lengths, by powers of two


def attained(progress: A, started: A, overhead: A, now: float) -> A:
    """Seconds of work done, the present attempt included; `started` is infinite while a job does not run."""
    return progress + np.maximum(now - started - overhead, 0.0)


def remaining(estimate: A, done: A) -> A:
    return np.maximum(estimate - done, 0.0)


def waited(submit: A, held_for: A, started: A, now: float) -> A:
    return now - submit - (held_for + np.maximum(now - started, 0.0))


def behind_all(turn: A, last: float) -> A:
    """A number behind all others, by turns: where a running job would queue were it stopped now."""
    return last + 1.0 + turn / (last + 1.0)


def slice_over_at(since: A, quantum: float, now: float) -> A:
    """When the present slice is over, `now` if it is: slices are not counted while no job waits."""
    slices = (now - since) / quantum
    nearest = np.maximum(np.round(slices), 1.0)
    over = 1.0 * (np.abs(since + nearest * quantum - now) <= 8 * np.spacing(np.maximum(1.0, np.abs(now))))
    return over * now + (1.0 - over) * (since + (np.floor(slices) + 1.0) * quantum)
