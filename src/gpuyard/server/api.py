"""The API: makes the route classes, registers them, and holds what they share."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from gpuyard import __version__
from gpuyard.config import Settings
from gpuyard.core.limits.loans import loans
from gpuyard.core.reasons import Reason
from gpuyard.daemon import limits as rulebook
from gpuyard.daemon.background.interference import Interference
from gpuyard.daemon.background.recorder import Recorder
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.progress_reader import ProgressReader
from gpuyard.daemon.loop import Yard
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.leases.heartbeats import Heartbeats
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.auth.middleware import Auth
from gpuyard.server.auth.permissions import Permission, Permissions
from gpuyard.server.proxy.supervisor import PageSupervisor
from gpuyard.server.requests import Command, IdempotentRequests, StrictRoute, read_json
from gpuyard.server.responses import ReasonTexts, explain_json, iso, job_json, reply, times_are_known
from gpuyard.server.routes.batches import BatchRoutes
from gpuyard.server.routes.estimates import EstimateRoutes
from gpuyard.server.routes.gpus import GpuRoutes
from gpuyard.server.routes.grants import GrantRoutes
from gpuyard.server.routes.job_lists import JobListing, ListRoutes
from gpuyard.server.routes.jobs import JobRoutes, JobSignatures, ProgressRoute, with_login_defaults
from gpuyard.server.routes.leases import LeaseRoutes
from gpuyard.server.routes.limits import LimitRoutes
from gpuyard.server.routes.notifications import NotificationRoutes
from gpuyard.server.routes.policies import PolicyRoutes
from gpuyard.server.routes.recordings import RecordingRoutes
from gpuyard.server.routes.sessions import SessionRoutes
from gpuyard.server.routes.statistics import InterferenceRoute, StatsRoute, UsageRoute
from gpuyard.server.routes.submissions import Cancellation, Submission
from gpuyard.server.routes.tokens import TokenRoutes
from gpuyard.server.security import exposure_warnings
from gpuyard.server.stream.event_stream import EventHub, EventRoutes
from gpuyard.server.stream.job_logs import LogRoute
from gpuyard.server.stream.streams import Streams, Wait, Watch
from gpuyard.server.watchmen.routes import WatchmenRoutes

_ARRAY_LOOK = 0.05  # seconds between looks at an array that somebody waits for


class Api:
    """The routes of one yard."""

    def __init__(
        self, yard: Yard, settings: Settings, shutdown: Callable[[], None], access: CredentialStore | None = None
    ) -> None:
        self.yard, self.settings, self._shutdown = yard, settings, shutdown
        self.desk = yard.commands
        self.signs = Heartbeats()
        """Where signs of life of leases are noted; the engine's, once there is one."""
        self.permissions = Permissions(settings)
        self.doors = Auth(settings, self.permissions, access)
        self.signing = JobSignatures(settings)
        self.rules = LimitRoutes(yard, self.ask, self.look, self.permissions.name)
        self.gpus = GpuRoutes(self)
        self.once = IdempotentRequests(self)
        self.watch = Watch()
        self.streams = Streams()
        self.hub = EventHub(lambda: yard.store.last, lambda: self.reader, self.watch)
        self.progress = ProgressReader(yard.engine, settings.data_dir / "work")
        self.interference = Interference(yard.context, self.progress, settings.interference_after)
        self.recorder = Recorder(yard.context, settings)
        self.listing = JobListing(yard, self.progress)
        self.notifications = NotificationRoutes(self)
        self.since = time.time()
        self.url = ""
        """How the API is reached on TCP; empty if it is not."""
        self.page = PageSupervisor(settings)
        self._own = threading.local()
        yard.listeners.append(self.watch.committed)

    def add_to(self, app: FastAPI) -> None:
        """Make the routes known."""

        def add(
            path: str, handler: Callable[..., Any], method: str, may: Permission, what: str = "", **options: Any
        ) -> None:
            checks = [] if may is Permission.EVERYBODY else [Depends(self._guard(may, what))]
            options["openapi_extra"] = {"x-may": may.value, **options.get("openapi_extra", {})}
            kind = StrictRoute if method == "GET" else None
            app.router.add_api_route(
                f"/api/v1{path}", handler, methods=[method], dependencies=checks, route_class_override=kind, **options
            )

        everybody, owner, admin = Permission.EVERYBODY, Permission.OWNER, Permission.ADMIN
        lists = ListRoutes(self)
        add("/jobs", self.submit, "POST", everybody, status_code=201)
        add("/jobs", lists.jobs, "GET", everybody)
        add("/jobs/{job}", self.job, "GET", everybody)
        add("/jobs/{job}/cancel", self.cancel, "POST", owner, "cancel job {job}")
        add("/jobs/{job}/hold", self.hold, "POST", owner, "hold job {job}")
        add("/jobs/{job}/release", self.release, "POST", owner, "release job {job}")
        add("/jobs/{job}/log", LogRoute(self).log, "GET", owner, "read the output of job {job}")
        add("/jobs/{job}/environment", self.environment, "GET", owner, "read the environment of job {job}")
        add("/jobs/{job}/explain", self.explain, "GET", everybody)
        described = JobRoutes(self)
        add("/jobs/batch", described.batch, "POST", everybody, status_code=201)
        BatchRoutes(self).add_to(add)
        add("/jobs/{job}", described.edit, "PATCH", owner, "change job {job}")
        add("/jobs/{job}/clone", described.clone, "POST", owner, "copy job {job}", status_code=201)
        add("/jobs/{job}/retry", described.retry, "POST", owner, "run job {job} again", status_code=201)
        add("/jobs/{job}/progress", ProgressRoute(self).progress, "POST", owner, "tell how far job {job} is")
        GrantRoutes(self).add_to(add)
        leases = LeaseRoutes(self)
        add("/leases", leases.acquire, "POST", everybody, status_code=201)
        add("/leases", lists.leases, "GET", everybody)
        add("/leases/{job}", lists.lease, "GET", everybody)
        add("/leases/{job}/release", leases.give_back, "POST", owner, "give lease {job} back")
        add("/leases/{job}/heartbeat", leases.heartbeat, "POST", owner, "keep lease {job}")
        WatchmenRoutes(self, leases).add_to(app)
        add("/history", lists.history, "GET", everybody)
        add("/events", EventRoutes(self).events, "GET", everybody)
        add("/stats", StatsRoute(self).stats, "GET", everybody)
        add("/usage", UsageRoute(self).usage, "GET", everybody)
        add("/interference", InterferenceRoute(self).interference, "GET", everybody)
        EstimateRoutes(self).add_to(add)
        RecordingRoutes(self).add_to(add)
        self.gpus.add_to(add)
        self.rules.add_to(add)
        PolicyRoutes(self).add_to(add)
        TokenRoutes(self.doors, self.permissions).add_to(add)
        SessionRoutes(self.doors, self.permissions).add_to(app, add)
        self.notifications.add_to(add)
        add("/status", self.status, "GET", everybody)
        add("/shutdown", self.shutdown, "POST", admin, "end the daemon", status_code=202)

    def _guard(self, may: Permission, what: str) -> Callable[[Request], Any]:
        """What stands before a route that is not for everybody."""

        async def guard(request: Request) -> None:
            job = request.path_params.get("job") or request.path_params.get("batch", "")  # whose first job that is
            caller = self.permissions.caller(request)
            self.permissions.check(may, caller, what.format(job=job), lambda: tasks.owner(self.reader, job))

        return guard

    # -- jobs -------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Take a job in. It is on disk when this answers."""
        body = await request.body()

        async def take() -> Command:
            told = await self.notifications.resolved(request, _submission(body))
            given = with_login_defaults(told, self.permissions.caller(request), self.settings)
            wanted = await self.signed(request, [self.owned(request, given.wanted(self.settings))])
            return lambda: {"id": self.desk.submit_all(wanted)[0], **self.warned()}

        return await self.once(request, take)

    async def job(
        self, job: str, wait: Wait = 0.0, for_: Annotated[Literal["over", "start"], Query(alias="for")] = "over"
    ) -> Response:
        """One job, or an array as one; with `wait`, when it is over or has started, or the seconds are."""
        end = time.monotonic() + wait
        while True:
            over, started, array = tasks.progress(self.reader, job)
            left = end - time.monotonic()
            if over or (for_ == "start" and started) or left <= 0 or self.watch.over:
                return await self.one(job)
            await self.watch.wait(left, array or job)
            if array:  # its tasks may end by the thousand
                await asyncio.sleep(_ARRAY_LOOK)

    async def cancel(self, request: Request, job: str, how: Cancellation | None = None) -> Response:
        """Give a job up: it is asked to end, and made to when its grace is over."""
        grace = how.grace if how else None
        user = self.permissions.name(request)
        await self.ask(tasks.each(self.open_ids(job), lambda id: self.desk.cancel(id, grace, user)))
        return await self.one(job)

    async def hold(self, job: str) -> Response:
        """Keep a waiting job from being chosen."""
        await self.ask(tasks.each(self.open_ids(job), self.desk.hold))
        return await self.one(job)

    async def release(self, job: str) -> Response:
        """Let a held job be chosen again."""
        await self.ask(tasks.each(self.open_ids(job), self.desk.release))
        return await self.one(job)

    async def environment(self, job: str) -> Response:
        """The environment that a job was submitted with."""
        return reply({"environment": self.reader.environment(self._view(job).work.get("environment", ""))})

    async def explain(self, job: str) -> Response:
        """Why a job waits, and what would have to end first; of an array, the task that is next."""
        views = tasks.chosen(self.reader, job)
        if len(views) > 1:
            reasons = await self.look(self.desk.reasons)
            place = {id: n for n, id in enumerate(reasons)}
            views.sort(key=lambda v: (place.get(v.id, len(place)), v.over, v.number))
        view = views[0]
        why = None if view.over else await self.look(lambda: self.desk.explain(view.id))
        found = explain_json(view, why, dict(self.yard.store.open))
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)

    # -- the yard ---------------------------------------------------------------------------------

    async def status(self) -> Response:
        """How the daemon does."""
        failing = self.yard.failing
        facts = await self.look(self.desk.facts)
        counts = await asyncio.to_thread(lambda: self.reader.counts())
        states: dict[str, int] = {}
        for gpu in self.gpus.listed():
            states[gpu["state"]] = states.get(gpu["state"], 0) + 1
        return reply(
            {
                "version": __version__, "pid": os.getpid(), "since": iso(self.since),
                "data_dir": str(self.settings.data_dir), "socket": str(self.settings.socket),
                "url": self.url or None, "warnings": facts["warnings"] + exposure_warnings(self.settings, self.url),
                "simulated": self.yard.machine.gpus.simulated, "gpus": states, "policy": self.yard.planner.text,
                "learned": facts["learned"], "admission": self.settings.admission,
                "jobs": counts, "plan": facts["plan"],
                "store": {"state": "failing" if failing else "ok", "problem": failing or None},
                "page": self.page.facts(),
            }
        )  # fmt: skip

    async def shutdown(self) -> Response:
        """End the daemon. Jobs go on running, and the next daemon finds them."""
        self._shutdown()
        running = sum(view.state == "running" for view in list(self.yard.store.open.values()))
        return reply({"running": running}, 202)

    # -- helpers ----------------------------------------------------------------------------------

    async def ask(self, command: Callable[[], Any]) -> Any:
        """Have something done by the yard's thread, and written."""
        return await asyncio.wrap_future(self.yard.ask(command))

    async def look(self, command: Callable[[], Any]) -> Any:
        """Have something looked up by the yard's thread."""
        return await asyncio.wrap_future(self.yard.ask(command, changes=False))

    @property
    def reader(self) -> Reader:
        """A reader for this thread."""
        if not hasattr(self._own, "reader"):
            self._own.reader = Reader(self.settings.database)
        reader: Reader = self._own.reader
        return reader

    def owned(self, request: Request, wanted: JobRequest) -> JobRequest:
        """The same, as whoever asks may have it: a job of their own, with their limits."""
        caller = self.permissions.caller(request)
        self.permissions.check_priority(caller, wanted.request.priority)
        wish = replace(wanted.request, user=caller.name, group=caller.group(self.yard.state.rules))
        if (never := rulebook.refusal(self.yard.state, wish)) is not None:
            raise UserError(f"this job can never run here: it {never}")
        limits, work = self.doors.submitters.limits(request, caller), wanted.work
        return replace(wanted, request=wish, work=work if work.limits == limits else replace(work, limits=limits))

    async def signed(self, request: Request, wanted: Sequence[JobRequest]) -> list[JobRequest]:
        """Jobs of whoever asks, each with what it is known by."""
        return await self.signing(wanted, self.permissions.caller(request))

    def warned(self) -> dict[str, list[str]]:
        """What to tell whoever submitted just now; for the yard's own thread."""
        return {"warnings": self.desk.warnings} if self.desk.warnings else {}

    def open_ids(self, job: str) -> list[str]:
        """The job with an id, or the tasks that it stands for: those that are not over, if there are any."""
        ids = tasks.ids(self.reader, job)
        return [id for id in ids if id in self.yard.store.open] or ids

    def _view(self, job: str) -> JobView:
        """A job; of an array, its first task."""
        return tasks.chosen(self.reader, job)[0]

    async def one(self, job: str) -> Response:
        """A job as it stands, or an array as if it were one."""
        alone = self.reader.job(job)
        views = [alone] if alone else await asyncio.to_thread(lambda: tasks.chosen(self.reader, job))
        view = tasks.together(job, views)
        reasons: Mapping[str, Reason] = {}
        if view.state == "queued" and len(views) == 1:
            recent = self.desk.recent_reasons() or {}
            reasons = recent if job in recent else await self.look(self.desk.reasons)
        say = ReasonTexts(times=times_are_known(list(self.yard.store.open.values())))
        far = None
        if view.state == "running" and len(views) == 1:
            far = await asyncio.to_thread(self.progress.of, view, self.yard.clock.now())
        used = self.yard.measures.live(view)
        granted = loans(self.yard.state, view.id)
        found = job_json(view, say(reasons.get(view.id), view), far, self.yard.machine.node, used, granted)
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)


def _submission(body: bytes) -> Submission:
    """A submission, read without the ways round that serve all requests alike: this one comes by the thousand."""
    try:
        return Submission.model_validate(read_json(body))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
