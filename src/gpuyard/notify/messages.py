"""Which events of the log are notified, and the title, body and fields of the message."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.api.types import OVER
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError, suggest
from gpuyard.notify.subscriptions import FAILURE, FINISH, LONG_WAIT, OF_STATE, START, TIMEOUT
from gpuyard.units import format_duration, format_size

FIELDS = {
    "id": "the job's id", "name": "its name", "user": "whose it is", "event": "what is told of: start, finish ...",
    "what": "the same in words: `failed with exit code 3`", "state": "its state", "exit_code": "its exit code",
    "duration": "how long it ran", "wait": "how long it waited", "gpus": "the GPUs that it had", "host": "the machine",
    "command": "its command", "directory": "where it ran", "reason": "why it waits or failed, or what to know of it",
    "attempts": "how often it was started", "submitted": "when it was submitted", "started": "when it started",
    "ended": "when it ended", "tasks": "of an array: how many tasks ended how", "log": "the last lines of its output",
}  # fmt: skip
"""What a template may have in braces."""
_MOST_TEMPLATE = 10_000
_MOST_TITLE, _MOST_BODY = 200, 20_000
_LINES, _LINE, _LOG = 20, 500, 8000
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])")
_ROWS = (
    ("State", "state"), ("Exit code", "exit_code"), ("Reason", "reason"), ("Tasks", "tasks"), ("Ran for", "duration"),
    ("Waited", "wait"), ("Attempts", "attempts"), ("On GPUs", "gpus"), ("Host", "host"), ("User", "user"),
    ("Command", "command"), ("Directory", "directory"), ("Submitted", "submitted"), ("Started", "started"),
    ("Ended", "ended"),
)  # fmt: skip


def check_template(text: str) -> str:
    """A template that can be filled in; else raises."""
    if len(text) > _MOST_TEMPLATE:
        raise UserError(f"a template has at most {_MOST_TEMPLATE:,} characters")
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise UserError(
            f"the template is not right ({error}); write braces that are to stay twice: {{{{ }}}}"
        ) from None
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in FIELDS:
            raise UserError(f"a template knows no {{{name}}}{suggest(name, FIELDS)}; it knows {', '.join(FIELDS)}")
        if form or conversion:
            raise UserError(f"write {{{name}}} without anything more in the braces")
    return text


def fill(text: str, facts: Mapping[str, str]) -> str:
    """A template with its fields filled in; only the names of fields have a meaning."""
    return "".join(
        literal + (facts.get(name, "") if name is not None else "") for literal, name, _, _ in Formatter().parse(text)
    )


def title_of(facts: Mapping[str, str], template: str = "") -> str:
    text = fill(template, facts) if template else f"gpuyard: job {_who(facts)} {facts['what']}"
    return " ".join(text.split())[:_MOST_TITLE]


def body_of(facts: Mapping[str, str], template: str = "") -> str:
    if template:
        return fill(template, facts)[:_MOST_BODY]
    rows = [(f"{label}:", facts[name]) for label, name in _ROWS if facts.get(name)]
    lines = [f"Job {_who(facts)} {facts['what']}.", "", *(f"{label:<10} {_one_line(value)}" for label, value in rows)]
    if facts.get("log"):
        lines += ["", "Its last lines of output:", "", *(f"    {line}" for line in facts["log"].split("\n"))]
    return "\n".join(lines)[:_MOST_BODY] + "\n"


def _who(facts: Mapping[str, str]) -> str:
    return f"{facts['id']} ({_one_line(facts['name'])})" if facts.get("name") else facts["id"]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]


def last_lines(data: bytes, cut: bool = False) -> str:
    """The last lines of a job's output, as a terminal shows them; `cut`: the first line may be incomplete."""
    text = _ANSI.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]  # bars write over themselves
    lines = lines[1:] if cut and len(lines) > 1 else lines
    while lines and not lines[-1]:
        lines.pop()
    plain = ["".join(c if c.isprintable() else " " for c in line.expandtabs()) for line in lines[-_LINES:]]
    short = [line if len(line) <= _LINE else f"{line[: _LINE - 1]}…" for line in plain]
    while sum(map(len, short)) > _LOG:
        short.pop(0)
    return "\n".join(short)


_KINDS = "'Started', 'Exited', 'Cancelled'"
_AT_ONCE = 1000
_ASKED = 20  # cancelled tasks of an array of which it is looked up who did that


class LogRow(NamedTuple):
    seq: int
    at: float
    kind: str
    job: str


@dataclass(frozen=True, slots=True)
class Trigger:
    id: str
    event: str
    at: float
    view: JobView  # the job; of an array its first task
    tasks: Sequence[JobView] = ()  # of an array, all of them
    by: str = ""  # who cancelled it
    each: bool | None = None  # for subscriptions to each task (True), or to whole arrays (False); None: for all


