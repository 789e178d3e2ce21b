"""The routes. Small reads are answered here, larger ones in a thread, and what changes the yard by the yard's own."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from gpuyard import __version__
from gpuyard.client import OVER
from gpuyard.config import Settings
from gpuyard.core.reasons import Reason
from gpuyard.daemon import rulebook
from gpuyard.daemon.desk import Desk
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.progress import Progresses
from gpuyard.daemon.reader import Reader
from gpuyard.daemon.views import JobView
from gpuyard.daemon.yard import Yard
from gpuyard.engines.rlimits import limits_of
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.answers import (
    Sayings,
    explain_json,
    gpus_json,
    job_json,
    reply,
    times_are_known,
)
from gpuyard.server.describing import Describing
from gpuyard.server.events import STREAMED, Events
from gpuyard.server.hub import Hub
from gpuyard.server.leases import Leases
from gpuyard.server.listen import Peer
from gpuyard.server.listing import Choice, Listing
from gpuyard.server.logs import Logs
from gpuyard.server.models import Cancellation, PolicyChoice, Submission
from gpuyard.server.permissions import May, Permissions
from gpuyard.server.rules import RuleRoutes
from gpuyard.server.stats import Stats
from gpuyard.server.streaming import Streams
from gpuyard.server.times import iso
from gpuyard.server.watch import Wait, Watch

_ARRAY_LOOK = 0.05  # seconds between looks at an array that somebody waits for
_LIMITS_KEPT = 1.0  # seconds for which a process's limits are remembered: it may submit by the hundred
_MOST_KNOWN = 1000

Limit = Annotated[int, Query(ge=1, le=1_000_000)]


class Api:
    """The routes of one yard."""

    def __init__(self, yard: Yard, settings: Settings, shutdown: Callable[[], None]) -> None:
        self.yard, self.settings, self._shutdown = yard, settings, shutdown
        self.desk = Desk(yard)
        self.permissions = Permissions(settings)
        self.rules = RuleRoutes(yard, self.ask, self._look, self.permissions.name)
        self.watch = Watch()
        self.streams = Streams()
        self.hub = Hub(lambda: yard.store.last, lambda: self.reader, self.watch)
        self.progress = Progresses(yard.engine, settings.data_dir / "work")
        self.listing = Listing(yard, self.progress)
        self.since = time.time()
        self.url = ""
        """How the API is reached on TCP; empty if it is not."""
        self._own = threading.local()
        self._known_limits: dict[Peer, tuple[float, tuple[str, ...]]] = {}
        yard.on_commit = self.watch.committed

    def add_to(self, app: FastAPI) -> None:
        """Make the routes known."""

        def add(path: str, handler: Callable[..., Any], method: str, may: May, what: str = "", **options: Any) -> None:
            checks = [] if may is May.EVERYBODY else [Depends(self._guard(may, what))]
            options["openapi_extra"] = {"x-may": may.value, **options.get("openapi_extra", {})}
            app.add_api_route(f"/api/v1{path}", handler, methods=[method], dependencies=checks, **options)

        everybody, owner, admin = May.EVERYBODY, May.OWNER, May.ADMIN
        body = {"required": True, "content": {"application/json": {"schema": Submission.model_json_schema()}}}
        add("/jobs", self.submit, "POST", everybody, status_code=201, openapi_extra={"requestBody": body})
        add("/jobs", self.jobs, "GET", everybody)
        add("/jobs/{job}", self.job, "GET", everybody)
        add("/jobs/{job}/cancel", self.cancel, "POST", owner, "cancel job {job}")
        add("/jobs/{job}/hold", self.hold, "POST", owner, "hold job {job}")
        add("/jobs/{job}/release", self.release, "POST", owner, "release job {job}")
        add("/jobs/{job}/log", Logs(self).log, "GET", owner, "read the output of job {job}")
        add("/jobs/{job}/environment", self.environment, "GET", owner, "read the environment of job {job}")
        add("/jobs/{job}/explain", self.explain, "GET", everybody)
        described = Describing(self)
        add("/jobs/batch", described.batch, "POST", everybody, status_code=201)
        add("/jobs/{job}", described.edit, "PATCH", owner, "change job {job}")
        add("/jobs/{job}/clone", described.clone, "POST", owner, "copy job {job}", status_code=201)
        add("/jobs/{job}/retry", described.retry, "POST", owner, "run job {job} again", status_code=201)
        leases = Leases(self)
        add("/leases", leases.acquire, "POST", everybody, status_code=201)
        add("/leases/{job}/release", leases.give_back, "POST", owner, "give lease {job} back")
        add("/history", self.history, "GET", everybody)
        add("/events", Events(self).events, "GET", everybody, responses=STREAMED)
        add("/stats", Stats(self).stats, "GET", everybody)
        add("/gpus", self.gpus, "GET", everybody)
        add("/gpus/drain", self.rules.drain, "POST", admin, "drain GPUs")
        add("/gpus/resume", self.rules.resume, "POST", admin, "resume GPUs")
        add("/reservations", self.rules.reservations, "GET", everybody)
        add("/reservations", self.rules.reserve, "POST", admin, "reserve GPUs", status_code=201)
        add("/reservations/{name}", self.rules.unreserve, "DELETE", admin, "give reservations up")
        add("/rules", self.rules.rules, "GET", everybody)
        add("/rules/quotas/{name}", self.rules.set_quota, "PUT", admin, "set quotas")
        add("/rules/shares/{name}", self.rules.set_share, "PUT", admin, "set shares")
        add("/policy", self.policy, "GET", everybody)
        add("/policy", self.set_policy, "PUT", admin, "set the policy")
        add("/status", self.status, "GET", everybody)
        add("/shutdown", self.shutdown, "POST", admin, "end the daemon", status_code=202)

    def _guard(self, may: May, what: str) -> Callable[[Request], Any]:
        """What stands before a route that is not for everybody."""

        async def guard(request: Request) -> None:
            job = request.path_params.get("job", "")
            caller = self.permissions.caller(request)
            self.permissions.check(may, caller, what.format(job=job), lambda: tasks.owner(self.reader, job))

        return guard

    # -- jobs -------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Take a job in. It is on disk when this answers."""
        given = _submission(await request.body())
        wanted = self.owned(request, given.wanted(self.settings))
        [job] = await self.ask(lambda: self.desk.submit_all([wanted]))
        return reply({"id": job}, 201)

    async def jobs(
        self,
        all: bool = False,
        state: str = "",
        user: str = "",
        name: str = "",
        tag: str = "",
        text: str = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Limit = 1_000_000,
        columns: bool = False,
        fold: Annotated[bool, Query(description="One entry for all waiting tasks of an array.")] = False,
    ) -> Response:
        """Jobs that are not over, or all: who runs first, then who waits, in the order of the policy."""
        states = frozenset(state.split(",")) if state else frozenset()
        wanted = {key: value for key, value in (("user", user), ("name", name)) if value}
        if len(states) == 1:
            wanted["state"] = state
        over = None if all or states & OVER else False
        choice = Choice(over, wanted, states, text.casefold(), tag, slice(offset, offset + limit), fold)
        if (recent := self.desk.recent_reasons()) is not None:
            found, known = await asyncio.to_thread(lambda: self.listing.of(choice, self.reader, recent, columns))
            if known:
                return reply(found)
        reasons = await self._look(self.desk.reasons)
        return await asyncio.to_thread(lambda: reply(self.listing.of(choice, self.reader, reasons, columns)[0]))

    async def job(
        self, job: str, wait: Wait = 0.0, for_: Annotated[str, Query(alias="for", pattern="over|start")] = "over"
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
            reasons = await self._look(self.desk.reasons)
            place = {id: n for n, id in enumerate(reasons)}
            views.sort(key=lambda v: (place.get(v.id, len(place)), v.over, v.number))
        view = views[0]
        why = None if view.over else await self._look(lambda: self.desk.explain(view.id))
        found = explain_json(view, why, dict(self.yard.store.open))
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)

    async def history(
        self,
        limit: Limit = 1000,
        user: str = "",
        state: str = "",
        name: str = "",
        tag: str = "",
        since: datetime | None = None,
    ) -> Response:
        """Jobs that are over, the latest first."""
        wanted = {key: value for key, value in (("state", state), ("user", user), ("name", name)) if value}
        after = since.timestamp() if since else None

        def found() -> Response:
            views = self.reader.jobs(over=True, wanted=wanted, limit=limit, ended_after=after, tag=tag)
            return reply({"jobs": [job_json(view, node=self.yard.machine.node) for view in views]})

        return await asyncio.to_thread(found)

    # -- the yard ---------------------------------------------------------------------------------

    async def gpus(self) -> Response:
        """The GPUs, and who is on them."""
        views = list(self.yard.store.open.values())
        found = gpus_json(self.yard.machine, views, self.yard.state)
        return reply({"simulated": self.yard.machine.gpus.simulated, "gpus": found})

    async def policy(self) -> Response:
        """How plans are made, and since when."""
        planner, since = await self._look(self.desk.policy)
        return reply(
            {
                "policy": planner.text, "name": planner.policy.text, "discipline": planner.discipline,
                "placement": planner.placement, "since": iso(since),
            }
        )  # fmt: skip

    async def set_policy(self, request: Request, given: PolicyChoice) -> Response:
        """Make plans another way from now on."""
        caller = self.permissions.caller(request)
        self.permissions.check_policy(caller, given.policy)
        user = caller.name
        await self.ask(lambda: self.desk.set_policy(given.policy, given.discipline, given.placement, user))
        return await self.policy()

    async def status(self) -> Response:
        """How the daemon does."""
        failing = self.yard.failing
        facts = await self._look(self.desk.facts)
        counts = await asyncio.to_thread(lambda: self.reader.counts())
        states: dict[str, int] = {}
        for gpu in gpus_json(self.yard.machine, list(self.yard.store.open.values()), self.yard.state):
            states[gpu["state"]] = states.get(gpu["state"], 0) + 1
        return reply(
            {
                "version": __version__, "pid": os.getpid(), "since": iso(self.since),
                "data_dir": str(self.settings.data_dir), "socket": str(self.settings.socket),
                "url": self.url or None,
                "simulated": self.yard.machine.gpus.simulated, "gpus": states, "policy": self.yard.planner.text,
                "jobs": counts, "plan": facts["plan"],
                "store": {"state": "failing" if failing else "ok", "problem": failing or None},
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

    async def _look(self, command: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self.yard.ask(command, changes=False))

    def _limits(self, request: Request) -> tuple[str, ...]:
        """The limits of the process that asks, where they are not ours; none where the kernel cannot name it."""
        peer = getattr(request.state, "peer", None)
        if peer is None:  # from afar, or through TCP
            return ()
        asked, limits = self._known_limits.get(peer, (0.0, ()))
        if time.monotonic() - asked < _LIMITS_KEPT:
            return limits
        found = limits_of(peer.pid, peer.uid) if peer.pid else ()
        if len(self._known_limits) > _MOST_KNOWN:
            self._known_limits.clear()
        if found is not None:
            self._known_limits[peer] = time.monotonic(), found
        if found is None and self.settings.shared:  # who ends before they are read must not get away with ours
            raise UserError("whoever submits a job must live until it is answered")
        return found or ()

    @property
    def reader(self) -> Reader:
        """A reader for this thread."""
        if not hasattr(self._own, "reader"):
            self._own.reader = Reader(self.settings.database)
        reader: Reader = self._own.reader
        return reader

    def owned(self, request: Request, wanted: Wanted) -> Wanted:
        """The same, as whoever asks may have it: a job of their own, with their limits."""
        caller = self.permissions.caller(request)
        self.permissions.check_priority(caller, wanted.request.priority)
        wish = replace(wanted.request, user=caller.name, group=caller.group(self.yard.state.rules))
        if (never := rulebook.refusal(self.yard.state, wish)) is not None:
            raise UserError(f"this job can never run here: it {never}")
        limits, work = self._limits(request), wanted.work
        return replace(wanted, request=wish, work=work if work.limits == limits else replace(work, limits=limits))

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
            reasons = recent if job in recent else await self._look(self.desk.reasons)
        say = Sayings(times=times_are_known(list(self.yard.store.open.values())))
        far = None
        if view.state == "running" and len(views) == 1:
            far = await asyncio.to_thread(self.progress.of, view, self.yard.clock.now())
        found = job_json(view, say(reasons.get(view.id), view), far, self.yard.machine.node)
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)


def _submission(body: bytes) -> Submission:
    """A submission, read without the ways round that serve all requests alike: this one comes by the thousand."""
    try:
        return Submission.model_validate(json.loads(body))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    except ValueError as error:
        raise UserError(f"the request is not JSON: {error}") from error
