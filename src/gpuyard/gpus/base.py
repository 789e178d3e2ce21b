"""GPUs as the daemon sees them, from any source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, overload

from gpuyard.errors import GpuyardError


class GpusUnavailable(GpuyardError):
    """The GPUs of this machine cannot be read."""


@dataclass(frozen=True, slots=True)
class Device:
    index: int  # 0, 1, 2 ...: the numbers that users see, in the order of the PCI bus
    uuid: str  # empty for a GPU that has not answered since the source was opened; it gets its own once it does
    name: str
    memory: int  # bytes in all; 0 where that is not known
    simulated: bool = False
    capability: tuple[int, int] | None = None  # NVIDIA's compute capability; None if unknown

    @property
    def visible_as(self) -> str:
        """Its name in `CUDA_VISIBLE_DEVICES`."""
        return str(self.index) if self.simulated else self.uuid


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    memory: int  # bytes on this GPU; 0 where that is not known
    graphics: bool = False  # whether it only draws, as a desktop does, and computes nothing
    utilization: int | None = None  # recent use of the GPU in percent


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a GPU saw. None where the device does not say."""

    index: int
    lost: bool = False  # whether it did not answer; then nothing else here counts
    problem: str = ""  # what the driver said, if it did not answer
    memory_used: int = 0
    utilization: int | None = None  # percent of the last sample period
    temperature: int | None = None
    power: float | None = None  # watts
    memcopy: int | None = None  # percent of the last sample period in which memory was read or written
    sm_clock: int | None = None
    memory_clock: int | None = None  # MHz
    throttle: int | None = None  # NVML's bits for what slows it down; 0: nothing
    xid: int = 0  # the number of an XID error since the previous look; 0: none
    processes: tuple[Process, ...] = ()


class Gpus(Protocol):
    @property
    def devices(self) -> Sequence[Device]:
        """All of them, by index. They stay the same while the source is open, also when one is lost.

        One that was lost from the beginning, without a UUID, is replaced by what it is once it answers.
        """
        ...

    @property
    def simulated(self) -> bool: ...

    def read(self) -> list[Reading]:
        """One reading of each device, by index. A device that fails is `lost`; this does not raise."""
        ...

    def close(self) -> None: ...


class Visible(Sequence[str]):
    """The names of GPUs for `CUDA_VISIBLE_DEVICES` as of now: one that was lost at the start may come back."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def __len__(self) -> int:
        return len(self._gpus.devices)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [device.visible_as for device in self._gpus.devices[index]]
        return self._gpus.devices[index].visible_as
