"""The limits (ulimit) that jobs get: those of the process that asks for them, so nobody is rid of theirs by asking.

Who has a token may be anywhere; there it is the process of theirs that made the token.
"""

from __future__ import annotations

import time

from fastapi import Request
from starlette.datastructures import State

from gpuyard.config import Settings
from gpuyard.engines.rlimits import limits_of
from gpuyard.errors import UserError
from gpuyard.server.listen import Peer
from gpuyard.server.peers import Far, process_with
from gpuyard.server.permissions import Caller

_KEPT = 1.0  # seconds for which a process's limits are remembered: it may submit by the hundred
_MOST_KNOWN = 1000


class Submitters:
    """Knows the limits of those who submitted lately."""

    def __init__(self, settings: Settings) -> None:
        self._shared = settings.shared
        self._known: dict[Peer | Far, tuple[float, tuple[str, ...]]] = {}

    def limits(self, request: Request, caller: Caller) -> tuple[str, ...]:
        """The limits for the jobs of whoever asks, where they are not ours."""
        if caller.via in ("socket", "loopback") and not caller.by_page:
            return self._of(request.state, caller.via)
        if caller.limits is None:
            raise UserError("the limits (ulimit) of your browser could not be read; reload the page, and try again")
        return caller.limits

    def of_viewer(self, state: State, via: str) -> tuple[str, ...] | None:
        """The limits of the browser of somebody whom the kernel names; None if they cannot be told."""
        try:
            return self._of(state, via)
        except UserError:
            return None

    def _of(self, state: State, via: str) -> tuple[str, ...]:
        who: Peer | Far = state.peer if via == "socket" else state.far
        asked, limits = self._known.get(who, (0.0, ()))
        if time.monotonic() - asked < _KEPT:
            return limits
        found = _found(who)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        if found is not None:
            self._known[who] = time.monotonic(), found
        if found is None and self._shared:  # who ends before they are read must not get away with ours
            raise UserError("whoever submits a job must live until it is answered")
        return found or ()


def _found(who: Peer | Far) -> tuple[str, ...] | None:
    if isinstance(who, Far):
        pid = process_with(who)
        return limits_of(pid, who.uid) if pid is not None else None
    return limits_of(who.pid, who.uid) if who.pid else ()
