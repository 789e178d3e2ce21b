"""Questions to the NVIDIA driver, and how much of an answer to expect.

Everything here raises `NVMLError` when a GPU, or the whole driver, does not answer. What a device or a driver merely
does not support is None, or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pynvml

from gpuyard.gpus.base import Process

Handle = Any

_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NO_DATA,
}
_DRIVER_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
_GPU_GONE = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
_IDLE = {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND}
"""What is said where no process was busy; the bindings take an empty list for an error."""
_LATELY = 1_000_000  # microseconds


def is_driver_gone(error: pynvml.NVMLError) -> bool:
    """Whether no GPU will answer until NVML is initialised again."""
    return error.value in _DRIVER_GONE


@dataclass(frozen=True, slots=True)
class Found:
    handle: Handle
    chip: Handle  # the GPU that it is part of; the same handle for a whole GPU
    uuid: str
    name: str
    memory: int
    capability: tuple[int, int] | None = None  # the compute capability, where the driver tells

    @property
    def is_mig(self) -> bool:
        return self.handle is not self.chip


@dataclass(frozen=True, slots=True)
class Silent:
    """A GPU that does not answer."""

    problem: str


def find_devices() -> list[Found | Silent]:
    """All GPUs in the order of the PCI bus; a GPU in MIG mode is replaced by its MIG devices, if there are any."""
    _has_broken_v3.cache_clear()  # it may be another driver by now
    return [device for chip in _chips() for device in _devices_of(chip)]


def is_in_mig_mode(chip: Handle) -> bool:
    mode = _optional(pynvml.nvmlDeviceGetMigMode, chip)
    return bool(mode and mode[0])


def uuid_of(handle: Handle) -> str:
    """The UUID of a handle now; NVML reuses handles of MIG devices that were destroyed."""
    return text(pynvml.nvmlDeviceGetUUID(handle))


def memory_of(handle: Handle) -> tuple[int, int]:
    """Bytes in all, and in use by processes; 0 where unknown, as where memory is the host's."""
    try:
        # only the second version leaves out what the driver keeps for itself, up to 1 GB on an idle GPU
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (int(memory.total), int(memory.used)) if memory else (0, 0)


def rates_of(handle: Handle) -> tuple[int | None, int | None]:
    """Percent of the last sample period in which a GPU was busy, and in which its memory was read or written."""
    rates = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return (int(rates.gpu), int(rates.memory)) if rates else (None, None)


def temperature_of(chip: Handle) -> int | None:
    degrees = _extra(pynvml.nvmlDeviceGetTemperature, chip, pynvml.NVML_TEMPERATURE_GPU)
    return None if degrees is None else int(degrees)


def power_of(chip: Handle) -> float | None:
    """Watts."""
    milliwatts = _extra(pynvml.nvmlDeviceGetPowerUsage, chip)
    return None if milliwatts is None else milliwatts / 1000


def clocks_of(chip: Handle) -> tuple[int | None, int | None]:
    sm = _extra(pynvml.nvmlDeviceGetClockInfo, chip, pynvml.NVML_CLOCK_SM)
    memory = _extra(pynvml.nvmlDeviceGetClockInfo, chip, pynvml.NVML_CLOCK_MEM)
    return None if sm is None else int(sm), None if memory is None else int(memory)


def throttle_of(chip: Handle) -> int | None:
    """Reasons of throttling as NVML's bits; drivers before 535 have another name for the call."""
    for call in (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons):
        if (bits := _extra(call, chip)) is not None:
            return int(bits)
    return None


def processes_of(handle: Handle) -> tuple[Process, ...]:
    """All processes that compute or draw; those of MPS are listed apart."""
    versions = ("_v2", "_v3") if _has_broken_v3() else ("_v3", "_v2")
    computing = _list_processes("Compute", versions, handle) + _list_processes("MPSCompute", versions, handle)
    computes = {process.pid for process in computing}
    memories: dict[int, int] = {}
    for process in computing + _list_processes("Graphics", versions, handle):
        memories[process.pid] = max(memories.get(process.pid, 0), int(process.usedGpuMemory or 0))
    busy = _busy_with(handle) if computes else None
    return tuple(
        Process(pid, memory, pid not in computes, None if busy is None else busy.get(pid, 0))
        for pid, memory in sorted(memories.items())
    )


