"""`gpuyard/Place-v0`: tasks that share GPUs are placed one at a time, tick by tick."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from gpuyard.learn.place.episodes import Floor, is_over, new_floor, outcome, step_floor
from gpuyard.learn.place.placer import GPUS, draw_tasks, known_mix, longest, most_tasks, observe, size_of_observation
from gpuyard.sim.trace import Flags

Observation = npt.NDArray[np.float32]


class PlaceEnv(gymnasium.Env[Observation, np.int64]):
    """Seed 000's problem with the task in view and nothing lost; docs/reference/environments.md says what is what."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, gpus: int = GPUS, config: str | None = None, render_mode: str | None = None) -> None:
        self.mix = known_mix(config)
        self.gpus, self.longest, self.render_mode = gpus, longest(self.mix), render_mode
        self.top = max(1.0, *(kind.ranges["priority"].high for kind in self.mix.types if "priority" in kind.ranges))
        size = size_of_observation(gpus, self.longest)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(gpus + 1)
        self.floor: Floor = new_floor(draw_tasks(0, self.mix), gpus, self.longest)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw tasks: those of the seed or, without one, of the next in the sequence that the last seed began."""
        super().reset(seed=seed)
        drawn = seed if seed is not None else int(self.np_random.integers(2**62))
        self.floor = new_floor(draw_tasks(drawn, self.mix), self.gpus, self.longest)
        return self._observation(), {"tasks": len(self.floor.tasks)}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Try the task at the head on a GPU, or on none, and let a tick pass."""
        reward = float(step_floor(self.floor, int(action)))
        over = is_over(self.floor)
        return self._observation(), reward, over, False, self._metrics() if over else {}

    def action_masks(self) -> Flags:
        """What could ever do anything: with no task left, GPUs cannot. To delay is always allowed."""
        masks = np.ones(self.gpus + 1, dtype=np.bool_)
        masks[: self.gpus] = self.floor.counts[1] < len(self.floor.tasks)
        return masks

    def render(self) -> str:
        """A line: the tick, how much of each GPU is used, and how many tasks wait."""
        ticks, head = self.floor.counts[:2].tolist()
        used = " ".join(f"{util}%/{memory}%" for util, memory in self.floor.held[:, :, 0].tolist())
        return f"tick {ticks}: {used}, {len(self.floor.tasks) - head} waiting"

    def _observation(self) -> Observation:
        rest = self.floor.tasks[self.floor.counts[1] :]
        seen = observe(self.floor.held, rest, len(rest), most_tasks(self.mix), self.top)
        return np.clip(seen, 0.0, 1.0)

    def _metrics(self) -> dict[str, Any]:
        makespan, wait, utilization = outcome(self.floor).tolist()
        placed = int(np.count_nonzero(self.floor.gpu >= 0))
        return {"makespan": int(makespan), "wait": wait, "utilization": utilization, "placed": placed}
