"""The API of watchmen, on top of leases: its clients work unchanged."""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import formatdate
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from fastapi import Request, Response
from pydantic import AfterValidator, BaseModel, Field, StrictInt, ValidationError

from gpuyard.core.events import Submitted
from gpuyard.core.reasons import Reason
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.leases.heartbeats import Heartbeats
from gpuyard.engines.leases.holders import find_holder
from gpuyard.engines.leases.lease_engine import GIVEN_UP
from gpuyard.engines.local import processes
from gpuyard.engines.local.accounts import name_of
from gpuyard.engines.local.processes import read_proc, user_of
from gpuyard.errors import UserError
from gpuyard.gpus import driver_version
from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.server.context import Context
from gpuyard.server.problems import error_location, error_message
from gpuyard.server.requests import JobIntake
from gpuyard.server.responses import ReasonTexts, reply
from gpuyard.server.routes.gpus import NoSuchGpu, listed_gpus
from gpuyard.server.routes.leases import Holders, RecentReasons, peer_of
from gpuyard.server.routes.submissions import Asked
from gpuyard.server.routing import Route, owner
from gpuyard.server.sockets import Peer
from gpuyard.spec.work import Work

WAITING, READY, OK, TIMEOUT, CANCELLED = "waiting", "ready", "ok", "timeout", "cancelled"
_MIB = 2**20


def status_of(view: JobView) -> str:
    if view.state == "cancelled":
        return TIMEOUT if view.message.startswith(GIVEN_UP) else CANCELLED
    if view.recalled == "cancelled":
        return CANCELLED
    if view.over:
        return OK if view.state == "succeeded" else TIMEOUT
    return READY if view.state == "running" and view.started is not None else WAITING


def client_json(view: JobView, queue_num: int, msg: str, heard: float | None) -> dict[str, Any]:
    mode, number = view.work["watchmen"]
    status = status_of(view)
    return {
        "id": view.name,
        "mode": mode,
        "register_time": date(view.submitted),
        "last_request_time": date(heard if heard is not None else view.submitted),
        "status": status,
        "queue_num": queue_num,
        "gpus": list(view.work.get("from") or ()),
        "msg": msg,
        "req_gpu_num": number,
        "available_gpus": [] if status == WAITING else list(view.gpus),
    }


def date(at: float) -> str:
    """A time as watchmen's server writes it: `Mon, 16 Nov 2026 09:02:03 GMT`."""
    return formatdate(at, usegmt=True)


class Ahead:
    """How many jobs have, or are ahead for, a GPU that a client waits for; 0 if it has its GPUs."""

    def __init__(self, views: Iterable[JobView], order: Sequence[str], count: int) -> None:
        self._every = (1 << count) - 1
        by_id = {view.id: view for view in views}
        self._before: dict[str, int] = {}
        busy = Counter(_mask(view.gpus) for view in by_id.values() if view.state == "running")
        ordered = dict.fromkeys((*order, *by_id))  # new and held jobs come last
        for view in (by_id[id] for id in ordered if id in by_id and by_id[id].state in ("queued", "held")):
            wanted = _mask(view.work.get("from") or ()) or self._every
            self._before[view.id] = sum(many for mask, many in busy.items() if mask & wanted)
            busy[wanted] += 1

    def __call__(self, view: JobView) -> int:
        return self._before.get(view.id, 0)


def _mask(gpus: Iterable[int]) -> int:
    found = 0
    for gpu in gpus:
        found |= 1 << gpu
    return found


def collection_json(machine: Machine) -> dict[str, Any]:
    return {
        "hostname": platform.node(),
        "driver_version": "simulated" if machine.gpus.simulated else _driver(),
        "query_time": str(datetime.now()),
        "gpus": [_gpu_json(look.device, look.reading) for look in machine.readings()],
    }


@lru_cache(maxsize=1)
def _driver() -> str:
    return driver_version()


