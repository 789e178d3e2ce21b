"""Routes of leases: GPUs for processes that run already."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import Field

from gpuyard.api import replies, types
from gpuyard.config import Settings
from gpuyard.core.reasons import Reason
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.leases.heartbeats import Heartbeats
from gpuyard.engines.leases.lease_engine import Holder, Terms
from gpuyard.engines.local import processes
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.auth.hosts import is_forwarded
from gpuyard.server.auth.permissions import Caller
from gpuyard.server.context import Context
from gpuyard.server.request_fields import WHOLE, Tags, Word
from gpuyard.server.requests import Command, JobIntake
from gpuyard.server.responses import ReasonTexts, reply, state_text
from gpuyard.server.routes.job_lists import PAGE, JobFilter, JobListing, Limit, Of, Offset
from gpuyard.server.routes.jobs import JOB, JobLookup
from gpuyard.server.routes.submissions import Asked
from gpuyard.server.routing import AT, LOCATION, NO_JOB, NOT_CHANGED, PAGED, Route, created, links_to, ok, owner
from gpuyard.server.sockets import Peer, RemoteSocket, opener_of
from gpuyard.spec.work import Work

_DEEPEST = 256  # generations that are searched for an ancestor
_REASONS_KEPT = 1.0  # seconds: each answer may take a plan

LEASE: dict[str, Any] = {
    **JOB, "id": "19", "name": "python", "state": "running", "reason": "a lease, held by process 4242", "attempt": 1,
    "gpus": [1], "started_at": AT, "gpu_count": 1, "command": [], "directory": "", "tags": [], "kind": "lease",
    "pid": 4242,
}  # fmt: skip
LEASES: dict[str, Any] = {"total": 1, "rows": 1, "states": {"running": 1}, "jobs": [LEASE], "next": None}
LEASE_WISHES: dict[str, Any] = {
    "any GPU": {}, "one of two": {"gpus": 1, "from": [0, 1], "time_limit": 3600}, "from afar": {"heartbeat": 60},
}  # fmt: skip
STANDING: dict[str, Any] = {
    "id": "19", "state": "running", "gpus": [0], "reason": "a lease, held from afar by a sign of life every 1m 00s",
}  # fmt: skip

_OPERATIONS = ("getLease", "keepLease", "releaseLease", "getJob")


class LeaseWish(Asked):
    """A lease as it is asked for."""

    name: Annotated[Word | None, Field(max_length=200, description="The holder's own, if not said.")] = None
    tags: Tags = Field(default_factory=list)
    holder: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="The process that is to hold it; the asking one."), WHOLE
    ] = None
    interactive: Annotated[bool, Field(description="Whether the holder is a shell that somebody types in.")] = False
    heartbeat: Annotated[
        float | None,
        Field(ge=5, le=3600, description="No process holds it: it ends after so many seconds without a heartbeat."),
    ] = None

    def work(self, holder: Holder | None, requester: Holder | None) -> Work:
        comm = (processes.read_proc(holder.pid, "comm") or b"").decode(errors="replace").strip() if holder else ""
        return Work(
            command=(),
            directory="",
            kind="lease",
            name=self.name or comm or "lease",
            tags=tuple(self.tags),
            time_limit=self.time_limit,
            estimated=self.estimated,
            holder=holder,
            requester=None if requester == holder else requester,
            interactive=self.interactive,
            heartbeat=self.heartbeat or 0.0,
        )


class Holders:
    def __init__(self) -> None:
        self._life = processes.life()

    def named(self, pid: int, peer: Peer) -> Holder:
        """A process that the peer names as the holder, if it may: an ancestor of the same user, or any for root."""
        holder = self.identify(pid)
        if peer.uid == 0:
            return holder
        if _uid(pid) != peer.uid:
            raise UserError(f"process {pid} is not yours: it cannot hold a lease that you ask for")
        if not _descends(peer.pid, pid):
            raise UserError(f"process {pid} cannot hold the lease: whoever asks must descend from it (see --pid)")
        return holder

    def identify(self, pid: int) -> Holder:
        """A process, with its start time, so that none with the same pid is taken for it later."""
        process = processes.look(pid)
        if process is None or process.dead:
            raise UserError(f"there is no process {pid} to hold a lease; it may have ended, or be in another container")
        return Holder(pid, process.started, self._life)


class RecentReasons:
    """Why each waiting job waits, at most a second old: clients of leases ask all the time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reasons: dict[str, Reason] = {}
        self._say = ReasonTexts()
        self._until = 0.0

    async def all(self) -> dict[str, Reason]:
        if time.monotonic() >= self._until:
            self._reasons = await self._context.look(self._context.commands.reasons)
            self._say = ReasonTexts(await self._context.due(self._reasons))
            self._until = time.monotonic() + _REASONS_KEPT
        return self._reasons

    async def text(self, view: JobView) -> str | None:
        why = (await self.all()).get(view.id)
        return self._say(why, view) if why else None


