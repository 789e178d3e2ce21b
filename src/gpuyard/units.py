"""Units at the edge: people write `20G` and `90m`; inside are bytes and seconds."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Sequence

from gpuyard.errors import UserError

_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TIME = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)\s*([smhdw]?)", re.IGNORECASE)
_PARTS = re.compile(
    r"(?:(\d+)\s*w\s*)?(?:(\d+)\s*d\s*)?(?:(\d+)\s*h\s*)?(?:(\d+)\s*m\s*)?(?:(\d+(?:\.\d*)?)\s*s)?", re.IGNORECASE
)
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "URG", "XCPU", "WINCH")
"""Signals that can ask a job to stop."""
_DAYS = re.compile(r"(\d+)-(\d+)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d(?:\.\d*)?))?")


def parse_size(text: str) -> float:
    """Bytes in `6G`, `512MiB` or `1024`; a unit is always a power of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"'{text}' is not a size; write for example 6G, 512M or a number of bytes")
    return float(match[1]) * _SIZES[match[2].upper()]


LEAST_SHARE = 2**20  # bytes; fewer are surely a number without its unit


def check_share(size: float) -> int:
    """Bytes of a GPU's memory, at least `LEAST_SHARE`."""
    if size < LEAST_SHARE:
        raise UserError(f"{format_number(size)} bytes of a GPU's memory are too few; write a unit, as in 6G or 512M")
    return int(size)


def parse_share(text: str) -> int:
    return check_share(parse_size(text))


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90m`, `1.5h`, `1h30m`, `02:30:00` or Slurm's `1-12` and `1-12:00:00`."""
    text = text.strip()
    if clock := _CLOCK.fullmatch(text):
        days, first, second, third = clock.groups()
        if third is None and days is None:  # MM:SS, as Slurm reads it
            return int(first) * 60.0 + int(second)
        return int(days or 0) * 86400.0 + int(first) * 3600.0 + int(second) * 60.0 + float(third or 0)
    if match := _DAYS.fullmatch(text):
        return int(match[1]) * 86400.0 + int(match[2]) * 3600.0
    if match := _TIME.fullmatch(text):
        return float(match[1]) * _TIMES[match[2].lower()]
    if text and (parts := _PARTS.fullmatch(text)):  # as `format_duration` writes it
        return sum(float(part or 0) * _TIMES[unit] for part, unit in zip(parts.groups(), "wdhms", strict=True))
    raise UserError(f"'{text}' is not a duration; write for example 90s, 90m, 1.5h, 1h30m or 1-12:00:00")


def check_signal(text: str) -> str:
    """`USR1` for `USR1`, `sigusr1` or `10`."""
    if text in SIGNALS:
        return text
    known = {str(signal.Signals[f"SIG{name}"].value): name for name in SIGNALS}
    name = known.get(text, text.upper().removeprefix("SIG"))
    if name not in SIGNALS:
        raise UserError(f"'{text}' is not a signal to stop by; write one of {', '.join(SIGNALS)}")
    return name


def parse_signal(text: str) -> tuple[str, float | None]:
    """`USR1@90`, or `USR1@2m`: a signal, and how many seconds before the end it is sent; None if not given."""
    name, at, time = text.strip().partition("@")
    if ":" in name:
        raise UserError(f"--signal {text}: a signal goes to all processes of a job; write {text.partition(':')[2]}")
    seconds = parse_duration(time) if at else None
    if seconds is not None and not 0 < seconds < math.inf:
        raise UserError(f"--signal {text}: the time after @ must be above 0")
    return check_signal(name), seconds


def format_size(size: float) -> str:
    """`6G` for 6442450944: the largest unit that keeps the number at one or above."""
    for unit in ("T", "G", "M", "K"):
        if abs(size) >= _SIZES[unit]:
            return f"{size / _SIZES[unit]:.4g}{unit}"
    return f"{size:.4g}"


def format_interval(value: float, ends: Sequence[float], show: Callable[[float], str], *, share: bool = False) -> str:
    """`± 5m`; `(4m to 9m)` where the value is not in the middle, and of shares, whose ± could be of the share."""
    below, above = value - ends[0], ends[1] - value
    if share or not math.isclose(below, above, rel_tol=1e-6):
        return f"({show(ends[0])} to {show(ends[1])})"
    return f"± {show(above)}"


def format_duration(seconds: float) -> str:
    """`12.5s`, `1m 20s`, `3h 05m` or `2d 03h`: two units at most, short enough for a table cell."""
    if not math.isfinite(seconds):
        return str(seconds)
    if abs(seconds) < 59.95:
        return f"{seconds:.4g}s"
    sign, whole = ("-" if seconds < 0 else ""), abs(seconds)
    for large, small, size, step in (("m", "s", 60, 1), ("h", "m", 3600, 60), ("d", "h", 86400, 3600)):
        many, rest = divmod(round(whole / step), size // step)
        if large == "d" or many * size < {"m": 3600, "h": 86400}[large]:
            return f"{sign}{many}{large} {rest:02d}{small}"
    raise AssertionError("unreachable: days take any number")


def format_number(value: float) -> str:
    """The shortest text that reads back as the same number: `3335`, `200.82`."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def format_plain(value: float, digits: int = 4) -> str:
    """`11,801`, `0.7569`: that many significant digits, all digits before the point, and no exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 0.001 or value == 0 else f"{value:.6f}"


def parse_indices(text: str) -> list[int]:
    """`0,1,3` or `0-3,6` as numbers, each once, in the order given."""
    found: list[int] = []
    for part in text.replace(",", " ").split():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"'{text}' is not a list of GPUs; write their indices, as in 0,1,3 or 0-3")
        found += range(int(first), min(int(last), int(first) + 4096) + 1) if dash else [int(first)]
    if not found:
        raise UserError("no GPU is named; write indices, as in 0,1,3 or 0-3")
    return list(dict.fromkeys(found))
