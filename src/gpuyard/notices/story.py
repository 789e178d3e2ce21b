"""What is told of a job: facts for people's templates, and the same for programs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuyard.daemon.views import JobView
from gpuyard.notices.happenings import Happening, waiting_since
from gpuyard.notices.templates import last_lines
from gpuyard.notices.words import FAILURE, FINISH, LONG_WAIT, START, TIMEOUT
from gpuyard.units import format_duration, format_size

_TAIL = 2**15
_ORDER = ("failed", "oom", "timeout", "interrupted", "cancelled", "running", "queued", "held", "succeeded")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where it is known from."""

    database: Path
    host: str
    open: Callable[[], list[JobView]]
    """Jobs that are not over."""
    why: Callable[[JobView], str]
    """Why a job waits, or what is to be said of its end."""
    output: Callable[[str, int, int, int], tuple[int, bytes]]
    """A job's output: its attempt, an offset (from the end, if below 0), and how many bytes."""


@dataclass(frozen=True, slots=True)
class Story:
    """What is to be told of a happening."""

    facts: dict[str, str]
    """For templates: texts."""
    fields: dict[str, Any]
    """For programs: numbers where there are some."""


def tell(happening: Happening, sources: Sources) -> Story:
    """All that may be said of it; to the job's owner only, since its output is among it."""
    view = _culprit(happening)
    array = happening.tasks
    started, ended = view.started, view.ended
    if array:
        started = min((task.started for task in array if task.started is not None), default=None)
        ended = max((task.ended for task in array if task.ended is not None), default=None)
    over = happening.event not in (START, LONG_WAIT)
    wait = _wait(happening, started)
    ran = ended - started if over and ended is not None and started is not None else None
    fields: dict[str, Any] = {
        "job": happening.id, "name": view.name, "user": view.user, "event": happening.event,
        "state": view.state if over else {START: "running"}.get(happening.event, "queued"),
        "exit_code": view.exit_code if over else None,
        "duration": ran, "wait": wait, "gpus": list(view.gpus), "host": sources.host,
        "command": _command(view), "reason": _reason(happening, view, sources) or None,
    }  # fmt: skip
    facts = {
        "id": happening.id, "event": happening.event, "name": view.name, "user": view.user,
        "what": _what(happening, view, ran, wait), "state": fields["state"],
        "exit_code": "" if fields["exit_code"] is None else str(view.exit_code),
        "duration": "" if ran is None else format_duration(round(ran, 1)), "wait": format_duration(round(wait, 1)),
        "gpus": ",".join(map(str, view.gpus)), "host": sources.host, "command": fields["command"],
        "directory": str(view.work.get("directory", "")), "reason": fields["reason"] or "",
        "attempts": str(view.attempt) if view.attempt > 1 else "", "submitted": _clock(view.submitted),
        "started": _clock(started), "ended": _clock(ended) if over else "", "tasks": counted(happening),
        "log": _output(view, sources) if over else "",
    }  # fmt: skip
    return Story({name: _printable(text) for name, text in facts.items()}, fields)


def _culprit(happening: Happening) -> JobView:
    """Whose state, exit code and output tell most; of an array the first task that did not succeed."""
    if not happening.tasks:
        return happening.view
    return min(happening.tasks, key=lambda task: (_ORDER.index(task.state) if task.state in _ORDER else 0, task.number))


def _wait(happening: Happening, started: float | None) -> float:
    view = happening.view
    until = started if started is not None else view.ended if view.ended is not None else happening.at
    return max(until - waiting_since(view), 0.0)


def _what(happening: Happening, view: JobView, ran: float | None, wait: float) -> str:
    """What happened, as the end of a sentence that begins with the job."""
    after = "" if ran is None else f" after {format_duration(round(ran, 1))}"
    if happening.event == START:
        gpus = ",".join(map(str, view.gpus))
        return f"started on GPU {gpus}" if gpus else "started"
    if happening.event == LONG_WAIT:
        return f"still waits after {format_duration(round(wait))}"
    if happening.tasks and happening.event != FINISH:
        return f"ended: {counted(happening)}"
    if happening.event == TIMEOUT:
        return f"ran out of time{after}"
    if happening.event == FAILURE:
        return _failure(happening, view) + after
    return f"succeeded{after}"


def _failure(happening: Happening, view: JobView) -> str:
    if view.state == "cancelled":
        return f"was cancelled by {happening.by}" if happening.by else "was cancelled"
    if view.state == "failed":
        return "failed" if view.exit_code is None else f"failed with exit code {view.exit_code}"
    return {"interrupted": "was interrupted", "oom": "ran out of GPU memory"}.get(view.state, f"ended ({view.state})")


def counted(happening: Happening) -> str:
    """Of an array: `97 succeeded, 3 failed`."""
    states = [task.state for task in happening.tasks]
    return ", ".join(f"{states.count(state):,} {state}" for state in reversed(_ORDER) if state in states)


def _reason(happening: Happening, view: JobView, sources: Sources) -> str:
    if happening.event == FINISH and view.work.get("ooms"):
        return _resized(view)
    if happening.event in (START, FINISH):
        return ""
    reason = sources.why(view)
    return f"task {view.id}: {reason}" if reason and happening.tasks else reason


def _resized(view: JobView) -> str:
    """What of a job that succeeded in the end is to be known before it is submitted again."""
    times, size = view.work["ooms"], view.work.get("gpu_memory")
    given = "GPUs for itself" if view.work.get("alone") or not size else f"{format_size(size)} of a GPU"
    asked = view.work.get("asked_memory")
    before = f" in place of {format_size(asked)}" if asked else ""
    return f"it ran out of GPU memory {times} time{'s' * (times > 1)} before, and was given {given}{before}"


def _command(view: JobView) -> str:
    return _printable(shlex.join(map(str, view.work.get("command", ()))))


def _printable(text: str) -> str:
    """A text without what is no UTF-8, such as a file's name may hold."""
    return text.encode(errors="replace").decode()


def _output(view: JobView, sources: Sources) -> str:
    """The last lines of its output; of one that went to a file of its own, where that is."""
    if view.work.get("output"):
        return f"(in {view.work['output']})"
    if not view.attempt or view.kind == "lease":
        return ""
    try:
        _, data = sources.output(view.id, view.attempt, -_TAIL, _TAIL)
    except OSError:  # it was removed, or cannot be read now: the rest is worth telling
        return ""
    return last_lines(data, cut=len(data) >= _TAIL)


def _clock(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
