"""Errors that the NVIDIA driver tells of by number (XID): asked for at every look, without waiting for one."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pynvml

from gpuyard.gpus import driver
from gpuyard.gpus.base import Device, GpusUnavailable, Reading
from gpuyard.gpus.driver import Found, Silent

_MOST = 32  # errors of one look; a broken GPU may have hundreds, and the same one again and again


class Xids:
    """XID errors since the previous look. Errors that a driver does not report are not seen."""

    def __init__(self, chips: Iterable[Any]) -> None:
        self._events: Any = None
        with contextlib.suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
        heard = 0
        for chip in {key_of(chip): chip for chip in chips}.values() if self._events is not None else ():
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlDeviceRegisterEvents(chip, pynvml.nvmlEventTypeXidCriticalError, self._events)
                heard += 1
        if not heard:
            self.close()

    def new(self) -> dict[int, int]:
        """The number of the latest error of each GPU that had one, by `key_of` its handle."""
        found: dict[int, int] = {}
        for _ in range(_MOST if self._events is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:  # a timeout, which is the usual; or the driver is gone, which the look will tell
                break
            found[key_of(event.device)] = int(event.eventData)
        return found

    def close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)


def key_of(handle: Any) -> int:
    """Identifies a GPU: handles are new objects each time, of the same address."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


_VANISHED = "the driver does not find it any more"
_TRY = "or try gpuyard without GPUs: --simulate-gpus 4x16G"
_NONE = "the NVIDIA driver finds no GPU, or only GPUs in MIG mode without MIG devices; see what nvidia-smi -L says"
_ADVICE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing); install it",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded; see what nvidia-smi says",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated but the old one still runs; reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "the NVIDIA driver refuses access; see who may use /dev/nvidia*",
}


class NvmlGpus:
    simulated = False

    def __init__(
        self, *, retry_driver: float = 5.0, retry_gpu: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the driver, and again after a while if all of it, or one GPU, does not answer.

        Opening it can take seconds where nobody else keeps the GPUs awake, hence the longer wait for a single one.
        """
        self._retry_driver, self._retry_gpu, self._clock = retry_driver, retry_gpu, clock
        self._down = ""  # why no GPU answers, if none does
        self._any_lost = False
        self._xids: Xids | None = None
        self._opened_at = clock()
        try:
            pynvml.nvmlInit()
            found = driver.find_devices()
        except pynvml.NVMLError as error:
            self.close()
            advice = _ADVICE.get(error.value, f"NVML fails ({error}); see what nvidia-smi says")
            raise GpusUnavailable(f"{advice}, {_TRY}") from error
        if not found:
            self.close()
            raise GpusUnavailable(f"{_NONE}, {_TRY}")
        self._devices = [
            Device(index, one.uuid, one.name, one.memory, capability=one.capability)
            if isinstance(one, Found)
            else Device(index, "", "NVIDIA GPU that does not answer", 0)
            for index, one in enumerate(found)
        ]
        self._found: list[Found | None] = [one if isinstance(one, Found) else None for one in found]
        # why a device without a handle does not answer
        self._problems = [one.problem if isinstance(one, Silent) else "" for one in found]
        self._listen()

    @property
    def devices(self) -> Sequence[Device]:
        return tuple(self._devices)

    def read(self) -> list[Reading]:
        """One reading of each device, by index; never raises."""
        retry = self._retry_driver if self._down else self._retry_gpu
        if (self._down or self._any_lost) and self._clock() - self._opened_at >= retry:
            self._reopen()
        errors = self._xids.new() if self._xids is not None else {}  # first: a GPU may be lost by one
        readings = [self._read(index) for index in range(len(self._devices))]
        if self._down:  # perhaps since the middle of this
            readings = [Reading(device.index, lost=True, problem=self._down) for device in self._devices]
        if errors:
            readings = [replace(reading, xid=self._error_of(reading.index, errors)) for reading in readings]
        self._any_lost = any(reading.lost for reading in readings)
        return readings

    def close(self) -> None:
        if self._xids is not None:
            self._xids.close()
            self._xids = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _listen(self) -> None:
        self._xids = Xids(one.chip for one in self._found if one is not None)
        self._keys = [None if one is None else key_of(one.chip) for one in self._found]

    def _error_of(self, index: int, errors: Mapping[int, int]) -> int:
        key = self._keys[index]
        return 0 if key is None else errors.get(key, 0)

    def _read(self, index: int) -> Reading:
        found = self._found[index]
        if self._down or found is None:
            return Reading(index, lost=True, problem=self._down or self._problems[index])
        try:
            return _look(index, found)
        except pynvml.NVMLError as error:
            if driver.is_driver_gone(error):
                self._down = f"the NVIDIA driver does not answer: {error}"
            return Reading(index, lost=True, problem=str(error))

    def _reopen(self) -> None:
        self._opened_at = self._clock()
        self.close()
        try:
            pynvml.nvmlInit()
            found = driver.find_devices()
        except pynvml.NVMLError as error:
            self._down = f"the NVIDIA driver does not answer: {error}"
            return
        self._down = ""
        silent = [one.problem for one in found if isinstance(one, Silent)]
        self._match([one for one in found if isinstance(one, Found)], silent[0] if silent else _VANISHED)

    def _match(self, found: list[Found], problem: str) -> None:
        """Give every device its new handle; a GPU that was lost at the start becomes the first unknown one."""
        by_uuid = {one.uuid: one for one in found}
        known = {device.uuid for device in self._devices}
        unknown = [one for one in found if one.uuid not in known and not one.is_mig]
        for index, device in enumerate(self._devices):
            if not device.uuid and unknown:
                new = unknown.pop(0)
                device = Device(index, new.uuid, new.name, new.memory, capability=new.capability)
                self._devices[index] = device
            self._found[index] = by_uuid.get(device.uuid)
            self._problems[index] = problem
        self._listen()


def _look(index: int, found: Found) -> Reading:
    """One look: 11 calls for an idle GPU, and 3 more with processes; constant values are not asked for."""
    if found.is_mig and driver.uuid_of(found.handle) != found.uuid:
        return Reading(index, lost=True, problem="it was taken apart; restart gpuyard to see its new MIG devices")
    if not found.is_mig and driver.is_in_mig_mode(found.chip):
        return Reading(index, lost=True, problem="it is in MIG mode now; restart gpuyard to see its MIG devices")
    # a MIG device shares the sensors of its GPU, and NVML does not tell how busy or how thirsty a part is
    busy, copying = (None, None) if found.is_mig else driver.rates_of(found.handle)
    sm_clock, memory_clock = driver.clocks_of(found.chip)
    return Reading(
        index,
        memory_used=driver.memory_of(found.handle)[1],
        utilization=busy,
        temperature=driver.temperature_of(found.chip),
        power=None if found.is_mig else driver.power_of(found.chip),
        memcopy=copying,
        sm_clock=sm_clock,
        memory_clock=memory_clock,
        throttle=driver.throttle_of(found.chip),
        processes=driver.processes_of(found.handle),
    )
