"""The environments, as Gymnasium and stable-baselines3 demand them."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_for_sb3

import gpuyard.learn.envs
from gpuyard.learn.envs.place import PlaceEnv
from gpuyard.learn.place.episodes import BEST_FIT, decide
from gpuyard.learn.place.methods import new_course, play
from gpuyard.learn.place.scorer import FEATURES


def test_registered_by_import_and_by_name() -> None:
    """Either import the module, or let gymnasium do so."""
    code = (
        "import gymnasium; env = gymnasium.make('gpuyard.learn.envs:gpuyard/Place-v0'); env.reset(seed=1); "
        "import gpuyard.learn.envs; gpuyard.learn.envs.register(); gymnasium.make('gpuyard/Place-v0')"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert gpuyard.learn.envs.PLACE in gymnasium.registry


def test_place_passes_the_checks() -> None:
    """Without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("gpuyard/Place-v0").unwrapped)
        check_for_sb3(gymnasium.make("gpuyard/Place-v0").unwrapped)


def test_place_is_what_the_compiled_episodes_are() -> None:
    """Best fit, step by step, comes to the very numbers of the loop; the return is the reward."""
    env = PlaceEnv()
    for seed in (0, 7):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            scratch = np.empty_like(env.floor.held)
            action = decide(BEST_FIT, env.floor, np.zeros(1), np.zeros(1, np.int64), scratch, np.zeros(FEATURES))
            _, reward, over, _, info = env.step(np.int64(action))
            total += reward
        wanted = play(new_course([seed]), "best-fit")[0]
        assert [info["makespan"], info["wait"], info["utilization"], total] == pytest.approx(wanted.tolist())
        assert info["placed"] == len(env.floor.tasks)


def test_place_masks_only_what_can_never_work() -> None:
    """Every GPU may be tried while there is a task; delay is always allowed."""
    env = gymnasium.make("gpuyard/Place-v0", gpus=2).unwrapped
    assert isinstance(env, PlaceEnv)
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.int64(0))
    assert env.action_masks().tolist() == [True, True, True]
    while env.floor.counts[1] < len(env.floor.tasks):
        env.step(env.action_space.sample())
    assert env.action_masks().tolist() == [False, False, True]


def test_place_goes_on_without_a_seed() -> None:
    """Later episodes are others, and the same after the same seed; who only delays is cut short."""
    first, second = (gymnasium.make("gpuyard/Place-v0") for _ in range(2))
    first.reset(seed=3)
    second.reset(seed=3)
    assert np.array_equal(first.reset()[0], second.reset()[0])
    assert not np.array_equal(first.reset()[0], first.reset()[0])
    truncated = False
    while not truncated:
        *_, terminated, truncated, _ = first.step(4)
        assert not terminated
