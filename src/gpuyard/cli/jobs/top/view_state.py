"""The state of the view: the daemon's last answer, the user's place in it, a job's output, the layout."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.cli.terminal.text_table import fold, instant, visible

if TYPE_CHECKING:
    from gpuyard.api.types import Columns, Gpu, Job, Progress


PIECE = 2**18  # bytes
MOST = 2**22  # bytes of one request where the beginning is wanted
_KEPT = 200_000  # lines
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def _decoder() -> Any:
    return getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class LogView:
    id: str
    name: str
    state: str = ""
    lines: list[str] = field(default_factory=list)
    start: int = 0  # bytes before those that were read
    bottom: int | None = None  # the line after the last visible one; None: follow the end
    found: str = ""  # the text of the last search
    loading: bool = False
    home: int = 0
    """Lines of the screen if the view goes to the beginning, also of output that is still to be read; else 0."""
    _rest: str = ""  # the unfinished last line
    _decode: Any = field(default_factory=_decoder)

    @property
    def all_lines(self) -> list[str]:
        return [*self.lines, clean(self._rest)] if self._rest else self.lines

    def count(self) -> int:
        return len(self.lines) + bool(self._rest)

    def append(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + self._decode.decode(data)).replace("\r\n", "\n").split("\n")
        self._rest = self._rest[-PIECE:]
        self.lines += map(clean, lines)
        if (surplus := len(self.lines) - _KEPT) > 0:
            del self.lines[:surplus]
            self.bottom = None if self.bottom is None else max(self.bottom - surplus, 1)

    def prepend(self, data: bytes, start: int) -> None:
        """Add earlier output; the visible lines stay where they are."""
        self.start, self.loading = start, False
        if not data:
            return
        text = data.decode(errors="replace").replace("\r\n", "\n").split("\n")
        first = self.lines.pop(0) if self.lines else ""
        text[-1] += first
        self.lines[:0] = map(clean, text)
        added = len(text) - 1
        if self.bottom is not None:
            self.bottom = min(self.home, self.count()) if self.home else self.bottom + added

    def restart(self) -> None:
        """Start over: the job runs once more."""
        self.lines, self._rest, self.start, self.bottom, self._decode = [], "", 0, None, _decoder()

    def scroll(self, lines: int, height: int) -> None:
        count = self.count()
        bottom = (count if self.bottom is None else self.bottom) + lines
        self.bottom = None if bottom >= count else max(bottom, min(height, count))

    def search(self, text: str, step: int) -> bool:
        """Go to the nearest line with a text, above (-1) or below; False if there is none."""
        self.found = text
        lines, wanted = self.all_lines, text.casefold()
        at = (len(lines) if self.bottom is None else self.bottom) - 1
        if step < 0 and self.bottom is None:
            at += 1
        while 0 <= (at := at + step) < len(lines):
            if wanted in lines[at].casefold():
                self.bottom = at + 1
                return True
        return False

    def seen(self, width: int, height: int) -> list[str]:
        lines = self.all_lines
        rows: list[str] = []
        at = len(lines) if self.bottom is None else self.bottom
        while at > 0 and len(rows) < height:
            at -= 1
            rows[:0] = fold(lines[at], width)
        return rows[-height:]


def clean(line: str) -> str:
    """A line as a terminal shows it in the end: without what a carriage return let be overwritten."""
    text = line.rstrip("\r").rpartition("\r")[2]
    if text.isprintable():
        return text
    return visible(_ESCAPE.sub("", text).expandtabs(8))


LISTS = ("running", "waiting", "ended")
MESSAGE_TIME = 6.0  # seconds for which a message is shown, unless a key is pressed


class Row(NamedTuple):
    """A job in a list; times are seconds since the epoch."""

    id: str
    name: str
    user: str
    state: str
    reason: str
    gpus: tuple[int, ...]
    gpu_count: int
    gpu_memory: int | None
    since: float  # when it began to wait
    started: float | None
    ended: float | None
    priority: float
    progress: Progress | None
    end: float | None = None  # when it should
    ran_before: float = 0.0
    by: str | None = None  # what tells when: its progress, an estimate, or only its limit


class Part(NamedTuple):
    rows: tuple[Row, ...] = ()
    offset: int = 0
    total: int = 0

    def get(self, index: int) -> Row | None:
        """The row with a number; None if it is not loaded."""
        return self.rows[index - self.offset] if 0 <= index - self.offset < len(self.rows) else None


class Snapshot(NamedTuple):
    taken: float  # when, on the monotonic clock here
    now: float  # when, on the daemon's clock
    parts: Mapping[str, Part]  # the lists; and `everyone`: all running jobs, also where a filter hides some
    gpus: tuple[Gpu, ...] = ()
    simulated: bool = False
    status: Mapping[str, Any] = {}
    last: int = 0


@dataclass(slots=True)
class Place:
    index: int = 0
    id: str = ""  # the job there; the place follows it when it moves
    top: int = 0  # the first visible row
    pinned: bool = False  # whether to follow the job into other lists: the user has just done something that moves it


@dataclass(slots=True)
class Panel:
    title: str
    lines: list[str]
    top: int = 0


@dataclass(slots=True)
class Model:
    user: str = ""
    snapshot: Snapshot | None = None
    unreachable: str = ""  # why the daemon does not answer; empty if it does
    unreachable_since: float = 0.0
    ticks: float = 0.0  # this instant, on the monotonic clock
    width: int = 80
    height: int = 24
    focus: str = "running"
    places: dict[str, Place] = field(default_factory=lambda: {name: Place() for name in LISTS})
    filter: str = ""
    mine: bool = False
    mode: str = "lists"  # what keys act on: lists, confirm, filter, panel, log or search
    typed: str = ""
    to_cancel: Row | None = None  # the job to cancel, once that is confirmed
    message: str = ""
    message_at: float = 0.0
    panel: Panel | None = None
    log: LogView | None = None

    @property
    def now(self) -> float:
        return self.snapshot.now + self.ticks - self.snapshot.taken if self.snapshot else 0.0

    def part(self, name: str) -> Part:
        return self.snapshot.parts.get(name, Part()) if self.snapshot else Part()

    def selected(self) -> Row | None:
        return self.part(self.focus).get(self.places[self.focus].index)

    def say(self, message: str) -> None:
        self.message, self.message_at = message, self.ticks

    def show(self, snapshot: Snapshot) -> None:
        """Take a snapshot; the selected job stays selected, also where it moved."""
        self.snapshot, self.unreachable = snapshot, ""
        self._follow()
        for name, place in self.places.items():
            part = self.part(name)
            found = next((n for n, row in enumerate(part.rows, part.offset) if row.id == place.id), None)
            # Who is at the top wants to see what comes to the top.
            if found is not None and (place.index > 0 or place.pinned):
                place.top = max(0, place.top + found - place.index)
                place.index = found
            self.go(name, place.index)

    def _follow(self) -> None:
        place = self.places.get(self.focus, Place())
        if not place.pinned or any(row.id == place.id for row in self.part(self.focus).rows):
            return
        for name in ("running", "waiting"):
            part = self.part(name)
            found = next((n for n, row in enumerate(part.rows, part.offset) if row.id == place.id), None)
            if found is not None:
                self.focus, place.pinned = name, False
                self.places[name].pinned = True
                self.go(name, found)
                return

    def go(self, name: str, index: int) -> None:
        part, place = self.part(name), self.places[name]
        place.index = max(0, min(index, part.total - 1))
        row = part.get(place.index)
        place.id = row.id if row else ""


def rows_of(columns: Columns) -> tuple[Row, ...]:
    names = ("id", "name", "user", "state", "reason", "gpus", "gpu_count", "gpu_memory", "waiting_since", "started")
    given: list[Any] = [columns[name] for name in (*names, "ended", "priority", "progress", "expected_end")]  # type: ignore[literal-required]
    given += [columns.get("ran_before") or [0.0] * len(columns["id"]), columns["expected_by"]]
    return tuple(
        Row(*row)._replace(name=row[1] or "-", reason=row[4] or "", gpus=tuple(row[5]))
        for row in zip(*given, strict=True)
    )


def row_of(job: Job) -> Row:
    started, ended = (text and instant(text).timestamp() for text in (job["started_at"], job["ended_at"]))
    return Row(
        job["id"], job["name"] or "-", job["user"], job["state"], job["reason"] or "", tuple(job["gpus"]),
        job["gpu_count"], job["gpu_memory"], instant(job["submitted_at"]).timestamp(), started or None, ended or None,
        job["priority"], None, None, job.get("ran_before", 0.0),
    )  # fmt: skip


_SMALL = 12  # lines of a screen below which only one list is shown
_WORTH = 3  # spare lines from which on ended jobs are shown too


class Layout(NamedTuple):
    """Lines of each part, headings not counted."""

    gpus: int
    lists: dict[str, int]  # visible lists only, in their order


def lay_out(model: Model) -> Layout:
    """Divide the screen: title, GPUs, lists, keys."""
    gpus = len(model.snapshot.gpus) if model.snapshot else 0
    room = model.height - 2  # title and keys
    if model.height < _SMALL:
        return Layout(0, {model.focus: max(room - 1, 0)})
    shown = min(gpus, max(2, model.height // 3))
    room -= shown + 1 if shown else 0
    wants = {name: max(1, model.part(name).total) for name in LISTS}
    names = [name for name in LISTS if name != "ended" or model.focus == "ended"]
    room -= len(names)
    spare = room - sum(wants[name] for name in names)
    if "ended" not in names and spare >= _WORTH:
        given = {name: wants[name] for name in names}
        return Layout(shown, {**given, "ended": min(spare - 1, wants["ended"])})
    return Layout(shown, _share(wants, names, model.focus, room))


def _share(wants: dict[str, int], names: list[str], focus: str, room: int) -> dict[str, int]:
    """A line for each list in turn while it has rows; the focused list gets two."""
    given = dict.fromkeys(names, 0)
    turns = [*names, *(name for name in names if name == focus)]
    while room > 0 and any(given[name] < wants[name] for name in names):
        for name in turns:
            if room > 0 and given[name] < wants[name]:
                given[name] += 1
                room -= 1
    return given


def settle(model: Model) -> None:
    """Scroll each list so that the selected row is visible and no room is wasted."""
    layout = lay_out(model)
    for name, place in model.places.items():
        rows, total = max(layout.lists.get(name, 1), 1), model.part(name).total
        place.top = min(place.top, place.index, max(total - rows, 0))
        place.top = max(place.top, place.index - rows + 1, 0)
