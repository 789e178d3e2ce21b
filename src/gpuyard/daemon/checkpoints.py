"""When the state is written beside the log, so that the next start need not read all of that."""

from __future__ import annotations

import logging
import math
import time

from gpuyard.core.checkpoint import compact
from gpuyard.core.state import State
from gpuyard.daemon.store import Store, StoreFailing

log = logging.getLogger("gpuyard")
_EVERY = 5_000, 20_000  # events: when there is nothing else to do, and at most
_RETRY = 60.0


class Checkpoints:
    """Makes them, now and then."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._not_before = -math.inf
        self.wanted = False
        """Whether somebody waits for one."""

    def make(self, state: State, *, idle: bool) -> bool:
        """If it is time to: forget who is over, and keep the rest. The state must be that of the log."""
        behind = self._store.last - self._store.checkpointed
        if behind <= (0 if self.wanted else _EVERY[0 if idle else 1]) or time.monotonic() < self._not_before:
            return False
        self.wanted = False
        compact(state)
        try:
            self._store.keep(state)
        except StoreFailing as error:  # the log has everything, so nothing is lost
            log.warning("%s", error)
            self._not_before = time.monotonic() + _RETRY
        return True