class LeaseRoutes:
    def __init__(
        self, context: Context, lookup: JobLookup, intake: JobIntake, listing: JobListing, reasons: RecentReasons,
        holders: Holders, heartbeats: Heartbeats,
    ) -> None:  # fmt: skip
        self._context, self._lookup, self._intake, self._listing = context, lookup, intake, listing
        self._reasons, self._holders, self._heartbeats = reasons, holders, heartbeats

    @Route(
        "POST /leases", "askForLease", "Ask for GPUs", "Leases",
        created(replies.Id, {"id": "19"}, links_to(_OPERATIONS, "id"), LOCATION), (422, 503), LEASE_WISHES, once=True,
    )  # fmt: skip
    async def acquire(self, request: Request, given: LeaseWish) -> Response:
        """Take a request for GPUs in; `GET /jobs/ID?wait=30&for=start` tells when they are there."""
        work = given.work(*await self._holder(request, given))
        context = self._context

        async def take() -> Command:
            wanted = self._intake.owned(request, JobRequest(work, given.request(context.settings)))
            return lambda: {"id": context.commands.submit_all([wanted])[0]}

        return await self._intake.once(request, take, more=str(work.holder))

    @Route(
        "GET /leases", "listLeases", "List leases", "Leases",
        ok("A page.", replies.Jobs, LEASES, headers=PAGED, links=links_to(("getLease",), "jobs/0/id")), (422,),
    )  # fmt: skip
    async def leases(self, request: Request, user: Of = "", offset: Offset = 0, limit: Limit = PAGE) -> Response:
        """Leases that are not over, those that have their GPUs first."""
        wanted = {"kind": "lease", **({"user": user} if user else {})}
        choice = JobFilter(False, wanted, frozenset(), "", "", slice(offset, offset + limit), False)
        return await self._listing.page(request, choice)

    @Route(
        "GET /leases/{job}", "getLease", "Look at a lease", "Leases",
        ok("The lease as it stands.", types.Job, LEASE), NO_JOB,
    )  # fmt: skip
    async def lease(self, job: str) -> Response:
        """One lease, also if it is over."""
        view = self._context.reader.job(job)
        if view is None or view.kind != "lease":
            raise tasks.unknown(job, "lease")
        return await self._lookup.one(job)

    @Route(
        "POST /leases/{job}/release", "releaseLease", "Give a lease back", "Leases",
        ok("It is over.", replies.Id, {"id": "19"}), NOT_CHANGED, may=owner("give lease {job} back"),
    )  # fmt: skip
    async def give_back(self, job: str) -> Response:
        """End a lease; give it up if it waits."""
        await self._context.ask(lambda: self._context.commands.give_back(job))
        return reply({"id": job})

    @Route(
        "POST /leases/{job}/heartbeat", "keepLease", "Give a sign of life", "Leases",
        ok("How it stands.", replies.LeaseStanding, STANDING), (*NO_JOB, 409), may=owner("keep lease {job}"),
    )  # fmt: skip
    async def heartbeat(self, job: str) -> Response:
        """A sign of life of whoever has a lease, or waits for one; answers how it stands. Costs next to nothing."""
        view = self._context.daemon.store.open.get(job)
        if view is None:
            known = self._context.reader.job(job)
            if known is None:
                raise tasks.unknown(job)
            raise NotNow(f"lease {job} is over: {state_text(known) or known.state}")
        if view.kind != "lease":
            raise NotNow(f"job {job} is no lease, and needs no heartbeat")
        self._heartbeats.note(job)
        if view.state == "running" and view.started is not None:
            return reply({"id": job, "state": view.state, "gpus": list(view.gpus), "reason": state_text(view)})
        reason = await self._reasons.text(view) or state_text(view)
        return reply({"id": job, "state": "held" if view.state == "held" else "queued", "gpus": [], "reason": reason})

    async def _holder(self, request: Request, given: LeaseWish) -> tuple[Holder | None, Holder | None]:
        """The holder and the requesting process; None for a lease that lasts by heartbeats."""
        if given.heartbeat is not None:
            if given.holder is not None or given.interactive:
                raise UserError("a lease that lasts by heartbeats has no process; leave holder and interactive out")
            return None, None
        peer = await peer_of(request, self._context.settings)
        if peer is None:
            raise UserError(
                "your process cannot be seen from here, so it cannot hold a lease; send heartbeat: 60, say, and then "
                "POST /api/v1/leases/ID/heartbeat more often than every 60 seconds"
            )
        requester = self._holders.identify(peer.pid)
        if given.holder in (None, peer.pid):
            return requester, requester
        return self._holders.named(given.holder or 0, peer), requester


def terms_of(view: JobView | None) -> Terms | None:
    """The terms of a lease; None for other jobs."""
    if view is None or view.kind != "lease":
        return None
    holder, requester = view.work.get("holder"), view.work.get("requester")
    return Terms(
        Holder(*holder) if holder else None,
        Holder(*requester) if requester else None,
        interactive=view.work.get("interactive", False),
        since=view.started,
        gpus=view.gpus,
        heartbeat=view.work.get("heartbeat", 0.0),
        by_use=view.work.get("by_use", False),
    )


async def peer_of(request: Request, settings: Settings) -> Peer | None:
    """The requesting process, if it is on this machine; None if it is not known, or is a proxy.

    It is a proxy if the settings name one, by its headers, or if its user is not the caller.
    """
    peer, far = getattr(request.state, "peer", None), getattr(request.state, "far", None)
    found, caller = peer or far, getattr(request.state, "caller", None)
    if found is None or is_forwarded(request.headers.raw) or (peer is None and settings.allowed_hosts):
        return None
    if not isinstance(caller, Caller) or caller.by_page or (caller.uid != found.uid and caller.via != "nobody"):
        return None
    if not isinstance(far, RemoteSocket):
        return Peer(*peer) if peer is not None else None
    pid = await asyncio.to_thread(opener_of, far)
    return Peer(pid, far.uid, -1) if pid is not None else None


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _descends(pid: int, ancestor: int) -> bool:
    for _ in range(_DEEPEST):
        if pid == ancestor:
            return True
        process = processes.look(pid)
        if process is None or process.parent == 0:
            return False
        pid = process.parent
    return False
