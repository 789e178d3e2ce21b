"""Instants at the edge: people write `16:00`, `tomorrow` or `fri 14:00`; inside are seconds since the epoch.

Days are counted in the calendar of this machine's zone, or of one that is given, so that tomorrow at 8 is at 8, also
when clocks change tonight.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, tzinfo

from gpuyard.errors import UserError
from gpuyard.units import parse_duration

_NAMED = {"midnight": time(0), "noon": time(12), "fika": time(15), "teatime": time(16), "elevenses": time(11)}
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?(am|pm)?|(\d{1,2})(am|pm)")
_DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)|(\d\d?)[/.](\d\d?)(?:[/.](\d\d(?:\d\d)?))?")
_LATER = re.compile(r"(?:now\s*)?\+\s*(.+)")
_UNIT = re.compile(r"([\d.]+)\s*(sec|min|hour|day|week)[a-z]*")
_EXAMPLES = "16:00, tomorrow, 'fri 14:00', now+1hour or 2026-11-20T08:00"


def parse_when(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The instant that a text means at `now`, in a zone or this machine's; a time of day alone is the next such."""
    words = " ".join(text.lower().split())
    try:
        if words == "now":
            return now
        if later := _LATER.fullmatch(words):
            return now + _span(later[1])
        if (exact := _iso(text.strip(), zone)) is not None:
            return exact
        return _in_calendar(words, datetime.fromtimestamp(now, zone), now)
    except (ValueError, OverflowError, UserError):
        raise UserError(f"'{text}' is not a time; write for example {_EXAMPLES}") from None


def last_clock(text: str, now: datetime) -> datetime | None:
    """When a clock in this machine's zone last showed `14:00` before `now`; None if it is no time of day."""
    if _TIME.fullmatch(text.strip()) is None or (clock := _clock(text.strip())) is None:
        return None
    here = now.astimezone()
    today = datetime.combine(here.date(), clock).astimezone()
    return today if today <= here else datetime.combine(here.date() - timedelta(days=1), clock).astimezone()


def format_when(at: float, now: float) -> str:
    """`14:03:20` if that is today, else with the date."""
    then = datetime.fromtimestamp(at)
    today = then.date() == datetime.fromtimestamp(now).date()
    return then.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def _span(text: str) -> float:
    """Seconds in `90m`, `1hour` or `2 days`."""
    named = _UNIT.fullmatch(text)
    return parse_duration(f"{named[1]}{named[2][0]}" if named else text)


def is_relative(text: str) -> bool:
    """Whether it is counted from now, as `+90m` is: then it means the same in every zone."""
    words = " ".join(text.lower().split())
    return words == "now" or _LATER.fullmatch(words) is not None


def _iso(text: str, zone: tzinfo | None) -> float | None:
    """Seconds since the epoch of an instant in ISO-8601 with a time; None if it is none."""
    if not re.match(r"\d{4}-\d\d-\d\d[T ]\d", text):
        return None
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def _in_calendar(words: str, here: datetime, now: float) -> float:
    """The instant that words for a day, a time of day or both mean; what is left out is the next that fits."""
    day: date | None = None
    clock: time | None = None
    weekly = False
    for word in _joined(words).split():
        found_day, found_clock = _day(word, here), _clock(word)
        if found_day is not None and day is None:
            day, weekly = found_day, word[:3] in _WEEKDAYS
        elif found_clock is not None and clock is None:
            clock = found_clock
        else:
            raise ValueError(word)
    if day is None and clock is None:
        raise ValueError(words)
    at = datetime.combine(day or here.date(), clock or time(0), here.tzinfo)
    if at.timestamp() <= now and (day is None or weekly):
        at = datetime.combine(at.date() + timedelta(days=7 if weekly else 1), at.time(), here.tzinfo)
    return at.timestamp()


def _joined(words: str) -> str:
    """`4 pm` is one word."""
    return re.sub(r"(\d)\s+(am|pm)\b", r"\1\2", words)


def _day(word: str, here: datetime) -> date | None:
    today = here.date()
    if word in ("today", "tomorrow"):
        return today + timedelta(days=word == "tomorrow")
    if word in (*_WEEKDAYS, *_FULL):
        return today + timedelta(days=(_WEEKDAYS.index(word[:3]) - today.weekday()) % 7)
    if (found := _DATE.fullmatch(word)) is None:
        return None
    if found[1]:
        return date(int(found[1]), int(found[2]), int(found[3]))
    year = int(found[6]) if found[6] else today.year
    given = date(year if year > 99 else 2000 + year, int(found[4]), int(found[5]))  # month first, as Slurm reads it
    return given.replace(year=given.year + 1) if not found[6] and given < today else given


def _clock(word: str) -> time | None:
    if word in _NAMED:
        return _NAMED[word]
    if (found := _TIME.fullmatch(word)) is None:
        return None
    hour, half = int(found[1] or found[5]), found[4] or found[6]
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(word)
        hour = hour % 12 + 12 * (half == "pm")
    return time(hour, int(found[2] or 0), int(found[3] or 0))
