"""Errors that the NVIDIA driver tells of by number (XID): asked for at every look, without waiting for one."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable
from typing import Any

import pynvml

_MOST = 32  # errors of one look; a broken GPU may have hundreds, and the same one again and again


class Xids:
    """Errors since the look before. What a driver does not tell of never happened."""

    def __init__(self, chips: Iterable[Any]) -> None:
        """Listen to GPUs; those that have no such events are left out."""
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
        """Listen no more."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)


def key_of(handle: Any) -> int:
    """What tells one GPU from another: handles are new objects each time, of the same address."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
