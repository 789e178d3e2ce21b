"""What a usage-aware scheduler is told of simulated GPUs: their last samples, and what each kind of job came to use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuyard.core.usage import USUAL, Peak, Statistics, Usage, Window, statistics_of
from gpuyard.experiments.devices import Devices, Gpu, Stay
from gpuyard.units import format_size

LOOK = 1.0
"""Seconds from one sample to the next."""
LONGEST = 300
"""Samples of a window at most."""
MARGIN = 0.05
"""What is expected beyond the highest use that was seen, as a part of it: the daemon's `memory_margin`."""


@dataclass(slots=True)
class Observer:
    """Looks at GPUs once a second, and remembers what kinds of jobs came to."""

    devices: Devices
    kinds: Mapping[str, str]
    """What each job is of."""
    guarded: bool = True
    """Whether it tells what kinds of jobs came to; else only what the samples of the last minutes say."""
    ended: dict[str, float] = field(default_factory=dict)
    """The most that whole runs of a kind used."""

    def done(self, stay: Stay) -> None:
        """A job ran from its beginning to its end."""
        kind = self.kinds[stay.job]
        self.ended[kind] = max(self.ended.get(kind, 0.0), stay.memory)

    def expected(self, waiting: list[str]) -> Usage:
        """What jobs are expected to use, by what is known now of their kinds."""
        now, seen = self.devices.now, dict(self.ended)
        if not self.guarded:
            return Usage(guarded=False)
        for stay in self.devices.here:
            if now >= settles(stay):
                kind = self.kinds[stay.job]
                seen[kind] = max(seen.get(kind, 0.0), stay.holds(now))
        jobs = [*waiting, *(stay.job for stay in self.devices.here)]
        return Usage(
            peaks={job: _peak(seen[self.kinds[job]], self.kinds[job]) for job in jobs if self.kinds[job] in seen}
        )

    def statistics(self) -> dict[int, Statistics]:
        """What windows tell that are long enough."""
        seen = ((index, seen_of(gpu, self.devices.now)) for index, gpu in enumerate(self.devices.gpus))
        return {index: found for index, found in seen if found is not None}

    def next_news(self) -> float:
        """When one more job will be known to have settled; infinity: never."""
        later = (settles(stay) for stay in self.devices.here)
        return min((time for time in later if time > self.devices.now), default=math.inf)


def settles(stay: Stay) -> float:
    """When its use will not have risen for as many samples as a window needs."""
    return math.ceil((stay.works_from + stay.behaviour.ramp) / LOOK + USUAL.samples) * LOOK


def seen_of(gpu: Gpu, now: float) -> Statistics | None:
    """What the samples since the last start on a GPU tell; None while they are too few to tell anything."""
    since = gpu.stays[-1].began if gpu.stays else 0.0
    first, last = math.ceil(since / LOOK), math.floor(now / LOOK)
    if last - first + 1 < USUAL.samples:
        return None
    at = np.arange(max(first, last - LONGEST + 1), last + 1, dtype=np.float64) * LOOK
    used = gpu.used(at)
    return statistics_of(Window(gpu.memory, used, gpu.memory - used))


def _peak(memory: float, kind: str) -> Peak:
    evidence = f"{kind} used {format_size(memory)}, and {100 * MARGIN:.0f} % more"
    return Peak(memory * (1.0 + MARGIN), memory, evidence)
