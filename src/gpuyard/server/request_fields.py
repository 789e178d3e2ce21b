"""Field types of requests: texts, numbers and times with their limits, schemas and descriptions."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, PlainValidator, WithJsonSchema

from gpuyard.errors import UserError
from gpuyard.units import check_share

MOST_INDEX = 1_000_000
"""No machine has as many GPUs."""
MOST_SECONDS = 1e10
"""Three hundred years: longer than anything takes, and all such times can be told."""
_LARGEST = 2e10  # seconds since the epoch; pydantic would take more for milliseconds
LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""The last time that anybody may mean."""
ONE_WORD = r"^[^\s/\x00]*$"
"""What has a place in an address."""


def _text(value: Any) -> str:
    """Any text that a process can be given, also such as is not valid UTF-8 (surrogates stand for those bytes)."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError("must not hold half a character") from None
    return value


def _environment(value: Any) -> dict[str, str]:
    """Such texts by name; all at once, since there are many."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise ValueError("must be texts by name")
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
    """What is looked for in the store, which knows no half characters."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise ValueError("must not hold half a character") from None
    return value


def _told_plainly(value: Any) -> Any:
    """What is no number of seconds, and no time in ISO-8601, is not guessed at."""
    if isinstance(value, str) and value[4:5] != "-":
        raise ValueError("must be a time in ISO-8601, as in 2026-11-16T09:00:00+01:00")
    if isinstance(value, bool) or (isinstance(value, int | float) and not 0 <= value <= _LARGEST):
        raise ValueError("must be a time: seconds since the epoch, or ISO-8601")
    return value


def _since(value: Any) -> Any:
    """The same in a query, where a number is a text as well."""
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
    """A time that people may mean, and that can be told in every zone."""
    if value is not None and not 0 <= _timestamp(value) <= LAST:
        raise ValueError("must be a time between 1970 and 9000")
    return value


def _scope(value: list[int] | None) -> list[int] | None:
    """GPUs, if any are named at all."""
    if value is not None and not value:
        raise ValueError("names no GPU; leave it out if any will do")
    return value


def _share(value: float | None) -> float | None:
    """Memory of a GPU that somebody may mean."""
    try:
        if value is not None:
            check_share(value)
    except UserError as error:
        raise ValueError(str(error)) from None
    return value


_NO_NUL = r"^[^\x00]*$"
_SECONDS = {"type": "number", "minimum": 0, "maximum": _LARGEST}
_INSTANT: dict[str, Any] = {"anyOf": [{"type": "string", "format": "date-time"}, _SECONDS]}
Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string", "pattern": _NO_NUL})]
Word = Annotated[str, AfterValidator(_word), WithJsonSchema({"type": "string", "pattern": _NO_NUL})]
Tags = Annotated[list[Word], Field(description="Words of your own, to find it by.")]
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
Command = Annotated[list[Text], Field(min_length=1, description="The program and its arguments; no shell.")]
Directory = Annotated[Text, Field(description="Where it runs: an absolute path.")]
Name = Annotated[Word | None, Field(max_length=200, description="The command's own, if not said.")]
Gpus = Annotated[
    int | None, Field(ge=1, le=MOST_INDEX, description="How many GPUs; 1, or all of `from`, if not said."), WHOLE
]
From = Annotated[
    list[Index] | None,
    Field(alias="from", description="Only these GPUs will do.", json_schema_extra={"minItems": 1}),
    AfterValidator(_scope),
]
GpuMemory = Annotated[
    float | None,
    Field(
        gt=0,
        allow_inf_nan=False,
        description="Bytes on each GPU, 1 MiB or more: it shares GPUs by memory.",
        json_schema_extra={"minimum": 2**20},
    ),
    AfterValidator(_share),
]
GpuShare = Annotated[
    GpuMemory | Literal["auto"],
    Field(description="Bytes on each GPU, 1 MiB or more: it shares GPUs by memory; `auto`: as its like has used."),
]
SimulateUse = Annotated[Word | None, Field(description="What it uses of simulated GPUs, as in `ramp:391M,713M,1045M`.")]
OomRetries = Annotated[
    int | None, Field(ge=0, le=100, description="How often it is run again, with more, if it runs out of GPU memory.")
]
ThreadPercentage = Annotated[
    float | None, Field(ge=1, le=100, description="Of a client of MPS: how much of the GPU's threads it may have.")
]
Profile = Annotated[
    Word | None,
    Field(description="Try it out first if nothing is known of its like: `30s`, or arguments like `--epochs=2`."),
]
Priority = Annotated[float, Field(allow_inf_nan=False, description="Higher goes first.")]
Estimate = Annotated[float | None, Field(gt=0, le=MOST_SECONDS, description="Seconds it should take.")]
TimeLimit = Annotated[float | None, Field(gt=0, le=MOST_SECONDS, description="Seconds it may take.")]
Grace = Annotated[float | None, Field(ge=0, le=MOST_SECONDS, description="Seconds from TERM to KILL.")]
Begin = Annotated[Instant, Field(description="Not before: seconds since the epoch, or ISO-8601.")]
Deadline = Annotated[Instant, Field(description="When it should be done; policies may look at it.")]
Dependency = Annotated[
    Word | None,
    Field(description="Jobs that must end first: `afterok:12:13,afterany:name`."),
    AfterValidator(_complete),
]
Retries = Annotated[int, Field(ge=0, le=1000, description="How often it is run again if it fails."), WHOLE]
RetryDelay = Annotated[float | None, Field(ge=0, le=3600, description="Seconds before the first retry, then doubled.")]
File = Annotated[Text | None, Field(description="A file for it, with patterns like %j, opened by the job's side.")]
Preemptible = Annotated[bool, Field(description="Whether it may be stopped so that others can run.")]
Adaptive = Annotated[
    bool,
    Field(description="Whether it adapts to what it is granted: it may be lent idle GPUs, and told to leave them."),
]
Signal = Annotated[Word, Field(description="What asks it to stop then; all its processes get it.")]
Notice = Annotated[
    float | None, Field(gt=0, le=MOST_SECONDS, description="Seconds from `signal` to its end, at a limit too.")
]
ArrayWish = Annotated[Word | None, Field(description="Tasks of an array: `0-99%4`.")]
Notify = Annotated[
    list[Word] | None,
    Field(
        max_length=10, description="Who is told of it: names of subscriptions, URLs, `all`, `none`; all if not said."
    ),
]
NotifyOn = Annotated[
    list[Word] | None, Field(max_length=20, description="Of what, in place of what each of them says.")
]
OpenMode = Annotated[Literal["append", "truncate"] | None, Field(description="How those files are opened.")]
