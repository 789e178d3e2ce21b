"""The store is watched: its mark comes to the disk, and damage is found before somebody needs what is lost."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable

from gpuyard.daemon.context import BackgroundThread
from gpuyard.daemon.store.database import BESIDE, damaged, examine, is_damage
from gpuyard.daemon.store.log import Store

log = logging.getLogger("gpuyard")
_SYNC = 5.0  # seconds between looks at the files
_EVERY = 6 * 3600.0  # seconds between checks of all pages
_SELDOM = 200  # times as long as a check took passes before the next: 0.5 % of one core at most
SMALL = 2**26  # bytes of a store that is checked before a daemon starts, which takes a tenth of a second


class StoreWatch(BackgroundThread):
    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        super().__init__("store")
        self._store, self._tell = store, tell
        self._files = self._numbers()
        self._check_at = 0.0

    def _step(self) -> float:
        self._store.mark.sync()
        if problem := self.replaced() or (time.monotonic() >= self._check_at and self.check()) or "":
            self._tell(problem)
        return _SYNC

    def check(self) -> str:
        """What is wrong with the store, as a sentence; empty if nothing is."""
        began = time.monotonic()
        try:
            problem = examine(self._store.path, thorough=False)
        except sqlite3.Error as error:  # that it cannot be read now, is told by those who need it
            problem = str(error) if is_damage(error) else ""
        now = time.monotonic()
        self._check_at = now + max(_EVERY, _SELDOM * (now - began))
        return damaged(self._store.path, problem) if problem else ""

    def replaced(self) -> str:
        """Which of the files that we write to is no longer the one under its name; empty if all are."""
        for path, number in self._numbers().items():
            if self._files[path] and number != self._files[path]:
                way = "gpuyard down && gpuyard up writes what the daemon still holds"
                if path == str(self._store.path):
                    way = f"its content can be copied from /proc/{os.getpid()}/fd until the daemon ends"
                return f"{path} was deleted or replaced while the daemon runs, and nothing is kept any more; {way}"
        return ""

    def _numbers(self) -> dict[str, int]:
        """The inode of each file; 0 if there is none."""
        paths = (f"{self._store.path}{ending}" for ending in ("", BESIDE[0]))
        return {path: os.stat(path).st_ino if os.path.exists(path) else 0 for path in paths}
