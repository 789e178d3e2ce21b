"""The latest look at the GPUs, and how old it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gpuyard.gpus.base import Gpus, Reading
from gpuyard.gpus.ownership import FreeRule, Verdict, judge
from gpuyard.gpus.processes import describe_process


class Sampler:
    """Reads GPUs when asked for something newer than it has."""

    def __init__(self, gpus: Gpus, rule: FreeRule | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.gpus = gpus
        self.rule = rule or FreeRule()
        self.readings: Sequence[Reading] = ()
        self.at: float | None = None
        """When the latest reading began, on the monotonic clock; None before the first."""
        self.read_seconds = 0.0
        """How long it took."""
        self._clock = clock

    def fresh(self, max_age: float = 0.0) -> Sequence[Reading]:
        """Readings that are less than `max_age` seconds old; by default new ones."""
        began = self._clock()
        if self.at is None or began - self.at >= max_age:
            self.readings = self.gpus.read()
            self.at = began
            self.read_seconds = self._clock() - began
        return self.readings

    def verdict(
        self, index: int, owner_of: Callable[[int], object | None], *, placed: bool, since_left: float | None = None
    ) -> Verdict:
        """Whose a GPU is by the latest reading."""
        device, reading = self.gpus.devices[index], self.readings[index]
        return judge(
            device, reading, owner_of, placed=placed, since_left=since_left, rule=self.rule, describe=describe_process
        )
