"""From root to nobody: where the daemon is root's, the page needs none of that."""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("gpuyard.page")
NOBODY = 65534
_VARIABLE = "GPUYARD_PAGE_USER"


def is_due() -> bool:
    """Whether this process is to become nobody."""
    return os.environ.get(_VARIABLE) == "nobody" and os.geteuid() == 0


def drop() -> None:
    """Become nobody, if the daemon says so; to be called when everything is imported."""
    if not is_due():
        return
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    missing = next((path for path in _needed() if not _can_read(path)), None)
    os.seteuid(0)
    os.setegid(0)
    if missing is not None:
        log.warning(
            "the page's process stays root's, since nobody may not read %s; install gpuyard where everybody may",
            missing,
        )
        return
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _needed() -> list[str]:
    """Python, and a file of each place that modules came from: what is imported later comes from there as well."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("os", "gpuyard", "nicegui", "numpy"))
    return [os.path.realpath(sys.executable), *(file for file in files if file)]


def _can_read(path: str) -> bool:
    try:
        os.listdir(os.path.dirname(path))
        with open(path, "rb"):
            return True
    except OSError:
        return False
