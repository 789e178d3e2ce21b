"""Lists and watches: a thread for each kind of object reports all objects, then changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes.api_client import Api, ApiError, Object, Watch

log = logging.getLogger("gpuyard.kubernetes")
_FIRST, _LONGEST = 0.1, 5.0  # seconds until it is tried again


class Relisted(NamedTuple):
    """Everything of a kind, as it was listed."""

    kind: str
    objects: list[Any]


class Changed(NamedTuple):
    """Something came, or is otherwise than before."""

    kind: str
    object: Any


class Gone(NamedTuple):
    """Something is there no longer."""

    kind: str
    object: Any


class Reflector(threading.Thread):
    """Follows one kind of object. What is told is read here, so that the thread that decides need not."""

    def __init__(
        self,
        api: Api,
        kind: str,
        path: str,
        read: Callable[[Object], Any],
        tell: Callable[[Relisted | Changed | Gone], None],
        resync: float,
    ) -> None:
        super().__init__(name=f"watch {kind}", daemon=True)
        self._api, self._kind, self._path, self._read, self._tell = api, kind, path, read, tell
        self._resync = resync
        self._stopped = threading.Event()
        self._watch: Watch | None = None
        self._version = ""
        self._listed_at = 0.0
        self.trouble = ""
        """Why nothing is heard at present; empty: all is well."""

    def run(self) -> None:
        """Follow it until it is stopped."""
        pause = _FIRST
        while not self._stopped.is_set():
            try:
                if not self._version or time.monotonic() - self._listed_at > self._resync:
                    self._list()
                self._follow()
                pause = _FIRST
            except ApiError as error:
                if error.gone:
                    self._version = ""
                    continue
                self._complain(str(error))
            except GpuyardError as error:
                self._complain(str(error))
            if self.trouble:
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST)

    def stop(self) -> None:
        """Follow it no longer."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()

    def _list(self) -> None:
        found = self._api.list(self._path)
        self._tell(Relisted(self._kind, [self._read(one) for one in found.items]))
        self._version, self._listed_at = found.version, time.monotonic()
        self._recovered()

    def _follow(self) -> None:
        left = max(1, int(self._resync - (time.monotonic() - self._listed_at)))
        self._watch = self._api.watch(self._path, self._version, seconds=min(left, 300))
        self._recovered()
        for kind, object in self._watch:
            self._version = object["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self._tell(Gone(self._kind, self._read(object)))
            elif kind != "BOOKMARK":
                self._tell(Changed(self._kind, self._read(object)))

    def _recovered(self) -> None:
        if self.trouble:
            log.warning("%s are heard of again", self._kind)
            self.trouble = ""

    def _complain(self, trouble: str) -> None:
        if not self.trouble and not self._stopped.is_set():
            log.warning("%s are not heard of: %s; trying again", self._kind, trouble)
        self.trouble = trouble
