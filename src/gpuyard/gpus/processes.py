"""Who a process is, for people to read."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """What may be told of a process: of its command only the name, since arguments may hold secrets."""

    name: str
    user: str


def identify(pid: int) -> Identity | None:
    """Whose process this is, and what it is called; None if it is gone, or out of sight."""
    folder = Path("/proc", str(pid))
    try:
        name = (folder / "comm").read_text(errors="replace").strip()
        user = folder.stat().st_uid
    except OSError:
        return None
    return Identity(name, _user_name(user))


def describe_process(pid: int) -> str:
    """`process 6512 (python, user ann)`; `process 6512` if it is gone, or out of sight."""
    found = identify(pid)
    return f"process {pid}" if found is None else f"process {pid} ({found.name}, user {found.user})"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
