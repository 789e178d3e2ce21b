"""Which jobs can be clients of MPS on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuyard.core.events import Edited
from gpuyard.core.loops.pool import Floats
from gpuyard.core.model import Phase, Request
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State, Table
from gpuyard.daemon.context import Context
from gpuyard.engines.mps_control import program
from gpuyard.errors import UserError
from gpuyard.gpus.base import Device
from gpuyard.spec.work import Work
from gpuyard.units import format_size

_LEAST = 3, 5  # the compute capability that MPS needs


def mps_refusal(work: Work, request: Request, devices: Sequence[Device]) -> str | None:
    """Why a job cannot be a client of MPS, as what follows `it`; None if it can."""
    if request.gpus != 1:
        return (
            f"asks for MPS on {request.gpus} GPUs, and a client of MPS has one; "
            "split it into jobs of one GPU each, or do without --mps"
        )
    lacking = [one for one in devices if (not request.scope or one.index in request.scope) and _lacks(one)]
    if lacking:
        others = ",".join(str(one.index) for one in devices if not _lacks(one))
        names = ", ".join(f"GPU {one.index} ({one.name})" for one in lacking)
        return f"may get {names}, without MPS; " + (f"say --from {others}" if others else "do without --mps")
    try:
        program()
    except UserError as error:
        return f"cannot be a client of MPS: {error}"
    return None


def _lacks(device: Device) -> bool:
    return device.capability is not None and device.capability < _LEAST


_BYTE = 1e-3


def fitted_share(context: Context, request: Request) -> Request:
    """A request with whole GPUs, if no GPU has room for its share beside what is taken."""
    if request.whole or _has_room(request, _room(context)):
        return request
    return replace(request, compute=100.0) if _has_room(request, _sizes(context.state)) else request


def permanent_refusal(context: Context, planner: OrderedPlanner, request: Request, work: Work) -> str | None:
    """Why a job can never run here; None if it can. The core speaks of clusters, and this is a machine."""
    refusal = planner.refuses(context.state, request)
    if refusal is None:
        return mps_refusal(work, request, context.machine.gpus.devices) if work.mps else None
    most, buffer = context.state.cluster.most_memory, context.machine.buffer
    if request.memory > most and buffer:
        refusal += f", {format_size(max(0.0, most - buffer))} of it for jobs that share it"
    return refusal.replace("the cluster has", "this machine has")


def refit_shares(context: Context, now: float) -> None:
    state, table, room = context.state, context.state.table, _room(context)
    for row in _tight_shares(table, room):
        if state.phase[row] not in (Phase.QUEUED, Phase.HELD):
            continue
        work, request = context.description(state.ids[row])
        if not _has_room(request, room) and _has_room(request, _sizes(state)):
            begin = float(table.begin[row])  # the time of a retry is not in what was asked for
            alone = replace(request, compute=100.0, begin=begin)
            context.record(Edited(now, state.ids[row], alone), work=work.to_json())


def _tight_shares(table: Table, room: Floats) -> list[int]:
    """Shares that may not fit any more; those with a scope are checked more closely."""
    n, most = table.size, np.sort(room)[::-1]
    memory, wanted = table.memory[:n], np.clip(table.gpus[:n], 1, len(most))
    few = memory > most[wanted - 1]  # of as many GPUs as it wants, the fullest has less
    some = (table.scope[:n] > 0) & (memory > room.min())
    found: list[int] = np.flatnonzero((table.compute[:n] < 100) & (few | some)).tolist()
    return found


def _room(context: Context) -> Floats:
    """Bytes that shares may have of each GPU. Foreign use of a withdrawn GPU does not count: it may end."""
    state = context.state
    room = _sizes(state) - context.machine.buffer
    for gpu, taken in enumerate(state.taken):
        if gpu not in state.withdrawn:
            room[gpu] -= taken - state.buffer
    return room


def _sizes(state: State) -> Floats:
    cluster = state.cluster
    return np.array(cluster.gpu_memory or (cluster.memory,) * cluster.gpus)


def _has_room(request: Request, room: Floats) -> bool:
    allowed = room[[gpu for gpu in request.scope if gpu < len(room)]] if request.scope else room
    return int((allowed >= request.memory - _BYTE).sum()) >= request.gpus
