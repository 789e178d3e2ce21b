"""Routes of GPUs: their state, their processes and recent samples."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from fastapi import Path, Query, Response

from gpuyard.api import types
from gpuyard.core.limits.withdrawal import SHARED
from gpuyard.core.loops.pool import Flags
from gpuyard.core.state import State
from gpuyard.daemon.devices.machine import Machine, Occupant
from gpuyard.daemon.devices.samples import COLUMNS, Part, Span
from gpuyard.daemon.devices.simulation import memory_of
from gpuyard.daemon.devices.simulation import promised as promised_to
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.gpus.base import Device
from gpuyard.server.context import Context
from gpuyard.server.request_fields import MOST_INDEX
from gpuyard.server.responses import encoded, iso, reply
from gpuyard.server.routing import Route, ok
from gpuyard.server.stream.streams import Wait

SAMPLES = "/samples"  # the topic of `Watch` for new samples of GPUs; no job has this id
_INDICES = re.compile(r"[0-9]{1,7}(,[0-9]{1,7})*")
_MOST_AFTER = 2e10  # seconds since the epoch

GPU: dict[str, Any] = {
    "index": 1, "uuid": "GPU-5c1d4a4e", "name": "NVIDIA A100", "state": "ours", "memory_total": 42949672960,
    "memory_used": 21474836480, "utilization": 87.0, "jobs": ["19"], "temperature": 61.0, "power": 240.5,
    "why": "a job of ours is placed here", "processes": [
        {"pid": 4711, "user": "ann", "name": "python", "memory": 21474836480, "job": "19", "graphics": False}
    ], "simulated": False, "drained": False, "reservation": None,
    "reserved_from": None, "reserved_until": None, "memory_promised": 21474836480, "memory_buffer": 536870912,
    "memory_others": 0, "memory_left": 20937965568, "granted": None,
}  # fmt: skip
MACHINE: dict[str, Any] = {"simulated": False, "gpus": [GPU]}
RECENT: dict[str, Any] = {
    "period": 0.5, "at": [1794821400.0, 1794821400.5],
    "gpus": [
        {
            "index": 1, "utilization": [87, None], "memory_used": [21474836480, None], "temperature": [61, None],
            "power": [241, None],
        }
    ],
}  # fmt: skip


class NoSuchGpu(UserError):
    """There is no such GPU."""


class GpuRoutes:
    def __init__(self, context: Context) -> None:
        self._context = context

    @Route("GET /gpus", "listGpus", "List the GPUs", "GPUs", ok("All of them.", types.Machine, MACHINE))
    async def gpus(self) -> Response:
        """The GPUs, and who is on them."""
        return reply(
            {"simulated": self._context.daemon.machine.gpus.simulated, "gpus": listed_gpus(self._context.daemon)}
        )

    @Route("GET /gpus/{index:int}", "getGpu", "Look at a GPU", "GPUs", ok("The GPU.", types.Gpu, GPU), (404, 422))
    async def gpu(self, index: Annotated[int, Path(ge=0, le=MOST_INDEX, description="Its number.")]) -> Response:
        """One GPU, and who is on it."""
        _check_indices(self._context.daemon.machine, (index,))
        return reply(listed_gpus(self._context.daemon)[index])

    @Route(
        "GET /gpus/samples", "getSamples", "What the GPUs did lately", "GPUs", ok("What.", types.Samples, RECENT),
        (404, 422),
    )  # fmt: skip
    async def samples(
        self,
        after: Annotated[
            float, Query(ge=0, le=_MOST_AFTER, description="Only those after this time, in seconds since the epoch.")
        ] = 0.0,
        wait: Wait = 0.0,
        span: Annotated[
            Span, Query(description="`fine`: the last ten minutes; `coarse`: means of the minutes of the last day.")
        ] = "fine",
        gpus: Annotated[str, Query(description="Only of these GPUs, with commas between them.")] = "",
    ) -> Response:
        """What the GPUs did lately; with `wait`, once there is a sample after `after`, or the seconds are over."""
        chosen = chosen_gpus(self._context.daemon.machine, gpus)
        kept, watch = self._context.daemon.machine.samples, self._context.watch
        end = time.monotonic() + wait
        while True:
            kept.watched()
            newest = kept.newest if span == "fine" else kept.newest_minute
            left = end - time.monotonic()
            if newest > after or left <= 0 or watch.over:
                return await asyncio.to_thread(lambda: _json(samples_json(kept.part(after, span, chosen))))
            await watch.wait(left, SAMPLES)


def listed_gpus(daemon: Daemon) -> list[dict[str, Any]]:
    return gpus_json(daemon.machine, list(daemon.store.open.values()), daemon.state)


def chosen_gpus(machine: Machine, text: str) -> list[int] | None:
    """The GPUs that a text such as `0,1,3` names; None: all."""
    if not text:
        return None
    if not _INDICES.fullmatch(text):
        raise UserError(f"gpus: '{text[:80]}' names no GPUs; write their numbers with commas between them: 0,1,3")
    indices = sorted({int(index) for index in text.split(",")})
    _check_indices(machine, indices)
    return indices


def _check_indices(machine: Machine, indices: Iterable[int]) -> None:
    count = len(machine.gpus.devices)
    for index in indices:
        if index >= count:
            there = f"{count} GPU{'s' * (count != 1)}"
            raise NoSuchGpu(f"there is no GPU {index} here: this machine has {there} (gpuyard gpus lists them)")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def samples_json(part: Part) -> bytes:
    """Samples as JSON, in whole numbers, which are half the work to write; null where nothing is known.

    GPU by GPU, so that no other thread waits for long: the whole may be megabytes.
    """
    unknown: Flags = np.isnan(part.values)
    gaps: list[bool] = np.any(unknown, axis=(0, 2)).tolist()
    whole = np.rint(np.where(unknown, 0.0, part.values)).astype(np.int64)
    gpus = []
    for n, index in enumerate(part.gpus):
        columns = whole[:, n].tolist()
        if gaps[n]:
            columns = [_with_gaps(column, unknown[c, n]) for c, column in enumerate(columns)]
        gpus.append(encoded({"index": index, **dict(zip(COLUMNS, columns, strict=True))}))
    head = encoded({"period": part.period, "at": part.at.tolist()})
    return b'%s,"gpus":[%s]}' % (head[:-1], b",".join(gpus))


def _with_gaps(column: list[int], unknown: Flags) -> list[int | None]:
    return [None if missing else value for value, missing in zip(column, unknown.tolist(), strict=True)]


def gpus_json(machine: Machine, views: list[JobView], state: State) -> list[dict[str, Any]]:
    found = []
    drained = state.drained  # the daemon's thread replaces the dict, so this is a snapshot
    now = time.time()
    running = [view for view in views if view.state == "running"]
    bookings = sorted((b for b in list(state.bookings.values()) if b.end > now), key=lambda b: b.begin)
    lent = state.lent  # a snapshot too
    for device, reading, verdict, occupants in machine.readings():
        borrower = lent.get(device.index)
        tenants = [view for view in running if device.index in view.gpus or view.id == borrower]
        jobs = [view.id for view in tenants]
        booking = next((booking for booking in bookings if device.index in booking.gpus), None)
        used = reading.memory_used
        if device.simulated and device.memory:  # nothing runs there: the simulated use, or the request
            used = sum(memory_of(view, device, machine.uses) for view in tenants)
        standing: str = verdict.state
        why = verdict.why
        # Simulated GPUs have no readings, and those of others may be older than the job.
        if device.simulated or (jobs and standing == "free"):
            standing, why = ("ours", "a job of ours is placed here") if jobs else ("free", "no job is on it")
        if borrower and standing == "ours":
            why = f"lent to job {borrower}, which adapts, until somebody needs it"
        if standing == "free" and device.index in drained:
            standing, why = "drained", f"drained (gpuyard resume gpu {device.index} lets jobs in again)"
        found.append(
            {
                "index": device.index, "uuid": device.uuid, "name": device.name, "state": standing,
                "memory_total": device.memory, "memory_used": used, "utilization": reading.utilization,
                "jobs": jobs, "temperature": reading.temperature, "power": reading.power, "why": why,
                "processes": _as_processes(machine, device, tenants) if device.simulated else _processes(occupants),
                "simulated": device.simulated, "drained": device.index in drained,
                "reservation": booking.name if booking else None,
                "reserved_from": iso(booking.begin) if booking else None,
                "reserved_until": iso(booking.end) if booking else None,
                **_for_shares(device, tenants, state), "granted": borrower,
            }
        )  # fmt: skip
    return found


def _for_shares(device: Device, tenants: list[JobView], state: State) -> dict[str, Any]:
    taken, gpu = state.taken, device.index
    beyond = taken[gpu] if gpu < len(taken) else 0.0
    buffer = min(beyond, state.buffer)
    promised = sum(promised_to(view, device) for view in tenants)
    alone = any(view.work["gpu_memory"] is None or view.work.get("alone") for view in tenants)
    closed = alone or gpu in state.drained or state.withdrawn.get(gpu, SHARED) != SHARED
    counted = promised - sum(_uncounted(view, state) for view in tenants) if state.charges else promised
    left = 0 if closed else max(0, int(device.memory - beyond) - counted)
    return {
        "memory_promised": promised, "memory_buffer": int(buffer), "memory_others": int(beyond - buffer),
        "memory_left": left,
    }  # fmt: skip


def _uncounted(view: JobView, state: State) -> int:
    """Bytes that were promised to a job but are not counted, because it is expected to use less."""
    charge = state.charges.get(state.row_of.get(view.id, -1))
    return 0 if charge is None else max(0, int((view.work["gpu_memory"] or 0) - charge))


def _processes(occupants: Iterable[Occupant]) -> list[dict[str, Any]]:
    return [
        {
            "pid": one.pid, "user": one.who.user if one.who else None, "name": one.who.name if one.who else None,
            "memory": one.memory, "job": one.job or None, "graphics": one.graphics,
        }
        for one in sorted(occupants, key=lambda one: -one.memory)
    ]  # fmt: skip


def _as_processes(machine: Machine, device: Device, tenants: Iterable[JobView]) -> list[dict[str, Any]]:
    """Jobs on a simulated GPU, which has no processes, in the format of processes."""
    return [
        {
            "pid": None, "user": view.user, "name": view.name or None, "memory": memory_of(view, device, machine.uses),
            "job": view.id, "graphics": False,
        }
        for view in tenants
    ]  # fmt: skip
