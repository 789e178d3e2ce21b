"""The learned placer: its weights, how they are found, and what it does with an observation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuyard.errors import UserError
from gpuyard.learn.place.floor import CAPACITY
from gpuyard.learn.place.methods import GPUS, new_course, play
from gpuyard.learn.place.scorer import AHEAD, FEATURES, WEIGHTS, choose_gpu
from gpuyard.sim.trace import Floats, Ints

GENERATIONS, POPULATION, EPISODES = 60, 16, 128
FIRST_TRAINING_SEED = 1_000_000
"""Episodes below this seed are never trained on."""
_FORMAT = "gpuyard placer 1"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Placer:
    """Weights, and where they come from."""

    weights: Floats
    seed: int = 0
    generations: int = 0

    def choose(self, observation: npt.NDArray[np.float32], gpus: int = GPUS) -> int:
        """What to do next, from an observation of `gpuyard/Place-v0` alone."""
        held, tasks = _read(observation, gpus)
        ahead = int(np.count_nonzero(tasks[:, 2]))
        if not ahead:
            return gpus
        return choose_gpu(self.weights, held, tasks, ahead, np.empty_like(held), np.zeros(FEATURES))

    def save(self, path: str | Path) -> None:
        """Write it to a file, as JSON."""
        content: dict[str, Any] = {"format": _FORMAT, "seed": self.seed, "generations": self.generations}
        text = json.dumps(content | {"weights": self.weights.tolist()}, indent=2)
        try:
            Path(path).write_text(text + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None


def load_placer(path: str | Path) -> Placer:
    """Read a placer from a file."""
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
    """What a placer gets to see, 0 to 1 each: GPUs now and in ticks to come, the first tasks, and how many are left."""
    longest = held.shape[2]
    seen = np.zeros((AHEAD, 4))
    seen[: len(tasks)] = tasks[:AHEAD] / np.array([CAPACITY, CAPACITY, longest, top])
    return np.concatenate((held.ravel() / CAPACITY, seen.ravel(), [left / most])).astype(np.float32)


def size_of_observation(gpus: int, longest: int) -> int:
    """How many numbers that is."""
    return gpus * 2 * longest + AHEAD * 4 + 1


def _read(observation: npt.NDArray[np.float32], gpus: int) -> tuple[Ints, Ints]:
    """What GPUs hold, and the tasks, out of an observation; priorities are left out, since nothing goes by them."""
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
        course = new_course(rng.integers(FIRST_TRAINING_SEED, 2**40, episodes).tolist(), gpus)
        candidates = [search.ask() for _ in range(population)]
        search.tell([(x, float(play(course, "learned", x)[:, 0].mean())) for x in candidates])
        if progress:
            progress(generation + 1, generations)
    return Placer(np.array(search.mean), seed, generations)
