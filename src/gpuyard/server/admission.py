"""Who asks. On the Unix socket the kernel says so, and within this machine on TCP as well."""

from __future__ import annotations

import os

from starlette.types import Scope

from gpuyard.config import Settings
from gpuyard.engines.accounts import name_of
from gpuyard.errors import GpuyardError
from gpuyard.server.listen import Peer
from gpuyard.server.peers import Far
from gpuyard.server.permissions import Caller, Forbidden, Permissions


class Unknown(GpuyardError):
    """Say who you are: send a token, as `Authorization: Bearer TOKEN`."""


class Admission:
    """Finds out who asks, and turns away whom the daemon does not serve."""

    def __init__(self, settings: Settings, permissions: Permissions) -> None:
        self._settings, self._permissions = settings, permissions

    def caller(self, scope: Scope) -> Caller:
        """Who asks."""
        state = scope.get("state", {})
        peer, far = state.get("peer"), state.get("far")
        if isinstance(peer, Peer):
            return self._served(peer.uid, "socket")
        if isinstance(far, Far) and self._settings.local and self._settings.token != "required":
            return self._served(far.uid, "loopback")
        raise Unknown

    def _served(self, uid: int, via: str) -> Caller:
        if not self._permissions.serves(uid):
            raise Forbidden(f"this daemon serves {name_of(os.geteuid())} only; start one of your own")
        return self._permissions.known(uid, via)
