"""What comes in: requests, checked at the edge."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)

from gpuyard.arrays import parse_array
from gpuyard.config import Settings
from gpuyard.core.model import Request
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.views import Work
from gpuyard.errors import Bug, UserError
from gpuyard.notices.urls import is_url
from gpuyard.units import check_share, check_signal

MOST_INDEX = 1_000_000
"""No machine has as many GPUs."""
MOST_SECONDS = 1e10
"""Three hundred years: longer than anything takes, and all such times can be told."""
_LARGEST = 2e10  # seconds since the epoch; pydantic would take more for milliseconds
LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""The last time that anybody may mean."""
RETRY_DELAY = 30.0
"""Seconds before the first retry, if nobody says otherwise."""
MOST_SCRIPT = 2**22


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


def _whole(value: str | None) -> str | None:
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
Index = Annotated[int, Field(ge=0, le=MOST_INDEX, strict=True)]
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
Gpus = Annotated[int | None, Field(ge=1, le=MOST_INDEX, description="How many GPUs; 1, or all of `from`, if not said.")]
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
Priority = Annotated[float, Field(allow_inf_nan=False, description="Higher goes first.")]
Estimate = Annotated[float | None, Field(gt=0, le=MOST_SECONDS, description="Seconds it should take.")]
TimeLimit = Annotated[float | None, Field(gt=0, le=MOST_SECONDS, description="Seconds it may take.")]
Grace = Annotated[float | None, Field(ge=0, le=MOST_SECONDS, description="Seconds from TERM to KILL.")]
Begin = Annotated[Instant, Field(description="Not before: seconds since the epoch, or ISO-8601.")]
Deadline = Annotated[Instant, Field(description="When it should be done; policies may look at it.")]
Dependency = Annotated[
    Word | None,
    Field(description="Jobs that must end first: `afterok:12:13,afterany:name`."),
    AfterValidator(_whole),
]
Retries = Annotated[int, Field(ge=0, le=1000, description="How often it is run again if it fails.")]
RetryDelay = Annotated[float | None, Field(ge=0, le=3600, description="Seconds before the first retry, then doubled.")]
File = Annotated[Text | None, Field(description="A file for it, with patterns like %j, opened by the job's side.")]
Preemptible = Annotated[bool, Field(description="Whether it may be stopped so that others can run.")]
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


_EMPTY: dict[str, Any] = {
    "tags": (), "time_limit": None, "requeue": False, "retries": 0, "retry_delay": RETRY_DELAY, "output": "",
    "error": "", "open_mode": "", "slurm": False, "signal": "TERM", "notice": 0.0, "notify": (), "notify_on": (),
}  # fmt: skip
"""What work is like where a wish is taken back; its grace is then that of the settings."""


def _program(command: Sequence[str]) -> str:
    """What a command is called, with a mark in place of every byte that is no UTF-8: SQLite takes none of those."""
    return os.fsencode(command[0].rpartition("/")[2]).decode(errors="replace")


def _check_command(command: list[str], directory: str) -> None:
    if not directory.startswith("/"):
        raise UserError(f"directory must be an absolute path, not '{directory}'")
    if not command[0]:
        raise UserError("the command is empty")


