"""What the API tells, as the overview shows it: a tile for each GPU, a line for each job. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gpuyard.page.drains import Drain

Facts = Mapping[str, Any]
_GRAIN = 2**24  # bytes; what a process takes changes by less all the time
_TOLERANCE = 2**26  # bytes beyond its promise that a job may use, as the daemon has it
_FAILED = ("failed", "timeout", "oom", "interrupted")


def tile(gpu: Facts, jobs: Mapping[str, Facts], now: float, drain: Drain | None = None) -> dict[str, Any]:
    """A GPU, but for what its samples tell."""
    tenants = [_tenant(id, gpu, jobs.get(id), now) for id in _on(gpu)]
    begin, end = _seconds(gpu["reserved_from"]), _seconds(gpu["reserved_until"])
    booked = None if begin is None else {"name": gpu["reservation"], "begin": begin, "end": end, "now": begin <= now}
    return {
        "index": gpu["index"], "name": gpu["name"], "simulated": gpu["simulated"], "memory": gpu["memory_total"],
        "kind": kind(gpu, now), "why": gpu["why"] or "", "drained": gpu["drained"],
        "reason": _reason(drain) if gpu["drained"] and drain else "", "booked": booked,
        "jobs": tenants, "shares": _shares(gpu, tenants),
        "others": [_other(process) for process in _processes(gpu) if process["job"] is None],
    }  # fmt: skip


def _reason(drain: Drain) -> str:
    """Why a GPU is drained, if somebody said so, and who that is."""
    why = drain.why.strip().rstrip(".")
    return f"{why} ({drain.by})" if why and drain.by else why


def _shares(gpu: Facts, tenants: list[dict[str, Any]]) -> dict[str, int] | None:
    """What is promised in all, and left, of a GPU that jobs share; None if one has it for itself."""
    if not tenants or not all(one["promised"] for one in tenants) or gpu["state"] == "unknown":
        return None
    left = int(gpu["memory_left"] // _GRAIN * _GRAIN)
    return {"promised": gpu["memory_promised"], "left": left} if left or len(tenants) > 1 else None


def kind(gpu: Facts, now: float) -> str:
    """How a GPU stands, in the word that its tile has: what somebody must know first comes first."""
    if gpu["state"] == "unknown":
        return "lost"
    if gpu["state"] == "foreign":
        return "foreign"
    if gpu["state"] == "ours":
        return "busy"
    if gpu["drained"]:
        return "drained"
    begin = _seconds(gpu["reserved_from"])
    return "reserved" if begin is not None and begin <= now else "free"


def waiting(job: Facts) -> dict[str, Any]:
    """A job of the queue's head."""
    tasks = job.get("tasks")
    return {
        **_named(job), "since": _seconds(job["submitted_at"]), "reason": job["reason"] or "",
        "gpus": job["gpu_count"], "memory": job["gpu_memory"], "tasks": tasks.get("queued", 0) if tasks else 0,
    }  # fmt: skip


def finished(job: Facts) -> dict[str, Any]:
    """A job that is over."""
    begin, end = _seconds(job["started_at"]), _seconds(job["ended_at"])
    return {
        **_named(job), "state": job["state"], "ended": end, "code": job["exit_code"],
        "ran": None if begin is None or end is None else round(end - begin, 1),
    }  # fmt: skip


def day(stats: Facts) -> dict[str, Any]:
    """What happened since midnight."""
    outcomes = stats["outcomes"]
    return {
        "hours": round(stats["gpu_hours"], 2), "wait": stats["wait_seconds"]["mean"],
        "done": outcomes.get("succeeded", 0), "failed": sum(outcomes.get(state, 0) for state in _FAILED),
        "cancelled": outcomes.get("cancelled", 0),
    }  # fmt: skip


def midnight(now: datetime) -> str:
    """When the day began, as the API reads it; the same text for everybody in a zone."""
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return begin.isoformat()


def _named(job: Facts) -> dict[str, Any]:
    return {"id": job["id"], "name": job["name"] or "", "user": job["user"], "lease": job["kind"] == "lease"}


def _on(gpu: Facts) -> Iterable[str]:
    """Jobs that are on a GPU: those that were put there, then those that are still there though they are over."""
    there = (process["job"] for process in _processes(gpu) if process["job"] is not None)
    return dict.fromkeys((*gpu["jobs"], *there))


def _tenant(id: str, gpu: Facts, job: Facts | None, now: float) -> dict[str, Any]:
    own = [process for process in _processes(gpu) if process["job"] == id]
    told = _named(job) if job else {"id": id, "name": "", "user": own[0]["user"] if own else None, "lease": False}
    memory = _rounded(sum(process["memory"] for process in own))
    progress, promised = (job["progress"], job["gpu_memory"]) if job else (None, 0)
    return {
        **told, "memory": memory, "promised": promised or None, "loan": gpu.get("granted") == id,
        "note": (job["reason"] or "") if job and job["adaptive"] else "",
        "over": bool(promised) and memory > promised + _TOLERANCE,
        "started": _seconds(job["started_at"]) if job else None,
        "wide": len(job["gpus"]) if job else 1,
        "progress": progress and {"share": round(progress["fraction"], 3), "end": _end(progress["remaining"], now)},
        "end": _seconds(job["expected_end_at"]) if job and not progress else None,
    }  # fmt: skip


def _other(process: Facts) -> dict[str, Any]:
    return {
        "pid": process["pid"], "user": process["user"], "name": process["name"] or "",
        "memory": _rounded(process["memory"]), "draws": process["graphics"],
    }  # fmt: skip


def _processes(gpu: Facts) -> list[Facts]:
    return gpu.get("processes") or []


def _rounded(size: float) -> int:
    return round(size / _GRAIN) * _GRAIN


def _end(remaining: float | None, now: float) -> float | None:
    """When a job will have ended, as roughly as it is known: else this would change at every look."""
    if remaining is None:
        return None
    grain = max(2.0, 10.0 ** len(str(int(remaining))) / 50)
    return round((now + remaining) / grain) * grain


def _seconds(iso: str | None) -> float | None:
    return None if iso is None else round(datetime.fromisoformat(iso).timestamp(), 1)
