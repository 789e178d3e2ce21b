"""The machine's own GPUs: whose each of them is, and what that means for the yard."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

from gpuyard.core.events import GpusRestored, GpusWithdrawn
from gpuyard.core.model import Cluster
from gpuyard.core.state import State
from gpuyard.engines.base import Engine
from gpuyard.gpus.base import Device, Gpus, Reading
from gpuyard.gpus.ownership import FreeRule, Verdict
from gpuyard.gpus.sampler import Sampler

_EVERY = 1.0  # seconds between looks at real GPUs
_FRESH = 0.25  # seconds for which a look is good enough to start a job by


class OwnerOn(Protocol):
    """Knows which job a process belongs to, as far as a GPU is concerned; None: nobody's of ours."""

    def __call__(self, pid: int, gpu: int) -> object | None: ...


class Machine:
    """GPUs, and who uses them."""

    def __init__(
        self,
        gpus: Gpus,
        engine: Engine,
        rule: FreeRule | None = None,
        owner_on: OwnerOn | None = None,
    ) -> None:
        self.gpus = gpus
        self.node = engine.nodes()[0].name
        self._owner_on = owner_on or (lambda pid, gpu: engine.owner(pid))
        self._sampler = Sampler(gpus, rule)
        self._left: dict[int, float] = {}
        self._seen = -math.inf
        self.verdicts: list[Verdict] = [Verdict("unknown", "not looked at yet") for _ in gpus.devices]

    @property
    def cluster(self) -> Cluster:
        """What there is to plan with."""
        sizes = tuple(float(device.memory) or 1.0 for device in self.gpus.devices)
        alike = len(set(sizes)) == 1
        return Cluster((len(sizes),), max(sizes), gpu_memory=() if alike else sizes)

    @property
    def uuids(self) -> tuple[str, ...]:
        """What identifies each GPU."""
        return tuple(device.uuid for device in self.gpus.devices)

    def due(self) -> float:
        """When the next look is due, on the monotonic clock. Simulated GPUs change by nobody's hand."""
        return math.inf if self.gpus.simulated and self._seen > 0 else self._seen + _EVERY

    def is_stale(self) -> bool:
        """Whether a job should not be started by what was seen last."""
        return not self.gpus.simulated and time.monotonic() - self._seen > _FRESH

    def left(self, gpus: Iterable[int]) -> None:
        """A job of ours has just left these GPUs."""
        self._left |= dict.fromkeys(gpus, time.monotonic())

    def readings(self) -> Iterator[tuple[Device, Reading, Verdict]]:
        """What was seen last."""
        seen = self._sampler.readings or [
            Reading(device.index, lost=True, problem="not looked at yet") for device in self.gpus.devices
        ]
        return zip(self.gpus.devices, seen, self.verdicts, strict=True)

    def age(self) -> float:
        """Seconds since that was; what is simulated is always as of now."""
        return 0.0 if self.gpus.simulated else time.monotonic() - self._seen

    def in_use(self, gpu: int, seconds: float) -> bool | None:
        """Whether anybody is on a GPU that was given away so many seconds ago; None if that cannot be told."""
        if self.gpus.simulated or math.isinf(self._seen):
            return None
        state = self._sampler.verdict(gpu, lambda pid: None, placed=False, since_left=seconds).state
        return None if state == "unknown" else state != "free"

    def changes(self, state: State, now: float) -> Iterator[tuple[GpusWithdrawn | GpusRestored, str]]:
        """Look, if it is time to, and tell which GPUs can be used no longer, or again, and why."""
        ticks = time.monotonic()
        if ticks < self.due() and not self.is_stale():
            return
        self._seen = ticks
        placed = {gpu for row in state.running.array for gpu in state.spot[row].tolist()}
        self._sampler.fresh(_FRESH)
        for gpu in range(len(self.gpus.devices)):
            left = self._left.get(gpu)
            owner = partial(self._owner_on, gpu=gpu)
            verdict = self._sampler.verdict(
                gpu, owner, placed=gpu in placed, since_left=None if left is None else ticks - left
            )
            self.verdicts[gpu] = verdict
            bad = verdict.state if verdict.state in ("foreign", "unknown") else None
            if bad and state.withdrawn.get(gpu) != bad:
                yield GpusWithdrawn(now, (gpu,), bad), verdict.why
            elif not bad and gpu in state.withdrawn:
                yield GpusRestored(now, (gpu,)), verdict.why
