"""Bodies of requests for jobs: submissions, batches, changes and copies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, create_model

from gpuyard.config import Settings
from gpuyard.core.model import Request
from gpuyard.daemon.commands import Edit
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.profiles import check_profile
from gpuyard.errors import Bug, UserError
from gpuyard.gpus.simulated import said_use
from gpuyard.notify.subscriptions import is_url
from gpuyard.predict.signatures import reads_text
from gpuyard.server.request_fields import (
    WHOLE,
    ArrayText,
    Command,
    Directory,
    Estimate,
    From,
    GpuMemory,
    Gpus,
    Grace,
    Priority,
    Script,
    Tags,
    Text,
    TimeLimit,
    Variables,
    WholeEnvironment,
    Word,
    declared,
    request_type,
)
from gpuyard.spec.fields import FIELDS, LONGEST_PATH
from gpuyard.spec.notation import default_name, is_default_name, parse_array
from gpuyard.spec.work import DEFAULTS, Work
from gpuyard.units import check_signal

RETRY_DELAY = 30.0  # default number of seconds before the first retry


def check_command(command: list[str], directory: str) -> None:
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
        return self.estimate is not None or self.time_limit is not None

    @property
    def gpu_count(self) -> int:
        return self.gpus or len(self.from_ or ()) or 1

    def request(self, settings: Settings) -> Request:
        return self._request_with(settings, preemptible=False)

    def _request_with(self, settings: Settings, **more: Any) -> Request:
        estimate = self.estimate or self.time_limit or settings.default_estimate or math.inf
        return Request(
            gpus=self.gpu_count,
            estimate=min(estimate, self.time_limit or math.inf),
            **share(self.gpu_memory),
            priority=self.priority,
            scope=tuple(self.from_ or ()),
            limit=self.time_limit or math.inf,
            **more,
        )


def share(memory: float | str | None) -> dict[str, Any]:
    """The part of a `Request` about a share; `auto` is a whole GPU until the share is known."""
    return {"memory": memory, "compute": 0.0} if isinstance(memory, float | int) else {"memory": 0.0, "compute": 100.0}


if TYPE_CHECKING:

    class _JobFields(Asked):
        gpu_memory: float | Literal["auto"] | None = None  # type: ignore[assignment]  # of a lease nothing can be found out

        def __getattr__(self, name: str) -> Any: ...

else:
    _JobFields = create_model(
        "_JobFields",
        __base__=Asked,
        **{
            field.name: (request_type(field), field.default)
            for field in FIELDS
            if field.editable and field.name not in ("from", "tags", *(Asked.model_fields.keys() - {"gpu_memory"}))
        },
    )


class AskedForJob(_JobFields):
    """What is asked for jobs, and may change while they wait."""

    def _stored(self, names: Iterable[str], settings: Settings, command: Sequence[str]) -> dict[str, Any]:
        """These fields as `Work` has them, with what the settings say where nothing is asked for."""
        found: dict[str, Any] = {}
        for name in names:
            value = getattr(self, name)
            if value is None:
                value = getattr(settings, name) if name in _IN_SETTINGS else DEFAULTS[name]
            found[name] = tuple(value) if isinstance(value, list) else value
        if "name" in found:
            found["name"] = found["name"] or default_name(command)
        if "signal" in found:
            found["signal"] = check_signal(found["signal"])
        if any(is_url(ref) for ref in found.get("notify", ())):
            raise Bug("a URL to send notifications to would have come into the log; please report this")
        return found


_STORED = frozenset(field.name for field in FIELDS if field.stored and field.editable)
_IN_SETTINGS = ("grace", "oom_retries")


class BatchRow(BaseModel):
    """Where a job of a batch stands in its file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: Annotated[int, Field(ge=1, le=10**9, description="1, 2, 3 ..."), WHOLE]
    wave: Annotated[int, Field(ge=1, le=10**9, description="The wave that it starts with."), WHOLE] = 1
    epochs: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    priority: Annotated[float, Field(allow_inf_nan=False, description="As the file says it.")] = 0.0


