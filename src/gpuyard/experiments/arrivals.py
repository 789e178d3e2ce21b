"""When jobs come, and what they ask for: the same for every scheduler of an experiment, and on every machine.

Python promises that `random.Random(seed).random()` gives the same numbers in every version, and nothing else of it; so
everything here is made of that.
"""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

from gpuyard.experiments.model import Arrivals, Experiment, Workload

MIB = 2**20


class Arrival(NamedTuple):
    """A job that comes."""

    at: float
    """Seconds since the first one."""
    name: str
    """`ssd-07`: the workload's, and which of its replicas."""
    workload: Workload


def arrivals(experiment: Experiment, turn: int = 1) -> list[Arrival]:
    """The jobs of a run in the order in which they come; a repetition draws other times, by the next seed."""
    given = experiment.arrivals
    random = Random(given.seed + turn - 1)
    named = [
        (f"{one.name}-{number:0{len(str(one.replicas))}d}", one)
        for one in experiment.workloads
        for number in range(1, one.replicas + 1)
    ]
    delays = [_delay(given, random) for _ in named[1:]]
    if given.shuffle:
        _shuffle(named, random)
    at, found = 0.0, []
    for (name, workload), delay in zip(named, [0.0, *delays], strict=True):
        at += delay
        found.append(Arrival(at, name, workload))
    return found


def asked(workload: Workload, percent: float, capacity: float = math.inf) -> float:
    """Bytes that a job asks for with over-provisioning: whole MiB, rounded down, at most what a GPU has."""
    if not workload.gpu_memory:
        return 0.0
    more = math.floor(round(workload.gpu_memory / MIB * (100 + percent) / 100, 6))  # 1.1 x 10 is not 10.99999
    return min(float(more * MIB), capacity)


def _delay(given: Arrivals, random: Random) -> float:
    if given.process == "uniform":
        return given.low + (given.high - given.low) * random.random()
    if given.process == "exponential":
        return -given.mean * math.log(1.0 - random.random())
    return given.mean if given.process == "fixed" else 0.0


def _shuffle(named: list[tuple[str, Workload]], random: Random) -> None:
    """Fisher and Yates: every order is as likely as any other."""
    for last in range(len(named) - 1, 0, -1):
        other = int(random.random() * (last + 1))
        named[last], named[other] = named[other], named[last]
