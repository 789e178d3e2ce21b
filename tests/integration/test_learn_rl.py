"""The environments train with stable-baselines3, sb3-contrib and our own PPO as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO

import gpuyard.learn.envs
from gpuyard.core.model import Cluster
from gpuyard.learn import ppo
from gpuyard.sim.simulate import simulate
from gpuyard.sim.traces import read
from gpuyard.sim.workload import generate_poisson

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"gpus": 8, "window": 30, "max_queue": 8}


@pytest.mark.parametrize("name", [gpuyard.learn.envs.PLACE, gpuyard.learn.envs.QUEUE])
@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_trains_with_stable_baselines3(algorithm: type[PPO | MaskablePPO], name: str) -> None:
    """A few updates, and actions that the masks allow."""
    env = gymnasium.make(name, **(SMALL if name == gpuyard.learn.envs.QUEUE else {}))
    model = algorithm("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    model.learn(256)
    seen, _ = env.reset(seed=5)
    over = False
    for _ in range(3000):
        masks = env.get_wrapper_attr("action_masks")()
        if isinstance(model, MaskablePPO):
            action, _ = model.predict(seen, action_masks=masks)
            assert masks[action]
        else:
            action, _ = model.predict(seen)
        seen, _, over, _, _ = env.step(action)
        if over:
            break
    assert over


def test_ppo_learns_and_is_seeded() -> None:
    """On crowded workloads it comes to beat first come, which it begins with; the same seed learns the same."""
    options = SMALL | {"window": 40, "load": 2.0, "discipline": "commit", "max_queue": 16, "may_idle": False}
    settings = ppo.Settings(options, updates=25, envs=8, steps=64, rate=3e-3, seed=1)
    agent, seeds = ppo.train(settings), list(range(40))
    before = ppo.Agent(16)
    first = ppo.evaluate(before, options, seeds)
    assert ppo.evaluate(agent, options, seeds).mean() < 0.8 * first.mean()
    short = ppo.Settings(options, updates=2, envs=4, steps=32, seed=3)
    one, two = (ppo.train(short).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("rule", ["fcfs", "sjf", "saf"])
def test_ppo_starts_from_a_rule(rule: str) -> None:
    """Untrained, it makes the schedule of the rule."""
    trace = generate_poisson(4, jobs=200, gpus=8, load=1.5)
    options = {"trace": trace, "gpus": 8, "window": 100, "max_queue": 100, "discipline": "easy-shadow"}
    found = ppo.evaluate(ppo.Agent(100, rule), options, [0, 100])
    wanted = [
        simulate(trace.take(slice(at, at + 100)), Cluster((8,)), f"{rule}@easy-shadow")[1]["slowdown_mean"]
        for at in (0, 100)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-6)


def test_ppo_on_a_real_trace(traces: Path) -> None:
    """Untrained, it is first come, first served on every window; a short training changes that."""
    path = traces / "swf" / "lublin_256.swf"
    if not path.is_file():
        pytest.skip(f"no {path}")
    trace = read(path).by_arrival().take(slice(0, 2000))
    options = {"trace": trace, "gpus": 256, "window": 128}
    starts = [0, 700, 1400]
    wanted = [
        simulate(trace.take(slice(at, at + 128)), Cluster((256,)), "fcfs@easy-shadow")[1]["slowdown_mean"]
        for at in starts
    ]
    assert ppo.evaluate(ppo.Agent(128), options, starts).tolist() == pytest.approx(wanted, rel=1e-9)
    told: list[int] = []
    ppo.train(ppo.Settings(options, updates=2, envs=4, steps=64), lambda number, mean: told.append(number))
    assert told == [1, 2]


def test_ppo_command(tmp_path: Path) -> None:
    """From the command line; the weights it writes can be read again."""
    words = ["--gpus", "8", "--window", "20", "--updates", "1", "--start", "sjf", "--out", str(tmp_path / "agent.pt")]
    ppo.main(words)
    agent = ppo.Agent(128, "sjf")
    agent.load_state_dict(torch.load(tmp_path / "agent.pt", weights_only=True))
    assert np.isfinite(next(agent.parameters()).detach().numpy()).all()


@pytest.mark.parametrize(("module", "missing"), [("gpuyard.learn.envs", "gymnasium"), ("gpuyard.learn.ppo", "torch")])
def test_what_is_missing_is_told(module: str, missing: str) -> None:
    """Without the extra, one sentence says how to get it."""
    code = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "UserError" in said
    assert "pip install 'gpuyard[rl]'" in said


def test_nothing_else_imports_them() -> None:
    """Neither the command line nor the simulator nor the daemon needs gymnasium or torch."""
    code = (
        "import sys; import gpuyard.cli.app, gpuyard.cli.simulator.simulation, gpuyard.cli.learning.learn; "
        "import gpuyard.sim.simulate, gpuyard.daemon.loop, gpuyard.learn.place.placer; "
        "sys.exit(bool({'torch', 'gymnasium', 'stable_baselines3'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