class LogReader:
    def __init__(self, database: Path) -> None:
        self.reader = Reader(database)
        self._connection = sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True, isolation_level=None)

    def close(self) -> None:
        self.reader.close()
        self._connection.close()

    def last(self) -> int:
        return int(self._connection.execute("SELECT max(seq) FROM events").fetchone()[0] or 0)

    def after(self, seq: int) -> tuple[list[LogRow], int]:
        with closing(self._connection.cursor()) as cursor:
            newest = cursor.execute(
                "SELECT max(seq) FROM (SELECT seq FROM events WHERE seq > ? ORDER BY seq LIMIT ?)", (seq, _AT_ONCE)
            ).fetchone()[0]
            if newest is None:
                return [], seq
            found = cursor.execute(
                f"SELECT seq, at, kind, job FROM events WHERE seq > ? AND seq <= ? AND kind IN ({_KINDS}) ORDER BY seq",
                (seq, newest),
            )
            return [LogRow(*row) for row in found], int(newest)

    def cancelled_by(self, job: str) -> str:
        """Who cancelled a job; empty if it follows from something else."""
        found = self._connection.execute(
            "SELECT data FROM events WHERE job = ? AND kind IN ('Cancelled', 'Recalled') ORDER BY seq DESC", (job,)
        )
        said = (json.loads(data or "{}").get("details", {}) for (data,) in found)
        return next((str(details["by"]) for details in said if details.get("by")), "")


def triggers(log: LogReader, rows: Iterable[LogRow]) -> Iterator[Trigger]:
    """The triggers in these events; an array is looked at once, however many tasks are among them."""
    begun: dict[str, tuple[float, JobView]] = {}
    ended: dict[str, float] = {}
    for row in rows:
        view = log.reader.job(row.job)
        if view is None:  # forgotten meanwhile
            continue
        each = True if view.array else None
        if row.kind == "Started":
            yield Trigger(view.id, START, row.at, view, each=each)
            if view.array:
                begun.setdefault(view.array, (row.at, view))
        elif view.over and view.ended == row.at:
            by = log.cancelled_by(view.id) if view.state == "cancelled" else ""
            event = end_of(view, by)
            if event:
                yield Trigger(view.id, event, row.at, view, by=by, each=each)
            if view.array:
                ended[view.array] = row.at
    for array, (at, view) in begun.items():
        yield Trigger(array, START, at, view, each=False)
    for array, at in ended.items():
        if log.reader.tasks(array).keys() <= OVER:
            yield from _end_of_array(log, array, at)


def end_of(view: JobView, by: str) -> str:
    """The end of a job as an event to notify of; empty if it is none."""
    if view.kind == "lease" and view.state != "timeout":
        return ""
    if view.state == "cancelled" and by == view.user:
        return ""
    return OF_STATE.get(view.state, FAILURE)


def _end_of_array(log: LogReader, array: str, at: float) -> Iterator[Trigger]:
    views = log.reader.jobs(over=True, wanted={"array": array})
    views.sort(key=lambda view: view.number)
    if not views:
        return
    states = {view.state for view in views}
    cancelled = [view for view in views if view.state == "cancelled"][:_ASKED]
    others = [by for view in cancelled if (by := log.cancelled_by(view.id)) != view.user]
    bad = {OF_STATE.get(state, FAILURE) for state in states - {"succeeded", "cancelled"}}
    if FAILURE in bad or others:
        event = FAILURE
    elif TIMEOUT in bad:
        event = TIMEOUT
    elif states == {"succeeded"}:
        event = FINISH
    else:  # the user who cancelled the rest knows
        return
    yield Trigger(array, event, at, views[0], views, by=next(filter(None, others), ""), each=False)


def long_waits(views: Iterable[JobView], now: float, least: float) -> Iterator[Trigger]:
    """Jobs that have waited for `least` seconds since their submission or begin time."""
    arrays: dict[str, JobView] = {}
    started: set[str] = set()
    for view in views:
        if view.array and view.state == "running":
            started.add(view.array)
        if view.state != "queued" or view.attempt or now - waiting_since(view) < least:
            continue
        if view.array:
            arrays.setdefault(view.array, view)
        else:
            yield Trigger(view.id, LONG_WAIT, now, view)
    for array, view in arrays.items():
        if array not in started:
            yield Trigger(array, LONG_WAIT, now, view)


def waiting_since(view: JobView) -> float:
    """Since when a job waits that was not started yet."""
    return max(view.submitted, float(view.work.get("begin") or 0.0))


_TAIL = 2**15
_ORDER = ("failed", "oom", "timeout", "interrupted", "cancelled", "running", "queued", "held", "succeeded")


