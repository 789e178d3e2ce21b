"""Reading a request: its query parameters, its JSON body, and its idempotency key."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError

from gpuyard.config import Settings
from gpuyard.core.model import Request as JobNeeds
from gpuyard.core.state import State
from gpuyard.daemon import limits as job_limits
from gpuyard.daemon.commands import Idempotency, KeyedRequest, known_answer
from gpuyard.daemon.context import Steps
from gpuyard.daemon.jobs.fingerprints import Fingerprints, digest_of
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.profiles import TAG
from gpuyard.engines.local.accounts import name_of
from gpuyard.errors import UserError, suggest
from gpuyard.predict.signatures import Signature, sign
from gpuyard.server.auth.permissions import Caller, SubmitterLimits
from gpuyard.server.context import Context
from gpuyard.server.paths import API
from gpuyard.server.responses import reply
from gpuyard.server.routes.submissions import Submission
from gpuyard.server.tasks import STATES
from gpuyard.spec.notation import script_of
from gpuyard.spec.work import Work


class Body(BaseModel):
    """A request body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class StrictBody(BaseModel):
    """The same, without conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NotJson(UserError):
    """The request is not JSON."""


_MOST_FIELDS, _MOST_ENTRIES, _DEPTH = 500, 2**16 + 1, 3
_FREE, _MOST_VARIABLES = ("environment", "variables"), 50_000  # objects whose keys are the user's


def read_json(body: bytes) -> Any:
    try:
        return _first_fields(json.loads(body))
    except RecursionError:
        raise NotJson("the request is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"the request is not JSON: {error}") from error


def _first_fields(value: Any, name: str = "", depth: int = _DEPTH) -> Any:
    """Of objects and lists with more than there can be, the first ones: they are refused, and millions take seconds."""
    if isinstance(value, list):
        value = value[:_MOST_ENTRIES]
        return [_first_fields(one, "", depth - 1) for one in value] if value and isinstance(value[0], dict) else value
    if name in _FREE and isinstance(value, dict) and len(value) > _MOST_VARIABLES:
        raise UserError(f"{name} has at most {_MOST_VARIABLES:,} variables; put what is long into a file")
    if not isinstance(value, dict) or name in _FREE or not depth:
        return value
    return {key: _first_fields(inner, key, depth - 1) for key, inner in islice(value.items(), _MOST_FIELDS)}


class JsonRequest(Request):
    """A request of which FastAPI, too, reads no more fields than there can be."""

    async def json(self) -> Any:
        return _first_fields(await super().json())


Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], given: Any, row: int = 0) -> Model:
    """A body, validated without FastAPI's general path; where it is a part of a batch, `row` is its first."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        parts = error.errors()
        for part in parts if row else ():
            part["loc"] = (*part["loc"][:1], *(row + int(at) for at in part["loc"][1:2]), *part["loc"][2:])
        raise RequestValidationError(parts) from error


_LONGEST = 80  # characters of an unknown name in a message


