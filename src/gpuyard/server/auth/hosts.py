"""The host names that the daemon answers to, and the address that a request comes from."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import Scope

from gpuyard.config import Settings

_FORWARDING = (b"forwarded", b"via", b"x-real-ip")
_USUAL_PORTS = (80, 443)


class HostPort(NamedTuple):
    name: str
    port: int | None


class Hosts:
    def __init__(self, settings: Settings) -> None:
        self._local = settings.local
        self._allowed = [place for host in settings.allowed_hosts if (place := parse(host)) is not None]
        self._own: frozenset[str] = frozenset()
        if not self._local:
            self._own = frozenset({os.uname().nodename.lower()})
            threading.Thread(target=self._ask_for_name, daemon=True).start()  # which may take a while

    def _ask_for_name(self) -> None:
        self._own |= {socket.getfqdn().lower()}

    def serves(self, host: str, port: int | None) -> bool:
        place = parse(host)
        if place is None:
            return False
        if self.allows(place, port):
            return True
        return place.port in (None, port) and self._is_own(place.name)

    def allows(self, place: HostPort, port: int | None) -> bool:
        return any(
            place.name == one.name and place.port in ((one.port,) if one.port else (None, port, *_USUAL_PORTS))
            for one in self._allowed
        )

    def _is_own(self, name: str) -> bool:
        if name == "localhost":
            return True
        if _address(name) is None:
            return name in self._own
        return is_loopback(name) or not self._local  # an address cannot be made to point elsewhere

    def is_foreign(self, origin: str, host: str, scheme: str, port: int | None) -> bool:
        """Whether an Origin is not the daemon's own; a proxy may have ended TLS."""
        try:
            found = urlsplit(origin)
        except ValueError:
            return True
        here, there = parse(host), parse(found.netloc)
        if here is None or there is None or found.scheme not in ("http", "https"):
            return True
        if found.scheme != scheme and not (scheme == "http" and self.allows(here, port)):
            return True
        usual = 443 if found.scheme == "https" else 80
        return (here.name, here.port or usual) != (there.name, there.port or usual)


def parse(host: str) -> HostPort | None:
    try:
        found = urlsplit(f"//{host.strip().lower()}")
        port = found.port
    except ValueError:
        return None
    if not found.hostname or found.netloc != host.strip().lower() or found.username is not None:
        return None
    return HostPort(found.hostname.removesuffix("."), port)


def is_forwarded(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name in _FORWARDING or name.startswith(b"x-forwarded-") for name, _ in headers)


def address_of(scope: Scope, settings: Settings) -> str:
    """The client's address; behind a proxy of this machine, the last one in X-Forwarded-For."""
    client = scope.get("client")
    if not client:
        return ""
    address = str(client[0])
    if settings.allowed_hosts and is_loopback(address):
        for name, value in reversed(scope["headers"]):
            if name == b"x-forwarded-for":
                last = value.decode("latin-1").rpartition(",")[2].strip()
                return last if _address(last) is not None else address
    return address


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 /64 network."""
    found = _address(address)
    if found is None or found.version == 4:
        return address if found is None else str(found)
    return f"{found.exploded[:19]}::/64"


def is_loopback(address: str) -> bool:
    found = _address(address)
    return found is not None and found.is_loopback


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
