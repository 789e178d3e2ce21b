"""The environments, as Gymnasium and stable-baselines3 demand them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_for_sb3

import gpuyard.learn.envs
from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.learn.envs.environments import PlaceEnv, QueueEnv
from gpuyard.learn.envs.fleet import WAITING
from gpuyard.learn.place.episodes import BEST_FIT, FEATURES, decide
from gpuyard.learn.place.placer import new_episode_set, play
from gpuyard.sim.simulate import simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.workload import generate_poisson

pytestmark = pytest.mark.slow


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
            scratch = np.empty_like(env.episode.held)
            action = decide(BEST_FIT, env.episode, np.zeros(1), np.zeros(1, np.int64), scratch, np.zeros(FEATURES))
            _, reward, over, _, info = env.step(np.int64(action))
            total += reward
        wanted = play(new_episode_set([seed]), "best-fit")[0]
        assert [info["makespan"], info["wait"], info["utilization"], total] == pytest.approx(wanted.tolist())
        assert info["placed"] == len(env.episode.tasks)


def test_place_masks_only_what_can_never_work() -> None:
    """Every GPU may be tried while there is a task; delay is always allowed."""
    env = gymnasium.make("gpuyard/Place-v0", gpus=2).unwrapped
    assert isinstance(env, PlaceEnv)
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.int64(0))
    assert env.action_masks().tolist() == [True, True, True]
    while env.episode.counts[1] < len(env.episode.tasks):
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


def _played(env: QueueEnv, by: str, start: int | None = None) -> tuple[float, dict[str, float]]:
    """An episode in which the first job, or that with the shortest estimate, is always chosen: its return and info."""
    env.reset(options=None if start is None else {"start": start})
    total, over, info = 0.0, False, dict[str, float]()
    while not over:
        of = env.clusters.fleet
        waiting = of.queue[0, : of.marks[0, WAITING]]
        action = int(np.argmin(of.estimate[0, waiting])) if by == "sjf" else 0
        assert env.action_masks()[action]
        _, reward, over, _, info = env.step(np.int64(action))
        total += reward
    return total, info


@pytest.mark.parametrize("nodes", [(16,), (4, 8, 4)])
@pytest.mark.parametrize(
    "policy",
    ["fcfs@easy-shadow", "fcfs@commit", "fcfs@easy", "sjf@easy-shadow", "sjf@commit", "fcfs@easy-shadow@spread"],
)
def test_choosing_like_a_policy_gives_its_schedule(policy: str, nodes: tuple[int, ...]) -> None:
    """To the last bit, and the return is minus the metric that the simulator tells."""
    name, discipline, placement = [*policy.split("@"), "first"][:3]
    for seed in range(3):
        trace = generate_poisson(seed, jobs=250, gpus=16, load=1.3)
        result, metrics = simulate(trace, Cluster(nodes), policy)
        for objective in ("slowdown", "jct", "wait"):
            env = QueueEnv(
                trace=trace, gpus=Cluster(nodes), discipline=discipline, placement=placement, objective=objective,
                max_queue=250,
            )  # fmt: skip
            total, info = _played(env, name)
            assert np.array_equal(env.starts(), result.start)
            assert total == pytest.approx(-metrics[f"{objective}_mean"], rel=1e-9)
            assert info[objective] == pytest.approx(metrics[f"{objective}_mean"], rel=1e-9)
            assert info["utilization"] == pytest.approx(metrics["utilization"])
            assert info["makespan"] == pytest.approx(metrics["makespan"])


def test_windows_are_stretches_of_the_trace() -> None:
    """From where one says, or from anywhere; jobs that can never run are left out."""
    trace = generate_poisson(1, jobs=120, gpus=8, load=1.2)
    env = QueueEnv(trace=trace, gpus=4, window=50, discipline="commit")
    possible = trace.take(np.flatnonzero(trace.gpus <= 4))
    assert env.clusters.source.left_out == len(trace) - len(possible) > 0
    total, _ = _played(env, "fcfs", start=30)
    result, metrics = simulate(possible.take(slice(30, 80)), Cluster((4,)), "fcfs@commit")
    assert np.array_equal(env.starts(), result.start)
    assert total == pytest.approx(-metrics["slowdown_mean"])
    with pytest.raises(UserError, match="start at 0 to"):
        env.reset(options={"start": len(possible)})


def test_queue_passes_the_checks() -> None:
    """Without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("gpuyard/Queue-v0", window=20, max_queue=8).unwrapped)
        check_for_sb3(gymnasium.make("gpuyard/Queue-v0", window=20, max_queue=8).unwrapped)


def test_jobs_out_of_view_are_not_lost() -> None:
    """With two in view all jobs start nevertheless, and in order where the first is always chosen."""
    trace = generate_poisson(0, jobs=100, gpus=8, load=3.0)
    narrow, wide = (QueueEnv(trace=trace, discipline="commit", max_queue=size) for size in (2, 100))
    assert _played(narrow, "fcfs") == _played(wide, "fcfs")
    assert np.array_equal(narrow.starts(), wide.starts())


def test_any_actions_come_to_an_end() -> None:
    """Whatever is chosen, also what the mask forbids, all jobs start once, and no GPU is given twice."""
    rng = np.random.default_rng(0)
    for discipline in ("commit", "easy-shadow", "easy"):
        env = QueueEnv(gpus=8, window=60, discipline=discipline, max_queue=5, load=1.5)
        for seed in range(5):
            seen, _ = env.reset(seed=seed)
            over = False
            while not over:
                assert env.observation_space.contains(seen)
                seen, _, over, _, _ = env.step(np.int64(rng.integers(6)))
            of, start = env.clusters.fleet, env.starts()
            assert (start >= of.submit[0]).all()
            times = np.concatenate((start, start + of.run[0]))
            change = np.concatenate((of.gpus[0], -of.gpus[0]))
            assert np.cumsum(change[np.lexsort((change, times))]).max() <= 8


