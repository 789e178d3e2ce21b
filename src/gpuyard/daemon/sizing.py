"""Who shares GPUs and who gets them alone: a share that fits a GPU, but not beside what is kept free, is no share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuyard.core.columns import Table
from gpuyard.core.events import Edited
from gpuyard.core.model import Phase, Request
from gpuyard.core.pool import Floats
from gpuyard.core.state import State
from gpuyard.daemon.clients import refusal_of
from gpuyard.daemon.views import Work
from gpuyard.units import format_size

if TYPE_CHECKING:
    from gpuyard.daemon.yard import Yard

_BYTE = 1e-3


def seated(yard: Yard, request: Request) -> Request:
    """A request as it is packed: with GPUs for itself, if none has room for it beside what is taken."""
    if request.whole or _has_room(request, _room(yard)):
        return request
    return replace(request, compute=100.0) if _has_room(request, _sizes(yard.state)) else request


def never(yard: Yard, request: Request, work: Work) -> str | None:
    """Why a job can never run here; None if it can. The core speaks of clusters, and this is a machine."""
    refusal = yard.planner.refuses(yard.state, request)
    if refusal is None:
        return refusal_of(work, request, yard.machine.gpus.devices) if work.mps else None
    most, buffer = yard.state.cluster.most_memory, yard.machine.buffer
    if request.memory > most and buffer:
        refusal += f", {format_size(max(0.0, most - buffer))} of it for jobs that share it"
    return refusal.replace("the cluster has", "this machine has")


def reseat(yard: Yard, now: float) -> None:
    """Give waiting shares GPUs for themselves, where more is taken of all GPUs now than lets them fit."""
    state, table, room = yard.state, yard.state.table, _room(yard)
    for row in _cramped(table, room):
        if state.phase[row] not in (Phase.QUEUED, Phase.HELD):
            continue
        work, request = yard.description(state.ids[row])
        if not _has_room(request, room) and _has_room(request, _sizes(state)):
            begin = float(table.begin[row])  # the time of a retry is not in what was asked for
            alone = replace(request, compute=100.0, begin=begin)
            yard.record(Edited(now, state.ids[row], alone), work=work.to_json())


def _cramped(table: Table, room: Floats) -> list[int]:
    """Shares that may not fit any more; those of certain GPUs are looked at more closely."""
    n, most = table.size, np.sort(room)[::-1]
    memory, wanted = table.memory[:n], np.clip(table.gpus[:n], 1, len(most))
    few = memory > most[wanted - 1]  # of as many GPUs as it wants, the fullest has less
    some = (table.scope[:n] > 0) & (memory > room.min())
    found: list[int] = np.flatnonzero((table.compute[:n] < 100) & (few | some)).tolist()
    return found


def _room(yard: Yard) -> Floats:
    """What shares may have of each GPU. Who uses one that is withdrawn for that does not count: they may leave."""
    state = yard.state
    room = _sizes(state) - yard.machine.buffer
    for gpu, taken in enumerate(state.taken):
        if gpu not in state.withdrawn:
            room[gpu] -= taken - state.buffer
    return room


def _sizes(state: State) -> Floats:
    cluster = state.cluster
    return np.array(cluster.gpu_memory or (cluster.memory,) * cluster.gpus)


def _has_room(request: Request, room: Floats) -> bool:
    """Whether enough of the GPUs that will do have so much room."""
    allowed = room[[gpu for gpu in request.scope if gpu < len(room)]] if request.scope else room
    return int((allowed >= request.memory - _BYTE).sum()) >= request.gpus
