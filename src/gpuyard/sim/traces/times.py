"""Points in time as files and people write them: `2017-10-09 07:01:55`, in UTC, to seconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from gpuyard.errors import UserError
from gpuyard.sim.traces.columns import number
from gpuyard.sim.traces.source import quoted

_WHEN = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(\.\d+)?)?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = 5e8, 5e9
"""Late 1985 and 2128: seconds from a trace's own zero are hardly ever in between, dates nearly always."""
_SECONDS = {f"{n:02d}": float(n) for n in range(60)}
_MINUTES = {f"{n // 60:02d}:{n % 60:02d}:": n * 60.0 for n in range(24 * 60)}
_PLAIN = 19  # characters of `2017-10-09 07:01:55`


def parse_time(text: str) -> float:
    """Seconds since 1970 of a date, with or without a time; UTC where no zone is given."""
    match = _WHEN.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{quoted(text)} is not a time; write for example 2017-10-09 or 2017-10-09 07:01:55")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        date = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC)
    except ValueError:
        raise UserError(f"{quoted(text)} is not a time: there is no such day or hour") from None
    return (date - _EPOCH).total_seconds() + float(fraction or 0) - _offset(zone)


def _offset(zone: str | None) -> float:
    if zone is None or zone in ("Z", "UTC"):
        return 0.0
    seconds = int(zone[1:3]) * 3600.0 + int(zone[-2:]) * 60.0
    return -seconds if zone[0] == "-" else seconds


def parse_instant(text: str) -> float:
    """A date as above, or plain seconds on the trace's own clock."""
    seconds = number(text)
    return seconds if -1e12 < seconds < 1e12 else parse_time(text)


def format_time(seconds: float) -> str:
    """`2017-10-09T07:01:55Z`."""
    return (_EPOCH + timedelta(seconds=round(seconds))).strftime("%Y-%m-%dT%H:%M:%SZ")


def are_dates(first: float, last: float) -> bool:
    """Whether a trace's times look like seconds since 1970 rather than since its own beginning."""
    return _EARLIEST <= first <= last <= _LATEST


class Calendar:
    """Reads many times fast: a day is computed once, and a time of day without a look at the calendar."""

    def __init__(self) -> None:
        self._days: dict[str, float] = {}

    def seconds(self, text: str) -> float:
        day = self._days.get(text[:11])
        minute, second = _MINUTES.get(text[11:17]), _SECONDS.get(text[17:])
        if day is not None and minute is not None and second is not None:
            return day + minute + second
        seconds = parse_time(text)  # the first time of a day, or one with a fraction or a zone
        if len(text) == _PLAIN:
            self._days[text[:11]] = parse_time(text[:10])
        return seconds
