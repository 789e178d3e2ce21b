"""Environments for Gymnasium. Importing this registers `gpuyard/Place-v0` and `gpuyard/Queue-v0`."""

from __future__ import annotations

from gpuyard.errors import UserError

try:
    import gymnasium
except ImportError:
    raise UserError("environments need gymnasium: pip install 'gpuyard[rl]'") from None

PLACE, QUEUE = "gpuyard/Place-v0", "gpuyard/Queue-v0"
_MAX_TICKS = 2000  # ticks after which an episode is truncated: an agent could delay for ever


def register() -> None:
    if PLACE not in gymnasium.registry:
        gymnasium.register(PLACE, "gpuyard.learn.envs.environments:PlaceEnv", max_episode_steps=_MAX_TICKS)
    if QUEUE not in gymnasium.registry:
        gymnasium.register(
            QUEUE,
            "gpuyard.learn.envs.environments:QueueEnv",
            vector_entry_point="gpuyard.learn.envs.environments:QueueVectorEnv",
        )


register()