class Asked(BaseModel):
    """What is asked for jobs and leases alike."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    gpus: Gpus = None
    from_: From = None
    gpu_memory: GpuMemory = None
    priority: Priority = 0.0
    estimate: Estimate = None
    time_limit: TimeLimit = None

    @property
    def estimated(self) -> bool:
        """Whether anybody said how long it takes."""
        return self.estimate is not None or self.time_limit is not None

    def request(self, settings: Settings) -> Request:
        """What a policy may know of it."""
        return self._request_with(settings, preemptible=False)

    def _request_with(self, settings: Settings, **more: Any) -> Request:
        estimate = self.estimate or self.time_limit or settings.default_estimate or math.inf
        return Request(
            gpus=self.gpus or len(self.from_ or ()) or 1,
            estimate=min(estimate, self.time_limit or math.inf),
            memory=self.gpu_memory or 0.0,
            compute=0.0 if self.gpu_memory else 100.0,
            priority=self.priority,
            scope=tuple(self.from_ or ()),
            limit=self.time_limit or math.inf,
            **more,
        )


class AskedForJob(Asked):
    """What is asked for jobs, and may change while they wait."""

    name: Name = None
    grace: Grace = None
    requeue: bool = False
    begin: Begin = None
    deadline: Deadline = None
    dependency: Dependency = None
    retries: Retries = 0
    retry_delay: RetryDelay = None
    output: File = None
    error: File = None
    open_mode: OpenMode = None
    slurm: Annotated[bool, Field(description="Whether it is given the variables that Slurm would give it.")] = False
    preemptible: Preemptible = False
    signal: Signal = "TERM"
    notice: Notice = None
    notify: Notify = None
    notify_on: NotifyOn = None


class Submission(AskedForJob):
    """A job as its submitter describes it."""

    command: Command
    directory: Annotated[
        Text | None, Field(description="Where it runs: an absolute path, or ~/PATH; the home directory if not said.")
    ] = None
    environment: Annotated[
        Environment | None, Field(description="All of its environment; if not said, that of a login.")
    ] = None
    variables: Annotated[Environment, Field(description="What comes on top of its environment.")] = {}
    tags: Tags = []
    umask: Annotated[int, Field(ge=0, le=0o777, description="What files that it makes may not permit.")] = 0o022
    hold: bool = False
    array: ArrayWish = None
    script: Annotated[Text | None, Field(description="A text that is run in place of the command's first word.")] = None

    def wanted(self, settings: Settings) -> Wanted:
        """The job, or the array, as the desk takes it; whose it is, is not for the submitter to say."""
        return Wanted(
            self.work(settings), self.request(settings), self.environment or {}, self.hold, self.dependency or "",
            self.array or "", self.script or "",
        )  # fmt: skip

    def work(self, settings: Settings) -> Work:
        """What it is to run."""
        directory = self.directory or ""
        _check_command(self.command, directory)
        _check_script(self.script)
        if self.notice and self.notice >= (self.time_limit or math.inf):
            raise UserError("the signal would come before it begins: let its notice be shorter than its time limit")
        return Work(
            command=tuple(self.command),
            directory=directory,
            name=self.name or _program(self.command),
            tags=tuple(self.tags),
            time_limit=self.time_limit,
            grace=settings.grace if self.grace is None else self.grace,
            requeue=self.requeue,
            output_limit=settings.output_limit,
            umask=self.umask,
            estimated=self.estimated,
            retries=self.retries,
            retry_delay=RETRY_DELAY if self.retries and self.retry_delay is None else self.retry_delay or 0.0,
            output=self.output or "",
            error=self.error or "",
            open_mode=self.open_mode or "",
            slurm=self.slurm,
            signal=check_signal(self.signal),
            notice=self.notice or 0.0,
            notify=_kept(self.notify or ()),
            notify_on=tuple(self.notify_on or ()),
        )

    def _notice(self, settings: Settings) -> float:
        """Seconds that it may take to stop."""
        return self.notice or (settings.grace if self.grace is None else self.grace)

    def request(self, settings: Settings) -> Request:
        """What a policy may know of it."""
        return self._request_with(
            settings,
            preemptible=self.preemptible,
            notice=self._notice(settings) if self.preemptible else 0.0,
            begin=self.begin.timestamp() if self.begin else 0.0,
            deadline=self.deadline.timestamp() if self.deadline else math.inf,
        )


class Batch(BaseModel):
    """Jobs that are taken in together, or not at all; `@0` in a dependency is the first of them."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[Submission], Field(min_length=1)]
    environment: Annotated[Environment | None, Field(description="Of those jobs that have none of their own.")] = None

    def complete(self) -> list[Submission]:
        """The jobs, each with its environment."""
        common = {"environment": self.environment}
        return [one if "environment" in one.model_fields_set else one.model_copy(update=common) for one in self.jobs]


