"""Proximal policy optimisation on `gpuyard/Queue-v0`, in one file to be read from top to bottom.

The policy scores every waiting job by the same small network, which sees that job and the cluster, and takes a softmax
over those that may be chosen (Zhang et al., RLScheduler, SC'20). It can start from a rule, such as the shortest job
first: the network's last layer is 0 at first, and its score is a correction of the rule's.

    python -m gpuyard.learn.ppo --trace lublin_256.swf --updates 40
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuyard.errors import GpuyardError, UserError
from gpuyard.sim.trace import Flags, Floats

try:
    import torch
    from torch import nn
except ImportError:
    raise UserError("masked PPO needs torch: pip install 'gpuyard[rl]'") from None

from gymnasium.vector import AutoresetMode

from gpuyard.learn.envs.environments import QueueVectorEnv
from gpuyard.learn.envs.fleet import CLUSTER_FEATURES, JOB_FEATURES

JOB, CLUSTER = len(JOB_FEATURES), len(CLUSTER_FEATURES)
RULES = {"none": "", "fcfs": "wait", "sjf": "estimate", "saf": "area"}  # initial rules, and the feature of each
_SHARP, _SELDOM = 60.0, 4.0  # sharpness of a rule (half the length: ten times as often), and how seldom it is left


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a training. The budget is updates, so that the same seed always learns the same."""

    options: dict[str, Any] = field(default_factory=dict)
    """Of the environment. With `may_idle`, it soon learns to starve long jobs, which the slowdown hardly counts."""
    updates: int = 40
    envs: int = 16
    steps: int = 256  # decisions of each environment between two updates
    epochs: int = 4
    batches: int = 8
    rate: float = 1e-3
    gamma: float = 1.0
    trace_decay: float = 0.97  # lambda of generalised advantage estimation
    clip: float = 0.2
    entropy: float = 0.003
    start: str = "none"
    seed: int = 0


# -- the policy -----------------------------------------------------------------------------------


def _layers(inputs: int, zero: bool = False) -> nn.Sequential:
    last = nn.Linear(16, 1)
    if zero:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), last)


