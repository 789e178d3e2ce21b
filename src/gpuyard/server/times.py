"""Times, as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache

_EXACT: ContextVar[bool] = ContextVar("exact", default=False)
"""Whether who asks wants times in sentences as programs read them, to write them as the clock of its user has them."""


def prefer(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Tell times in the sentences of this answer as its head asks for it: `Prefer: times=iso`."""
    _EXACT.set(any(name == b"prefer" and b"times=iso" in value.replace(b" ", b"") for name, value in headers))


def iso(at: float | None) -> str | None:
    """A time as people and programs read it: ISO-8601 with the zone, down to the millisecond."""
    if at is None:
        return None
    seconds, milliseconds = divmod(int(at * 1000), 1000)
    begin, zone = _second(seconds)
    return f"{begin}.{milliseconds:03d}{zone}"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> tuple[str, str]:
    """A second in ISO-8601, and the zone; kept, because a long listing has many times of few seconds."""
    text = datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    return text[:19], text[19:]


def clock(at: float) -> str:
    """A time in a sentence."""
    try:
        if _EXACT.get():
            return iso(at) or ""
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return "no time that can be told"
