"""The ways to place tasks, by name, and what each achieves on the same episodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from gpuyard.learn.place import episodes, floor, scorer
from gpuyard.learn.place.tasks import Episodes, draw_episodes, known_mix, longest
from gpuyard.sim.kernel import build
from gpuyard.sim.trace import Floats, Ints
from gpuyard.sim.workload import TaskMix

GPUS = 4
METHODS = {
    "random": episodes.RANDOM,
    "round-robin": episodes.ROUND_ROBIN,
    "least-loaded": episodes.LEAST_LOADED,
    "best-fit": episodes.BEST_FIT,
    "learned": episodes.LEARNED,
}
_DICE = 512
"""Random choices of an episode before they repeat."""


class Score(NamedTuple):
    """What a method achieved, averaged over episodes."""

    method: str
    makespan: float
    """Ticks until the last task was through."""
    wait: float
    """Ticks that tasks waited for their turn."""
    utilization: float
    """Percent of all GPUs."""
    reward: float
    makespans: Floats
    """Of each episode."""


@cache
def loops() -> ModuleType:
    """The compiled loops; imports numba."""
    return build.load("place", build.merged_source((floor, scorer, episodes), ("play_all",)))


class Course(NamedTuple):
    """Episodes, and the GPUs on which they are played."""

    episodes: Episodes
    gpus: int
    longest: int
    dice: Ints


def new_course(seeds: Sequence[int], gpus: int = GPUS, mix: TaskMix | None = None) -> Course:
    """The episodes of these seeds."""
    mix = mix or known_mix()
    dice = np.stack([np.random.default_rng(seed).integers(0, gpus, _DICE) for seed in seeds])
    return Course(draw_episodes(seeds, mix), gpus, longest(mix), dice)


def play(course: Course, method: str, weights: Floats | None = None) -> Floats:
    """Makespan, wait, utilization and reward of each episode, a row each."""
    known = np.zeros(scorer.WEIGHTS) if weights is None else weights
    tasks, counts = course.episodes
    found: Floats = loops().play_all(tasks, counts, course.gpus, course.longest, METHODS[method], known, course.dice)
    return found


def score(course: Course, method: str, weights: Floats | None = None) -> Score:
    """The same on average."""
    found = play(course, method, weights)
    makespan, wait, utilization, reward = found.mean(axis=0).tolist()
    return Score(method, makespan, wait, utilization, reward, found[:, 0])
