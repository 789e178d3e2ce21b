"""What can go wrong, and whose fault it was. A class's docstring is its default message."""

from __future__ import annotations

import errno
from collections.abc import Iterable

_PASSING = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EIO)
)


def is_passing(error: BaseException) -> bool:
    """Whether an error is the system's, for now: no file descriptors, memory or room on the disk are left, say."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _PASSING)


class GpuyardError(Exception):
    """Something went wrong in gpuyard."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class UserError(GpuyardError):
    """The input cannot be used as it is."""


class Mistakes(UserError):
    """Several errors in the input, one per line."""


class Bug(GpuyardError):
    """gpuyard broke one of its own rules; please report this."""


def memory_limit() -> str:
    """What to do where little memory is allowed; empty if nothing limits it."""
    import resource  # here, because few need it

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = f"{most / 2**20:,.0f} MiB of address space are allowed here (ulimit -v)"
    return "" if most == resource.RLIM_INFINITY else f"only {allowed}; allow more, best unlimited"


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'sjf'?`, or nothing when no known word is near."""
    import difflib  # here, because its import takes as long as reading a command line

    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