def _gpu_json(device: Device, reading: Reading) -> dict[str, Any]:
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "temperature.gpu": reading.temperature,
        "fan.speed": None,
        "utilization.gpu": reading.utilization,
        "utilization.enc": None,
        "utilization.dec": None,
        "power.draw": None if reading.power is None else round(reading.power),
        "enforced.power.limit": None,
        "memory.used": reading.memory_used // _MIB,
        "memory.total": device.memory // _MIB,
        "processes": [_process_json(process) for process in reading.processes],
    }


def _process_json(process: Process) -> Mapping[str, Any]:
    """A process; of its command only the name, since arguments may hold secrets."""
    name = (read_proc(process.pid, "comm") or b"").decode(errors="replace").strip()
    uid = user_of(process.pid)
    return {
        "username": "" if uid is None else name_of(uid),
        "command": name,
        "full_command": [name] if name else [],
        "gpu_memory_usage": process.memory // _MIB,
        "cpu_percent": None,
        "cpu_memory_usage": None,
        "pid": process.pid,
    }


CLIENTS_KEPT = 48 * 3600.0  # seconds for which watchmen tells of clients that have finished
_MOMENT = 1.0
_MOST_GPUS = 2**31
_MOST_FINISHED = 1000
_MOST_KNOWN = 10_000
MODES = ("queue", "schedule")
M = TypeVar("M", bound=BaseModel)


def _plain(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError("must not hold control characters")
    return text


ClientId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain)]


class Named(BaseModel):
    """Which client is meant."""

    id: ClientId


class Registration(Named):
    """A client that wants GPUs."""

    gpus: list[StrictInt] | None = None
    mode: str | None = "queue"
    req_gpu_num: Annotated[StrictInt, Field(ge=-_MOST_GPUS, le=_MOST_GPUS)] | None = 0

    def asked(self, count: int) -> Asked:
        gpus, number = self.gpus or [], self.req_gpu_num or 0
        if not gpus:
            raise UserError("gpus must not be empty: list those that will do, as in [0, 1]")
        if missing := [gpu for gpu in gpus if not 0 <= gpu < count]:
            raise UserError(f"check the gpus existence: there is no GPU {missing[0]}; they are called {_names(count)}")
        if len(set(gpus)) < len(gpus):
            raise UserError("gpus must not hold a GPU twice")
        if self.mode not in MODES:
            raise UserError(f"mode {self.mode} is not supported: it is queue (all of gpus) or schedule (some of them)")
        if self.mode == "queue":
            return Asked(gpus=len(gpus), from_=gpus)
        if not 1 <= number <= len(gpus):
            raise UserError(f"`req_gpu_num` is not valid: it must be from 1 to {len(gpus)}, as many as gpus has")
        return Asked(gpus=number, from_=gpus)


