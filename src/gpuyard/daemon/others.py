"""What of a GPU is used by nobody of ours: what jobs that share it cannot have.

Pure: what a look told goes in, with the time of the look, and what counts comes out. A job may not find less than it
was promised, so what others use counts as soon as it is known to be theirs. What nobody can be named for must last
a moment first: memory and processes are not read at one instant. What they give back counts after a while, and all
of it in steps, so that a GPU whose use trembles does not fill the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

STEP = 64 * 2**20
"""Bytes that it is rounded up to."""
LITTLE = 50 * 2**20
"""Less than this is what drivers take of a GPU that nobody uses; what is kept free covers it."""
_SETTLES = 2.0  # seconds for which memory must have been in use by somebody unknown before it counts
_LASTS = 5.0  # seconds for which it counts when it is used no more


class Use(NamedTuple):
    """What others use of a GPU, in bytes."""

    known: float
    """By processes that are seen, or by our jobs beyond what they were promised."""
    unknown: float
    """By nobody knows whom."""

    @property
    def all(self) -> float:
        """Both."""
        return self.known + self.unknown


def used_by_others(
    used: float, processes: Iterable[tuple[str | None, int]], promised: Mapping[str, float]
) -> Use | None:
    """What others use of a GPU with so many bytes in use; None where that cannot be told.

    `processes` are those on it, by job and bytes (0: not known); `promised` is what our jobs may use of it. A job that
    has no place on it is one of the others, and what a job uses beyond its promise is nobody's to give.
    """
    uses: dict[str, int] = {}
    foreign, told, foreign_told = 0, True, True
    for job, memory in processes:
        if job is not None and job in promised:
            uses[job] = uses.get(job, 0) + memory
            told = told and memory > 0
        else:
            foreign += memory
            foreign_told = foreign_told and memory > 0
    if not told:  # the rest is ours, or is not: nobody knows
        return Use(float(foreign), 0.0) if foreign_told else None
    excess = sum(max(0.0, use - promised[job]) for job, use in uses.items())
    rest = used - foreign - sum(uses.values())
    return Use(float(foreign) + excess, max(0.0, rest))


class Tally:
    """What counts as used by others on one GPU."""

    def __init__(self) -> None:
        self.counted = 0
        """Bytes; whole steps."""
        self._seen: list[tuple[float, Use]] = []

    def add(self, at: float, use: Use) -> int:
        """Take notice of a look, at a time that only goes forward; returns what counts now."""
        self._seen = [(when, one) for when, one in self._seen if when > at - _LASTS] + [(at, use)]
        lasting = min(one.unknown for when, one in self._seen if when > at - _SETTLES)
        now = _steps(use.known + lasting)
        if now >= self.counted:
            self.counted = now
        else:
            lately = max(one.all for _, one in self._seen)
            calm = _steps(lately + STEP / 2 if lately >= LITTLE else 0.0)  # half a step more: no to and fro at its edge
            self.counted = min(self.counted, max(now, calm))
        return self.counted


def _steps(size: float) -> int:
    return 0 if size < LITTLE else math.ceil(size / STEP) * STEP
