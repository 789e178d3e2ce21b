"""Who sends a request: by token, session, page ticket, or the peer credentials of the socket."""

from __future__ import annotations

import hmac
import json
import math
import os
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from starlette.types import Scope

from gpuyard.config import Settings
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.local.accounts import group_names, name_of, uid_of
from gpuyard.errors import GpuyardError
from gpuyard.server.auth.credentials import CredentialStore, NoSuchToken, Token
from gpuyard.server.auth.hosts import address_of, is_forwarded, network_of
from gpuyard.server.auth.permissions import NO_ACCOUNT, Caller, Forbidden, Permissions, Role
from gpuyard.server.paths import is_watchmen
from gpuyard.server.sockets import Peer, RemoteSocket, process_with

_MOST_FAILURES = 10
_EVERY = 30.0  # seconds after which one of them is forgotten
_REMEMBERED = 10_000  # places


class FailureLimiter:
    """Counts failures by source; each source may have a few at once, and then one every half minute."""

    def __init__(self, most: float = _MOST_FAILURES, every: float = _EVERY) -> None:
        self._most, self._every = most, every
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def add(self, place: str) -> None:
        now = time.monotonic()
        count = min(self._left_over(place, now) + 1.0, self._most)
        self._counts[place] = count, now
        self._counts.move_to_end(place)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def wait(self, place: str) -> int:
        """Seconds for which wrong tokens from a source are refused; usually 0."""
        over = self._left_over(place, time.monotonic()) - (self._most - 1)
        return math.ceil(over * self._every) if over > 0 else 0

    def _left_over(self, place: str, now: float) -> float:
        count, since = self._counts.get(place, (0.0, now))
        return max(0.0, count - (now - since) / self._every)


TICKET_HEADER = b"x-gpuyard-ticket"
_PREFIX = "gt_"
_MOST_TICKETS = 4096  # characters


class TicketClaim(NamedTuple):
    via: str  # as of a `Caller`
    uid: int
    address: str
    limits: tuple[str, ...] | None  # limits (ulimit) for their jobs, as of a `Caller`


class Tickets:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def issue(self, claim: TicketClaim) -> str:
        payload = _text(json.dumps(claim, separators=(",", ":")).encode())
        return f"{_PREFIX}{payload}.{self._signature(payload)}"

    def read(self, ticket: str) -> TicketClaim | None:
        """The claim of a ticket; None if this process did not make it."""
        payload, _, signature = ticket.removeprefix(_PREFIX).partition(".")
        right = hmac.compare_digest(signature.encode(errors="replace"), self._signature(payload).encode())
        if not right or len(ticket) > _MOST_TICKETS or not is_ticket(ticket):
            return None
        via, uid, address, limits = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return TicketClaim(via, uid, address, None if limits is None else tuple(limits))

    def _signature(self, payload: str) -> str:
        return _text(hmac.digest(self._key, payload.encode(errors="replace"), "sha256"))


def is_ticket(text: str) -> bool:
    return text.startswith(_PREFIX)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


COOKIE = "gpuyard_session"
_MOST_COOKIES = 20  # with this name, of one request
ANONYMOUS = Caller(NO_ACCOUNT, "anonymous", False, (), Role.USER, "nobody")
PAGE = Caller(NO_ACCOUNT, "the page", False, (), Role.VIEWER, "page")
"""The page's process without a viewer: it may read what all may read."""
_MAKE = "make a token on the daemon's machine with gpuyard token create, and"
_SEND = "send it as `Authorization: Bearer TOKEN`"
_GIVE = "give it as token= of WatchClient, --token of watchmen.wait, or the header X-Auth-Token"
_KEEP = 2.0  # seconds for which an account is remembered
_MOST = 1000


class Unauthenticated(GpuyardError):
    """It cannot be told who asks."""

    def __init__(self, message: str = "it cannot be told who you are") -> None:
        super().__init__(f"{message}; {_MAKE} {_SEND}")
        self._message = message

    def message_for(self, path: str) -> str:
        return f"{self._message}; {_MAKE} {_GIVE}" if is_watchmen(path) else str(self)


