"""What can go wrong, and whose fault it was. A class's docstring is its default message."""

from __future__ import annotations

from collections.abc import Iterable


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


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'sjf'?`, or nothing when no known word is near."""
    import difflib  # here, because its import takes as long as reading a command line

    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
