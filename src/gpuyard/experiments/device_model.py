"""A model of GPUs for simulated experiments: progress of jobs, memory, utilization, power and temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuyard.experiments.design import Behaviour

Floats = NDArray[np.float64]

AT_ONCE = 0.1  # fraction of its memory that a job takes with its first work: contexts and libraries
IDLE_POWER = 25.0  # watts of an idle GPU
POWER = {0.0: IDLE_POWER, 100.0: 300.0}  # watts by utilization, where a workload does not say
COOL, RISE, LAG = 31.0, 0.2, 45.0
"""Degrees Celsius of an idle GPU, how many more per watt, and seconds in which two thirds of a change have happened."""
_ROUNDING = 1.0  # bytes by which sums of memory may be off


def along(points: Mapping[float, float] | Mapping[int, float], at: float) -> float:
    """Linear interpolation; constant before the first point, extrapolated beyond the last."""
    known = sorted(points.items())
    for (left, low), (right, high) in pairwise(known):
        if at <= right or right == known[-1][0]:
            return low + (high - low) * (max(at, left) - left) / (right - left)
    return known[0][1]


def alone(behaviour: Behaviour, percent: float) -> float:
    """Seconds of work alone on a GPU, at an over-provisioning."""
    measured = {0.0: behaviour.seconds, **behaviour.seconds_by_percent}
    return float(np.interp(percent, sorted(measured), [measured[p] for p in sorted(measured)]))


@dataclass(slots=True, eq=False)
class Stay:
    job: str
    gpus: tuple[int, ...]
    behaviour: Behaviour
    memory: float  # bytes on each of its GPUs, once it has all of them
    seconds: float  # of work, alone
    began: float
    works_from: float
    ended: float = math.inf
    done: float = 0.0  # share of its work
    rate: float = 0.0  # of that, per second from now on

    def grows(self, at: float) -> bool:
        return self.works_from <= at < self.works_from + self.behaviour.ramp

    def holds(self, at: float) -> float:
        """Bytes on each of its GPUs at an instant."""
        if not self.works_from <= at < self.ended:
            return 0.0
        ramp = self.behaviour.ramp
        risen = min(1.0, (at - self.works_from) / ramp) if ramp > 0 else 1.0
        return self.memory * (AT_ONCE + (1.0 - AT_ONCE) * risen)

    def held(self, at: Floats) -> Floats:
        """`holds` for many instants."""
        ramp = max(self.behaviour.ramp, 1e-9)
        risen = np.clip((at - self.works_from) / ramp, 0.0, 1.0)
        there = (at >= self.works_from) & (at < self.ended)
        return np.where(there, self.memory * (AT_ONCE + (1.0 - AT_ONCE) * risen), 0.0)


@dataclass(slots=True)
class Gpu:
    memory: float
    here: list[Stay] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)  # all that ever were, in the order in which they began
    at: list[float] = field(default_factory=lambda: [0.0])
    busy: list[float] = field(default_factory=lambda: [0.0])
    power: list[float] = field(default_factory=lambda: [IDLE_POWER])
    """From when on it was how busy, in percent, and drew how many watts."""

    def used(self, at: Floats) -> Floats:
        total = np.zeros(len(at))
        if len(at):
            for stay in self.stays:
                if stay.ended > at[0] and stay.works_from <= at[-1]:
                    total += stay.held(at)
        return total

    def note(self, at: float, busy: float, power: float) -> None:
        if self.at[-1] == at:
            self.busy[-1], self.power[-1] = busy, power
        elif (self.busy[-1], self.power[-1]) != (busy, power):
            self.at.append(at)
            self.busy.append(busy)
            self.power.append(power)

    def overflow(self, now: float) -> float:
        """When the jobs here will hold more memory than there is, if nothing else happens; infinity: never."""
        limit = self.memory + _ROUNDING
        if sum(stay.memory for stay in self.here) <= limit:
            return math.inf
        bends = {now}
        for stay in self.here:
            bends |= {t for t in (stay.works_from, stay.works_from + stay.behaviour.ramp) if t > now}
        times = sorted(bends)
        for left, right in zip(times, [*times[1:], math.inf], strict=True):
            level = sum(stay.holds(left) for stay in self.here)
            if level > limit:
                return left
            slope = sum(_slope(stay) for stay in self.here if stay.grows(left))
            if slope > 0 and (crossing := left + (limit - level) / slope) < right:
                return crossing
        return math.inf


def _slope(stay: Stay) -> float:
    return stay.memory * (1.0 - AT_ONCE) / max(stay.behaviour.ramp, 1e-9)


class Devices:
    """GPUs, the jobs on them, and a clock that only goes forward."""

    def __init__(self, memories: Sequence[float]) -> None:
        self.gpus = [Gpu(float(memory)) for memory in memories]
        self.now = 0.0
        self.here: list[Stay] = []

    def begin(
        self, job: str, gpus: Sequence[int], behaviour: Behaviour, memory: float, percent: float, pause: float = 0.0
    ) -> Stay:
        """Start a job now; after a `pause`, if it has failed before."""
        began = self.now + pause
        seconds = alone(behaviour, percent)
        stay = Stay(job, tuple(gpus), behaviour, memory, seconds, began, began + behaviour.overhead)
        self.here.append(stay)
        for gpu in stay.gpus:
            self.gpus[gpu].here.append(stay)
            self.gpus[gpu].stays.append(stay)
        self._settle()
        return stay

    def leave(self, stay: Stay) -> None:
        stay.ended = self.now
        self.here.remove(stay)
        for gpu in stay.gpus:
            self.gpus[gpu].here.remove(stay)
        self._settle()

    def due(self) -> float:
        """When the next job ends, begins, or begins to work; infinity: never."""
        return min((self._due(stay) for stay in self.here), default=math.inf)

    def _due(self, stay: Stay) -> float:
        for time in (stay.began, stay.works_from):
            if time > self.now:
                return time
        return self.now + (1.0 - stay.done) / stay.rate

    def overflow(self) -> float:
        """When a GPU runs out of memory; infinity: never."""
        return min((gpu.overflow(self.now) for gpu in self.gpus), default=math.inf)

    def victim(self) -> Stay:
        """The job to stop on a GPU without memory: of those that still grow, the one that began to work last."""
        short = [gpu for gpu in self.gpus if gpu.overflow(self.now) <= self.now]
        here = [stay for stay in short[0].here if stay.works_from <= self.now]
        return max(here, key=lambda stay: (stay.grows(self.now), stay.works_from))

    def advance(self, to: float) -> list[Stay]:
        """Let time pass, not beyond `due`; returns the finished jobs."""
        ready = [stay for stay in self.here if stay.works_from > self.now and self._due(stay) <= to]
        finished = [stay for stay in self.here if stay.works_from <= self.now and self._due(stay) <= to]
        for stay in self.here:
            if stay.works_from <= self.now:
                stay.done += stay.rate * (to - self.now)
        self.now = to
        if ready:
            self._settle()
        return finished

    def _settle(self) -> None:
        there = [[stay for stay in gpu.here if stay.began <= self.now] for gpu in self.gpus]
        for stay in self.here:
            stay.rate = 1.0 / max(taking(stay, there[gpu]) for gpu in stay.gpus)
        for gpu, some in zip(self.gpus, there, strict=True):
            working = [stay for stay in some if stay.works_from <= self.now]
            busy = occupation(working)
            gpu.note(self.now, busy, drawn(working, busy))


def taking(stay: Stay, there: Sequence[Stay]) -> float:
    """Seconds that all work of a job takes among the jobs on its GPU, including those about to begin."""
    behaviour = stay.behaviour
    if behaviour.together:
        return max(stay.seconds, along({1: behaviour.seconds, **behaviour.together}, max(1, len(there))))
    # Not measured: a GPU that is wanted more than it can give is shared out evenly.
    return stay.seconds * max(1.0, sum(other.behaviour.utilization for other in there) / 100.0)


def occupation(working: Sequence[Stay]) -> float:
    """Utilization of a GPU with these jobs, in percent."""
    count = len(working)
    return min(100.0, sum(_part(stay.behaviour, count) for stay in working))


def _part(behaviour: Behaviour, count: int) -> float:
    if not behaviour.utilization_together:
        return behaviour.utilization
    return max(0.0, along({1: behaviour.utilization, **behaviour.utilization_together}, count)) / count


def drawn(working: Sequence[Stay], busy: float) -> float:
    """Watts of a GPU with these jobs, at a utilization."""
    if not working:
        return IDLE_POWER
    return sum(along(stay.behaviour.power or POWER, busy) for stay in working) / len(working)


def looks(start: float, end: float, period: float) -> Floats:
    """Instants of samples: from the start on, and at the end."""
    at = start + period * np.arange(math.ceil((end - start) / period - 1e-9) + 1)
    return np.minimum(at, end) if len(at) else np.array([start])


def steps(gpu: Gpu, values: Sequence[float], at: Floats) -> Floats:
    return np.asarray(values, dtype=np.float64)[np.searchsorted(gpu.at, at, side="right") - 1]


def warmth(power: Floats, period: float) -> Floats:
    """Degrees Celsius of a GPU that draws these watts: it follows with a lag."""
    aims = COOL + RISE * (power - IDLE_POWER)
    keeps, warm = math.exp(-period / LAG), COOL
    found: list[float] = []
    for aim in aims.tolist():
        warm = aim + (warm - aim) * keeps
        found.append(warm)
    return np.array(found)