class WrongToken(Unauthenticated):
    """The token given at login is not valid."""

    def message_for(self, path: str) -> str:
        return "this token is wrong, has expired or was revoked; gpuyard token create makes another"


class LoggedOut(Unauthenticated):
    """The viewer's session on the page has ended."""

    def message_for(self, path: str) -> str:
        return "you are logged out; log in again"


class TooManyFailures(GpuyardError):
    """Too many wrong tokens came from there."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tokens came from where you are; wait {seconds} s, or send a right one")
        self.seconds = seconds


class Authenticator:
    """Finds the caller of a request, and refuses users whom the daemon does not serve."""

    def __init__(
        self,
        settings: Settings,
        permissions: Permissions,
        credentials: CredentialStore,
        job_with: Callable[[int], JobView | None],
    ) -> None:
        self.credentials, self.failures, self._job_with = credentials, FailureLimiter(), job_with
        self.tickets = Tickets()
        self._settings, self._permissions = settings, permissions
        self._accounts: dict[str, tuple[float, int, tuple[str, ...]]] = {}

    def caller(self, scope: Scope) -> Caller:
        """The caller. A token that is sent counts first: if it is bad, nothing else is tried."""
        headers, by_page = dict(scope["headers"]), "page" in scope.get("state", {})
        if text := shown_token(scope, headers):
            if by_page and is_ticket(text):
                return self._with_ticket(text, scope)
            token = self.checked(text, source_of(scope, self._settings))
            return self.holder(token, f"token {token.id}")
        for secret in session_secrets(scope["headers"]):
            if (found := self.credentials.session(secret, source_of(scope, self._settings))) is not None:
                session, token = found
                scope["state"]["secret"] = secret
                return self.holder(token, f"session {session.id}")
        return PAGE if by_page else self._ambient(scope)

    def _with_ticket(self, text: str, scope: Scope) -> Caller:
        claim = self.tickets.read(text)
        if claim is None:  # of an earlier daemon; only the page's process can send one
            raise LoggedOut
        scope["state"]["address"] = claim.address
        return self.claimed(claim)

    def claimed(self, claim: TicketClaim) -> Caller:
        kind, _, id = claim.via.partition(" ")
        if kind == "session":
            found = self.credentials.session_with(id)
            if found is None:
                raise LoggedOut
            return replace(self.holder(found[1], claim.via), by_page=True)
        if kind == "token":
            try:
                token = self.credentials.use(self.credentials.token(id))
            except NoSuchToken:
                token = None
            if token is None:
                raise LoggedOut
            return replace(self.holder(token, claim.via), by_page=True)
        if kind == "nobody":
            return replace(ANONYMOUS, by_page=True)
        if kind == "job":
            raise LoggedOut
        return replace(self._served(claim.uid, claim.via), by_page=True, limits=claim.limits)

    def checked(self, text: str, place: str) -> Token:
        token = self.credentials.with_text(text)
        if token is None:
            if wait := self.failures.wait(place):
                raise TooManyFailures(wait)
            self.failures.add(place)
            raise Unauthenticated("there is no such token")
        if (used := self.credentials.use(token)) is None:
            state = token.state(time.time())
            raise Unauthenticated(f"token {token.id} {'has expired' if state == 'expired' else 'was revoked'}")
        return used

    def holder(self, token: Token, via: str) -> Caller:
        """The caller with a token: its role, but never more than its owner's present rights."""
        role, shared = Role(token.role), self._settings.shared
        uid, groups = self._account(token.user)
        if shared and (token.uid not in (None, uid) or (uid == NO_ACCOUNT and role is not Role.VIEWER)):
            raise Forbidden(
                f"token {token.id} is for {token.user}, who has no account on this machine any more; "
                "ask an admin for another token"
            )
        if role is Role.ADMIN and shared and not self._permissions.known(uid, via).admin:
            role = Role.USER
        return Caller(uid, token.user, role is Role.ADMIN, groups, role, via, tuple(token.limits.split()))

    def holds(self, caller: Caller) -> bool:
        """Whether a caller still has the rights that a response began with: it may go on for hours."""
        if not caller.via.startswith(("token", "session")):
            return not caller.admin or self._permissions.known(caller.uid, caller.via).admin
        token = self.credentials.token_of(caller.via)
        try:
            return token is not None and (self.holder(token, caller.via).admin or not caller.admin)
        except Forbidden:
            return False

    def _account(self, user: str) -> tuple[int, tuple[str, ...]]:
        """The uid and groups of a user: of any account on a shared machine, else of the daemon's own."""
        if not self._settings.shared and user != name_of(os.geteuid()):
            return NO_ACCOUNT, ()
        until, uid, groups = self._accounts.get(user, (0.0, NO_ACCOUNT, ()))
        if until < time.monotonic():
            found = uid_of(user)
            uid, groups = (NO_ACCOUNT, ()) if found is None else (found, group_names(found))
            if len(self._accounts) > _MOST:
                self._accounts.clear()
            self._accounts[user] = time.monotonic() + _KEEP, uid, groups
        return uid, groups

    def _ambient(self, scope: Scope) -> Caller:
        """The caller by the kernel's word about the peer, unless the request came through a proxy."""
        state, settings = scope.get("state", {}), self._settings
        peer, far = state.get("peer"), state.get("far")
        if not is_forwarded(scope["headers"]):
            if isinstance(peer, Peer):
                return self._within_job(self._served(peer.uid, "socket"), state, lambda: peer.pid)
            trusts = settings.local and settings.tokens != "required" and not settings.allowed_hosts
            if (
                isinstance(far, RemoteSocket)
                and trusts
                and (settings.tokens != "none" or self._permissions.serves(far.uid))
            ):
                return self._within_job(self._served(far.uid, "loopback"), state, lambda: process_with(far))
        if settings.tokens == "none":
            return ANONYMOUS
        raise Unauthenticated

    def _within_job(self, caller: Caller, state: Mapping[str, Any], pid: Callable[[], int | None]) -> Caller:
        """The caller, or the job that its process belongs to, if that was given less than its user has.

        Only admins have more than what any job is given, so nobody else waits for the search; they do once.
        """
        if not caller.admin:
            return caller
        kept = state.get("connection", {})
        if "job" not in kept:
            kept["job"] = None if (found := pid()) is None else self._job_with(found)
        job: JobView | None = kept["job"]
        if job is None or job.kind == "lease" or not job.work.get("role"):
            return caller
        uid, groups = self._account(job.user)
        limits = tuple(job.work.get("limits") or ())
        return Caller(uid, job.user, False, groups, Role(job.work["role"]), f"job {job.id}", limits)

    def _served(self, uid: int, via: str) -> Caller:
        if not self._permissions.serves(uid):
            raise Forbidden(f"this daemon serves {name_of(os.geteuid())} only; start one of your own")
        return self._permissions.known(uid, via)