class WatchmenRoutes:
    def __init__(
        self, context: Context, intake: JobIntake, reasons: RecentReasons, holders: Holders, heartbeats: Heartbeats
    ) -> None:
        self._context, self._intake, self._reasons = context, intake, reasons
        self._holders, self._heartbeats = holders, heartbeats
        self._jobs: dict[str, str] = {}  # leases by client, as a cache

    # -- clients ----------------------------------------------------------------------------------

    @Route("POST /client/register", root="")
    async def register(self, request: Request) -> Response:
        """Let a client wait for GPUs."""
        given, context = _read(Registration, await request.body()), self._context
        asked = given.asked(len(context.daemon.machine.gpus.devices))
        work = Work(
            command=(), directory="", kind="lease", name=given.id, estimated=False,
            watchmen=(given.mode or "", given.req_gpu_num or 0),
        )  # fmt: skip
        work = await self._held(request, work)
        wanted = self._intake.owned(request, JobRequest(work, asked.request(context.settings)))

        def take() -> list[str]:
            if self._is_open(given.id):
                raise NotNow(f"client_id: {given.id} has been registered! Choose another id, or cancel that one")
            return context.commands.submit_all([wanted])

        [job] = await context.ask(take)
        self._know(given.id, job)
        request.state.about = job
        return reply({"status": "ok", "msg": ""})

    @Route("POST /client/ping", may=owner("ping client"), root="")
    async def ping(self, request: Request) -> Response:
        """A sign of life of a client; whether it has its GPUs."""
        view: JobView = request.state.client
        self._heartbeats.note(view.id)
        if view.state == "running" and view.started is None:  # it starts now, and asks again in 10 s
            await self._context.watch.wait(_MOMENT, view.id)
            view = self._context.daemon.store.open.get(view.id, view)
        status = status_of(view)
        gpus = [] if status == "waiting" else list(view.gpus)
        return reply({"status": "ok", "available_gpus": gpus, "msg": status})

    @Route("POST /client/cancel", may=owner("cancel client"), root="")
    async def cancel(self, request: Request) -> Response:
        """Cancel a client, whether it waits or has its GPUs. Its process goes on, and learns of it by its next ping."""
        view: JobView = request.state.client
        if view.over:
            raise NotNow(f"Client {view.name} is not waiting: it has finished ({status_of(view)})")
        if status_of(view) != CANCELLED:
            user = self._context.permissions.name(request)
            await self._context.ask(lambda: self._context.commands.cancel(view.id, None, user))
        return reply({"status": "ok", "msg": f"Client {view.name} cancelled successfully"})

    def guard(self, declared: Route) -> Callable[[Request], Awaitable[None]]:
        """Finds the client that a request names, and checks that the caller owns it."""

        async def guard(request: Request) -> None:
            id = _read(Named, await request.body()).id
            view = await self._find(id)
            if view is None:
                raise NoSuchJob(f"client not registered or has been cancelled: nothing is known of {id}")
            permissions = self._context.permissions
            caller, action = permissions.caller(request), f"{declared.may.action} {id}"
            permissions.check(declared.may.permission, caller, action, lambda: view.user)
            request.state.client, request.state.about = view, view.id

        return guard

    async def _held(self, request: Request, work: Work) -> Work:
        """The lease with what keeps it: a process of this machine, or pings and then the use of its GPUs."""
        peer = await peer_of(request, self._context.settings)
        if peer is None:
            return replace(work, heartbeat=self._context.settings.queue_timeout, by_use=True)
        requester = self._holders.identify(peer.pid)
        if not _prints_gpus(peer.pid):
            return replace(work, holder=requester)
        found = find_holder(asker=peer.pid)  # this process ends when it has its GPUs
        try:
            holder = self._holders.named(found.pid, Peer(*peer))
        except UserError:  # of another user: a service that runs commands for its users, say
            return replace(work, heartbeat=self._context.settings.queue_timeout, by_use=True)
        return replace(work, holder=holder, requester=requester, interactive=found.interactive)

    def _is_open(self, id: str) -> bool:
        """Whether a client waits or has GPUs, unwritten events included. For the daemon's thread."""
        daemon = self._context.daemon
        submitted = (record for record in daemon.unwritten if isinstance(record.event, Submitted))
        new = [record.job for record in submitted if _is_client(record.details["work"], id)]
        known = [view.id for view in daemon.store.open.values() if _is_client(view.work, id)]
        rows = (daemon.state.row_of.get(job) for job in (*new, *known) if job)
        return any(row is not None and not daemon.state.phase[row].over for row in rows)

    async def _find(self, id: str) -> JobView | None:
        """The latest client with this id: an open one, or one that finished recently."""
        known = self._open_lease(id)
        return known or await asyncio.to_thread(self._finished, id)

    def _open_lease(self, id: str) -> JobView | None:
        opened = self._context.daemon.store.open
        if (view := opened.get(self._jobs.get(id, ""))) is not None:
            return view
        found = [view for view in list(opened.values()) if _is_client(view.work, id)]
        if found:
            self._know(id, found[-1].id)
        return found[-1] if found else None

    def _finished(self, id: str) -> JobView | None:
        since = time.time() - CLIENTS_KEPT
        wanted = {"name": id, "kind": "lease"}
        found = self._context.reader.jobs(over=None, wanted=wanted, ended_after=since)
        return next((view for view in reversed(found) if _is_client(view.work, id)), None)

    def _know(self, id: str, job: str) -> None:
        if len(self._jobs) > _MOST_KNOWN:
            self._jobs.clear()
        self._jobs[id] = job

    # -- what there is ----------------------------------------------------------------------------

    @Route("GET /show/work", root="")
    async def show_work(self) -> Response:
        """Clients that wait, or have their GPUs."""
        return reply({"status": "ok", "msg": await self._work()})

    @Route("GET /show/finished", root="")
    async def show_finished(self) -> Response:
        """Clients that finished lately."""
        return reply({"status": "ok", "msg": await asyncio.to_thread(self._all_finished)})

    @Route("GET /show/gpus", root="")
    async def show_gpus(self) -> Response:
        """The GPUs, as gpustat shows them."""
        return reply({"status": "ok", "msg": await asyncio.to_thread(collection_json, self._context.daemon.machine)})

    @Route("GET /api", root="")
    async def all(self) -> Response:
        """All three."""
        found = {
            "gpu": await asyncio.to_thread(collection_json, self._context.daemon.machine),
            "work_queue": await self._work(),
            "finished_queue": await asyncio.to_thread(self._all_finished),
        }
        return reply(found)

    @Route("GET /gpu/{gpu}", root="")
    async def gpu(self, gpu: str) -> Response:
        """Whether a GPU is free: no job or lease has it, and no foreign process is on it."""
        return reply({"status": "ok", "msg": self._free()[self._index(gpu)]})

    @Route("GET /gpus/{gpus}", root="")
    async def gpus(self, gpus: str) -> Response:
        """Whether all of these GPUs are free, and each of them."""
        free = self._free()
        detail = [{"gpu": gpu, "status": free[gpu]} for gpu in sorted(map(self._index, gpus.split(",")))]
        return reply({"status": "ok", "msg": all(entry["status"] for entry in detail), "detail": detail})

    async def _work(self) -> list[dict[str, Any]]:
        reasons = await self._reasons.all()
        return await asyncio.to_thread(self._all_open, reasons)

    def _all_open(self, reasons: Mapping[str, Reason]) -> list[dict[str, Any]]:
        views = list(self._context.daemon.store.open.values())
        ahead = Ahead(views, list(reasons), len(self._context.daemon.machine.gpus.devices))
        say, heartbeats = ReasonTexts(), self._heartbeats
        clients = sorted((view for view in views if view.work.get("watchmen")), key=lambda view: view.number)
        return [
            client_json(view, ahead(view), say(reasons.get(view.id), view) or "", heartbeats.last(view.id))
            for view in clients
        ]

    def _all_finished(self) -> list[dict[str, Any]]:
        wanted, since = {"kind": "lease"}, time.time() - CLIENTS_KEPT
        views = self._context.reader.jobs(over=True, wanted=wanted, limit=_MOST_FINISHED, ended_after=since)
        clients = (view for view in reversed(views) if view.work.get("watchmen"))
        return [client_json(view, -1, view.message, view.ended) for view in clients]

    def _free(self) -> list[bool]:
        return [gpu["state"] == "free" for gpu in listed_gpus(self._context.daemon)]

    def _index(self, text: str) -> int:
        count = len(self._context.daemon.machine.gpus.devices)
        digits = text.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 9 and int(digits) < count):
            raise NoSuchGpu(f"there is no GPU '{text[:100]}': they are called {_names(count)}")
        return int(digits)


def _names(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"


def _is_client(work: Any, id: str) -> bool:
    return bool(work.get("watchmen")) and work.get("name") == id


def _prints_gpus(pid: int) -> bool:
    """Whether a process is `python -m watchmen.wait`, which ends when it has printed the GPUs for a shell."""
    words = (processes.read_proc(pid, "cmdline") or b"").split(b"\0")
    module = any(words[n : n + 2] == [b"-m", b"watchmen.wait"] for n in range(len(words)))
    return module or any(word.endswith(b"watchmen/wait.py") for word in words[:3])


def _read(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body or b"null")
    except ValidationError as error:
        parts = (
            f"{error_location(part)}: {error_message(part, model)}".removeprefix("body: ")
            for part in error.errors()[:5]
        )
        raise UserError("; ".join(parts)) from error