def _busy_with(handle: Handle) -> dict[int, int] | None:
    """Percent of the last second that each process kept a GPU busy; idle ones are left out. None: unknown."""
    since = time.time_ns() // 1000 - _LATELY
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError as error:
        if error.value in _GPU_GONE or error.value in _DRIVER_GONE:
            raise
        return {} if error.value in _IDLE else None
    found: dict[int, int] = {}
    for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
        if sample.timeStamp > since:  # some drivers fill up with what is older, or nonsense
            found[int(sample.pid)] = min(100, int(sample.smUtil))
    return found


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _optional(call: Callable[..., Any], *arguments: Any) -> Any | None:
    """The answer to a question that not every device or driver understands."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value not in _UNSUPPORTED:
            raise
        return None


def _extra(call: Callable[..., Any], *arguments: Any) -> Any | None:
    """The answer to a question that decides nothing: a broken sensor does not make a GPU unusable."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _GPU_GONE or error.value in _DRIVER_GONE:
            raise
        return None


def _list_processes(kind: str, versions: tuple[str, ...], handle: Handle) -> list[Any]:
    for version in versions:
        found = _optional(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}"), handle)
        if found is not None:
            return list(found)
    return []


def version() -> str:
    return text(_optional(pynvml.nvmlSystemGetDriverVersion) or "")


@cache
def _has_broken_v3() -> bool:
    """Drivers 535.43 to 535.98 fill in another structure than they declare: all but the first process are nonsense."""
    branch, _, release = version().partition(".")
    return branch == "535" and release.split(".")[0].isdigit() and int(release.split(".")[0]) < 104


def _chips() -> list[Handle | Silent]:
    chips: list[Handle | Silent] = []
    buses: dict[int, tuple[int, int, int]] = {}
    for slot in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(slot)
            pci = pynvml.nvmlDeviceGetPciInfo(handle)
        except pynvml.NVMLError as error:
            if is_driver_gone(error):
                raise
            chips.append(Silent(str(error)))
            continue
        chips.append(handle)
        buses[slot] = (pci.domain, pci.bus, pci.device)
    # those that do not say where they are stay where NVML counts them, which is nearly always by bus already
    in_order = iter(sorted(buses, key=lambda slot: buses[slot]))
    return [chips[next(in_order)] if slot in buses else chip for slot, chip in enumerate(chips)]


def _devices_of(chip: Handle | Silent) -> list[Found | Silent]:
    if isinstance(chip, Silent):
        return [chip]
    try:
        if is_in_mig_mode(chip):
            return [_found(handle, chip) for handle in _mig_handles(chip)]
        return [_found(chip, chip)]
    except pynvml.NVMLError as error:
        if is_driver_gone(error):
            raise
        return [Silent(str(error))]


def _mig_handles(chip: Handle) -> Iterator[Handle]:
    for slot in range(_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, chip) or 0):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(chip, slot)
        except pynvml.NVMLError_NotFound:  # slots may be empty
            continue


def _found(handle: Handle, chip: Handle) -> Found:
    name = text(_optional(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU")
    if handle is not chip and "MIG" not in name:  # older drivers give the name of the whole GPU
        name = f"{name} MIG {_profile(handle)}".strip()
    return Found(handle, chip, uuid_of(handle), name, memory_of(handle)[0], _capability(chip))


def _capability(chip: Handle) -> tuple[int, int] | None:
    found = _extra(pynvml.nvmlDeviceGetCudaComputeCapability, chip)
    return (int(found[0]), int(found[1])) if found else None


def _profile(handle: Handle) -> str:
    """`1g.10gb`, as NVIDIA calls the size of a MIG device; `1c.3g.40gb` for a part of an instance."""
    size = _optional(pynvml.nvmlDeviceGetAttributes_v2, handle)
    if not size:
        return ""
    part = f"{size.computeInstanceSliceCount}c." if size.computeInstanceSliceCount < size.gpuInstanceSliceCount else ""
    return f"{part}{size.gpuInstanceSliceCount}g.{-(-size.memorySizeMB // 1024)}gb"
