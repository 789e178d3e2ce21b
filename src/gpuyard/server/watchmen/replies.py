"""Clients and GPUs in watchmen's JSON format."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.leases.lease_engine import GIVEN_UP
from gpuyard.engines.local.accounts import name_of
from gpuyard.engines.local.processes import read_proc, user_of
from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.gpus.find import driver_version

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
