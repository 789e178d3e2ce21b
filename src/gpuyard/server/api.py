"""The routes. Small reads are answered here, larger ones in a thread, and what changes the yard by the yard's own."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard import __version__
from gpuyard.arrays import task_id
from gpuyard.client import OVER
from gpuyard.config import Settings
from gpuyard.daemon.desk import Desk, NoSuchJob, NotNow
from gpuyard.daemon.rulebook import NoSuchReservation
from gpuyard.daemon.store import Reader, StoreFailing
from gpuyard.daemon.views import JobView
from gpuyard.daemon.yard import Yard
from gpuyard.errors import GpuyardError, UserError
from gpuyard.server import tasks
from gpuyard.server.answers import (
    Sayings,
    columns_json,
    event_json,
    explain_json,
    gpus_json,
    job_json,
    times_are_known,
)
from gpuyard.server.describing import Describing
from gpuyard.server.models import Cancellation, PolicyChoice, Submission
from gpuyard.server.rules import RuleRoutes
from gpuyard.server.times import iso
from gpuyard.server.watch import Watch

_LONGEST_WAIT = 30.0
_LOG_LOOK = 0.1  # seconds between looks at a log that somebody follows
_ARRAY_LOOK = 0.05  # seconds between looks at an array that somebody waits for
_MOST_LOG = 2**22

Wait = Annotated[float, Query(ge=0, le=_LONGEST_WAIT, description="Seconds to wait for it.")]
Limit = Annotated[int, Query(ge=1, le=1_000_000)]


_STATUS = {NoSuchJob: 404, NoSuchReservation: 404, NotNow: 409, StoreFailing: 503, UserError: 422}


class Api:
    """The routes of one yard."""

    def __init__(self, yard: Yard, settings: Settings, shutdown: Callable[[], None]) -> None:
        self.yard, self.settings, self._shutdown = yard, settings, shutdown
        self.desk = Desk(yard)
        self.rules = RuleRoutes(yard, self._ask, self._look, _user, _json)
        self.described = Describing(
            self.desk, settings, self._ask, _user, _json, lambda job: tasks.chosen(self._reader, job), self._one
        )
        self.watch = Watch()
        self.since = time.time()
        self._own = threading.local()
        yard.on_commit = self.watch.committed

    def add_to(self, app: FastAPI) -> None:
        """Make the routes known."""

        def add(path: str, *arguments: Any, **options: Any) -> None:
            app.add_api_route(f"/api/v1{path}", *arguments, **options)

        body = {"required": True, "content": {"application/json": {"schema": Submission.model_json_schema()}}}
        add("/jobs", self.submit, methods=["POST"], status_code=201, openapi_extra={"requestBody": body})
        add("/jobs", self.jobs, methods=["GET"])
        add("/jobs/{job}", self.job, methods=["GET"])
        add("/jobs/{job}/cancel", self.cancel, methods=["POST"])
        add("/jobs/{job}/hold", self.hold, methods=["POST"])
        add("/jobs/{job}/release", self.release, methods=["POST"])
        add("/jobs/{job}/log", self.log, methods=["GET"])
        add("/jobs/{job}/explain", self.explain, methods=["GET"])
        add("/history", self.history, methods=["GET"])
        add("/events", self.events, methods=["GET"])
        add("/gpus", self.gpus, methods=["GET"])
        add("/gpus/drain", self.rules.drain, methods=["POST"])
        add("/gpus/resume", self.rules.resume, methods=["POST"])
        add("/reservations", self.rules.reservations, methods=["GET"])
        add("/reservations", self.rules.reserve, methods=["POST"], status_code=201)
        add("/reservations/{name}", self.rules.unreserve, methods=["DELETE"])
        add("/rules", self.rules.rules, methods=["GET"])
        add("/rules/quotas/{name}", self.rules.set_quota, methods=["PUT"])
        add("/rules/shares/{name}", self.rules.set_share, methods=["PUT"])
        add("/policy", self.policy, methods=["GET"])
        add("/policy", self.set_policy, methods=["PUT"])
        add("/status", self.status, methods=["GET"])
        add("/shutdown", self.shutdown, methods=["POST"], status_code=202)
        described = self.described
        add("/jobs/batch", described.batch, methods=["POST"], status_code=201)
        add("/jobs/{job}", described.edit, methods=["PATCH"])
        add("/jobs/{job}/clone", described.clone, methods=["POST"], status_code=201)
        add("/jobs/{job}/retry", described.retry, methods=["POST"], status_code=201)

    # -- jobs -------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Take a job in. It is on disk when this answers."""
        given = _submission(await request.body())
        wanted = given.wanted(_user(request), self.settings)
        [job] = await self._ask(lambda: self.desk.submit_all([wanted]))
        return _json({"id": job}, 201)

    async def jobs(
        self,
        all: bool = False,
        state: str = "",
        user: str = "",
        name: str = "",
        tag: str = "",
        limit: Limit = 1_000_000,
        columns: bool = False,
        fold: Annotated[bool, Query(description="One entry for all waiting tasks of an array.")] = False,
    ) -> Response:
        """Jobs that are not over, or all: who runs first, then who waits, in the order of the policy."""
        wanted = {key: value for key, value in (("state", state), ("user", user), ("name", name)) if value}
        reasons = await self._look(self.desk.reasons)
        over = None if all or state in OVER else False
        return await asyncio.to_thread(self._listing, over, wanted, tag, limit, reasons, columns, fold)

    def _listing(
        self,
        over: bool | None,
        wanted: dict[str, str],
        tag: str,
        limit: int,
        reasons: dict[str, Any],
        columns: bool,
        fold: bool,
    ) -> Response:
        opened = list(self.yard.store.open.values())  # in memory, so that a long queue is quick to list
        if over is None:
            found = self._reader.jobs(over=None, wanted=wanted, tag=tag)
        else:
            found = [v for v in opened if all(getattr(v, name) == value for name, value in wanted.items())]
            found = [v for v in found if tag in v.work.get("tags", ())] if tag else found
        place = {job: n for n, job in enumerate(reasons)}
        found.sort(key=lambda v: (v.over, v.state != "running", v.state == "held", place.get(v.id, 0), v.number))
        say = Sayings(times=times_are_known(opened))
        shown = (tasks.fold(found) if fold else found)[:limit]
        said = [say(reasons.get(_first_id(view))) for view in shown]
        if columns:
            return _json({"now": self.yard.clock.now(), "total": len(found), "columns": columns_json(shown, said)})
        return _json({"jobs": [self._job_json(view, reason) for view, reason in zip(shown, said, strict=True)]})

    async def job(
        self, job: str, wait: Wait = 0.0, for_: Annotated[str, Query(alias="for", pattern="over|start")] = "over"
    ) -> Response:
        """One job, or an array as one; with `wait`, when it is over or has started, or the seconds are."""
        end = time.monotonic() + wait
        while True:
            over, started, array = tasks.progress(self._reader, job)
            left = end - time.monotonic()
            if over or (for_ == "start" and started) or left <= 0 or self.watch.over:
                return await self._one(job)
            await self.watch.wait(left, array or job)
            if array:  # its tasks may end by the thousand
                await asyncio.sleep(_ARRAY_LOOK)

    async def cancel(self, request: Request, job: str, how: Cancellation | None = None) -> Response:
        """Give a job up: it is asked to end, and made to when its grace is over."""
        grace = how.grace if how else None
        user = _user(request)
        await self._ask(tasks.each(self._open_ids(job), lambda id: self.desk.cancel(id, grace, user)))
        return await self._one(job)

    async def hold(self, job: str) -> Response:
        """Keep a waiting job from being chosen."""
        await self._ask(tasks.each(self._open_ids(job), self.desk.hold))
        return await self._one(job)

    async def release(self, job: str) -> Response:
        """Let a held job be chosen again."""
        await self._ask(tasks.each(self._open_ids(job), self.desk.release))
        return await self._one(job)

    async def log(
        self,
        job: str,
        offset: int = 0,
        size: Annotated[int, Query(ge=1, le=_MOST_LOG)] = 2**16,
        attempt: int = 0,
        wait: Wait = 0.0,
    ) -> Response:
        """A piece of a job's output."""
        if len(views := tasks.chosen(self._reader, job)) > 1:
            raise UserError(f"{job} is an array of {len(views):,} tasks; say which, as in {views[0].id}")
        job = views[0].id
        end = time.monotonic() + wait
        while True:
            view = self._view(job)
            which = attempt or view.attempt
            after, data = self.yard.engine.read_log(job, which, offset, size) if which else (max(offset, 0), b"")
            if data or view.over or time.monotonic() >= end or self.watch.over:
                break
            await self.watch.wait(min(_LOG_LOOK, max(0.001, end - time.monotonic())), job)
        headers = {
            "X-Next-Offset": str(after),
            "X-Log-Size": str(self.yard.engine.log_size(job, which) if which else 0),
            "X-Job-State": view.state,
            "X-Attempt": str(which),
        }
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def explain(self, job: str) -> Response:
        """Why a job waits, and what would have to end first; of an array, the task that is next."""
        views = tasks.chosen(self._reader, job)
        if len(views) > 1:
            reasons = await self._look(self.desk.reasons)
            place = {id: n for n, id in enumerate(reasons)}
            views.sort(key=lambda v: (place.get(v.id, len(place)), v.over, v.number))
        view = views[0]
        why = None if view.over else await self._look(lambda: self.desk.explain(view.id))
        found = explain_json(view, why, dict(self.yard.store.open))
        return _json({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)

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
            views = self._reader.jobs(over=True, wanted=wanted, limit=limit, ended_after=after, tag=tag)
            return _json({"jobs": [self._job_json(view) for view in views]})

        return await asyncio.to_thread(found)

    async def events(
        self, after: int = 0, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000, job: str = "", wait: Wait = 0.0
    ) -> Response:
        """The log, from one event on."""
        end = time.monotonic() + wait
        while True:
            found = self._reader.events(after, limit, job or None)
            left = end - time.monotonic()
            if found or left <= 0 or self.watch.over:
                break
            await self.watch.wait(left)
        last = found[-1][0] if found else after
        return _json({"events": [event_json(seq, row) for seq, row in found], "last": last})

    # -- the yard ---------------------------------------------------------------------------------

    async def gpus(self) -> Response:
        """The GPUs, and who is on them."""
        views = list(self.yard.store.open.values())
        found = gpus_json(self.yard.machine, views, self.yard.state)
        return _json({"simulated": self.yard.machine.gpus.simulated, "gpus": found})

    async def policy(self) -> Response:
        """How plans are made, and since when."""
        planner, since = await self._look(self.desk.policy)
        return _json(
            {
                "policy": planner.text, "name": planner.policy.text, "discipline": planner.discipline,
                "placement": planner.placement, "since": iso(since),
            }
        )  # fmt: skip

    async def set_policy(self, request: Request, given: PolicyChoice) -> Response:
        """Make plans another way from now on."""
        user = _user(request)
        await self._ask(lambda: self.desk.set_policy(given.policy, given.discipline, given.placement, user))
        return await self.policy()

    async def status(self) -> Response:
        """How the daemon does."""
        failing = self.yard.failing
        facts = await self._look(self.desk.facts)
        counts = self._reader.counts()
        states: dict[str, int] = {}
        for gpu in gpus_json(self.yard.machine, list(self.yard.store.open.values()), self.yard.state):
            states[gpu["state"]] = states.get(gpu["state"], 0) + 1
        return _json(
            {
                "version": __version__, "pid": os.getpid(), "since": iso(self.since),
                "data_dir": str(self.settings.data_dir), "socket": str(self.settings.socket),
                "simulated": self.yard.machine.gpus.simulated, "gpus": states, "policy": self.yard.planner.text,
                "jobs": counts, "plan": facts["plan"],
                "store": {"state": "failing" if failing else "ok", "problem": failing or None},
            }
        )  # fmt: skip

    async def shutdown(self) -> Response:
        """End the daemon. Jobs go on running, and the next daemon finds them."""
        self._shutdown()
        running = sum(view.state == "running" for view in list(self.yard.store.open.values()))
        return _json({"running": running}, 202)

    # -- helpers ----------------------------------------------------------------------------------

    async def _ask(self, command: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self.yard.ask(command))

    async def _look(self, command: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self.yard.ask(command, changes=False))

    @property
    def _reader(self) -> Reader:
        """A reader for this thread."""
        if not hasattr(self._own, "reader"):
            self._own.reader = Reader(self.settings.database)
        reader: Reader = self._own.reader
        return reader

    def _open_ids(self, job: str) -> list[str]:
        """The job with an id, or the tasks that it stands for: those that are not over, if there are any."""
        ids = tasks.ids(self._reader, job)
        return [id for id in ids if id in self.yard.store.open] or ids

    def _view(self, job: str) -> JobView:
        """A job; of an array, its first task."""
        return tasks.chosen(self._reader, job)[0]

    async def _one(self, job: str) -> Response:
        """A job as it stands, or an array as if it were one."""
        views = await asyncio.to_thread(lambda: tasks.chosen(self._reader, job))
        view = tasks.together(job, views)
        reasons = await self._look(self.desk.reasons) if view.state == "queued" and len(views) == 1 else {}
        say = Sayings(times=times_are_known(list(self.yard.store.open.values())))
        found = self._job_json(view, say(reasons.get(view.id)))
        return _json({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)

    def _job_json(self, view: JobView, reason: str | None = None) -> dict[str, Any]:
        return job_json(view, reason, self.yard.machine.node)


def make_app(api: Api) -> FastAPI:
    """The application."""
    app = FastAPI(title="gpuyard", version=__version__)
    api.add_to(app)
    app.add_middleware(OnlyTheOwner)

    @app.exception_handler(GpuyardError)
    async def refused(request: Request, error: GpuyardError) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        return _problem(status, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _problem(422, "; ".join(_complaint(part) for part in error.errors()))

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        return _problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    return app


class OnlyTheOwner:
    """Nobody but root and the daemon's own user is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at who is at the other end, where the kernel tells."""
        peer = scope.get("state", {}).get("peer")
        if peer is None or peer.uid in (0, os.geteuid()):
            await self._app(scope, receive, send)
        else:
            refusal = _problem(403, f"this daemon serves {_name(os.geteuid())} only; start one of your own")
            await refusal(scope, receive, send)


def _first_id(view: JobView) -> str:
    """Its id; of folded tasks, the first one's."""
    return task_id(view.array, view.work["task"]) if view.array else view.id


def _submission(body: bytes) -> Submission:
    """A submission, read without the ways round that serve all requests alike: this one comes by the thousand."""
    try:
        return Submission.model_validate(json.loads(body))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    except ValueError as error:
        raise UserError(f"the request is not JSON: {error}") from error


def _complaint(part: Any) -> str:
    where = ".".join(str(step) for step in part["loc"] if step not in ("body", "query", "path"))
    message = str(part["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _problem(status: int, detail: str) -> Response:
    body = json.dumps({"title": _TITLES.get(status, "Error"), "status": status, "detail": detail})
    return Response(body, status, media_type="application/problem+json")


_TITLES = {403: "Forbidden", 404: "Not found", 409: "Not possible now", 422: "Not valid", 503: "Cannot write"}


def _json(value: Any, status: int = 200) -> Response:
    try:
        body = to_json(value, inf_nan_mode="null")
    except ValueError:  # a name that is no UTF-8, which only JSON in ASCII can tell
        body = json.dumps(value, separators=(",", ":")).encode("ascii")
    return Response(body, status, media_type="application/json")


def _user(request: Request) -> str:
    peer = getattr(request.state, "peer", None)
    return _name(peer.uid if peer is not None else os.geteuid())


@cache
def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
