"""Who a process is, for people to read."""

from __future__ import annotations

import pwd
from pathlib import Path


def describe_process(pid: int) -> str:
    """`process 6512 (python, user ann)`; `process 6512` if it is gone, or out of sight."""
    folder = Path("/proc", str(pid))
    try:
        name = (folder / "comm").read_text(errors="replace").strip()
        user = folder.stat().st_uid
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name}, user {_user_name(user)})"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
