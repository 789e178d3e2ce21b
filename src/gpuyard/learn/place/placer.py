"""Placement methods by name and their results on the same episodes; the learned placer and its training."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuyard.errors import UserError
from gpuyard.learn.place import episodes
from gpuyard.learn.place.episodes import AHEAD, CAPACITY, FEATURES, WEIGHTS, choose_gpu
from gpuyard.sim.kernel import compiler
from gpuyard.sim.trace import Floats, Ints
from gpuyard.sim.workload import Range, TaskMix, TaskType, load_mix

UTILIZATION, MEMORY, DURATION, PRIORITY = range(4)
"""Columns of tasks: percent of a GPU, percent of its memory, ticks, priority."""

_COLUMNS = ("compute", "memory", "duration", "priority")
_UNSAID = {"compute": Range(100.0, 100.0), "memory": Range(0.0, 0.0), "priority": Range(0.0, 0.0)}


def known_mix(config: str | None = None) -> TaskMix:
    """The mix of a task file (without one: the three built-in kinds), if its tasks fit on one GPU."""
    mix = load_mix(config)
    for kind in mix.types:
        if kind.ranges.get("gpus", Range(1.0, 1.0)).high > 1:
            raise UserError(f"types.{kind.name}: tasks are placed on one GPU each; leave gpus out")
    return mix


def longest(mix: TaskMix) -> int:
    return int(np.ceil(max(kind.ranges["duration"].high for kind in mix.types)))


def most_tasks(mix: TaskMix) -> int:
    return int(mix.tasks.high)


def draw_tasks(seed: int, mix: TaskMix) -> Ints:
    """The tasks of one episode, a row each, in the order of placement.

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
    tasks: Ints  # episode, task, column; what is beyond an episode's own tasks is 0
    counts: Ints


def draw_episodes(seeds: Sequence[int], mix: TaskMix | None = None) -> Episodes:
    """The episodes that `gpuyard/Place-v0` gives for these seeds."""
    mix = mix or known_mix()
    drawn = [draw_tasks(seed, mix) for seed in seeds]
    tasks = np.zeros((len(drawn), most_tasks(mix), len(_COLUMNS)), dtype=np.int64)
    for episode, rows in enumerate(drawn):
        tasks[episode, : len(rows)] = rows
    return Episodes(tasks, np.array([len(rows) for rows in drawn], dtype=np.int64))


GPUS = 4
METHODS = {
    "random": episodes.RANDOM,
    "round-robin": episodes.ROUND_ROBIN,
    "least-loaded": episodes.LEAST_LOADED,
    "best-fit": episodes.BEST_FIT,
    "learned": episodes.LEARNED,
}
_DICE = 512  # random choices of an episode before they repeat


class Score(NamedTuple):
    method: str
    makespan: float  # ticks until the last task was through
    wait: float  # ticks that tasks waited for their turn
    utilization: float  # percent of all GPUs
    reward: float
    makespans: Floats  # of each episode


@cache
def loops() -> ModuleType:
    """The compiled loops; imports numba."""
    return compiler.load("place", compiler.merged_source((episodes,), "play_all", whole_arrays=True))


class EpisodeSet(NamedTuple):
    episodes: Episodes
    gpus: int
    longest: int
    dice: Ints


def new_episode_set(seeds: Sequence[int], gpus: int = GPUS) -> EpisodeSet:
    mix = known_mix()
    dice = np.stack([np.random.default_rng(seed).integers(0, gpus, _DICE) for seed in seeds])
    return EpisodeSet(draw_episodes(seeds, mix), gpus, longest(mix), dice)


def play(episode_set: EpisodeSet, method: str, weights: Floats | None = None) -> Floats:
    known = np.zeros(WEIGHTS) if weights is None else weights
    tasks, counts = episode_set.episodes
    found: Floats = loops().play_all(
        tasks, counts, episode_set.gpus, episode_set.longest, METHODS[method], known, episode_set.dice
    )
    return found


