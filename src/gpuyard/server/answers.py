"""What goes out: jobs, GPUs and reasons as JSON has them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from gpuyard.core.reasons import Priority, Reason, Reserved, Resources
from gpuyard.daemon.desk import Why
from gpuyard.daemon.journal import Row
from gpuyard.daemon.machine import Machine
from gpuyard.daemon.progress import Progress
from gpuyard.daemon.views import JobView
from gpuyard.units import format_duration


def iso(at: float | None) -> str | None:
    """A time as people and programs read it: ISO-8601 with the zone, down to the millisecond."""
    if at is None:
        return None
    seconds, milliseconds = divmod(int(at * 1000), 1000)
    begin, zone = _second(seconds)
    return f"{begin}.{milliseconds:03d}{zone}"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> tuple[str, str]:
    """A second in ISO-8601, and the zone; kept, because a long listing has many times of few seconds."""
    text = datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    return text[:19], text[19:]


class Sayings:
    """Reasons in words, each worked out once: in a long queue many jobs wait for the same one."""

    def __init__(self, times: bool) -> None:
        self._times, self._said = times, dict[int, str]()

    def __call__(self, reason: Reason | None) -> str | None:
        """The sentence of a reason that outlives this object."""
        if reason is None:
            return None
        if id(reason) not in self._said:
            self._said[id(reason)] = sentence(reason, self._times)
        return self._said[id(reason)]


def job_json(view: JobView, reason: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """A job, and why it waits if it does, or how far it is."""
    work = view.work
    return {
        "id": view.id,
        "name": view.name,
        "user": view.user,
        "state": view.state,
        "reason": reason or _how_it_stands(view),
        "attempt": view.attempt,
        "gpus": list(view.gpus),
        "exit_code": view.exit_code,
        "submitted_at": iso(view.submitted),
        "started_at": iso(view.started),
        "ended_at": iso(view.ended),
        "gpu_count": work["gpu_count"],
        "gpu_memory": work["gpu_memory"],
        "priority": view.priority,
        "command": work.get("command", []),
        "directory": work.get("directory", ""),
        "tags": work.get("tags", []),
        "estimate": work["estimate"] if work.get("estimated", True) else None,
        "time_limit": work.get("time_limit"),
        "message": view.message or None,
        "progress": progress,
    }


def columns_json(
    views: list[JobView], reasons: list[str | None], progress: list[Progress | None]
) -> dict[str, list[Any]]:
    """What a table shows of jobs, column by column, times in seconds: quick to make and to read for thousands."""
    return {
        "id": [view.id for view in views],
        "name": [view.name for view in views],
        "user": [view.user for view in views],
        "state": [view.state for view in views],
        "reason": [reason or _how_it_stands(view) for view, reason in zip(views, reasons, strict=True)],
        "gpus": [list(view.gpus) for view in views],
        "gpu_count": [view.work["gpu_count"] for view in views],
        "gpu_memory": [view.work["gpu_memory"] for view in views],
        "submitted": [view.submitted for view in views],
        "started": [view.started for view in views],
        "ended": [view.ended for view in views],
        "priority": [view.priority for view in views],
        "progress": list(progress),
    }


def _how_it_stands(view: JobView) -> str | None:
    """A sentence on a job that does not wait for its turn."""
    if view.state == "held":
        return f"held until it is released (gpuyard release {view.id})"
    if view.state == "running" and view.recalled:
        return f"{_RECALLED.get(view.recalled, view.recalled)}, about to end"
    if view.state == "timeout":
        limit = view.work.get("time_limit")
        return "ran out of time" + (f": its limit was {format_duration(limit)}" if limit else "")
    if view.message:
        return view.message
    if view.state != "failed":
        return None
    if view.exit_code is None:
        return "its exit code is not known"
    number = view.exit_code - 128
    if number > 0 and number in set(signal.Signals):
        return f"exit code {view.exit_code} (signal {number}, {signal.Signals(number).name})"
    return f"exit code {view.exit_code}"


_RECALLED = {"cancelled": "cancelled", "timeout": "out of time"}


def sentence(reason: Reason, times: bool = True) -> str:
    """A reason in words, with times that people know, or without."""
    if isinstance(reason, Resources):
        text = str(replace(reason, expected_at=None))
        if times and reason.expected_at is not None:
            text += f"; expected to fit at {_clock(reason.expected_at)}"
        return text
    if isinstance(reason, Reserved):
        due = f", due at {_clock(reason.until)}" if times else ", which has waited longer"
        return f"would fit, but could delay job {reason.behind}{due}"
    return str(reason)


def times_are_known(views: Iterable[JobView]) -> bool:
    """Whether everybody who runs has said how long that will take."""
    return all(view.work.get("estimated", True) for view in views if view.state == "running")


def _clock(at: float) -> str:
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return "no time that can be told"


def explain_json(view: JobView, why: Why | None, others: Mapping[str, JobView]) -> dict[str, Any]:
    """Why a job waits, with numbers, and what would have to end first."""
    times = times_are_known(others.values())
    found: dict[str, Any] = {
        "id": view.id,
        "state": view.state,
        "reason": sentence(why.reason, times) if why else _how_it_stands(view),
        "code": {"held": "Held", "queued": "Starting"}.get(view.state, view.state.capitalize()),
        "details": {},
        "expected_at": None,
        "ahead": [],
        "must_end_first": [],
        "gpus": list(view.gpus),
    }
    if why is None:
        return found
    found["code"] = type(why.reason).__name__
    found["ahead"] = why.ahead
    if isinstance(why.reason, Resources):
        found["details"] = {
            "gpus": why.reason.gpus,
            "idle": why.reason.idle,
            "withdrawn": dict(why.reason.withdrawn),
            "memory": why.reason.memory or None,
        }
        found["expected_at"] = iso(why.reason.expected_at) if times else None
    elif isinstance(why.reason, Priority):
        found["details"] = {"behind": why.reason.behind, "ahead": why.reason.ahead}
    else:
        found["details"] = {"behind": why.reason.behind, "until": iso(why.reason.until) if times else None}
    for job, until in why.blockers:
        other = others.get(job)
        if other is not None:
            known = other.work.get("estimated", True)
            found["must_end_first"].append(
                {
                    "id": job, "name": other.name, "user": other.user, "gpus": list(other.gpus),
                    "expected_at": iso(until) if known else None,
                }
            )  # fmt: skip
    return found


def gpus_json(machine: Machine, views: list[JobView]) -> list[dict[str, Any]]:
    """The GPUs, and who is on them."""
    found = []
    for device, reading, verdict in machine.readings():
        jobs = [view.id for view in views if view.state == "running" and device.index in view.gpus]
        state, why = verdict.state, verdict.why
        if device.simulated or (jobs and state == "free"):  # it was looked at before the job came, or will not be again
            state, why = ("ours", "a job of ours is placed here") if jobs else ("free", "no job is on it")
        found.append(
            {
                "index": device.index, "uuid": device.uuid, "name": device.name, "state": state,
                "memory_total": device.memory, "memory_used": reading.memory_used, "utilization": reading.utilization,
                "jobs": jobs, "temperature": reading.temperature, "power": reading.power, "why": why,
                "simulated": device.simulated,
            }
        )  # fmt: skip
    return found


def event_json(seq: int, row: Row) -> dict[str, Any]:
    """An event of the log."""
    data = json.loads(row.data) if row.data else {}
    details = data.pop("details", {})
    details.get("work", {}).pop("environment", None)
    return {"seq": seq, "at": iso(row.at), "kind": row.kind, "job": row.job, "attempt": row.attempt, **data, **details}