class Submission(AskedForJob):
    """A job as its submitter describes it."""

    command: Command
    directory: Annotated[Text | None, declared("directory")] = None
    environment: Annotated[WholeEnvironment | None, declared("environment")] = None
    variables: Variables = {}  # noqa: RUF012  # pydantic copies defaults
    tags: Tags = []  # noqa: RUF012
    umask: Annotated[int, Field(ge=0, le=0o777, description="What files that it makes may not permit."), WHOLE] = 0o022
    hold: bool = False
    array: ArrayText = None
    script: Script | None = None
    attach: Annotated[
        list[Word], Field(max_length=8, description="Words before the command that tie it to a terminal.")
    ] = []  # noqa: RUF012
    own_id: Annotated[bool, Field(description="Whether `{id}` in its command is its id.")] = False
    row: Annotated[BatchRow | None, Field(description="Of a batch: where it stands in the file.")] = None

    def wanted(self, settings: Settings, work: Work | None = None, **owner: str) -> JobRequest:
        """The job, or the array, for the daemon's intake; `owner` says whose it is, if the server does not later."""
        return JobRequest(
            work or Work(**self.work_fields(settings)), self.request(settings, **owner), self.environment or {},
            self.hold, self.dependency or "", self.array or "", self.script or "", self.own_id,
        )  # fmt: skip

    def work_fields(self, settings: Settings) -> dict[str, Any]:
        """What its `Work` is made of; the server adds whose it is."""
        directory, row = self.directory or "", self.row
        check_command(self.command, directory)
        _check_script(self.script)
        if self.profile is not None and not check_profile(self.profile) and reads_text(self.command):
            raise UserError(
                "a shell's text has no place for other arguments: give a time to try it out for, as in --profile 30s, "
                "or put it into a script"
            )
        if self.thread_percentage and not self.mps:
            raise UserError("a thread percentage is for clients of MPS: give --mps as well, or leave it out")
        if self.notice and self.notice >= (self.time_limit or math.inf):
            raise UserError("the signal would come before it begins: let its notice be shorter than its time limit")
        stored = self._stored(_STORED, settings, self.command)
        if self.retries and self.retry_delay is None:
            stored["retry_delay"] = RETRY_DELAY
        simulated = bool(settings.simulate_gpus)
        stored["simulate_use"] = said_use(self.simulate_use, self.environment or {}, self.command, simulated=simulated)
        return {
            **stored,
            "command": tuple(self.command),
            "directory": directory,
            "output_limit": settings.output_limit,
            "umask": self.umask,
            "attach": tuple(self.attach),
            "estimated": self.estimated,
            "auto_memory": self.gpu_memory == "auto" or (self.gpu_memory is None and bool(self.profile)),
            "row": None if row is None else (row.number, row.wave, row.epochs, row.priority),
        }

    def _notice(self, settings: Settings) -> float:
        return self.notice or (settings.grace if self.grace is None else self.grace)

    def request(self, settings: Settings, **owner: str) -> Request:
        return self._request_with(
            settings,
            **owner,
            preemptible=self.preemptible,
            notice=self._notice(settings) if self.preemptible else 0.0,
            begin=self.begin.timestamp() if self.begin else 0.0,
            deadline=self.deadline.timestamp() if self.deadline else math.inf,
        )


class BatchName(BaseModel):
    """What jobs that belong together are called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[Word, Field(min_length=1, max_length=200)]
    key: Annotated[Word, Field(max_length=200, description="What tells that a file is the same.")] = ""
    waves: Annotated[
        bool, Field(description="Whether they start in their order, and a wave when the one before is over.")
    ] = False
    again: Annotated[bool, Field(description="Whether it is taken though a batch of yours with this key is open.")] = (
        False
    )


class Batch(BaseModel):
    """Jobs that are taken in together, or not at all; `@0` in a dependency is the first of them."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[Submission], Field(min_length=1)]
    environment: Annotated[WholeEnvironment | None, Field(description="Of those jobs that have none of their own.")] = (
        None
    )
    batch: Annotated[BatchName | None, Field(description="What they are called together.")] = None
    skip_refused: Annotated[
        StrictBool, Field(description="Whether those that can never run here are left out, and the others taken.")
    ] = False

    def complete(self) -> list[Submission]:
        return [self._complete(number, one) for number, one in enumerate(self.jobs, 1)]

    def _complete(self, number: int, one: Submission) -> Submission:
        more: dict[str, Any] = {}
        if "environment" not in one.model_fields_set:
            more["environment"] = self.environment
        if self.batch is not None and one.row is None:
            more["row"] = BatchRow(number=number, priority=one.priority)
        return one.model_copy(update=more) if more else one