def test_what_does_not_fit_is_reserved() -> None:
    """It starts as soon as there is room, and nobody who would delay it goes ahead, but somebody short does."""
    trace = Trace.of([0.0, 1.0, 2.0, 3.0], [10.0, 5.0, 20.0, 4.0], [1, 2, 1, 1])
    env = QueueEnv(trace=trace, gpus=2, discipline="easy-shadow", max_queue=4)
    env.reset()
    for _ in range(2):  # the first starts; the second, of two GPUs, is reserved
        env.step(np.int64(0))
    assert env.starts()[[0, 1, 3]].tolist() == [0.0, 10.0, 3.0]
    _, _, over, _, _ = env.step(np.int64(0))
    assert over
    assert env.starts().tolist() == [0.0, 10.0, 15.0, 3.0]


def test_letting_time_pass() -> None:
    """The last action waits for the next event; where there will be none, it is masked, and the first job is meant."""
    trace = Trace.of([0.0, 5.0], [10.0, 1.0], [1, 1])
    env = QueueEnv(trace=trace, gpus=1, discipline="commit", max_queue=4)
    env.reset()
    assert env.action_masks().tolist() == [True, False, False, False, True]
    env.step(np.int64(4))
    assert env.action_masks().tolist() == [True, True, False, False, False]
    env.step(np.int64(4))
    assert env.starts()[0] == 5.0


def test_gpus_may_be_kept_from_being_idle() -> None:
    """Without `may_idle`, time passes only where no job in view fits."""
    trace = Trace.of([0.0, 0.0, 1.0], [10.0, 10.0, 1.0], [1, 2, 2])
    env = QueueEnv(trace=trace, gpus=2, discipline="commit", max_queue=4, may_idle=False)
    env.reset()
    assert env.action_masks().tolist() == [True, False, False, False, False]
    env.step(np.int64(4))  # so the first job is meant
    assert env.starts()[0] == 0.0
    assert env.action_masks().tolist() == [True, False, False, False, True]


def test_vector_is_single_ones_side_by_side() -> None:
    """Copy k with seed s is the single environment with seed s + k, episode after episode."""
    settings: dict[str, Any] = {"gpus": 8, "window": 15, "max_queue": 6}
    many = gymnasium.make_vec("gpuyard/Queue-v0", num_envs=3, vectorization_mode="vector_entry_point", **settings)
    ones = [gymnasium.make("gpuyard/Queue-v0", **settings) for _ in range(3)]
    seen, _ = many.reset(seed=11)
    alone = [env.reset(seed=11 + k)[0] for k, env in enumerate(ones)]
    ended = [False] * 3
    rng = np.random.default_rng(1)
    for _ in range(120):
        assert np.array_equal(seen, np.stack(alone))
        actions = rng.integers(0, 7, 3)
        seen, rewards, over, _, info = many.step(actions)
        for k, env in enumerate(ones):
            if ended[k]:  # the step after the end begins anew, and the action counts for nothing
                alone[k], ended[k] = env.reset()[0], False
                assert (rewards[k], over[k]) == (0.0, False)
            else:
                alone[k], reward, ended[k], _, told = env.step(actions[k])
                assert (rewards[k], over[k]) == (reward, ended[k])
                assert not ended[k] or (info["_slowdown"][k] and info["slowdown"][k] == told["slowdown"])


def test_vector_may_begin_anew_at_once() -> None:
    """With SAME_STEP the last observation is in `info`, the reward of the last step is not lost, and time goes on."""
    many = gymnasium.make_vec(
        "gpuyard/Queue-v0", num_envs=2, vectorization_mode="vector_entry_point", gpus=4, window=5, max_queue=5,
        autoreset_mode="SameStep",
    )  # fmt: skip
    assert many.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    many.reset(seed=0)
    totals, episodes = np.zeros(2), 0
    for _ in range(60):
        seen, rewards, over, _, info = many.step(np.zeros(2, dtype=np.int64))
        totals += rewards
        for k in np.flatnonzero(over):
            assert totals[k] == pytest.approx(-info["final_info"]["slowdown"][k])
            assert info["final_obs"][k, 0] == 0.0  # nobody waits at the end
            assert seen[k, 0] == 1.0  # but somebody at the beginning
            totals[k], episodes = 0.0, episodes + 1
    assert episodes > 5


def test_mistakes_are_told() -> None:
    """One sentence each."""
    shares = Trace.of([0.0], [1.0], [1], compute=[50.0])
    for options, words in (
        ({"discipline": "esay"}, "did you mean 'easy'"),
        ({"objective": "speed"}, "unknown objective"),
        ({"window": 0}, "at least 1 job"),
        ({"max_queue": 0}, "must be in view"),
        ({"placement": "random"}, "draws at every plan"),
        ({"trace": Trace.of([0.0], [1.0], [1])}, "how many GPUs"),
        ({"trace": Trace.of([0.0], [1.0], [4]), "gpus": 2}, "can run on 2 GPUs"),
        ({"trace": shares, "gpus": 2}, "jobs share GPUs"),
    ):
        with pytest.raises(UserError, match=words):
            QueueEnv(**options)
