"""Tickets: by which the page's process asks in the name of whoever looks, with their rights and never with its own.

The daemon finds out who looks, and hands the process a ticket that says so, signed with a key that nobody else has and
that ends with the daemon. A ticket is no more than a claim about how somebody came: whether that is still good is
looked up whenever it is shown (`Admission`), and it counts on the Unix socket alone, from that process alone.
"""

from __future__ import annotations

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

HEADER = b"x-gpuyard-ticket"
"""Where the page's process finds it."""
_PREFIX = "gt_"
_MOST = 4096  # characters


class Claim(NamedTuple):
    """Who somebody is, by how they came."""

    via: str
    """As of a `Caller`."""
    uid: int
    address: str
    limits: tuple[str, ...] | None
    """Limits (ulimit) for their jobs, as of a `Caller`."""


class Tickets:
    """Makes tickets, and reads those that it made."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def issue(self, claim: Claim) -> str:
        """A ticket."""
        said = _text(json.dumps(claim, separators=(",", ":")).encode())
        return f"{_PREFIX}{said}.{self._signature(said)}"

    def read(self, ticket: str) -> Claim | None:
        """What a ticket says; None if it is not one of ours."""
        said, _, signature = ticket.removeprefix(_PREFIX).partition(".")
        right = hmac.compare_digest(signature.encode(errors="replace"), self._signature(said).encode())
        if not right or len(ticket) > _MOST or not is_ticket(ticket):
            return None
        via, uid, address, limits = json.loads(urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        return Claim(via, uid, address, None if limits is None else tuple(limits))

    def _signature(self, said: str) -> str:
        return _text(hmac.digest(self._key, said.encode(errors="replace"), "sha256"))


def is_ticket(text: str) -> bool:
    """Whether this looks like one."""
    return text.startswith(_PREFIX)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
