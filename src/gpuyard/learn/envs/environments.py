"""Gymnasium environments:

`gpuyard/Queue-v0` (which waiting job is next; one cluster or a vector of them) and `gpuyard/Place-v0` (which GPU a
task shares).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from gpuyard.learn.envs.clusters import Clusters, Observations, width_of
from gpuyard.learn.place.episodes import Episode, is_over, new_episode, outcome, step_episode
from gpuyard.learn.place.placer import GPUS, draw_tasks, known_mix, longest, most_tasks, observe, size_of_observation
from gpuyard.sim.trace import Flags, Floats


class QueueEnv(gymnasium.Env[Observations, np.int64]):
    """One cluster; docs/reference/environments.md describes options, observations and actions."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: None = None, **options: Any) -> None:
        self.render_mode = render_mode
        self.clusters = Clusters(1, **options)
        visible = self.clusters.visible
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (width_of(visible),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(visible + 1)
        self._active = np.ones(1, dtype=np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """A new episode; `options={"start": 300}` takes the jobs of the trace from there on."""
        super().reset(seed=seed)
        self.clusters.begin(0, self.np_random, (options or {}).get("start"))
        return self.clusters.seen[0].copy(), {}

    def step(self, action: np.int64) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Start or reserve a job, or let time pass; then time goes on until the next decision."""
        of = self.clusters
        of.step(np.array([action], dtype=np.int64), self._active)
        over = bool(of.over[0])
        return of.seen[0].copy(), float(of.rewards[0]), over, False, of.metrics(0) if over else {}

    def action_masks(self) -> Flags:
        """Possible actions: the jobs in view, and to let time pass if an event will ever come."""
        masks: Flags = self.clusters.masks[0].copy()
        return masks

    def starts(self) -> Floats:
        """Start times of the episode's jobs, by submission; NaN before."""
        return self.clusters.starts(0)


Stepped = tuple[Observations, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class QueueVectorEnv(VectorEnv[Observations, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """`num_envs` clusters. Copy k with seed s is the single environment with seed s + k.

    By default an episode that is over begins again at the next step, whose action then has no effect, as in
    Gymnasium's own vectors; with `AutoresetMode.SAME_STEP` it does so at once, and `info` has `final_obs`.
    """

    def __init__(
        self, num_envs: int = 1, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        self.num_envs, self.render_mode = num_envs, render_mode
        self.clusters = Clusters(num_envs, **options)
        visible = self.clusters.visible
        self.single_observation_space = gymnasium.spaces.Box(0.0, 1.0, (width_of(visible),), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(visible + 1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._dice = [np.random.default_rng() for _ in range(num_envs)]
        self._over = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """New episodes for all; `options={"start": [0, 256]}` names the first job of each."""
        seeds: Sequence[int | None] = [None] * self.num_envs if seed is None else ()
        if seed is not None:
            seeds = [seed + k for k in range(self.num_envs)] if isinstance(seed, int) else seed
        start = np.broadcast_to((options or {}).get("start", -1), self.num_envs)
        for k, own in enumerate(seeds):
            if own is not None:
                self._dice[k] = gymnasium.utils.seeding.np_random(own)[0]
            self.clusters.begin(k, self._dice[k], None if start[k] < 0 else int(start[k]))
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        return self.clusters.seen.copy(), {}

    def step(self, actions: npt.NDArray[np.int64]) -> Stepped:
        of = self.clusters
        of.step(np.asarray(actions, dtype=np.int64), ~self._over)
        rewards, over = of.rewards.copy(), of.over.copy()
        for k in np.flatnonzero(self._over).tolist():  # of the last step: they begin again instead
            of.begin(k, self._dice[k])
        self._over = over
        info = self._ended(over) if over.any() else {}
        return of.seen.copy(), rewards, over.copy(), np.zeros_like(over), info

    def action_masks(self) -> Flags:
        return self.clusters.masks.copy()

    def _ended(self, over: Flags) -> dict[str, Any]:
        """Results of episodes that are over; they begin again if the mode says so."""
        of, info = self.clusters, dict[str, Any]()
        last = of.seen.copy()
        for k in np.flatnonzero(over).tolist():
            info = self._add_info(info, dict(of.metrics(k)), k)
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            return info
        for k in np.flatnonzero(over).tolist():
            of.begin(k, self._dice[k])
        self._over = np.zeros_like(over)
        return {"final_info": info, "_final_info": over.copy(), "final_obs": last, "_final_obs": over.copy()}


PlaceObservation = npt.NDArray[np.float32]


class PlaceEnv(gymnasium.Env[PlaceObservation, np.int64]):
    """Seed 000's problem with the task in view and nothing lost; see docs/reference/environments.md."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, gpus: int = GPUS, config: str | None = None, render_mode: str | None = None) -> None:
        self.mix = known_mix(config)
        self.gpus, self.longest, self.render_mode = gpus, longest(self.mix), render_mode
        self.top = max(1.0, *(kind.ranges["priority"].high for kind in self.mix.types if "priority" in kind.ranges))
        size = size_of_observation(gpus, self.longest)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(gpus + 1)
        self.episode: Episode = new_episode(draw_tasks(0, self.mix), gpus, self.longest)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PlaceObservation, dict[str, Any]]:
        """Draw tasks: those of the seed or, without one, of the next in the sequence that the last seed began."""
        super().reset(seed=seed)
        drawn = seed if seed is not None else int(self.np_random.integers(2**62))
        self.episode = new_episode(draw_tasks(drawn, self.mix), self.gpus, self.longest)
        return self._observation(), {"tasks": len(self.episode.tasks)}

    def step(self, action: np.int64) -> tuple[PlaceObservation, float, bool, bool, dict[str, Any]]:
        reward = float(step_episode(self.episode, int(action)))
        over = is_over(self.episode)
        return self._observation(), reward, over, False, self._metrics() if over else {}

    def action_masks(self) -> Flags:
        """Actions with any effect: without tasks, GPUs have none. To delay is always allowed."""
        masks = np.ones(self.gpus + 1, dtype=np.bool_)
        masks[: self.gpus] = self.episode.counts[1] < len(self.episode.tasks)
        return masks

    def render(self) -> str:
        """One line: the tick, the use of each GPU, and the number of waiting tasks."""
        ticks, head = self.episode.counts[:2].tolist()
        used = " ".join(f"{util}%/{memory}%" for util, memory in self.episode.held[:, :, 0].tolist())
        return f"tick {ticks}: {used}, {len(self.episode.tasks) - head} waiting"

    def _observation(self) -> PlaceObservation:
        rest = self.episode.tasks[self.episode.counts[1] :]
        seen = observe(self.episode.held, rest, len(rest), most_tasks(self.mix), self.top)
        return np.clip(seen, 0.0, 1.0)

    def _metrics(self) -> dict[str, Any]:
        makespan, wait, utilization = outcome(self.episode).tolist()
        placed = int(np.count_nonzero(self.episode.gpu >= 0))
        return {"makespan": int(makespan), "wait": wait, "utilization": utilization, "placed": placed}