def _check_script(script: str | None) -> None:
    if script is not None and not script.startswith("#!"):
        raise UserError("the script does not say what runs it; begin it with a line like #!/bin/bash")


class Cancellation(BaseModel):
    """How to end a job."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grace: Grace = None


class PolicyChoice(BaseModel):
    """How to plan from now on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    policy: Annotated[
        Word, Field(max_length=LONGEST_PATH, description="`NAME[:SETTING=VALUE,...][@DISCIPLINE[@PLACEMENT]]`.")
    ]
    discipline: Annotated[Word | None, Field(max_length=LONGEST_PATH, description="As before, if not said.")] = None
    placement: Annotated[Word | None, Field(max_length=LONGEST_PATH, description="As before, if not said.")] = None
    force: Annotated[
        bool, Field(description="Also a trained policy that has not passed its gate; who did so is remembered.")
    ] = False


class Changes(AskedForJob):
    """What a job is to ask for instead; what is left out stays, and null takes it back."""

    tags: Tags | None = None

    @property
    def given(self) -> set[str]:
        """The names of the changed fields, as JSON has them."""
        return {name.rstrip("_") for name in self.model_fields_set}

    @property
    def plain(self) -> dict[str, Any]:
        """The changed fields, as JSON has them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def edit(self, settings: Settings) -> Edit:
        dependency = (self.dependency or "") if "dependency" in self.given else None
        return Edit(self.given, lambda work, asked: self.applied(work, asked, settings), dependency)

    def applied(self, work: Work, request: Request, settings: Settings) -> tuple[Work, Request]:
        """Work and request after the changes."""
        changed = self._work(work, settings)
        told = self._estimate_told(work, request) is not None or changed.time_limit is not None
        if changed.estimated != told:
            changed = replace(changed, estimated=told)
        return changed, self._request(work, changed, request, settings)

    def _work(self, work: Work, settings: Settings) -> Work:
        found = self._stored(_STORED & self.model_fields_set, settings, work.command)
        if "gpu_memory" in self.model_fields_set:
            found |= {"auto_memory": self.gpu_memory == "auto", "asked_memory": 0.0}
        taken_back = "retry_delay" in found and self.retry_delay is None
        if taken_back or (found.get("retries") and not work.retry_delay and "retry_delay" not in found):
            found["retry_delay"] = RETRY_DELAY
        return replace(work, **found) if found else work

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
            found |= share(self.gpu_memory)
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
        return replace(request, **found) if found else request

    def _estimate(self, before: Work, request: Request, settings: Settings) -> float:
        """Seconds: its own estimate, else its limit, else the default."""
        usual = settings.default_estimate or math.inf
        limit = self.time_limit if "time_limit" in self.model_fields_set else before.time_limit
        return self._estimate_told(before, request) or limit or usual

    def _estimate_told(self, before: Work, request: Request) -> float | None:
        if "estimate" in self.model_fields_set:
            return self.estimate
        return request.estimate if before.estimated and request.estimate != before.time_limit else None


class Copy(Changes):
    """How a new job is to differ from the one that it is a copy of."""

    command: Command | None = None
    directory: Directory | None = None
    hold: bool = False
    array: ArrayText = None

    def copied(self, work: Work, request: Request, settings: Settings) -> JobRequest:
        """The new job, without the old one's dependencies, begin time and deadline."""
        fresh = replace(request, after=(), begin=0.0, deadline=math.inf, array="", at_most=0)
        new = replace(
            work, task=None, tasks=None, shared="", attach=(), predicted=None, profiles="", ooms=0, blameless=0
        )
        work, request = self.applied(new, fresh, settings)
        if self.command is not None:
            is_usual = self.name is None and is_default_name(work.name, work.command)
            name = default_name(self.command) if is_usual else work.name
            work = replace(work, command=tuple(self.command), script="", name=name)
        work = replace(work, directory=self.directory or work.directory)
        check_command(list(work.command), work.directory)
        if self.array:
            parse_array(self.array)
        return JobRequest(work, request, {}, self.hold, self.dependency or "", self.array or "")
