"""What comes in: requests, checked at the edge."""

from __future__ import annotations

import math
import os
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from gpuyard.config import Settings
from gpuyard.core.model import Request
from gpuyard.daemon.views import Work
from gpuyard.errors import UserError
from gpuyard.units import check_signal


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
    if "\0" in "".join((*value, *value.values())):
        raise ValueError("must not hold a NUL character")
    return value


Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string"})]
Environment = Annotated[
    dict[str, str],
    PlainValidator(_environment),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


def _readable(text: str) -> str:
    """The text with a mark in place of every byte that is no UTF-8: SQLite and terminals take none of those."""
    return os.fsencode(text).decode(errors="replace")


class Submission(BaseModel):
    """A job as its submitter describes it."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    command: Annotated[list[Text], Field(min_length=1, description="The program and its arguments; no shell.")]
    directory: Annotated[Text, Field(description="Where it runs: an absolute path.")]
    environment: Annotated[Environment, Field(description="All of its environment.")] = {}
    name: Annotated[str | None, Field(max_length=200, description="The command's own, if not said.")] = None
    tags: list[str] = []
    gpus: Annotated[int | None, Field(ge=1, description="How many GPUs; 1, or all of `from`, if not said.")] = None
    from_: Annotated[list[int] | None, Field(alias="from", description="Only these GPUs will do.")] = None
    gpu_memory: Annotated[float | None, Field(gt=0, description="Bytes on each GPU: it shares GPUs by memory.")] = None
    priority: Annotated[float, Field(allow_inf_nan=False, description="Higher goes first.")] = 0.0
    estimate: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Seconds it should take.")] = None
    time_limit: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Seconds it may take.")] = None
    grace: Annotated[float | None, Field(ge=0, allow_inf_nan=False, description="Seconds from TERM to KILL.")] = None
    umask: Annotated[int, Field(ge=0, le=0o777, description="What files that it makes may not permit.")] = 0o022
    requeue: bool = False
    hold: bool = False
    preemptible: Annotated[bool, Field(description="Whether it may be stopped so that others can run.")] = False
    signal: Annotated[str, Field(description="What asks it to stop then; all its processes get it.")] = "TERM"
    notice: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="Seconds from `signal` to its end, at a time limit too."),
    ] = None

    def work(self, settings: Settings) -> Work:
        """What it is to run."""
        if not self.directory.startswith("/"):
            raise UserError(f"directory must be an absolute path, not '{self.directory}'")
        if not self.command[0]:
            raise UserError("the command is empty")
        if self.notice and self.notice >= (self.time_limit or math.inf):
            raise UserError("the signal would come before it begins: let its notice be shorter than its time limit")
        return Work(
            command=tuple(self.command),
            directory=self.directory,
            name=self.name or _readable(self.command[0].rpartition("/")[2]),
            tags=tuple(self.tags),
            time_limit=self.time_limit,
            grace=settings.grace if self.grace is None else self.grace,
            requeue=self.requeue,
            output_limit=settings.output_limit,
            umask=self.umask,
            estimated=self.estimate is not None or self.time_limit is not None,
            signal=check_signal(self.signal),
            notice=self.notice or 0.0,
        )

    def _notice(self, settings: Settings) -> float:
        """Seconds that it may take to stop."""
        return self.notice or (settings.grace if self.grace is None else self.grace)

    def request(self, user: str, settings: Settings) -> Request:
        """What a policy may know of it."""
        estimate = self.estimate or self.time_limit or settings.default_estimate or math.inf
        return Request(
            gpus=self.gpus or len(self.from_ or ()) or 1,
            estimate=min(estimate, self.time_limit or math.inf),
            memory=self.gpu_memory or 0.0,
            compute=0.0 if self.gpu_memory else 100.0,
            priority=self.priority,
            user=user,
            preemptible=self.preemptible,
            notice=self._notice(settings) if self.preemptible else 0.0,
            scope=tuple(self.from_ or ()),
        )


class Cancellation(BaseModel):
    """How to end a job."""

    grace: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None


class PolicyChoice(BaseModel):
    """How to plan from now on."""

    policy: str
    discipline: str | None = None
    placement: str | None = None
