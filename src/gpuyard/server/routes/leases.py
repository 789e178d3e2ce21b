"""Routes of leases: GPUs for processes that run already."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Request, Response
from pydantic import Field

from gpuyard.config import Settings
from gpuyard.core.reasons import Reason
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.leases.lease_engine import Holder, Terms
from gpuyard.engines.local import processes
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.auth.hosts import is_forwarded
from gpuyard.server.auth.permissions import Caller
from gpuyard.server.request_fields import WHOLE, Tags, Word
from gpuyard.server.requests import Command
from gpuyard.server.responses import ReasonTexts, reply, state_text, times_are_known
from gpuyard.server.routes.submissions import Asked
from gpuyard.server.sockets import Peer, RemoteSocket, opener_of
from gpuyard.spec.work import Work

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_DEEPEST = 256  # generations that are looked at for an ancestor
_REASONS_KEPT = 1.0  # seconds: those who wait ask all the time, and each answer may take a plan


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
        """What it is, but for what a policy looks at."""
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


class LeaseRoutes:
    """What is asked of the yard for processes that run already."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._life = processes.life()
        self._reasons: dict[str, Reason] = {}
        self._say = ReasonTexts(times=False)
        self._reasons_until = 0.0

    async def acquire(self, request: Request, given: LeaseWish) -> Response:
        """Take a request for GPUs in; `GET /jobs/ID?wait=30&for=start` tells when they are there."""
        work = given.work(*await self._holders(request, given))
        api = self._api

        async def take() -> Command:
            wanted = api.owned(request, JobRequest(work, given.request(api.settings)))
            return lambda: {"id": api.desk.submit_all([wanted])[0]}

        return await api.once(request, take, more=str(work.holder))

    async def heartbeat(self, job: str) -> Response:
        """A sign of life of whoever has a lease, or waits for one; answers how it stands. Costs next to nothing."""
        view = self._api.yard.store.open.get(job)
        if view is None:
            known = self._api.reader.job(job)
            if known is None:
                raise tasks.unknown(job)
            raise NotNow(f"lease {job} is over: {state_text(known) or known.state}")
        if view.kind != "lease":
            raise NotNow(f"job {job} is no lease, and needs no heartbeat")
        self._api.signs.note(job)
        return reply(await self.standing(view))

    async def standing(self, view: JobView) -> dict[str, Any]:
        """How a lease stands; why it waits is known as of the last second."""
        if view.state == "running" and view.started is not None:
            return {"id": view.id, "state": view.state, "gpus": list(view.gpus), "reason": state_text(view)}
        why = (await self.reasons()).get(view.id)
        said = self._say(why, view) if why else None
        state = "held" if view.state == "held" else "queued"
        return {"id": view.id, "state": state, "gpus": [], "reason": said or state_text(view)}

    async def reasons(self) -> dict[str, Reason]:
        """Why each waiting job waits, in the order of the policy, as of the last second."""
        if time.monotonic() >= self._reasons_until:
            look = self._api.yard.ask(self._api.desk.reasons, changes=False)
            self._reasons = await asyncio.wrap_future(look)
            self._say = ReasonTexts(times_are_known(list(self._api.yard.store.open.values())))
            self._reasons_until = time.monotonic() + _REASONS_KEPT
        return self._reasons

    async def _holders(self, request: Request, given: LeaseWish) -> tuple[Holder | None, Holder | None]:
        """Who is to hold it, and who asks; nobody, if it lasts by heartbeats."""
        if given.heartbeat is not None:
            if given.holder is not None or given.interactive:
                raise UserError("a lease that lasts by heartbeats has no process; leave holder and interactive out")
            return None, None
        peer = await peer_of(request, self._api.settings)
        if peer is None:
            raise UserError(
                "your process cannot be seen from here, so it cannot hold a lease; send heartbeat: 60, say, and then "
                "POST /api/v1/leases/ID/heartbeat more often than every 60 seconds"
            )
        requester = self.identify(peer.pid)
        return requester if given.holder in (None, peer.pid) else self.named(given.holder or 0, peer), requester

    async def give_back(self, job: str) -> Response:
        """End a lease; give it up if it waits."""
        await self._api.ask(lambda: self._api.desk.give_back(job))
        return reply({"id": job})

    def named(self, pid: int, peer: Peer) -> Holder:
        """A process that somebody names as the holder, if they may."""
        holder = self.identify(pid)
        if peer.uid == 0:
            return holder
        if _uid(pid) != peer.uid:
            raise UserError(f"process {pid} is not yours: it cannot hold a lease that you ask for")
        if not _descends(peer.pid, pid):
            raise UserError(f"process {pid} cannot hold the lease: whoever asks must descend from it (see --pid)")
        return holder

    def identify(self, pid: int) -> Holder:
        """A process that no other is taken for."""
        process = processes.look(pid)
        if process is None or process.dead:
            raise UserError(f"there is no process {pid} to hold a lease; it may have ended, or be in another container")
        return Holder(pid, process.started, self._life)


def terms_of(view: JobView | None) -> Terms | None:
    """What a lease is, out of its view; None if it is none, or over."""
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
    """The process that asks, if it is on this machine; None if that cannot be told, or it asks for somebody else.

    A proxy does that: the settings tell of it, it says so itself, or it is another user's than who it asks for.
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
