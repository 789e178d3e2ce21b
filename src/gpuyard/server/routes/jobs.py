"""Routes that submit, edit, clone and retry jobs, and take their progress."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.api.types import OVER
from gpuyard.config import Settings
from gpuyard.daemon.commands import NotNow, over
from gpuyard.daemon.jobs.fingerprints import Fingerprints, digest_of
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.profiles import TAG
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.local.accounts import name_of
from gpuyard.errors import UserError
from gpuyard.predict.signatures import script_of, sign
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Caller
from gpuyard.server.requests import Command
from gpuyard.server.routes.batches import take_batch
from gpuyard.server.routes.submissions import Batch, Changes, Copy, Submission
from gpuyard.server.tasks import chosen, owner
from gpuyard.spec.notation import ranges

if TYPE_CHECKING:
    from gpuyard.server.api import Api


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
"""Variables of the daemon's own life."""
_DAEMON_PREFIXES = ("GPUYARD_", "LISTEN_", "SLURM_", "WATCHDOG_")


def with_login_defaults(job: Submission, caller: Caller, settings: Settings) -> Submission:
    """The submission with a directory and an environment."""
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
    """Whom the job runs as; None if that is a mere number."""
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
    """What a login would give; a daemon of one's own gives its environment, but for what is about itself."""
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
    """Signs jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._prints = settings, Fingerprints()

    async def __call__(self, wanted: Sequence[JobRequest], caller: Caller) -> list[JobRequest]:
        """Jobs of somebody, each with its signature."""
        return await asyncio.to_thread(lambda: [self.signed(one, self.content(one, caller)) for one in wanted])

    def content(self, one: JobRequest, caller: Caller) -> str:
        """A hash of what a job's script holds; empty if that cannot be told. Not for the yard's thread."""
        if one.script:
            return digest_of(one.script)
        return self.read(one.work.command, one.work.directory, caller)

    def read(self, command: Sequence[str], directory: str, caller: Caller) -> str:
        """A hash of what the script of a command holds, as far as somebody may read it; not for the yard's thread."""
        script = script_of(command)
        uid = caller.uid if self._settings.shared else None
        return self._prints.of(os.path.join(directory, script), uid) if script else ""

    def signed(self, one: JobRequest, content: str) -> JobRequest:
        """A job with its signature."""
        work = one.work
        tags = [tag for tag in work.tags if tag != TAG]
        found = sign(
            work.command, directory=work.directory, content=content, user=one.request.user, tags=tags,
            gpus=one.request.gpus,
        )  # fmt: skip
        return replace(one, work=replace(work, signature=found.exact, likeness=found.likeness))


class Report(BaseModel):
    """How far a job is."""

    model_config = ConfigDict(extra="forbid")

    done: Annotated[float, Field(ge=0, allow_inf_nan=False, description="How much is done.")]
    total: Annotated[float, Field(gt=0, allow_inf_nan=False, description="How much there is to do.")]


class ProgressRoute:
    """What jobs tell of themselves."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def progress(self, job: str, given: Report) -> Response:
        """Take down how far a running job is."""
        api = self._api
        if len(views := tasks.chosen(api.reader, job)) > 1:
            raise UserError(f"{job} is an array of {len(views):,} tasks; say which, as in {views[0].id}")
        if (view := views[0]).state != "running":
            raise over(view.id, view.state) if view.over else NotNow(f"job {view.id} does not run: it is {view.state}")
        api.progress.report(view, given.done, given.total, api.yard.clock.now())
        return await api.one(view.id)


class JobRoutes:
    """Submitting several jobs at once, changing and copying them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def batch(self, request: Request, given: Batch) -> Response:
        """Take several jobs in, all or none of them; or, as a batch, those that can run. They are on disk then."""
        api, caller = self._api, self._api.permissions.caller(request)

        async def take() -> Command:
            wanted, refused = list[JobRequest](), list[tuple[int, str]]()
            for number, one in enumerate(await api.notifications.resolved_all(request, given.complete())):
                try:
                    whole = with_login_defaults(one, caller, api.settings)
                    wanted.append(api.owned(request, whole.wanted(api.settings)))
                except UserError as error:
                    if not given.skip_refused:
                        raise UserError(f"job {number + 1} of {len(given.jobs)}: {error}") from error
                    refused.append((one.row.number if one.row else number + 1, str(error)))
            signed = await api.signed(request, wanted)
            if given.batch is None and not given.skip_refused:
                return lambda: {"ids": api.desk.submit_all(signed), **api.warned()}
            return lambda: take_batch(api, caller.name, given, signed, refused)

        return await api.once(request, take)

    async def edit(self, request: Request, job: str, given: Changes) -> Response:
        """Change what a job, or the open tasks of an array, ask for; null takes something back."""
        api = self._api
        api.permissions.check_priority(api.permissions.caller(request), given.priority)
        if not given.given:
            raise UserError("there is nothing to change; say for example priority or time_limit")
        dependency = (given.dependency or "") if "dependency" in given.given else None
        if given.notify and owner(api.reader, job) != api.permissions.name(request):
            raise UserError("only the owner of a job can say where to be told of it")
        given = await api.notifications.resolved(request, given)
        ids = api.open_ids(job)

        def change() -> None:
            api.desk.edit(ids, given.given, lambda work, wish: given.applied(work, wish, api.settings), dependency)

        await api.ask(change)
        return await api.one(job)

    async def clone(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job, or an array, once more, with changes."""

        async def copied() -> Command:
            return await self._copy(request, chosen(self._api.reader, job), given or Copy())

        return await self._api.once(request, copied)

    async def retry(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job that is over once more; of an array, the tasks that did not succeed."""

        async def again() -> Command:
            views = chosen(self._api.reader, job)
            if going := [view for view in views if view.state not in OVER]:
                raise NotNow(f"job {going[0].id} is not over; gpuyard clone makes a second one of it")
            failed = [view for view in views if view.state != "succeeded"]
            return await self._copy(request, failed or (views if len(views) == 1 else []), given or Copy())

        return await self._api.once(request, again)

    async def _copy(self, request: Request, views: list[JobView], given: Copy) -> Command:
        api = self._api
        given = await api.notifications.resolved(request, given)
        if any(view.kind == "lease" for view in views):
            raise NotNow(f"job {views[0].id} is a lease, which only its own process can ask for again")
        if not views:
            raise NotNow("all tasks have succeeded, so there is nothing to run again")
        if views[0].kind != "job":
            raise UserError(f"{views[0].id} is a {views[0].kind}, which has no command to run again")
        if views[0].array and not given.array:
            given = given.model_copy(update={"array": _array(views)})

        content = await self._content(request, views[0], given)

        def copy() -> dict[str, Any]:
            work, wish = api.desk.description(views[0].id)
            wanted = api.signing.signed(api.owned(request, given.copied(work, wish, api.settings)), content)
            return {"id": api.desk.submit_all([wanted])[0], **api.warned()}

        return copy

    async def _content(self, request: Request, view: JobView, given: Copy) -> str:
        """A hash of what the script of a copy holds by now."""
        if given.command is None and view.work.get("script"):
            return digest_of(self._api.reader.script(view.work["script"]))
        command, directory = given.command or view.work["command"], given.directory or view.work["directory"]
        caller = self._api.permissions.caller(request)
        return await asyncio.to_thread(self._api.signing.read, command, directory, caller)


def _array(views: list[JobView]) -> str:
    """The same tasks once more."""
    at_most: Any = views[0].work.get("at_most")
    return ranges(view.work["task"] for view in views) + (f"%{at_most}" if at_most else "")
