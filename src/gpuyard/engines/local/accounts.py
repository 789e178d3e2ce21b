"""Users of this machine, as the system knows them. Read again each time, so that changes count."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass

from gpuyard.engines.base import LaunchRefused

NOBODY = 65534  # the group of a user whom the system knows by a number only: one that owns nothing


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # what a login would put into the environment


def name_of(uid: int) -> str:
    """A user's name; the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def uid_of(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def groups_of(uid: int) -> frozenset[int]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    return frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))


def group_names(uid: int) -> tuple[str, ...]:
    """The names of a user's groups, the main one first."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return ()
    names = [_group_name(gid) for gid in os.getgrouplist(entry.pw_name, entry.pw_gid)]
    return tuple(filter(None, dict.fromkeys(names)))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


def account_of(user: str) -> Account | None:
    """The account for a user's job; None if that is our own."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
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
