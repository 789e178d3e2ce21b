"""What a caller may do, and the resource limits (ulimit) that their jobs get."""

from __future__ import annotations

import grp
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from fastapi import Request
from starlette.datastructures import State

from gpuyard.config import Settings
from gpuyard.core.model import Rules
from gpuyard.core.policy import LEARNED, parse_spec
from gpuyard.engines.local.accounts import group_names, groups_of, name_of
from gpuyard.engines.local.privileges import limits_of
from gpuyard.errors import GpuyardError, UserError
from gpuyard.policies.trained_policy import shipped
from gpuyard.server.sockets import Peer, RemoteSocket, process_with

_KEEP = 2.0  # seconds for which an account is cached
_MOST_CALLERS = 1000
_MOST_GROUPS = 50  # of one user that quotas count, those with a quota first


class Forbidden(GpuyardError):
    """You may not do that."""


class Permission(Enum):
    EVERYBODY = "everybody"
    OWNER = "the job's owner and admins"
    ADMIN = "admins"


class Role(Enum):
    """What somebody may do at most."""

    VIEWER = "viewer"  # reads only
    USER = "user"
    ADMIN = "admin"


NO_ACCOUNT = -1


@dataclass(frozen=True, slots=True)
class Caller:
    uid: int  # `NO_ACCOUNT` if they have none on this machine
    name: str
    admin: bool
    groups: tuple[str, ...] = ()  # their Unix groups, the main one first
    role: Role = Role.USER
    via: str = "socket"
    """How they were authenticated: `socket`, `loopback`, `token ID` or `session ID`; `job ID`: by the socket, as a
    process of a job that was given fewer rights than its user's; `nobody`: not at all."""
    limits: tuple[str, ...] | None = ()
    """Limits (ulimit) for jobs of a token or by the page; None: they could not be read."""
    by_page: bool = False  # whether the page's process sends the request for them, with a ticket

    @property
    def way(self) -> str:
        return f"{self.via}, page" if self.by_page else self.via

    def group(self, rules: Rules | None) -> str:
        """Their groups as of a `Request`: for shares the first that the rules name, or one that is not theirs alone."""
        named = {name for name, _ in (*rules.quotas, *rules.weights)} if rules is not None else set()
        by_rule = [group for group in self.groups if f"@{group}" in named]
        share = next(iter((*by_rule, *(group for group in self.groups if group != self.name))), "")
        others = dict.fromkeys(group for group in (*by_rule, *self.groups) if group != share)
        return ",".join((share, *list(others)[:_MOST_GROUPS]))


class Permissions:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[int, tuple[float, Caller]] = {}

    def caller(self, request: Request) -> Caller:
        caller = getattr(request.state, "caller", None)
        if not isinstance(caller, Caller):
            raise Forbidden("it cannot be told who you are; use the daemon's Unix socket")
        return caller

    def known(self, uid: int, via: str) -> Caller:
        until, known = self._known.get(uid, (0.0, None))
        if known is None or until < time.monotonic():
            if len(self._known) > _MOST_CALLERS:
                self._known.clear()
            admin = self._is_admin(uid)
            known = Caller(uid, name_of(uid), admin, group_names(uid), Role.ADMIN if admin else Role.USER)
            self._known[uid] = time.monotonic() + _KEEP, known
        return known if known.via == via else replace(known, via=via)

    def name(self, request: Request) -> str:
        return self.caller(request).name

    def _is_admin(self, uid: int) -> bool:
        if uid in (0, os.geteuid()):
            return True
        try:
            group = grp.getgrnam(self._settings.admin_group).gr_gid
        except KeyError:
            return False
        return group in groups_of(uid)

    def serves(self, uid: int) -> bool:
        return self._settings.shared or uid in (0, os.geteuid())

    def check(self, may: Permission, caller: Caller, what: str, owner: Callable[[], str]) -> None:
        """Refuse callers without the permission; `owner` is called only where it matters."""
        if may is Permission.EVERYBODY or caller.admin:
            return
        members = f"a member of the group {self._settings.admin_group}"
        if may is Permission.ADMIN:
            raise Forbidden(f"only an admin may {what}: ask root, or {members}")
        if (whose := owner()) != caller.name:
            others = members if whose == "root" else f"root, or {members}"
            raise Forbidden(f"only {whose} may {what}, since the job is {whose}'s; ask {whose}, or {others}")

    def check_priority(self, caller: Caller, priority: float) -> None:
        most = self._settings.highest_priority
        if priority > most and not caller.admin:
            raise UserError(
                f"priority {priority:g} is more than users may ask for here, which is {most:g} (setting max_priority); "
                f"ask for {most:g} or less, or ask an admin, who may give a job any priority"
            )

    def job_role(self, caller: Caller) -> str:
        """The role that requests of a caller's jobs have at most; empty: that of the user whom they run as."""
        uid = caller.uid if self._settings.shared else os.geteuid()
        limited = not caller.admin and uid != NO_ACCOUNT and self.known(uid, caller.via).admin
        return Role.USER.value if limited else ""

    def check_policy(self, caller: Caller, policy: str) -> None:
        """Refuse policies from files to other users: the code runs in the daemon, with all its rights."""
        named = caller.via in ("socket", "loopback")  # remote callers have their files elsewhere
        if _names_file(policy) and not (named and caller.uid in (0, os.geteuid())):
            me = name_of(os.geteuid())
            raise Forbidden(
                f"only {me} may set a policy from a file, and not by a token, since it becomes part of {me}'s daemon"
            )


def _names_file(policy: str) -> bool:
    """Whether a policy's text makes the daemon read a file; trained policies of the package are free for all."""
    trained = policy.strip().startswith(LEARNED)
    return ".py" in policy or (trained and parse_spec(policy).name.removeprefix(LEARNED) not in shipped())


_KEPT = 1.0  # seconds for which a process's limits are cached: it may submit hundreds of jobs
_MOST_KNOWN = 1000


class SubmitterLimits:
    """Reads the resource limits of submitting processes, and remembers them for a second."""

    def __init__(self, settings: Settings) -> None:
        self._shared = settings.shared
        self._known: dict[Peer | RemoteSocket, tuple[float, tuple[str, ...]]] = {}

    def limits(self, request: Request, caller: Caller) -> tuple[str, ...]:
        """The resource limits for the caller's jobs; empty: those of the daemon."""
        if caller.via in ("socket", "loopback") and not caller.by_page:
            return self._of(request.state, caller.via)
        if caller.limits is None:
            raise UserError("the limits (ulimit) of your browser could not be read; reload the page, and try again")
        return caller.limits

    def of_viewer(self, state: State, via: str) -> tuple[str, ...] | None:
        """The limits of the browser's process on this machine; None if they cannot be read."""
        try:
            return self._of(state, via)
        except UserError:
            return None

    def _of(self, state: State, via: str) -> tuple[str, ...]:
        who: Peer | RemoteSocket = state.peer if via == "socket" else state.far
        asked, limits = self._known.get(who, (0.0, ()))
        if time.monotonic() - asked < _KEPT:
            return limits
        found = _read_limits(who)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        if found is not None:
            self._known[who] = time.monotonic(), found
        if found is None and self._shared:  # a process that ends too early must not get the daemon's limits
            raise UserError("whoever submits a job must live until it is answered")
        return found or ()


def _read_limits(who: Peer | RemoteSocket) -> tuple[str, ...] | None:
    if isinstance(who, RemoteSocket):
        pid = process_with(who)
        return limits_of(pid, who.uid) if pid is not None else None
    return limits_of(who.pid, who.uid) if who.pid else ()
