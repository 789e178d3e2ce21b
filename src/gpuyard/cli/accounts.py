"""Whether the users and groups that somebody names are known to this machine."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable

from gpuyard.cli import output


def warn_of_unknown(names: Iterable[str]) -> None:
    """Say which users and groups (`@name`) are not known here: a slip of the pen would do nothing, silently."""
    for name in names:
        if name != "*" and not _is_known(name):
            kind, bare = ("group", name[1:]) if name.startswith("@") else ("user", name)
            output.say(f"gpuyard: warning: this machine knows no {kind} {bare}; it counts once there is one")


def _is_known(name: str) -> bool:
    try:
        if name.startswith("@"):
            grp.getgrnam(name[1:])
        else:
            pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True