def check_parameters(given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise UserError(f"there is no parameter '{name[:_LONGEST]}'{suggest(name[:_LONGEST], known)} ({there})")


def states_in(text: str) -> frozenset[str]:
    """The states of a list as `failed,oom`; `waiting` is `queued,held`."""
    given = set(text.split(","))
    found = frozenset((given | ({"queued", "held"} if "waiting" in given else set())) - {"", "waiting"})
    for state in found:
        if state not in STATES:
            near = suggest(state[:_LONGEST], STATES)
            raise UserError(f"there is no state '{state[:_LONGEST]}'{near} (the states are {', '.join(STATES)})")
    return found


KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
_KEY = re.compile(r"[!-~]{1,255}")

Command = Callable[[], dict[str, Any] | Steps[dict[str, Any]]]  # run by the daemon's thread; returns the answer


class IdempotentRequests:
    """Runs commands that create something; a repeated request with the same key gets the first answer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repeats = Idempotency(context.daemon.context)

    async def __call__(
        self, request: Request, prepare: Callable[[], Awaitable[Command]], more: str = "", status: int = 201
    ) -> Response:
        """Run the prepared command, or answer as before. `more` is compared like the body."""
        if KEY_HEADER not in request.headers:
            return _answer(request, await self._context.ask(await prepare()), status=status)
        sent = await self._sent(request, more)
        before = self._context.reader.answer(sent.user, sent.key)
        if before is not None:  # also where the command would fail now
            return _answer(request, known_answer(sent, before), replayed=True, status=status)
        act = await prepare()
        answer, replayed = await self._context.ask(lambda: self._repeats.once(sent, act))
        return _answer(request, answer, replayed, status)

    async def _sent(self, request: Request, more: str) -> KeyedRequest:
        key = request.headers[KEY_HEADER]
        if len(request.headers.getlist(KEY_HEADER)) > 1 or not _KEY.fullmatch(key):
            raise UserError(
                f"{KEY_HEADER} must be one word of 1 to 255 visible characters of ASCII, a UUID for example"
            )
        asked = [request.method, request.url.path, read_json(await request.body() or b"{}"), more]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return KeyedRequest(self._context.permissions.name(request), key, digest)


def _answer(request: Request, answer: Any, replayed: bool = False, status: int = 201) -> Response:
    response = reply(answer, status)
    if "id" in answer:  # several jobs have no common URL
        kind = "leases" if request.scope["path"] == f"{API}/leases" else "jobs"
        response.headers["Location"] = f"{API}/{kind}/{answer['id']}"
    if replayed:
        response.headers[REPLAYED_HEADER] = "true"
    return response


_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
_DAEMON_VARIABLES = (
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "NOTIFY_SOCKET",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID",
)
_DAEMON_PREFIXES = ("GPUYARD_", "LISTEN_", "SLURM_", "WATCHDOG_")


def with_login_defaults(job: Submission, caller: Caller, settings: Settings) -> Submission:
    given = job.directory is not None and not job.directory.startswith("~")
    if given and job.environment is not None and not job.variables:
        return job
    account = _account(caller, settings)
    environment = _login_environment(account, settings) if job.environment is None else dict(job.environment)
    directory = _directory(job.directory, account)
    if job.slurm:
        environment.setdefault("SLURM_SUBMIT_DIR", directory)
    return job.model_copy(update={"directory": directory, "environment": environment | job.variables})


def _account(caller: Caller, settings: Settings) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(caller.uid if settings.shared else os.geteuid())
    except (KeyError, OverflowError):
        return None


def _directory(wanted: str | None, account: pwd.struct_passwd | None) -> str:
    if wanted is not None and wanted != "~" and not wanted.startswith("~/"):
        return wanted
    if account is None:
        raise UserError("you have no home directory on that machine; say where it is to run (directory)")
    return os.path.join(account.pw_dir, (wanted or "~")[2:]).rstrip("/") or "/"


def _login_environment(account: pwd.struct_passwd | None, settings: Settings) -> dict[str, str]:
    """The environment of a login; a user's own daemon passes on its own, without variables about itself."""
    found = {"PATH": _PATH, "LANG": os.environ.get("LANG", "C.UTF-8")}
    if not settings.shared:
        found |= {
            k: v for k, v in os.environ.items() if k not in _DAEMON_VARIABLES and not k.startswith(_DAEMON_PREFIXES)
        }
    if account is not None:
        name = name_of(account.pw_uid)
        shell = account.pw_shell or "/bin/sh"
        found |= {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "SHELL": shell}
    return found


class JobSignatures:
    def __init__(self, settings: Settings) -> None:
        self._settings, self._prints = settings, Fingerprints()

    async def __call__(self, wanted: Sequence[JobRequest], caller: Caller) -> list[JobRequest]:
        def content(one: JobRequest) -> str:
            return digest_of(one.script) if one.script else self.read(one.work.command, one.work.directory, caller)

        return await asyncio.to_thread(lambda: [self.signed(one, content(one)) for one in wanted])

    async def content(self, given: Submission, caller: Caller) -> str:
        """The hash of a job's script; empty if it has none, or it cannot be read."""
        if given.script:
            return digest_of(given.script)
        if not script_of(given.command):
            return ""
        return await asyncio.to_thread(self.read, given.command, given.directory or "", caller)

    def read(self, command: Sequence[str], directory: str, caller: Caller) -> str:
        """The hash of a command's script, if the caller may read it, else empty. Not for the daemon's thread."""
        script = script_of(command)
        uid = caller.uid if self._settings.shared else None
        return self._prints.of(os.path.join(directory, script), uid) if script else ""

    def signed(self, one: JobRequest, content: str) -> JobRequest:
        work = one.work
        found = signature(work.command, work.directory, content, one.request.user, work.tags, one.request.gpus)
        return replace(one, work=replace(work, signature=found.exact, likeness=found.likeness))


def signature(
    command: Sequence[str], directory: str, content: str, user: str, tags: Iterable[str], gpus: int
) -> Signature:
    own = [tag for tag in tags if tag != TAG]
    return sign(command, directory=directory, content=content, user=user, tags=own, gpus=gpus)


class JobIntake:
    """Checks requests for jobs, and completes them with what the caller is and may have."""

    def __init__(self, context: Context, limits: SubmitterLimits) -> None:
        self._context, self._limits = context, limits
        self.signatures = JobSignatures(context.settings)
        self.once = IdempotentRequests(context)

    def owned(self, request: Request, wanted: JobRequest) -> JobRequest:
        permissions, state = self._context.permissions, self._context.daemon.state
        caller = permissions.caller(request)
        permissions.check_priority(caller, wanted.request.priority)
        owned = replace(wanted.request, user=caller.name, group=caller.group(state.rules))
        _check_quota(state, owned)
        limits, role, work = self._limits.limits(request, caller), permissions.job_role(caller), wanted.work
        if (work.limits, work.role) != (limits, role):
            work = replace(work, limits=limits, role=role)
        return replace(wanted, request=owned, work=work)

    async def complete(self, request: Request, given: Submission) -> JobRequest:
        """A job that is owned and signed, each of its parts made once: thousands may come at once."""
        permissions, state = self._context.permissions, self._context.daemon.state
        settings, caller = self._context.settings, permissions.caller(request)
        fields = given.work_fields(settings)
        permissions.check_priority(caller, given.priority)
        limits = self._limits.limits(request, caller)
        content = await self.signatures.content(given, caller)
        found = signature(given.command, given.directory or "", content, caller.name, given.tags, given.gpu_count)
        role = permissions.job_role(caller)
        work = Work(**fields, limits=limits, role=role, signature=found.exact, likeness=found.likeness)
        group = caller.group(state.rules)
        wanted = given.wanted(settings, work, user=caller.name, group=group, kind=found.exact)
        _check_quota(state, wanted.request)
        return wanted

    async def signed(self, request: Request, wanted: Sequence[JobRequest]) -> list[JobRequest]:
        return await self.signatures(wanted, self._context.permissions.caller(request))

    def warnings(self) -> dict[str, list[str]]:
        """The warnings of the last submit, for its answer. For the daemon's thread."""
        warnings = self._context.commands.warnings
        return {"warnings": warnings} if warnings else {}


def _check_quota(state: State, asked: JobNeeds) -> None:
    if (never := job_limits.refusal(state, asked)) is not None:
        raise UserError(f"this job can never run here: it {never}")
