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
_PLAIN = 19
"""Characters of `2017-10-09 07:01:55`."""


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
    """Reads many times fast: days and times of day recur, so each is worked out once."""

    def __init__(self) -> None:
        self._days: dict[str, float] = {}
        self._clocks: dict[str, float] = {}

    def seconds(self, text: str) -> float:
        """As `parse_time`."""
        day, clock = self._days.get(text[:10]), self._clocks.get(text[10:])
        if day is not None and clock is not None:
            return day + clock
        seconds = parse_time(text)
        if len(text) == _PLAIN:  # a zone or a fraction would make each text a new one
            day = self._days[text[:10]] = parse_time(text[:10])
            self._clocks[text[10:]] = seconds - day
        return seconds
