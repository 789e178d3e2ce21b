"""Jobs, reasons, events and times as JSON."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from fastapi import Response
from pydantic_core import to_json

from gpuyard.core.reasons import BeginTime, Priority, Reason, Reservation, Reserved, Resources
from gpuyard.daemon.commands import NOBODY, Due, Why
from gpuyard.daemon.jobs.launch import named
from gpuyard.daemon.jobs.progress_reader import Expected, Progress
from gpuyard.daemon.store.records import UNSAID, Row
from gpuyard.daemon.store.views import TOTALS, JobView, energy_spent
from gpuyard.spec.fields import FIELDS
from gpuyard.spec.notation import AFTER
from gpuyard.spec.work import DEFAULTS
from gpuyard.units import format_duration, format_size

_EXACT: ContextVar[bool] = ContextVar("exact", default=False)
"""Whether times in sentences are ISO-8601, for a client that shows them in its user's time zone."""


def set_time_format(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Write times in sentences as the request's header wants it: `Prefer: times=iso`."""
    _EXACT.set(any(name == b"prefer" and b"times=iso" in value.replace(b" ", b"") for name, value in headers))


def iso(at: float | None) -> str | None:
    if at is None:
        return None
    seconds, milliseconds = divmod(int(at * 1000), 1000)
    begin, zone = _second(seconds)
    return f"{begin}.{milliseconds:03d}{zone}"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> tuple[str, str]:
    """A second in ISO-8601, and the zone; cached, because a long listing has many times in few seconds."""
    text = datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    return text[:19], text[19:]


def clock(at: float) -> str:
    try:
        if _EXACT.get():
            return iso(at) or ""
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return "no time that can be told"


def sentence(reason: Reason, due: Due) -> str:
    """A reason in words; `due` is when enough should be free for the first in line, if it is about that job."""
    latest = " at the latest" if due.by == "limit" else ""
    if isinstance(reason, Resources):
        text = str(replace(reason, expected_at=None))
        return text if due.at is None else f"{text}; expected to fit at {clock(due.at)}{latest}"
    if isinstance(reason, Reserved):
        when = "which goes first" if due.at is None else f"due at {clock(due.at)}{latest}"
        return f"would fit, but could delay job {reason.behind}, {when}"
    if isinstance(reason, BeginTime):
        return f"is not to start before {clock(reason.at)}"
    if isinstance(reason, Reservation):
        indices = ", ".join(map(str, reason.gpus))
        gpus = f"GPUs {indices} are" if len(reason.gpus) > 1 else f"GPU {indices} is"
        rest = ", and it has no time limit" if reason.unlimited else ""
        return f"would fit, but {gpus} reserved ({reason.name}) from {clock(reason.begin)} to {clock(reason.end)}{rest}"
    return str(reason)


def details(reason: Reason, due: Due) -> dict[str, Any]:
    found = asdict(reason)
    if isinstance(reason, Resources):
        found.pop("expected_at")
        found |= {"withdrawn": dict(reason.withdrawn), "memory": reason.memory or None}
    elif isinstance(reason, Reserved):
        found["until"] = iso(due.at)
    elif isinstance(reason, BeginTime):
        found["at"] = iso(reason.at)
    elif isinstance(reason, Reservation):
        found |= {"begin": iso(reason.begin), "end": iso(reason.end)}
    return found


class ReasonTexts:
    """Reasons in words, each made once: in a long queue many jobs wait for the same reason."""

    def __init__(self, due: Due = NOBODY) -> None:
        self._due, self._texts = due, dict[int, str]()

    def __call__(self, reason: Reason | None, view: JobView) -> str | None:
        """The sentence. The reason must live as long as this object, which knows it by its address."""
        if reason is None or _is_retry(view, reason):
            return None  # `state_text` says more
        if id(reason) not in self._texts:
            self._texts[id(reason)] = sentence(reason, due_of(reason, view, self._due))
        return self._texts[id(reason)] + _preempted_by(view)


def due_of(reason: Reason, view: JobView, due: Due) -> Due:
    """When a job, or the one that it could delay, should start: only of the first in line that is known."""
    return due if due.job == (reason.behind if isinstance(reason, Reserved) else view.id) else NOBODY


def _preempted_by(view: JobView) -> str:
    """Why a job that waits again was stopped: for another job, or for memory."""
    message = view.message.removesuffix(", waits again")
    stopped = view.preemptions and message.startswith("stopped for ")
    return f" ({message})" if stopped or "GPU memory" in message else ""


def _is_retry(view: JobView, reason: Reason) -> bool:
    """Whether a job waits for its next attempt; its message says so, and why."""
    return isinstance(reason, BeginTime) and view.failures > 0 and bool(view.message)


_UNKNOWN = Expected()


def job_json(
    view: JobView,
    reason: str | None = None,
    progress: Progress | None = None,
    expected: Expected = _UNKNOWN,
    node: str = "",
    measured: Mapping[str, Any] | None = None,
    granted: Sequence[int] = (),
) -> dict[str, Any]:
    """A job, and why it waits if it does, or how far it is, what it uses, and what it has on loan."""
    work = view.work
    return {
        "id": view.id,
        "name": view.name,
        "user": view.user,
        "state": view.state,
        "reason": reason or state_text(view),
        "attempt": view.attempt,
        "gpus": list(view.gpus),
        "exit_code": view.exit_code,
        "submitted_at": iso(view.submitted),
        "started_at": iso(view.started),
        "ended_at": iso(view.ended),
        "ran_before": view.ran_before,
        "expected_end_at": iso(expected.at),
        "expected_by": expected.by or None,
        "gpu_count": work["gpu_count"],
        "gpu_memory": work["gpu_memory"],
        "priority": view.priority,
        "command": work.get("command", []),
        "directory": work.get("directory", ""),
        **stored_fields(work),
        "estimate": work["estimate"] if work.get("estimated", True) else None,
        "message": view.message or None,
        "array": view.array or None,
        "task": work.get("task"),
        "begin_at": iso(work.get("begin")),
        "deadline_at": iso(work.get("deadline")),
        "dependency": dependency(work.get("after", ())),
        "failures": view.failures,
        "output": named(work, view, "output", node),
        "error": named(work, view, "error", node),
        "among": work.get("from"),
        "preemptible": work.get("preemptible", False),
        "preemptions": view.preemptions,
        "granted": list(granted),
        "notify": ["url" if ref.startswith("#") else ref for ref in work.get("notify", ())],
        **_sharing(view, measured),
        "kind": view.kind,
        **({"pid": work["holder"][0]} if work.get("holder") else {}),
        "progress": progress,
    }


_TOLD_APART = ("name", "output", "error", "notify")
_UNSAID: dict[str, Any] = {
    field.name: (DEFAULTS[field.name] or None) if field.null_if_empty else DEFAULTS[field.name]
    for field in FIELDS
    if field.stored and field.editable and field.json_key and field.name not in _TOLD_APART
}
_UNSAID |= {name: [] for name, value in _UNSAID.items() if value == ()}
"""What a job's JSON has where its work does not say otherwise."""


def stored_fields(work: Mapping[str, Any]) -> dict[str, Any]:
    return {**_UNSAID, **{name: value for name, value in work.items() if name in _UNSAID}}


def _sharing(view: JobView, measured: Mapping[str, Any] | None) -> dict[str, Any]:
    work = view.work
    memory, seconds, evidence = work.get("predicted") or (0.0, 0.0, "")
    row = work.get("row")
    live = measured if view.state == "running" else None
    energy, hours = energy_spent(view.measured, live or _old_usage(view))
    last = {name: value for name, value in view.measured.items() if name not in (*TOTALS, "admission")}
    return {
        "gpu_memory_asked": "auto" if work.get("auto_memory") else work.get("asked_memory") or work["gpu_memory"],
        "measured": live if view.state == "running" else last or None,
        "energy_wh": energy,
        "gpu_hours": hours,
        "admission": view.measured.get("admission"),
        "prediction": {"memory": memory or None, "seconds": seconds or None, "evidence": evidence}
        if evidence
        else None,
        "ooms": work.get("ooms", 0),
        "alone": work["gpu_memory"] is None or work.get("alone", False),
        "batch": (work.get("batch") or (None,))[0],
        "row": dict(zip(("number", "wave", "epochs", "priority"), row, strict=True)) if row else None,
    }


def _old_usage(view: JobView) -> dict[str, float]:
    if view.ended is None or view.started is None or set(view.measured) - {"admission"}:
        return {}
    return {"gpu_seconds": max(0.0, view.ended - view.started) * len(view.gpus)}


def dependency(after: Iterable[str]) -> str | None:
    return ",".join(f"{AFTER[how]}:{job}" for how, _, job in (one.partition(":") for one in after)) or None


def columns_json(
    views: list[JobView],
    reasons: list[str | None],
    progress: list[Progress | None],
    expected: list[Expected],
    since: list[float],
) -> dict[str, list[Any]]:
    """What a table shows of jobs, column by column, times in seconds: quick to make and to read for thousands."""
    return {
        "id": [view.id for view in views],
        "name": [view.name for view in views],
        "user": [view.user for view in views],
        "state": [view.state for view in views],
        "reason": [reason or state_text(view) for view, reason in zip(views, reasons, strict=True)],
        "gpus": [list(view.gpus) for view in views],
        "gpu_count": [view.work["gpu_count"] for view in views],
        "gpu_memory": [view.work["gpu_memory"] for view in views],
        "submitted": [view.submitted for view in views],
        "waiting_since": since,
        "started": [view.started for view in views],
        "ended": [view.ended for view in views],
        "ran_before": [view.ran_before for view in views],
        "expected_end": [one.at for one in expected],
        "expected_by": [one.by or None for one in expected],
        "priority": [view.priority for view in views],
        "tags": [view.work.get("tags", []) for view in views],
        "kind": [view.kind for view in views],
        "progress": list(progress),
    }


def state_text(view: JobView) -> str | None:
    """A sentence on a job that does not wait for its turn."""
    if view.state == "held":
        return f"held until it is released (gpuyard release {view.id})"
    if view.state == "running" and view.recalled == "preempted":
        return "stopping so that others can run, will wait again"
    if view.state == "running" and view.recalled == "requeued":
        return "stopping, will wait again"
    if view.state == "running" and view.recalled == "crowded":
        return "stopping since others want the memory that it was given, will wait again"
    if view.state == "running" and view.recalled:
        return f"{_RECALLED.get(view.recalled, view.recalled)}, about to end"
    if view.state == "timeout":
        limit = view.work.get("time_limit")
        return "ran out of time" + (f": its limit was {format_duration(limit)}" if limit else "")
    if view.message:
        return view.message
    if view.state == "running" and view.kind == "lease":
        return _held_by(view.work)
    if view.state != "failed":
        return None
    if view.exit_code is None:
        return "its exit code is not known"
    number = view.exit_code - 128
    if number > 0 and number in set(signal.Signals):
        return f"exit code {view.exit_code} (signal {number}, {signal.Signals(number).name})"
    return f"exit code {view.exit_code}"


def _held_by(work: Mapping[str, Any]) -> str:
    if work.get("holder"):
        return f"a lease, held by process {work['holder'][0]}"
    if work.get("by_use"):
        return "a lease, held from afar until its GPUs were used and are free again"
    return f"a lease, held from afar by a sign of life every {format_duration(work.get('heartbeat', 0.0))}"


_RECALLED = {"cancelled": "cancelled", "timeout": "out of time", "oom": "uses more GPU memory than it may"}


def explain_json(
    view: JobView, why: Why | None, others: Mapping[str, JobView], ends: Mapping[str, Expected]
) -> dict[str, Any]:
    """Why a job waits; `ends`: when running jobs should end."""
    due = why.due if why else NOBODY
    found: dict[str, Any] = {
        "id": view.id,
        "state": view.state,
        "reason": ReasonTexts(due)(why.reason if why else None, view) or state_text(view),
        "code": {"held": "Held", "queued": "Starting"}.get(view.state, view.state.capitalize()),
        "details": {},
        "expected_at": None,
        "expected_by": None,
        "place": None,
        "needs": None,
        "ahead": [],
        "must_end_first": [],
        "gpus": list(view.gpus),
    }
    if why is None:
        return found
    reason = why.reason
    found |= {"code": type(reason).__name__, "ahead": why.ahead, "details": details(reason, due_of(reason, view, due))}
    if isinstance(reason, Resources | Priority | Reserved):
        found |= {"place": len(why.ahead) + 1, "needs": _needs(view)}
    if due.job == view.id:
        found |= {"expected_at": iso(due.at), "expected_by": due.by or None}
    found["must_end_first"] = [_blocker(others[job], ends.get(job, _UNKNOWN)) for job in why.blockers if job in others]
    if view.kind == "lease":
        found["holds"] = [_blocker(other, _UNKNOWN) for other in others.values() if _is_of_the_same(view, other)]
    return found


def _needs(view: JobView) -> str:
    """Which GPUs would do for a job, as `any 8 GPUs`."""
    count, among, memory = view.work["gpu_count"], view.work.get("from"), view.work["gpu_memory"]
    share, plural = "" if memory is None else f"{format_size(memory)} on ", "s" * (count > 1)
    if among and len(among) == count:
        return f"{share}GPU{plural} {', '.join(map(str, among))}"
    some = f"any {count} GPUs" if count > 1 else "any GPU"
    return share + (f"{some} of {', '.join(map(str, among))}" if among else some)


def _blocker(view: JobView, end: Expected) -> dict[str, Any]:
    until = {"expected_at": iso(end.at), "expected_by": end.by or None}
    return {"id": view.id, "name": view.name, "user": view.user, "gpus": list(view.gpus), **until}


def _is_of_the_same(view: JobView, other: JobView) -> bool:
    """Whether the process that waits for a lease holds the other one already."""
    running = other.kind == "lease" and other.state == "running"
    holder = list(view.work.get("holder") or ())
    return running and bool(holder) and list(other.work.get("holder") or ()) == holder


def event_json(seq: int, row: Row) -> dict[str, Any]:
    data = json.loads(row.data) if row.data else {}
    details = data.pop("details", {})
    details.get("work", {}).pop("environment", None)
    head = {"seq": seq, "at": iso(row.at), "kind": row.kind, "job": row.job, "attempt": row.attempt}
    return {**UNSAID.get(row.kind, {}), **head, **data, **details}


def encoded(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="null")
    except ValueError:  # a name that is not UTF-8, which JSON in ASCII can hold
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def reply(value: Any, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")
