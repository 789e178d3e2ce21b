"""Simulated GPUs as a source: reproducible series, and GPUs for a monitored command."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from gpuyard.errors import UserError
from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.gpus.load_model import DeviceModel, Tenant
from gpuyard.gpus.simulated import SimulatedGpus, Use
from gpuyard.monitor.sources import checked_metrics, is_selected
from gpuyard.recordings.series import OF_GPUS, Floats, Recording, Series, Subject

_UNSAID = 4  # A process whose use is not given takes this fraction of a GPU's memory: one in four


class ModelledGpus:
    simulated = True

    def __init__(self, gpus: SimulatedGpus, use: Use | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.devices: Sequence[Device] = gpus.devices
        self._use, self._clock = use, clock
        self._model = DeviceModel(len(self.devices))
        self._pid: int | None = None
        self._who, self._began = "", 0.0

    def occupy(self, pid: int, who: str) -> None:
        """A process begins to use them; `who` seeds the model of how busy it keeps them."""
        self._pid, self._who, self._began = pid, who, self._clock()

    def leave(self) -> None:
        self._pid = None

    def read(self) -> list[Reading]:
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
        """Nothing to release."""

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


_GPUS = "4x16G"
_POINTS = 2000
_CYCLE, _BUSY = 900.0, 0.8  # seconds from one made-up job to the next, and the share of them in which it runs
_RAMP = 60.0  # seconds in which its memory grows
_WARM = 300.0  # seconds before the first value, in which a GPU gets as warm as it would be
_SAID = "these GPUs are simulated: nothing was measured"
_SM, _MEMORY_CLOCK, _IDLE_SM = 1410.0, 1215.0, 210.0


class SimulatedSource:
    name = "simulated GPUs"

    def __init__(self, gpus: str = "") -> None:
        """`gpus` as in `4x16G`."""
        self._devices = SimulatedGpus.parse(gpus or _GPUS).devices

    def read(
        self, metrics: Sequence[str], start: float, end: float,
        *, gpus: Sequence[str] = (), job: str = "", step: float | None = None,
    ) -> Recording:  # fmt: skip
        wanted = checked_metrics(metrics)
        if not (math.isfinite(start) and math.isfinite(end) and start < end):
            raise UserError("say from when to when simulated GPUs are to be looked at")
        period = step if step is not None else max(1.0, math.ceil((end - start) / _POINTS))
        at = start + np.arange(int((end - start) / period) + 1, dtype=np.float64) * period
        table = self._table(at)
        names = {name for device in self._devices for name in (str(device.index), device.uuid)}
        warnings = [_SAID, *(f"there is no simulated GPU '{gpu}'" for gpu in gpus if gpu not in names)]
        if job:
            warnings.append(f"simulated GPUs know nothing of job {job}: this is of the GPUs as a whole")
        series = [
            Series(subject, metric, at, table[metric][:, subject.gpu], period=period)
            for subject in (Subject(device.index, device.uuid, device.name) for device in self._devices)
            if is_selected(subject, gpus)
            for metric in wanted if metric in OF_GPUS
        ]  # fmt: skip
        return Recording(start, end, series, [], warnings, simulated=True)

    def _table(self, at: Floats) -> dict[str, Floats]:
        model = DeviceModel(len(self._devices))
        for earlier in np.arange(at[0] - _WARM, at[0], 5.0):
            model.step(float(earlier), [_tenants(device.index, float(earlier)) for device in self._devices])
        loads = [model.step(float(now), [_tenants(one.index, float(now)) for one in self._devices]) for now in at]
        busy = np.array([load.utilization for load in loads])
        total = np.array([device.memory for device in self._devices], dtype=np.float64)
        grown = np.array([[min(1.0, _since(one.index, float(now)) / _RAMP) for one in self._devices] for now in at])
        used = np.round(np.where(busy > 0, 0.7 * total * grown, 0.0))
        return {
            "utilization": busy,
            "memory_used": used,
            "memory_free": total - used,
            "memcopy": np.round(0.4 * busy),
            "power": np.array([load.power for load in loads]),
            "temperature": np.array([load.temperature for load in loads]),
            "sm_clock": np.where(busy > 0, _SM, _IDLE_SM),
            "memory_clock": np.full(busy.shape, _MEMORY_CLOCK),
            "throttle": np.zeros(busy.shape),
            "xid": np.zeros(busy.shape),
        }


def _since(gpu: int, at: float) -> float:
    """Seconds since the last job on a GPU began; jobs begin at other times on each."""
    return (at + gpu * _CYCLE / 4) % _CYCLE


def _tenants(gpu: int, at: float) -> list[Tenant]:
    since = _since(gpu, at)
    return [Tenant(f"{gpu}-{round(at - since)}")] if since < _BUSY * _CYCLE else []