class Changes(AskedForJob):
    """What a job is to ask for instead; what is left out stays, and null takes it back."""

    tags: Tags | None = None

    @property
    def given(self) -> set[str]:
        """What is to change, as JSON calls it."""
        return {name.rstrip("_") for name in self.model_fields_set}

    def applied(self, work: Work, request: Request, settings: Settings) -> tuple[Work, Request]:
        """Work and request as they are to be."""
        changed = self._work(work, settings)
        told = self._estimate_told(work, request) is not None or changed.time_limit is not None
        return replace(changed, estimated=told), self._request(work, changed, request, settings)

    def _work(self, work: Work, settings: Settings) -> Work:
        empty = {**_EMPTY, "grace": settings.grace}
        given = {name: getattr(self, name) for name in empty.keys() & self.model_fields_set}
        found = {name: empty[name] if value is None else value for name, value in given.items()}
        found |= {name: tuple(found[name]) for name in ("tags", "notify_on") if name in found}
        if "notify" in found:
            found["notify"] = _kept(found["notify"])
        if "name" in self.model_fields_set:
            found["name"] = self.name or _program(work.command)
        if "signal" in found:
            found["signal"] = check_signal(self.signal)
        if found.get("retries") and not work.retry_delay and "retry_delay" not in found:
            found["retry_delay"] = RETRY_DELAY
        return replace(work, **found)

    def _request(self, before: Work, after: Work, request: Request, settings: Settings) -> Request:
        given = self.model_fields_set
        found: dict[str, Any] = {}
        if "priority" in given:
            found["priority"] = self.priority
        if given & {"gpus", "from_"}:
            scope = tuple(self.from_ or ()) if "from_" in given else request.scope
            found["scope"] = scope
            found["gpus"] = self.gpus or (len(scope) if "from_" in given else 0) or 1
        if "gpu_memory" in given:
            found["memory"], found["compute"] = self.gpu_memory or 0.0, 0.0 if self.gpu_memory else 100.0
        if "begin" in given:
            found["begin"] = self.begin.timestamp() if self.begin else 0.0
        if "deadline" in given:
            found["deadline"] = self.deadline.timestamp() if self.deadline else math.inf
        if "preemptible" in given:
            found["preemptible"] = self.preemptible
        if given & {"preemptible", "notice", "grace"}:
            may_stop = found.get("preemptible", request.preemptible)
            found["notice"] = (after.notice or after.grace) if may_stop else 0.0
        if given & {"estimate", "time_limit", "grace"}:
            limit = after.time_limit or math.inf
            found["limit"] = limit
            found["estimate"] = min(self._estimate(before, request, settings), limit)
        return replace(request, **found)

    def _estimate(self, before: Work, request: Request, settings: Settings) -> float:
        """Seconds that it should take; without an estimate of its own, its limit, or what is usual."""
        usual = settings.default_estimate or math.inf
        limit = self.time_limit if "time_limit" in self.model_fields_set else before.time_limit
        return self._estimate_told(before, request) or limit or usual

    def _estimate_told(self, before: Work, request: Request) -> float | None:
        """Its estimate, if there is one of its own."""
        if "estimate" in self.model_fields_set:
            return self.estimate
        return request.estimate if before.estimated and request.estimate != before.time_limit else None


class Copy(Changes):
    """How a new job is to differ from the one that it is a copy of."""

    command: Command | None = None
    directory: Directory | None = None
    hold: bool = False
    array: ArrayWish = None

    def copied(self, work: Work, request: Request, settings: Settings) -> Wanted:
        """The new job; whom the old one had to follow, and when it was to begin, was for the old one."""
        fresh = replace(request, after=(), begin=0.0, deadline=math.inf, array="", at_most=0)
        work, request = self.applied(replace(work, task=None, tasks=None), fresh, settings)
        if self.command is not None:
            is_usual = work.name == _program(work.command) and self.name is None
            name = _program(self.command) if is_usual else work.name
            work = replace(work, command=tuple(self.command), script="", name=name)
        work = replace(work, directory=self.directory or work.directory)
        _check_command(list(work.command), work.directory)
        if self.array:
            parse_array(self.array)
        return Wanted(work, request, {}, self.hold, self.dependency or "", self.array or "")


def _kept(refs: Sequence[str]) -> tuple[str, ...]:
    """Who is to be told of a job, as the log may have it: a URL, which is a secret, has been replaced by then."""
    if any(is_url(ref) for ref in refs):
        raise Bug("a URL to send notifications to would have come into the log; please report this")
    return tuple(refs)


def _check_script(script: str | None) -> None:
    if script is not None and len(script) > MOST_SCRIPT:
        raise UserError(f"the script has more than {MOST_SCRIPT // 2**20} MiB; let it be short, and call the rest")
    if script is not None and not script.startswith("#!"):
        raise UserError("the script does not say what runs it; begin it with a line like #!/bin/bash")


class Cancellation(BaseModel):
    """How to end a job."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grace: Grace = None


class PolicyChoice(BaseModel):
    """How to plan from now on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    policy: Annotated[Word, Field(description="`NAME[:SETTING=VALUE,...][@DISCIPLINE[@PLACEMENT]]`.")]
    discipline: Annotated[Word | None, Field(description="As before, if not said.")] = None
    placement: Annotated[Word | None, Field(description="As before, if not said.")] = None