def shown_token(scope: Scope, headers: Mapping[bytes, bytes]) -> str:
    """The token in a request; empty if there is none. Only watchmen's paths take it outside `Authorization`."""
    scheme, _, text = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and text.strip():
        return text.strip().decode("latin-1")
    if not is_watchmen(scope["path"]):
        return ""
    if text := headers.get(b"x-auth-token", b"").strip():
        return text.decode("latin-1")
    query = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("token", [""])[-1] if b"token=" in query else ""


def session_secrets(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The secrets in cookies with the session's name: another server of this host, or a subpath, may set one, too."""
    parts = [part.strip().partition(b"=") for name, value in headers if name == b"cookie" for part in value.split(b";")]
    found = [value.decode("latin-1") for name, _, value in parts if name.decode("latin-1") == COOKIE and value]
    return found[:_MOST_COOKIES]


def source_of(scope: Scope, settings: Settings) -> str:
    """The source of a request, for counting failures: the peer's uid where it is known, else the network."""
    state = scope.get("state", {})
    peer, far = state.get("peer"), state.get("far")
    if "page" in state:
        return "page"
    if isinstance(peer, Peer):
        return f"uid {peer.uid}"
    if isinstance(far, RemoteSocket) and not settings.allowed_hosts:
        return f"uid {far.uid}"
    return network_of(address_of(scope, settings))
