"""Whether the users and groups that somebody names are known to this machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuyard.cli import output

if TYPE_CHECKING:
    from gpuyard.client import Client


def warn_of_unknown(client: Client, names: Iterable[str]) -> None:
    """Say which users and groups (`@name`) are not known here: a slip of the pen would do nothing, silently."""
    if client.host is not None:  # those of that machine count
        return
    for name in names:
        if name != "*" and not _is_known(name):
            kind, bare = ("group", name[1:]) if name.startswith("@") else ("user", name)
            output.say(f"gpuyard: warning: this machine knows no {kind} {bare}; it counts once there is one")


def _is_known(name: str) -> bool:
    import grp
    import pwd

    try:
        if name.startswith("@"):
            grp.getgrnam(name[1:])
        else:
            pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True