def score(episode_set: EpisodeSet, method: str, weights: Floats | None = None) -> Score:
    found = play(episode_set, method, weights)
    makespan, wait, utilization, reward = found.mean(axis=0).tolist()
    return Score(method, makespan, wait, utilization, reward, found[:, 0])


GENERATIONS, POPULATION, EPISODES = 60, 16, 128
FIRST_TRAINING_SEED = 1_000_000  # episodes below this seed are never trained on
_FORMAT = "gpuyard placer 1"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Placer:
    weights: Floats
    seed: int = 0
    generations: int = 0

    def choose(self, observation: npt.NDArray[np.float32], gpus: int = GPUS) -> int:
        """The next action, from an observation of `gpuyard/Place-v0` alone."""
        held, tasks = _read(observation, gpus)
        ahead = int(np.count_nonzero(tasks[:, 2]))
        if not ahead:
            return gpus
        return choose_gpu(self.weights, held, tasks, ahead, np.empty_like(held), np.zeros(FEATURES))

    def save(self, path: str | Path) -> None:
        content: dict[str, Any] = {"format": _FORMAT, "seed": self.seed, "generations": self.generations}
        text = json.dumps(content | {"weights": self.weights.tolist()}, indent=2)
        try:
            Path(path).write_text(text + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None


def load_placer(path: str | Path) -> Placer:
    try:
        content = json.loads(Path(path).read_text())
        if content["format"] != _FORMAT:
            raise ValueError
        weights = np.array(content["weights"], dtype=np.float64)
        placer = Placer(weights, int(content["seed"]), int(content["generations"]))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no placer that gpuyard learn place has written") from None
    if weights.shape != (WEIGHTS,) or not np.isfinite(weights).all():
        raise UserError(f"{path} holds other weights than this version's placer has; train it again")
    return placer


def observe(held: Ints, tasks: Ints, left: int, most: int, top: float) -> npt.NDArray[np.float32]:
    """A placer's observation, 0 to 1 each: GPUs now and in coming ticks, the first tasks, and the number left."""
    longest = held.shape[2]
    seen = np.zeros((AHEAD, 4))
    seen[: len(tasks)] = tasks[:AHEAD] / np.array([CAPACITY, CAPACITY, longest, top])
    return np.concatenate((held.ravel() / CAPACITY, seen.ravel(), [left / most])).astype(np.float32)


def size_of_observation(gpus: int, longest: int) -> int:
    return gpus * 2 * longest + AHEAD * 4 + 1


def _read(observation: npt.NDArray[np.float32], gpus: int) -> tuple[Ints, Ints]:
    """Reservations and tasks of an observation, without priorities, which nothing depends on."""
    cells = len(observation) - AHEAD * 4 - 1
    longest = cells // (2 * gpus)
    held = np.rint(observation[:cells] * CAPACITY).astype(np.int64).reshape(gpus, 2, longest)
    seen = observation[cells:-1].reshape(AHEAD, 4)[:, :3] * np.array([CAPACITY, CAPACITY, longest])
    return held, np.rint(seen).astype(np.int64)


def train(
    seed: int = 0, generations: int = GENERATIONS, *, population: int = POPULATION, episodes: int = EPISODES,
    gpus: int = GPUS, progress: Progress | None = None,
) -> Placer:  # fmt: skip
    """Search for weights with a short makespan by CMA-ES, from best fit on; the same seed finds the same weights.

    All candidates of a generation play the same episodes, and every generation plays others.
    """
    from cmaes import CMA

    search = CMA(mean=np.zeros(WEIGHTS), sigma=0.3, seed=seed, population_size=population)
    rng = np.random.default_rng(seed)
    for generation in range(generations):
        episode_set = new_episode_set(rng.integers(FIRST_TRAINING_SEED, 2**40, episodes).tolist(), gpus)
        candidates = [search.ask() for _ in range(population)]
        search.tell([(x, float(play(episode_set, "learned", x)[:, 0].mean())) for x in candidates])
        if progress:
            progress(generation + 1, generations)
    return Placer(np.array(search.mean), seed, generations)
