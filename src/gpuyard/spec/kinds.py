"""Kinds of job fields: how a text is read, how a value is written, and what JSON and the command line call it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.errors import UserError
from gpuyard.units import (
    format_number,
    format_size,
    parse_duration,
    parse_indices,
    parse_share,
    parse_signal,
    parse_size,
)

if TYPE_CHECKING:
    from datetime import tzinfo

TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


class Moment(NamedTuple):
    """When and where a text is read: `16:00` means another instant in another zone."""

    now: float
    zone: tzinfo | None = None


class Kind(NamedTuple):
    """A kind of value. `format` writes a value so that `parse` reads the same value back."""

    name: str
    json: str
    """The type of its JSON schema."""
    parse: Callable[[str, Moment], Any]
    format: Callable[[Any], str] = str
    option: type = str
    """What an option of the command line holds; `list`: the option may be repeated."""
    commas: bool = False
    """Whether a text may hold several values, separated by commas."""
    unit: str = ""
    example: str = ""
    wanted: str = ""
    """What messages call a value, if not `a NAME`."""


def number_range(least: float | None, most: float | None, above: float | None = None) -> str:
    """` from 0 to 1,000`, ` of 1 or more` or nothing: the limits of a number, for messages."""
    if above is not None:
        return f" above {above:,.15g}"
    if least is not None and most is not None:
        return f" from {least:,.15g} to {most:,.15g}"
    if least is not None:
        return f" of {least:,.15g} or more"
    return "" if most is None else f" of at most {most:,.15g}"


def _switch(text: str, moment: Moment) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise UserError(f"'{text}' is neither true nor false")
    return text.lower() in TRUE


def _whole(text: str, moment: Moment) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"'{text}' is not a whole number") from None


def _number(text: str, moment: Moment) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"'{text}' is not a number")
    return number


def format_exact_duration(seconds: float) -> str:
    """`90m`, `2d` or `12.5s`: one unit, without rounding."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{format_number(seconds)}s"


def _instant(text: str, moment: Moment) -> float:
    from gpuyard.spec.times import parse_when  # here, because few jobs have a time, and submitting must be fast

    return parse_when(text, moment.now, moment.zone)


def _format_instant(value: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(value, UTC).isoformat()


def _share(text: str, moment: Moment) -> int | str:
    return text if text == "auto" else parse_share(text)


def _format_share(value: float | str) -> str:
    if isinstance(value, str):
        return value
    short = format_size(value)
    return short if parse_size(short) == value else format_number(value)


def split_words(text: str) -> list[str]:
    """Words between commas and blanks, each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def _dependency(text: str, moment: Moment) -> str:
    from gpuyard.spec.notation import parse_dependency

    parse_dependency(text)
    return text


def _array(text: str, moment: Moment) -> str:
    from gpuyard.spec.notation import parse_array

    parse_array(text)
    return text


def parse_variables(text: str) -> dict[str, str]:
    """`NAME=VALUE` lines."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not equals or not name or any(letter.isspace() for letter in name):
            shown = line[:12] + ("…" if len(line) > 12 else "")  # the rest may be a secret
            raise UserError(f"each line is NAME=VALUE; this one is not: {shown}")
        found[name] = value
    return found


def _as_it_is(text: str, moment: Moment) -> str:
    return text


def _joined(words: Iterable[Any]) -> str:
    return ",".join(map(str, words))


SWITCH = Kind(
    "switch", "boolean", _switch, lambda value: str(value).lower(), option=bool, example="true", wanted="true or false"
)
WHOLE = Kind("whole number", "integer", _whole, option=int, example="2")
NUMBER = Kind("number", "number", _number, format_number, option=float, example="1.5")
DURATION = Kind(
    "duration", "number", lambda text, moment: parse_duration(text), format_exact_duration, unit="seconds",
    example="90m",
)  # fmt: skip
INSTANT = Kind("time", "number", _instant, _format_instant, unit="seconds since the epoch", example="tomorrow 8:00")
SHARE = Kind("size or auto", "number", _share, _format_share, unit="bytes", example="6G", wanted="a size, or auto")
TEXT = Kind("text", "string", _as_it_is, example="baseline")
PATH = Kind("path", "string", _as_it_is, example="run-%j.log")
"""May hold bytes that are not UTF-8, as names of files do."""
CHOICE = Kind("choice", "string", _as_it_is)
SIGNAL = Kind("signal", "string", lambda text, moment: parse_signal(text)[0], example="USR1")
DEPENDENCY = Kind("dependency", "string", _dependency, commas=True, example="afterok:12")
ARRAY = Kind("array", "string", _array, commas=True, example="0-99%4", wanted="an array")
INDICES = Kind(
    "GPU indices", "array", lambda text, moment: parse_indices(text), _joined, commas=True, example="0,1,3",
    wanted="a list of GPU indices",
)  # fmt: skip
WORDS = Kind(
    "words", "array", lambda text, moment: split_words(text), ", ".join, option=list, example="paper",
    wanted="a list of words",
)  # fmt: skip
LIST = Kind("list of words", "array", lambda text, moment: split_words(text), ", ".join, commas=True)
"""Words in one option, separated by commas."""
VARIABLES = Kind(
    "variables", "object", lambda text, moment: parse_variables(text),
    lambda value: "\n".join(f"{name}={text}" for name, text in value.items()), option=list, example="SEED=7",
    wanted="an object of texts",
)  # fmt: skip
NAMES = Kind("names of variables", "string", _as_it_is, commas=True, example="ALL", wanted="names of variables")
KINDS = (
    SWITCH, WHOLE, NUMBER, DURATION, INSTANT, SHARE, TEXT, PATH, CHOICE, SIGNAL, DEPENDENCY, ARRAY, INDICES, WORDS,
    LIST, VARIABLES, NAMES,
)  # fmt: skip
