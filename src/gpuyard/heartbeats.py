"""Signs of life for a lease whose process the daemon cannot see: one elsewhere, or in a container."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from gpuyard.errors import GpuyardError
from gpuyard.patience import to_stderr
from gpuyard.refusals import Refused
from gpuyard.transport import NoDaemon

USUAL = 60.0
"""Seconds without a sign of life after which such a lease is over, if nobody says otherwise."""
_GONE = (404, 409, 410)
_AGAIN = 1.0
"""Seconds until the next try if the daemon is away."""


class Heard(Protocol):
    """Who is told."""

    def beat(self, id: str) -> None:
        """Tell that a lease's holder is there, as `Client.beat` does."""
        ...


class Heartbeat:
    """Tells the daemon again and again that this process is there, in a thread that does not keep it from ending."""

    def __init__(self, seconds: float = USUAL, lost: Callable[[], None] | None = None) -> None:
        self.seconds = seconds
        self.lost = False
        """Whether the daemon has given the lease to others."""
        self._on_loss = lost
        self._over = threading.Event()
        self._pid = os.getpid()

    def start(self, client: Heard, lease: str) -> None:
        """Begin."""
        threading.Thread(target=self._run, args=(client, lease), name=f"gpuyard-lease-{lease}", daemon=True).start()

    def stop(self) -> None:
        """Be quiet from now on."""
        self._over.set()

    def _run(self, client: Heard, lease: str) -> None:
        said = ""
        pause = self.seconds / 3
        while not self._over.wait(pause) and os.getpid() == self._pid:  # not in a child that was forked
            pause = self.seconds / 3
            try:
                client.beat(lease)
            except NoDaemon:
                pause = min(_AGAIN, pause)  # so that the next one hears of us in time
            except Refused as error:
                if error.status in _GONE:
                    self._lose(lease, str(error))
                    return
                said = self._say_once(lease, str(error), said)
            except GpuyardError as error:
                said = self._say_once(lease, str(error), said)

    def _say_once(self, lease: str, why: str, said: str) -> str:
        if why != said:
            to_stderr(f"warning: lease {lease} cannot be kept up: {why}")
        return why

    def _lose(self, lease: str, why: str) -> None:
        if self._over.is_set():  # it was given back meanwhile
            return
        self.lost = True
        to_stderr(f"WARNING: LEASE {lease} IS LOST, and its GPUs may be somebody else's: stop using them ({why})")
        if self._on_loss is not None:
            self._on_loss()
