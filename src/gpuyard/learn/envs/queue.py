"""`gpuyard/Queue-v0`: which of the waiting jobs is next, on a simulated cluster."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from gpuyard.learn.envs.clusters import Clusters, Observations, width_of
from gpuyard.sim.trace import Flags, Floats


class QueueEnv(gymnasium.Env[Observations, np.int64]):
    """One cluster; the options, and what is seen and done, are in docs/reference/environments.md."""

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
        """A new episode; `options={"start": 300}` says which jobs: those of the trace from there on."""
        super().reset(seed=seed)
        self.clusters.begin(0, self.np_random, (options or {}).get("start"))
        return self.clusters.seen[0].copy(), {}

    def step(self, action: np.int64) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Start or reserve a job, or let time pass; then time goes on until somebody has to choose again."""
        of = self.clusters
        of.step(np.array([action], dtype=np.int64), self._active)
        over = bool(of.over[0])
        return of.seen[0].copy(), float(of.rewards[0]), over, False, of.metrics(0) if over else {}

    def action_masks(self) -> Flags:
        """What is possible: the jobs in view, and to let time pass if anything will ever happen by itself."""
        masks: Flags = self.clusters.masks[0].copy()
        return masks

    def starts(self) -> Floats:
        """When each job of the episode started, by submission; NaN before."""
        return self.clusters.starts(0)
