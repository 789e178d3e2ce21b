"""Which time is looked at: the last hours or days, or from one instant to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

HOUR = 3600.0
PRESETS = {"1h": HOUR, "24h": 24 * HOUR, "7d": 168 * HOUR, "30d": 720 * HOUR}
"""Seconds back from now."""
NAMES = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
USUAL = "24h"
_STEP = 60.0  # the last day begins at a full minute, so that everybody asks for the same


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, in seconds since the epoch."""

    since: float
    until: float | None
    """None: up to now."""
    back: float | None = None
    """How far it goes back, if it moves on with the clock."""

    @property
    def query(self) -> dict[str, str]:
        """It as the API takes it."""
        found = {"since": iso(self.since)}
        return found if self.until is None else {**found, "until": iso(self.until)}


def fitting(oldest: float | None, latest: float | None, now: float) -> str:
    """The preset to begin with: an hour if that is all there is, else a day, or more where a day has nothing."""
    if oldest is None or now - oldest <= HOUR:
        return "1h"
    age = max(24 * HOUR, now - (oldest if latest is None else latest))
    return next((name for name, length in PRESETS.items() if age <= length), USUAL)


def window_of(span: str, since: str, until: str, now: float) -> Window:
    """What an address asks for: a preset, or instants; the last day if that makes no sense."""
    begin, end = instant(since), instant(until)
    if begin is not None and (end is None or end > begin):
        return Window(begin, end if end is not None and end < now else None)
    length = PRESETS.get(span, PRESETS[USUAL])
    return Window(math.floor((now - length) / _STEP) * _STEP, None, length)


def instant(text: str) -> float | None:
    """An instant with a zone, in seconds since the epoch; None if it is none."""
    try:
        found = datetime.fromisoformat(text)
        return found.timestamp() if found.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def iso(at: float) -> str:
    """An instant as addresses have it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def local(at: float | None, zone: tzinfo | None) -> str:
    """An instant as a field for times in the viewer's zone has it."""
    return "" if at is None else datetime.fromtimestamp(at, zone or UTC).strftime("%Y-%m-%dT%H:%M")


def given(text: str, zone: tzinfo | None) -> str:
    """What somebody put into such a field, as an address has it; empty if that is no time."""
    try:
        return iso(datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp())
    except (ValueError, OverflowError, OSError):
        return ""
