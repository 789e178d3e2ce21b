"""What the view shows: what the daemon said last, and where the user is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.cli.table import instant
from gpuyard.cli.top.logview import LogView

if TYPE_CHECKING:
    from gpuyard.client import Columns, Gpu, Job, Progress

LISTS = ("running", "waiting", "ended")
MESSAGE_TIME = 6.0
"""Seconds for which a message is shown, unless a key is pressed."""


class Row(NamedTuple):
    """A job, as a list shows it; times are seconds since the epoch."""

    id: str
    name: str
    user: str
    state: str
    reason: str
    gpus: tuple[int, ...]
    gpu_count: int
    gpu_memory: int | None
    since: float
    """When it began to wait."""
    started: float | None
    ended: float | None
    priority: float
    progress: Progress | None


class Part(NamedTuple):
    """Some rows of a list, where they are in it, and how many it has."""

    rows: tuple[Row, ...] = ()
    offset: int = 0
    total: int = 0

    def get(self, index: int) -> Row | None:
        """The row with a number; None if it is not known yet."""
        return self.rows[index - self.offset] if 0 <= index - self.offset < len(self.rows) else None


class Picture(NamedTuple):
    """What the daemon said last."""

    taken: float
    """When, on the monotonic clock here."""
    now: float
    """When, on the daemon's clock."""
    parts: Mapping[str, Part]
    """The lists, and `everyone` who runs, also where the list shows only some."""
    gpus: tuple[Gpu, ...] = ()
    simulated: bool = False
    status: Mapping[str, Any] = {}
    last: int = 0
    """The number of the last event."""


@dataclass(slots=True)
class Place:
    """Where the user is in a list."""

    index: int = 0
    id: str = ""
    """The job there, which is followed when it moves."""
    top: int = 0
    """The first row that is seen."""
    pinned: bool = False
    """Whether the job is followed wherever it goes: the user has just done something that moves it."""


@dataclass(slots=True)
class Panel:
    """A text in front of the lists."""

    title: str
    lines: list[str]
    top: int = 0


@dataclass(slots=True)
class Model:
    """All that is on the screen."""

    user: str = ""
    picture: Picture | None = None
    away: str = ""
    """Why the daemon does not answer; empty if it does."""
    away_since: float = 0.0
    ticks: float = 0.0
    """This instant, on the monotonic clock."""
    width: int = 80
    height: int = 24
    focus: str = "running"
    places: dict[str, Place] = field(default_factory=lambda: {name: Place() for name in LISTS})
    filter: str = ""
    mine: bool = False
    mode: str = "lists"
    """What keys are for: lists, confirm, filter, panel, log or search."""
    typed: str = ""
    asked: Row | None = None
    """The job that is to be cancelled, if that is confirmed."""
    message: str = ""
    said_at: float = 0.0
    panel: Panel | None = None
    log: LogView | None = None

    @property
    def now(self) -> float:
        """The time at the daemon."""
        return self.picture.now + self.ticks - self.picture.taken if self.picture else 0.0

    def part(self, name: str) -> Part:
        """What is known of a list."""
        return self.picture.parts.get(name, Part()) if self.picture else Part()

    def selected(self) -> Row | None:
        """The job that keys act upon."""
        return self.part(self.focus).get(self.places[self.focus].index)

    def say(self, message: str) -> None:
        """Show a message for a while."""
        self.message, self.said_at = message, self.ticks

    def show(self, picture: Picture) -> None:
        """Take in what the daemon said; whoever is selected stays so, also where it moved."""
        self.picture, self.away = picture, ""
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
        """Go with a job that the user moved from one list to another."""
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
        """Select a row of a list, or the nearest that there is."""
        part, place = self.part(name), self.places[name]
        place.index = max(0, min(index, part.total - 1))
        row = part.get(place.index)
        place.id = row.id if row else ""


def rows_of(columns: Columns) -> tuple[Row, ...]:
    """The rows of a listing."""
    names = ("id", "name", "user", "state", "reason", "gpus", "gpu_count", "gpu_memory", "waiting_since", "started")
    given: list[Any] = [columns[name] for name in (*names, "ended", "priority", "progress")]  # type: ignore[literal-required]
    return tuple(
        Row(*row)._replace(name=row[1] or "-", reason=row[4] or "", gpus=tuple(row[5]))
        for row in zip(*given, strict=True)
    )


def row_of(job: Job) -> Row:
    """A job of the history as a row."""
    started, ended = (text and instant(text).timestamp() for text in (job["started_at"], job["ended_at"]))
    return Row(
        job["id"], job["name"] or "-", job["user"], job["state"], job["reason"] or "", tuple(job["gpus"]),
        job["gpu_count"], job["gpu_memory"], instant(job["submitted_at"]).timestamp(), started or None, ended or None,
        job["priority"], None,
    )  # fmt: skip
