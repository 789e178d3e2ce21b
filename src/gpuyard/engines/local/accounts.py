"""Users of this machine, as the system knows them. Read again each time, so that changes count."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpuyard.engines.base import EngineError, LaunchRefused

_Entry = TypeVar("_Entry", pwd.struct_passwd, grp.struct_group)
_Key = TypeVar("_Key", int, str)

NOBODY = 65534  # the group of a user whom the system knows by a number only: one that owns nothing


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # what a login would put into the environment


def _find(look_up: Callable[[_Key], _Entry], key: _Key) -> _Entry | None:
    """An entry of the system; None if there is none. Without a file descriptor the system says so of everybody."""
    try:
        return look_up(key)
    except (KeyError, ValueError):
        try:
            os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise EngineError(f"users cannot be looked up now: {error.strerror}; try again") from error
        return None


def name_of(uid: int) -> str:
    """A user's name; the number if there is none."""
    entry = _find(pwd.getpwuid, uid)
    return entry.pw_name if entry else str(uid)


def uid_of(name: str) -> int | None:
    entry = _find(pwd.getpwnam, name)
    return entry.pw_uid if entry else None


def groups_of(uid: int) -> frozenset[int]:
    entry = _find(pwd.getpwuid, uid)
    return frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)) if entry else frozenset()


def group_names(uid: int) -> tuple[str, ...]:
    """The names of a user's groups, the main one first."""
    if (entry := _find(pwd.getpwuid, uid)) is None:
        return ()
    groups = [_find(grp.getgrgid, gid) for gid in os.getgrouplist(entry.pw_name, entry.pw_gid)]
    return tuple(dict.fromkeys(group.gr_name for group in groups if group))


def account_of(user: str) -> Account | None:
    """The account for a user's job; None if that is our own."""
    if (entry := _find(pwd.getpwnam, user)) is None:
        return _nameless(user)
    if entry.pw_uid == os.geteuid():
        return None
    groups = tuple(os.getgrouplist(user, entry.pw_gid))
    shell = entry.pw_shell or "/bin/sh"
    variables = (("HOME", entry.pw_dir), ("USER", user), ("LOGNAME", user), ("SHELL", shell))
    return _allowed(Account(entry.pw_uid, entry.pw_gid, groups, variables), user)


def _nameless(user: str) -> Account | None:
    """A user known by number only, unless it is a name that is gone, or was given to another."""
    if not user.isdecimal() or name_of(int(user)) != user:
        raise LaunchRefused(f"there is no user {user} on this machine any more")
    if int(user) == os.geteuid():
        return None
    return _allowed(Account(int(user), NOBODY), user)


def _allowed(account: Account, user: str) -> Account:
    if os.geteuid() != 0:
        raise LaunchRefused(f"only a daemon of root can run jobs of {user}; this one is of {name_of(os.geteuid())}")
    return account
