"""Field types of requests: texts, numbers and times with their limits, schemas and descriptions."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, PlainValidator, WithJsonSchema

from gpuyard.errors import UserError
from gpuyard.spec import kinds
from gpuyard.spec.fields import FIELD
from gpuyard.spec.fields import MOST_INDEX as MOST_INDEX
from gpuyard.spec.fields import MOST_SECONDS as MOST_SECONDS
from gpuyard.spec.job_field import JobField
from gpuyard.units import check_share

_LARGEST = 2e10  # seconds since the epoch; pydantic would take more for milliseconds
LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()  # the latest time that is accepted
ONE_WORD = r"^[^\s/\x00]*$"  # A text that can be part of a URL path


def _text(value: Any) -> str:
    """Any text that a process can be given, also such as is not valid UTF-8 (surrogates stand for those bytes)."""
    if not isinstance(value, str):
        raise ValueError('must be a text, as in "train"')
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError("must not hold half a character") from None
    return value


def _environment(value: Any) -> dict[str, str]:
    """Such texts by name; checked all at once, because there are many."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise ValueError('must be texts by name, as in {"SEED": "7"}')
    _text("".join((*value, *value.values())))
    if "" in value or "=" in "".join(value):
        raise ValueError("a variable's name must not be empty, nor hold a '='")
    return value


