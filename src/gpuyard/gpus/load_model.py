"""What simulated GPUs seem to do: a small model of a device, so that a page about made-up GPUs is not a dead one.

Nothing is measured here, and nothing is decided by it. It is deterministic: the same jobs at the same times give the
same numbers. How busy a job keeps a GPU follows from its id, with two slow waves on it; a GPU warms up and cools down
with a lag, and draws power as it is busy.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LEAST, _MOST = 55.0, 95.0  # percent that a job keeps a whole GPU busy
_WAVES = ((61.0, 3.0), (17.0, 1.5))  # seconds from crest to crest, and percent up and down
_SMALL = 0.35  # of that at least, however small its share
_COOL, _RISE = 31.0, 46.0  # degrees Celsius of an idle GPU, and how many more at full load
_LAG = 45.0  # seconds in which two thirds of a change of temperature have happened
_IDLE, _DRAW = 25.0, 275.0  # watts, and how many more at full load
_COPIES = 0.4  # of the time that a GPU is busy memory is read or written
_REST_CLOCK, _TOP_CLOCK, _SLOWS = 210.0, 1410.0, 90.0  # MHz idle and in use, and how many fewer at full load
_MEMORY_CLOCKS = 405.0, 1593.0  # MHz idle and in use


class Tenant(NamedTuple):
    job: str
    share: float = 1.0
    busy: float | None = None  # percent of it that the job is said to keep busy; None: the model says it


class Load(NamedTuple):
    utilization: NDArray[np.float64]
    temperature: NDArray[np.float64]
    power: NDArray[np.float64]
    memcopy: NDArray[np.float64]
    sm_clock: NDArray[np.float64]
    memory_clock: NDArray[np.float64]


class DeviceModel:
    def __init__(self, gpus: int) -> None:
        self._idle = _COOL + np.arange(gpus, dtype=np.float64) % 5  # where a GPU sits in its box
        self._temperature = self._idle.copy()
        self._at: float | None = None

    def step(self, at: float, tenants: Sequence[Sequence[Tenant]]) -> Load:
        """The load of the GPUs at an instant, with these jobs on each; time only goes forward."""
        busy = np.array([min(100.0, sum(level(one, at) for one in some)) for some in tenants])
        passed = 0.0 if self._at is None else max(0.0, at - self._at)
        self._at = at
        warm = self._idle + _RISE * busy / 100.0
        self._temperature += (warm - self._temperature) * (1.0 - math.exp(-passed / _LAG))
        used = busy > 0
        return Load(
            busy.round(),
            self._temperature.round(),
            (_IDLE + _DRAW * busy / 100.0).round(1),
            (_COPIES * busy).round(),
            np.where(used, (_TOP_CLOCK - _SLOWS * busy / 100.0) // 15 * 15, _REST_CLOCK),
            np.where(used, _MEMORY_CLOCKS[1], _MEMORY_CLOCKS[0]),
        )


def level(tenant: Tenant, at: float) -> float:
    """Percent of a GPU that a job alone would keep busy at an instant."""
    if tenant.busy is not None:
        return tenant.busy
    lot = zlib.crc32(tenant.job.encode(errors="replace")) / 2**32
    steady = _LEAST + (_MOST - _LEAST) * lot
    waves = sum(height * math.sin(2.0 * math.pi * (at / length + lot)) for length, height in _WAVES)
    return (steady + waves) * max(_SMALL, min(1.0, tenant.share))


def share_of(job: str, at: float, tenants: Sequence[Tenant]) -> float:
    """Percent of a GPU that one of its jobs gets at an instant: if all want more than 100, each gets less."""
    levels = {tenant.job: level(tenant, at) for tenant in tenants}
    return levels.get(job, 0.0) * min(1.0, 100.0 / max(1e-9, sum(levels.values())))