class Agent(nn.Module):
    """Scores of the jobs in view and of letting time pass; and, for training, the expected return."""

    def __init__(self, visible: int, start: str = "none") -> None:
        super().__init__()
        if start not in RULES:
            raise UserError(f"a policy starts from {', '.join(RULES)}, not from '{start}'")
        self.visible, self.start = visible, start
        self.job = _layers(JOB + CLUSTER, zero=True)
        self.idle = _layers(CLUSTER, zero=True)
        self.critic = _layers(2 * JOB + CLUSTER)

    def forward(self, seen: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        jobs = seen[:, : self.visible * JOB].view(-1, self.visible, JOB)
        cluster = seen[:, self.visible * JOB :]
        present = jobs[:, :, 0] > 0
        beside = cluster[:, None, :].expand(-1, self.visible, -1)
        # Only jobs that are there: most of the room for them is usually empty.
        scores = torch.zeros_like(jobs[:, :, 0])
        scores[present] = self.job(torch.cat((jobs[present], beside[present]), dim=1)).squeeze(1)
        idle = self.idle(cluster)
        if self.start != "none":
            key = jobs[:, :, JOB_FEATURES.index(RULES[self.start])]
            rule = _SHARP * (key if self.start == "fcfs" else -key)
            scores = scores + rule
            # No rule lets time pass; that must be tried now and then, or it would never be learned.
            idle = idle + rule.masked_fill(~present, -1e9).amax(dim=1, keepdim=True) - _SELDOM
        logits = torch.cat((scores, idle), dim=1).masked_fill(~masks, -1e9)
        count = present.sum(dim=1, keepdim=True).clamp(min=1)
        pooled = torch.cat((jobs.sum(dim=1) / count, jobs.amax(dim=1), cluster), dim=1)
        return torch.log_softmax(logits, dim=1), self.critic(pooled).squeeze(1)

    @torch.no_grad()
    def choose(self, seen: npt.NDArray[np.float32], masks: Flags) -> npt.NDArray[np.int64]:
        logs, _ = self(torch.from_numpy(seen), torch.from_numpy(masks))
        return np.asarray(logs.argmax(dim=1).numpy(), dtype=np.int64)


# -- what is learned from ---------------------------------------------------------------------------


class Rollout:
    def __init__(self, steps: int, envs: int, width: int, actions: int) -> None:
        self.seen = torch.zeros(steps, envs, width)
        self.masks = torch.zeros(steps, envs, actions, dtype=torch.bool)
        self.actions = torch.zeros(steps, envs, dtype=torch.int64)
        self.logs, self.values, self.rewards, self.over = (torch.zeros(steps, envs) for _ in range(4))
        self.advantages = torch.zeros(steps, envs)

    def advance(self, next_values: torch.Tensor, gamma: float, decay: float) -> None:
        """Generalised advantage estimation, backwards in time (Schulman et al. 2016)."""
        running = torch.zeros_like(next_values)
        for t in reversed(range(len(self.rewards))):
            goes_on = 1.0 - self.over[t]
            surprise = self.rewards[t] + gamma * next_values * goes_on - self.values[t]
            running = surprise + gamma * decay * goes_on * running
            self.advantages[t] = running
            next_values = self.values[t]


class Scale:
    """The size of returns, by which rewards are divided: slowdowns of traces differ by orders of magnitude."""

    def __init__(self, envs: int, gamma: float) -> None:
        self.returns, self.gamma, self.count, self.squares = np.zeros(envs), min(gamma, 0.99), 1e-4, 0.0

    def __call__(self, rewards: Floats, over: Flags) -> Floats:
        self.returns = self.returns * self.gamma + rewards
        self.count += len(rewards)
        self.squares += float((self.returns**2).sum())
        self.returns[over] = 0.0
        scaled: Floats = rewards / max(np.sqrt(self.squares / self.count), 1e-8)
        return scaled


# -- training ---------------------------------------------------------------------------------------

Report = Callable[[int, float], None]  # called after each update with its number and the mean objective


def train(settings: Settings, report: Report | None = None) -> Agent:
    torch.manual_seed(settings.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small only get slower with more
    env = QueueVectorEnv(settings.envs, AutoresetMode.SAME_STEP, **settings.options)
    agent = Agent(env.clusters.visible, settings.start)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.rate, eps=1e-5)
    data = Rollout(settings.steps, settings.envs, env.clusters.seen.shape[1], env.clusters.masks.shape[1])
    scale = Scale(settings.envs, settings.gamma)
    env.reset(seed=settings.seed)
    for update in range(settings.updates):
        optimizer.param_groups[0]["lr"] = settings.rate * (1.0 - update / settings.updates)
        ended = _collect(env, agent, data, scale)
        with torch.no_grad():
            _, values = agent(torch.from_numpy(env.clusters.seen), torch.from_numpy(env.clusters.masks))
        data.advance(values, settings.gamma, settings.trace_decay)
        _learn(agent, optimizer, data, settings)
        if report:
            report(update + 1, float(np.mean(ended)) if ended else float("nan"))
    torch.set_num_threads(threads)
    return agent


@torch.no_grad()
def _collect(env: QueueVectorEnv, agent: Agent, data: Rollout, scale: Scale) -> list[float]:
    """Let the policy decide for a while; returns the objective of every episode that ended."""
    ended: list[float] = []
    seen, masks = env.clusters.seen.copy(), env.action_masks()
    for t in range(len(data.rewards)):
        data.seen[t], data.masks[t] = torch.from_numpy(seen), torch.from_numpy(masks)
        logs, data.values[t] = agent(data.seen[t], data.masks[t])
        data.actions[t] = torch.multinomial(logs.exp(), 1).squeeze(1)
        data.logs[t] = logs.gather(1, data.actions[t][:, None]).squeeze(1)
        seen, rewards, over, _, info = env.step(data.actions[t].numpy())
        masks = env.action_masks()
        data.rewards[t] = torch.from_numpy(scale(rewards, over))
        data.over[t] = torch.from_numpy(over)
        if over.any():
            ended += info["final_info"][env.clusters.objective][over].tolist()
    return ended


def _learn(agent: Agent, optimizer: torch.optim.Optimizer, data: Rollout, settings: Settings) -> None:
    """Several passes over the rollout, in small batches (Schulman et al. 2017)."""
    seen, masks = data.seen.flatten(0, 1), data.masks.flatten(0, 1)
    actions, old, advantages = data.actions.flatten(), data.logs.flatten(), data.advantages.flatten()
    returns = advantages + data.values.flatten()
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(actions)).chunk(settings.batches):
            logs, values = agent(seen[rows], masks[rows])
            ratio = (logs.gather(1, actions[rows, None]).squeeze(1) - old[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
            surrogate = torch.min(ratio * gain, clipped * gain).mean()
            entropy = -(logs.exp() * logs).sum(dim=1).mean()
            wrong = nn.functional.smooth_l1_loss(values, returns[rows])
            loss = -surrogate - settings.entropy * entropy + 0.5 * wrong
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


# -- judging ------------------------------------------------------------------------------------------


def evaluate(agent: Agent, options: dict[str, Any], starts: list[int]) -> Floats:
    """The objective of one episode from each of these positions of the trace, always by the best action."""
    env = QueueVectorEnv(len(starts), **options)
    seen, _ = env.reset(options={"start": starts})
    found, waiting = np.full(len(starts), np.nan), np.ones(len(starts), dtype=np.bool_)
    while waiting.any():
        seen, _, over, _, info = env.step(agent.choose(seen, env.action_masks()))
        for k in np.flatnonzero(over & waiting):
            found[k], waiting[k] = info[env.clusters.objective][k], False
    return found


def main(words: list[str] | None = None) -> None:
    about = argparse.ArgumentParser("python -m gpuyard.learn.ppo", description="Train a queue policy by masked PPO.")
    about.add_argument("--trace", help="a trace to train on; without one, workloads are made up")
    about.add_argument("--gpus", type=int, help="GPUs of the cluster (default: what the trace says)")
    about.add_argument("--window", type=int, default=256, help="jobs of an episode (%(default)s)")
    about.add_argument("--discipline", default="easy-shadow", help="who may go ahead of a reserved job (%(default)s)")
    about.add_argument("--objective", default="slowdown", help="slowdown, jct or wait (%(default)s)")
    about.add_argument("--may-idle", action="store_true", help="let it leave GPUs idle although a job would fit")
    about.add_argument("--updates", type=int, default=40, help="how long to train (%(default)s)")
    about.add_argument("--start", default="none", help=f"the rule to begin with: {', '.join(RULES)} (%(default)s)")
    about.add_argument("--seed", type=int, default=0, help="the same seed learns the same (%(default)s)")
    about.add_argument("--out", help="write the network's weights there, as torch does")
    given = about.parse_args(words)
    options = {
        name: getattr(given, name) for name in ("trace", "gpus", "window", "discipline", "objective", "may_idle")
    }
    settings = Settings(options, updates=given.updates, start=given.start, seed=given.seed)
    agent = train(settings, lambda n, mean: print(f"update {n}: mean {given.objective} {mean:.2f}", flush=True))
    if given.out:
        torch.save(agent.state_dict(), given.out)


if __name__ == "__main__":
    try:
        main()
    except GpuyardError as error:
        sys.exit(f"gpuyard: {error}")