def _word(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    return value


def _whole(value: Any) -> Any:
    """2.0 is a whole number to JSON; `"2"` is not, and true is none at all."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _complete(value: str | None) -> str | None:
    """A text for the store, which takes no lone surrogates."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise ValueError("must not hold half a character") from None
    return value


def _told_plainly(value: Any) -> Any:
    """Accept only numbers of seconds and ISO-8601."""
    if isinstance(value, str) and value[4:5] != "-":
        raise ValueError("must be a time in ISO-8601, as in 2026-11-16T09:00:00+01:00")
    if isinstance(value, bool) or (isinstance(value, int | float) and not 0 <= value <= _LARGEST):
        raise ValueError("must be a time: seconds since the epoch, or ISO-8601")
    return value


def _since(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _timestamp(value: datetime) -> float:
    try:
        return value.timestamp()
    except (OverflowError, ValueError, OSError):  # without a zone, and at the edge of time
        return math.inf


def _instant(value: datetime | None) -> datetime | None:
    if value is not None and not 0 <= _timestamp(value) <= LAST:
        raise ValueError("must be a time between 1970 and 9000")
    return value


def _scope(value: list[int] | None) -> list[int] | None:
    if value is not None and not value:
        raise ValueError("names no GPU; leave it out if any will do")
    return value


def _share(value: float | None) -> float | None:
    try:
        if value is not None:
            check_share(value)
    except UserError as error:
        raise ValueError(str(error)) from None
    return value


_NO_NUL = r"^[^\x00]*$"
_SEVERAL = (kinds.WORDS, kinds.LIST, kinds.INDICES, kinds.VARIABLES)


def declared(name: str, **more: Any) -> Any:
    field = FIELD[name]
    several = field.kind in _SEVERAL
    longest = field.most_items if several else field.longest
    limits = {"ge": field.least, "gt": field.above, "le": field.most, "max_length": longest}
    given: dict[str, Any] = {limit: value for limit, value in limits.items() if value is not None}
    if several and field.kind is not kinds.VARIABLES:
        given["fail_fast"] = True  # one message, and not one for each of thousands of entries
    return Field(**{"description": field.description or None, **given, **more})


def _each(name: str) -> Any:
    """The limit of each of several texts."""
    return Field(max_length=FIELD[name].longest)


def _told(name: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": _NO_NUL, "maxLength": FIELD[name].longest})


def _in_all(name: str) -> AfterValidator:
    """The limit of texts together."""
    most = FIELD[name].largest

    def check(value: Any) -> Any:
        texts = (*value, *value.values()) if isinstance(value, dict) else value or ()
        if most is not None and sum(map(len, texts)) > most:
            raise ValueError(f"has more than {most:,} characters in all; put what is long into a file")
        if isinstance(value, dict) and max(map(len, value.values()), default=0) > (FIELD[name].longest or 0):
            raise ValueError(
                f"has a variable of more than {FIELD[name].longest:,} characters, which no process can have"
            )
        return value

    return AfterValidator(check)


_SECONDS = {"type": "number", "minimum": 0, "maximum": _LARGEST}
_INSTANT: dict[str, Any] = {"anyOf": [{"type": "string", "format": "date-time"}, _SECONDS]}
Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string", "pattern": _NO_NUL})]
Word = Annotated[str, AfterValidator(_word), WithJsonSchema({"type": "string", "pattern": _NO_NUL})]
Tags = Annotated[list[Annotated[Word, _each("tags"), _told("tags")]], declared("tags")]
WHOLE = BeforeValidator(_whole)  # behind limits: those that come later are not in the schema
Index = Annotated[int, Field(ge=0, le=MOST_INDEX, strict=True), WHOLE]
Instant = Annotated[
    AwareDatetime | None,
    Field(strict=False),
    BeforeValidator(_told_plainly),
    AfterValidator(_instant),
    WithJsonSchema({"anyOf": [*_INSTANT["anyOf"], {"type": "null"}]}),
]
Since = Annotated[
    datetime | None,
    BeforeValidator(_told_plainly),
    BeforeValidator(_since),
    AfterValidator(_instant),
    WithJsonSchema(_INSTANT),
]
Environment = Annotated[
    dict[str, str],
    PlainValidator(_environment),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": r"^[^=\x00]+$"},
            "additionalProperties": {"type": "string", "pattern": _NO_NUL},
        }
    ),
]
Command = Annotated[
    list[Annotated[Text, _each("command"), _told("command")]], declared("command", min_length=1), _in_all("command")
]
Directory = Annotated[Text, declared("directory", description="Where it runs: an absolute path.")]
Script = Annotated[Text, declared("script"), _told("script")]
Variables = Annotated[Environment, declared("variables"), _in_all("variables")]
WholeEnvironment = Annotated[Environment, _in_all("environment")]
Gpus = Annotated[int | None, declared("gpus"), WHOLE]
From = Annotated[
    list[Index] | None, declared("from", alias="from", json_schema_extra={"minItems": 1}), AfterValidator(_scope)
]
GpuMemory = Annotated[
    float | None,
    Field(
        gt=0,
        allow_inf_nan=False,
        description="Bytes on each GPU, 1 MiB or more: it shares GPUs by memory.",
        json_schema_extra={"minimum": FIELD["gpu_memory"].least},
    ),
    AfterValidator(_share),
]
GpuShare = Annotated[GpuMemory | Literal["auto"], Field(description=FIELD["gpu_memory"].description)]
Priority = Annotated[float, declared("priority", allow_inf_nan=False)]
Estimate = Annotated[float | None, declared("estimate")]
TimeLimit = Annotated[float | None, declared("time_limit")]
Grace = Annotated[float | None, declared("grace")]
ArrayText = Annotated[Word | None, declared("array")]
_PLAIN = {
    kinds.SWITCH: bool, kinds.WHOLE: int, kinds.NUMBER: float, kinds.DURATION: float, kinds.TEXT: Word,
    kinds.SIGNAL: Word, kinds.DEPENDENCY: Word, kinds.PATH: Text,
}  # fmt: skip


def request_type(field: JobField) -> Any:
    if field.kind is kinds.SHARE:
        return GpuShare
    if field.kind is kinds.INDICES:
        return From
    if field.kind is kinds.INSTANT:
        return Annotated[Instant, declared(field.name)]
    if field.kind in (kinds.WORDS, kinds.LIST):
        plain: Any = list[Annotated[Word, _each(field.name), _told(field.name)]]
    else:
        plain = Literal[field.choices] if field.kind is kinds.CHOICE else _PLAIN[field.kind]
    kind: Any = plain if field.default is not None else plain | None
    if field.kind is kinds.WHOLE:
        return Annotated[kind, declared(field.name), WHOLE]
    if field.kind is kinds.NUMBER:
        return Annotated[kind, declared(field.name, allow_inf_nan=False)]
    if field.kind is kinds.DEPENDENCY:
        return Annotated[kind, declared(field.name), AfterValidator(_complete)]
    return Annotated[kind, declared(field.name)]
