"""Simulated GPUs under `gpuyard monitor`: what is run seems to be on all of them, by the model of a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.gpus.model import DeviceModel, Tenant
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.gpus.uses import Use

_UNSAID = 4
"""What nobody tells the use of takes one part in so many of a GPU's memory."""


class ModelledGpus:
    """Simulated GPUs, idle until a process is said to be on them."""

    simulated = True

    def __init__(self, gpus: SimulatedGpus, use: Use | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.devices: Sequence[Device] = gpus.devices
        self._use, self._clock = use, clock
        self._model = DeviceModel(len(self.devices))
        self._pid: int | None = None
        self._who, self._began = "", 0.0

    def occupy(self, pid: int, who: str) -> None:
        """A process begins to use them; `who` decides by the model how busy it keeps them."""
        self._pid, self._who, self._began = pid, who, self._clock()

    def leave(self) -> None:
        """It has ended."""
        self._pid = None

    def read(self) -> list[Reading]:
        """One reading of each device."""
        now = self._clock()
        busy = None if self._use is None else self._use.utilization
        there = [] if self._pid is None else [self._who]
        tenants = [[Tenant(f"{who} {device.index}", busy=busy) for who in there] for device in self.devices]
        load = self._model.step(now, tenants)
        return [
            self._reading(device, int(load.utilization[n]), int(load.temperature[n]), float(load.power[n]), now)
            for n, device in enumerate(self.devices)
        ]

    def close(self) -> None:
        """Nothing is held."""

    def _reading(self, device: Device, busy: int, degrees: int, watts: float, now: float) -> Reading:
        if self._pid is None:
            return Reading(device.index, utilization=busy, temperature=degrees, power=watts, memcopy=0)
        wanted = device.memory // _UNSAID if self._use is None else self._use.at(now - self._began)
        memory = min(device.memory, wanted)
        on_it = Process(self._pid, memory, utilization=busy)
        return Reading(
            device.index, memory_used=memory, utilization=busy, temperature=degrees, power=watts, memcopy=busy // 2,
            processes=(on_it,),
        )  # fmt: skip
