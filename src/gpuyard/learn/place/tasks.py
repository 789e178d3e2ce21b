"""The tasks of an episode: as many and of the kinds that a task file says, the most important first."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Ints
from gpuyard.sim.workload import Range, TaskMix, TaskType, load_mix

UTILIZATION, MEMORY, DURATION, PRIORITY = range(4)
"""The columns of an array of tasks: percent of a GPU, percent of its memory, ticks, and higher goes first."""

_COLUMNS = ("compute", "memory", "duration", "priority")
_UNSAID = {"compute": Range(100.0, 100.0), "memory": Range(0.0, 0.0), "priority": Range(0.0, 0.0)}


def known_mix(config: str | None = None) -> TaskMix:
    """The mix of a task file (without one: the three built-in kinds), if tasks of one GPU can be made of it."""
    mix = load_mix(config)
    for kind in mix.types:
        if kind.ranges.get("gpus", Range(1.0, 1.0)).high > 1:
            raise UserError(f"types.{kind.name}: tasks are placed on one GPU each; leave gpus out")
    return mix


def longest(mix: TaskMix) -> int:
    """Ticks that no task of this mix exceeds."""
    return int(np.ceil(max(kind.ranges["duration"].high for kind in mix.types)))


def most_tasks(mix: TaskMix) -> int:
    """How many tasks an episode has at most."""
    return int(mix.tasks.high)


def draw_tasks(seed: int, mix: TaskMix) -> Ints:
    """The tasks of one episode, a row each, in the order in which they are to be placed.

    Numbers are drawn by the standard library, one task after another, so that a seed gives the tasks by which the
    published numbers of this problem came about.
    """
    rng = random.Random(seed)
    drawn = [_draw_task(rng, mix.types) for _ in range(rng.randint(int(mix.tasks.low), int(mix.tasks.high)))]
    tasks = np.array(drawn, dtype=np.int64)
    return tasks[np.argsort(-tasks[:, PRIORITY], kind="stable")]


def _draw_task(rng: random.Random, types: Sequence[TaskType]) -> tuple[int, ...]:
    weights = [kind.weight for kind in types]
    kind = rng.choice(types) if len(set(weights)) == 1 else rng.choices(types, weights)[0]
    return tuple(_pick(rng, kind.ranges.get(name) or _UNSAID[name]) for name in _COLUMNS)


def _pick(rng: random.Random, among: Range) -> int:
    if among.whole:
        return rng.randint(int(among.low), int(among.high))
    return math.ceil(rng.uniform(among.low, among.high))


class Episodes(NamedTuple):
    """Several episodes in one array, for loops that play them all."""

    tasks: Ints
    """Episode, task, column; what is beyond an episode's own tasks is 0."""
    counts: Ints


def draw_episodes(seeds: Sequence[int], mix: TaskMix | None = None) -> Episodes:
    """The episodes that `gpuyard/Place-v0` gives for these seeds."""
    mix = mix or known_mix()
    drawn = [draw_tasks(seed, mix) for seed in seeds]
    tasks = np.zeros((len(drawn), most_tasks(mix), len(_COLUMNS)), dtype=np.int64)
    for episode, rows in enumerate(drawn):
        tasks[episode, : len(rows)] = rows
    return Episodes(tasks, np.array([len(rows) for rows in drawn], dtype=np.int64))
