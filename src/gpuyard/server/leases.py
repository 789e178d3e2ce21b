"""The routes of leases: GPUs for processes that run already."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from fastapi import Request, Response
from pydantic import Field

from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.views import JobView, Work
from gpuyard.engines import processes
from gpuyard.engines.leases import Holder, Terms
from gpuyard.errors import UserError
from gpuyard.server.answers import reply
from gpuyard.server.listen import Peer
from gpuyard.server.models import Asked, Tags, Word
from gpuyard.server.once import Act

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_DEEPEST = 256  # generations that are looked at for an ancestor


class LeaseWish(Asked):
    """A lease as it is asked for."""

    name: Annotated[Word | None, Field(max_length=200, description="The holder's own, if not said.")] = None
    tags: Tags = Field(default_factory=list)
    holder: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="The process that is to hold it; the asking one.")
    ] = None
    interactive: Annotated[bool, Field(description="Whether the holder is a shell that somebody types in.")] = False

    def work(self, holder: Holder, requester: Holder) -> Work:
        """What it is, but for what a policy looks at."""
        comm = (processes.read_proc(holder.pid, "comm") or b"").decode(errors="replace").strip()
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
        )


class Leases:
    """What is asked of the yard for processes that run already."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._life = processes.life()

    async def acquire(self, request: Request, given: LeaseWish) -> Response:
        """Take a request for GPUs in; `GET /jobs/ID?wait=30&for=start` tells when they are there."""
        peer = _peer(request)
        requester = self._identify(peer.pid)
        holder = requester if given.holder in (None, peer.pid) else self._named(given.holder or 0, peer)
        api = self._api

        def take() -> Act:
            wanted = api.owned(request, Wanted(given.work(holder, requester), given.request(api.settings)))
            return lambda: {"id": api.desk.submit_all([wanted])[0]}

        return await api.once(request, take, more=str(holder))

    async def give_back(self, job: str) -> Response:
        """End a lease; give it up if it waits."""
        await self._api.ask(lambda: self._api.desk.give_back(job))
        return reply({"id": job})

    def _named(self, pid: int, peer: Peer) -> Holder:
        """A process that somebody names as the holder, if they may."""
        holder = self._identify(pid)
        if peer.uid == 0:
            return holder
        if _uid(pid) != peer.uid:
            raise UserError(f"process {pid} is not yours: it cannot hold a lease that you ask for")
        if not _descends(peer.pid, pid):
            raise UserError(f"process {pid} cannot hold the lease: whoever asks must descend from it (see --pid)")
        return holder

    def _identify(self, pid: int) -> Holder:
        process = processes.look(pid)
        if process is None or process.dead:
            raise UserError(f"there is no process {pid} to hold a lease; it may have ended, or be in another container")
        return Holder(pid, process.started, self._life)


def terms_of(view: JobView | None) -> Terms | None:
    """What a lease is, out of its view; None if it is none, or over."""
    if view is None or view.kind != "lease":
        return None
    requester = view.work.get("requester")
    return Terms(
        Holder(*view.work["holder"]),
        Holder(*requester) if requester else None,
        interactive=view.work.get("interactive", False),
        since=view.started,
        gpus=view.gpus,
    )


def _peer(request: Request) -> Peer:
    peer = getattr(request.state, "peer", None)
    if peer is None:
        raise UserError("a lease can be asked for over the daemon's socket only, where the kernel tells who asks")
    return Peer(*peer)


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
