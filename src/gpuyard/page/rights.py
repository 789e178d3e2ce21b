"""Who may press which button. The daemon decides when it is pressed; this is so that nobody sees one in vain.

A test asks a real daemon for each of these in every role, and holds this to what it answers.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Deed(Enum):
    """Something that not everybody may do."""

    SUBMIT = "submit a job"
    SET_POLICY = "set the policy"
    DRAIN = "drain and resume GPUs"
    RESERVE = "reserve GPUs"
    SET_RULES = "set quotas and shares"
    MAKE_TOKEN = "make a token"
    MAKE_ANY_TOKEN = "make a token for others, or an admin's"
    REVOKE_TOKEN = "revoke a token of one's own"
    REVOKE_ANY_TOKEN = "revoke others' tokens"
    READ_AUDIT = "read the audit trail"
    READ_DELIVERIES = "see what others are told, and what failed"
    SUBSCRIBE = "be told of one's jobs"


class Known(Protocol):
    """Whoever looks, as far as it matters here."""

    @property
    def role(self) -> str: ...
    @property
    def via(self) -> str: ...


_ACTORS = ("admin", "user")
_OWN = frozenset((Deed.SUBMIT, Deed.REVOKE_TOKEN, Deed.SUBSCRIBE))


def may(viewer: Known, deed: Deed) -> bool:
    """Whether somebody may do this."""
    if viewer.role == "admin":
        return True
    if deed is Deed.MAKE_TOKEN:  # by a token none can be made: a stolen one would never end
        return viewer.role == "user" and viewer.via in ("socket", "loopback")
    return viewer.role in _ACTORS and deed in _OWN
