"""Waiting for a daemon that went away."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from gpuyard.client.transport import NoDaemon
from gpuyard.units import format_duration

T = TypeVar("T")

PATIENCE = 600.0  # seconds that clients wait for a daemon that went away
_LOOK = 0.2  # seconds between tries


def to_stderr(message: str) -> None:
    """Print a message; where nobody reads it any more, the caller goes on."""
    with suppress(OSError, ValueError):
        print(f"gpuyard: {message}", file=sys.stderr, flush=True)


class Absence:
    """How long a daemon has been away."""

    def __init__(self, patience: float = PATIENCE, say: Callable[[str], None] = to_stderr) -> None:
        self._patience, self._say = patience, say
        self._end: float | None = None

    def endure(self, error: NoDaemon, advice: str = "") -> None:
        """Wait a moment, or raise the error if it was away for too long. Reports the absence once, with `advice`."""
        if self._end is None:
            self._end = time.monotonic() + self._patience
            self._say(f"the daemon went away; this waits {format_duration(self._patience)} for the next one{advice}")
        elif time.monotonic() >= self._end:
            raise error
        time.sleep(_LOOK)

    def over(self) -> None:
        """The daemon is back."""
        self._end = None


def patiently(
    call: Callable[..., T],
    *arguments: Any,
    patience: float = PATIENCE,
    say: Callable[[str], None] = to_stderr,
    **settings: Any,
) -> T:
    """Call the daemon; if it went away, wait for the next one."""
    absence = Absence(patience, say)
    while True:
        try:
            return call(*arguments, **settings)
        except NoDaemon as error:
            absence.endure(error)
