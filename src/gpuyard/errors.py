"""What can go wrong, and whose fault it was. A class's docstring is its default message."""

from __future__ import annotations

import errno
from collections.abc import Iterable

_PASSING = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EIO)
)


_LONGEST_WORD, _MOST_WORDS = 80, 1000  # of what is compared: it takes as long as both together


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


def told_by(error: BaseException) -> str:
    """What a user's own code raised, whatever that is, in a line: `ZeroDivisionError: division by zero`.

    What may be Ctrl-C is raised again; the daemon gets that as a signal, not as an exception.
    """
    import signal  # here, because few need it

    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:  # that is its own code as well
        text = type(error).__name__
    return "".join(letter if letter.isprintable() else " " for letter in text[:300])


def memory_limit() -> str:
    """What to do where little memory is allowed; empty if nothing limits it."""
    import resource  # here, because few need it

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = f"{most / 2**20:,.0f} MiB of address space are allowed here (ulimit -v)"
    return "" if most == resource.RLIM_INFINITY else f"only {allowed}; allow more, best unlimited"


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'sjf'?`, or nothing when no known word is near."""
    import difflib  # here, because its import takes as long as reading a command line

    near = difflib.get_close_matches(word[:_LONGEST_WORD].lower(), list(known)[:_MOST_WORDS], n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
