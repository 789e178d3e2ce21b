"""GPUs that exist in this program only, as a source: the same numbers every time, and they say what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpuyard.errors import UserError
from gpuyard.gpus.model import DeviceModel, Tenant
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.monitor.source import checked, is_meant
from gpuyard.recordings.series import OF_GPUS, Floats, Recording, Series, Subject

_GPUS = "4x16G"
_POINTS = 2000
_CYCLE, _BUSY = 900.0, 0.8  # seconds from one made-up job to the next, and the share of them in which it runs
_RAMP = 60.0  # seconds in which its memory grows
_WARM = 300.0  # seconds before the first value, in which a GPU gets as warm as it would be
_SAID = "these GPUs are simulated: nothing was measured"
_SM, _MEMORY_CLOCK, _IDLE_SM = 1410.0, 1215.0, 210.0


class SimulatedSource:
    """Made-up GPUs with made-up jobs, one after the other on each."""

    name = "simulated GPUs"

    def __init__(self, gpus: str = "") -> None:
        """`gpus` is as in `4x16G`."""
        self._devices = SimulatedGpus.parse(gpus or _GPUS).devices

    def read(
        self,
        metrics: Sequence[str],
        start: float,
        end: float,
        *,
        gpus: Sequence[str] = (),
        job: str = "",
        step: float | None = None,
    ) -> Recording:
        """What they would have done in a span of time."""
        wanted = checked(metrics)
        if not (math.isfinite(start) and math.isfinite(end) and start < end):
            raise UserError("say from when to when simulated GPUs are to be looked at")
        period = step if step is not None else max(1.0, math.ceil((end - start) / _POINTS))
        at = start + np.arange(int((end - start) / period) + 1, dtype=np.float64) * period
        table = self._table(at)
        warnings = [_SAID, *(f"there is no simulated GPU '{gpu}'" for gpu in gpus if gpu not in self._names())]
        if job:
            warnings.append(f"simulated GPUs know nothing of job {job}: this is of the GPUs as a whole")
        series = [
            Series(subject, metric, at, table[metric][:, subject.gpu], period=period)
            for subject in (Subject(device.index, device.uuid, device.name) for device in self._devices)
            if is_meant(subject, gpus)
            for metric in wanted if metric in OF_GPUS
        ]  # fmt: skip
        return Recording(start, end, series, [], warnings, simulated=True)

    def _names(self) -> set[str]:
        return {name for device in self._devices for name in (str(device.index), device.uuid)}

    def _table(self, at: Floats) -> dict[str, Floats]:
        """All metrics, by instant and GPU."""
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
    """Seconds since the last job on a GPU began; they begin at other times on each."""
    return (at + gpu * _CYCLE / 4) % _CYCLE


def _tenants(gpu: int, at: float) -> list[Tenant]:
    since = _since(gpu, at)
    return [Tenant(f"{gpu}-{round(at - since)}")] if since < _BUSY * _CYCLE else []