@dataclass(frozen=True, slots=True)
class Sources:
    database: Path
    host: str
    open: Callable[[], list[JobView]]  # jobs that are not over
    why: Callable[[JobView], str]  # why a job waits, or how it ended
    output: Callable[[str, int, int, int], tuple[int, bytes]]
    """A job's output: its attempt, an offset (from the end, if below 0), and how many bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    facts: dict[str, str]  # for templates: texts
    fields: dict[str, Any]  # for programs: numbers where there are some


def message_of(happening: Trigger, sources: Sources) -> Message:
    """The message; for the job's owner only, since it holds its output."""
    view = _decisive_job(happening)
    array = happening.tasks
    started, ended = view.started, view.ended
    if array:
        started = min((task.started for task in array if task.started is not None), default=None)
        ended = max((task.ended for task in array if task.ended is not None), default=None)
    over = happening.event not in (START, LONG_WAIT)
    wait = _wait(happening, started)
    ran = ended - started if over and ended is not None and started is not None else None
    if ran is not None and not array:
        ran += view.ran_before
    fields: dict[str, Any] = {
        "job": happening.id, "name": view.name, "user": view.user, "event": happening.event,
        "state": view.state if over else {START: "running"}.get(happening.event, "queued"),
        "exit_code": view.exit_code if over else None,
        "duration": ran, "wait": wait, "gpus": list(view.gpus), "host": sources.host,
        "command": _printable(shlex.join(map(str, view.work.get("command", ())))),
        "reason": _reason(happening, view, sources) or None,
    }  # fmt: skip
    facts = {
        "id": happening.id, "event": happening.event, "name": view.name, "user": view.user,
        "what": _summary(happening, view, ran, wait), "state": fields["state"],
        "exit_code": "" if fields["exit_code"] is None else str(view.exit_code),
        "duration": "" if ran is None else format_duration(round(ran, 1)), "wait": format_duration(round(wait, 1)),
        "gpus": ",".join(map(str, view.gpus)), "host": sources.host, "command": fields["command"],
        "directory": str(view.work.get("directory", "")), "reason": fields["reason"] or "",
        "attempts": str(view.attempt) if view.attempt > 1 else "", "submitted": _local_time(view.submitted),
        "started": _local_time(started), "ended": _local_time(ended) if over else "", "tasks": counted(happening),
        "log": _output(view, sources) if over else "",
    }  # fmt: skip
    return Message({name: _printable(text) for name, text in facts.items()}, fields)


def _decisive_job(happening: Trigger) -> JobView:
    """The job whose state, exit code and output tell most; of an array the first task that did not succeed."""
    if not happening.tasks:
        return happening.view
    return min(happening.tasks, key=lambda task: (_ORDER.index(task.state) if task.state in _ORDER else 0, task.number))


def _wait(happening: Trigger, started: float | None) -> float:
    view = happening.view
    until = started if started is not None else view.ended if view.ended is not None else happening.at
    return max(until - waiting_since(view), 0.0)


def _summary(happening: Trigger, view: JobView, ran: float | None, wait: float) -> str:
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


def _failure(happening: Trigger, view: JobView) -> str:
    if view.state == "cancelled":
        return f"was cancelled by {happening.by}" if happening.by else "was cancelled"
    if view.state == "failed":
        return "failed" if view.exit_code is None else f"failed with exit code {view.exit_code}"
    return {"interrupted": "was interrupted", "oom": "ran out of GPU memory"}.get(view.state, f"ended ({view.state})")


def counted(happening: Trigger) -> str:
    """Of an array: `97 succeeded, 3 failed`."""
    states = [task.state for task in happening.tasks]
    return ", ".join(f"{states.count(state):,} {state}" for state in reversed(_ORDER) if state in states)


def _reason(happening: Trigger, view: JobView, sources: Sources) -> str:
    if happening.event == FINISH and view.work.get("ooms"):
        return _resized(view)
    if happening.event in (START, FINISH):
        return ""
    reason = sources.why(view)
    return f"task {view.id}: {reason}" if reason and happening.tasks else reason


def _resized(view: JobView) -> str:
    """What the user should know before the next submission of a job that succeeded in the end."""
    times, size = view.work["ooms"], view.work.get("gpu_memory")
    given = "GPUs for itself" if view.work.get("alone") or not size else f"{format_size(size)} of a GPU"
    asked = view.work.get("asked_memory")
    before = f" in place of {format_size(asked)}" if asked else ""
    return f"it ran out of GPU memory {times} time{'s' * (times > 1)} before, and was given {given}{before}"


def _printable(text: str) -> str:
    """A text without what is no UTF-8, such as a file's name may hold."""
    return text.encode(errors="replace").decode()


def _output(view: JobView, sources: Sources) -> str:
    """The last lines of its output; the path, if it went to a file of its own."""
    if view.work.get("output"):
        return f"(in {view.work['output']})"
    if not view.attempt or view.kind == "lease":
        return ""
    try:
        _, data = sources.output(view.id, view.attempt, -_TAIL, _TAIL)
    except OSError:  # it was removed, or cannot be read now: the rest is worth telling
        return ""
    return last_lines(data, cut=len(data) >= _TAIL)


def _local_time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
