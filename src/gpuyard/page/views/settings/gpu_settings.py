"""Drained GPUs and reservations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.errors import UserError
from gpuyard.page.api import Facts
from gpuyard.page.feed import Drain, DrainReasons
from gpuyard.page.parts import Section, button, confirm, empty, epoch, heading, job_path, link
from gpuyard.page.views.settings.controls import (
    Cell,
    Row,
    Rows,
    act,
    ask,
    fields,
    form,
    job_cell,
    mark,
    row,
    text_field,
)
from gpuyard.page.visit import Permission, Visit, may
from gpuyard.spec.notation import ranges
from gpuyard.units import parse_indices


def parse_gpus(text: str, count: int) -> list[int]:
    found = sorted(parse_indices(text))
    if found[-1] >= count:
        raise UserError(f"there is no GPU {found[-1]}; this machine has GPUs 0 to {count - 1}")
    return found


def reserved_text(gpus: Sequence[int]) -> str:
    """`GPU 3 is reserved`, or `GPUs 0-1 are reserved`."""
    return f"GPUs {ranges(gpus)} are reserved" if len(gpus) > 1 else f"GPU {ranges(gpus)} is reserved"


def parse_local(text: str, zone: tzinfo) -> float:
    """Seconds since the epoch of a `datetime-local` field's value."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()
    except ValueError:
        raise UserError("say the day and the time") from None


def format_local(at: datetime, zone: tzinfo) -> str:
    return at.astimezone(zone).strftime("%Y-%m-%dT%H:%M")


def usual_span(now: datetime) -> tuple[datetime, datetime]:
    """Default of a reservation: four hours from the next full one."""
    begin = (now.astimezone(UTC) + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    return begin, begin + timedelta(hours=4)


def parse_users(text: str) -> list[str] | None:
    """Names separated by commas or blanks; None if there are none."""
    return text.replace(",", " ").split() or None


def blocking_jobs(jobs: Sequence[Facts], gpus: Sequence[int], begin: float) -> list[str]:
    """Running jobs that may still use these GPUs at that time, and are not preemptible."""
    found = []
    for job in jobs:
        started, limit = job["started_at"], job["time_limit"]
        ends = epoch(started) + limit if started and limit else float("inf")
        if set(gpus) & set(job["gpus"]) and ends > begin and not job["preemptible"]:
            found.append(str(job["id"]))
    return found


_WARN = "These jobs may still be on those GPUs when it begins, and nobody will stop them:"


class ReservationsSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Permission.RESERVE)
        self._count = 0
        self._running: list[Facts] = []

    async def build(self) -> None:
        heading("Reservations")
        heads = ("Name", "GPUs", "From", "To", "For")
        self._rows = Rows("Reservations", heads, self._give_up if self.free else None)
        self._none = empty(
            "Nothing is reserved. An admin keeps GPUs for somebody like this:",
            "gpuyard reserve 0,1 --begin 14:00 --duration 4h --user ann",
        )
        self._none.set_visibility(False)
        if self.free:
            self._form()
        self.visit.live(self.show)

    def _form(self) -> None:
        with form("Reserve GPUs"):
            with fields():
                self._gpus = text_field("GPUs", "as in 0,2-4")
                self._begin = text_field("From", "on your clock", kind="datetime-local")
                self._end = text_field("To", "on your clock", kind="datetime-local")
                self._users = text_field("For whom", "users, with commas; you, if empty")
                self._nobody = ui.checkbox("Nobody: for work outside of the queue")
                self._name = text_field("Name", "one is made up, if empty")
            for field in (self._gpus, self._begin, self._end):
                field.on_value_change(self._check)
            self._warning = Section("gy-set-warning", props="role=status")
            self._warn([])
            with ui.element("div").classes("gy-buttons gy-set-left"):
                button("Reserve", self._reserve, kind="primary")

    async def show(self) -> None:
        found = (await self.visit.feed.ask("/reservations"))["reservations"]
        self._rows.put([self._row(one) for one in found])
        self._none.set_visibility(not found)
        if not self.free:
            return
        self._count = len((await self.visit.feed.ask("/gpus"))["gpus"])
        self._running = (await self.visit.feed.ask("/jobs?state=running&limit=500"))["jobs"]
        if not self._begin.value:
            begin, end = usual_span(datetime.now(UTC))
            self._begin.value, self._end.value = (format_local(at, self._zone) for at in (begin, end))

    @property
    def _zone(self) -> Any:
        return self.visit.zone or UTC

    def _row(self, one: Facts) -> Row:
        now = epoch(one["begin_at"]) <= time.time()
        begin = f"{self.visit.when(one['begin_at'])}{' (it is on)' if now else ''}"
        return row(
            one["name"], one["name"], ranges(one["gpus"]), begin, self.visit.when(one["end_at"]),
            ", ".join(one["users"]) or "nobody", acts=[act("end", "Give up", danger=True)] if self.free else (),
        )  # fmt: skip

    def _read(self) -> dict[str, Any] | None:
        """The request, or None if a field is wrong, which is marked."""
        found: dict[str, Any] = {}
        for name, field, read in (
            ("gpus", self._gpus, lambda text: parse_gpus(text, self._count)),
            ("begin", self._begin, lambda text: parse_local(text, self._zone)),
            ("end", self._end, lambda text: parse_local(text, self._zone)),
        ):
            try:
                found[name] = read(str(field.value or ""))
                mark(field, None)
            except UserError as error:
                mark(field, str(error) if field.value or field is not self._gpus else None)
        if len(found) == 3 and found["end"] <= found["begin"]:
            mark(self._end, "that is not after its begin")
            return None
        return found if len(found) == 3 else None

    def _check(self) -> None:
        request = self._read()
        self._warn(blocking_jobs(self._running, request["gpus"], request["begin"]) if request else [])

    def _warn(self, jobs: list[str]) -> None:
        self._warning.show(jobs, lambda: _draw_warning(jobs), visible=bool(jobs))

    async def _reserve(self) -> None:
        request = self._read()
        if request is None:
            if not self._gpus.value:
                mark(self._gpus, "say which GPUs, as in 0,2-4")
            return
        users = [] if self._nobody.value else parse_users(str(self._users.value or ""))
        request |= {"name": str(self._name.value or "").strip(), "users": users}
        made: dict[str, Any] = {}

        async def make() -> None:
            made.update(await self.visit.api.post("/reservations", request))

        if await self.visit.do(make()):
            span = f"from {self.visit.when(made['begin_at'])} to {self.visit.when(made['end_at'])}"
            ui.notify(f"{reserved_text(made['gpus'])} as {made['name']} {span}.", type="positive")
            self._gpus.value = self._name.value = ""
            self._warn(made["in_the_way"])

    async def _give_up(self, name: str, act: str) -> None:
        if await confirm(f"Give the reservation {name} up?", "Give it up"):
            path = f"/reservations/{quote(name, safe='')}"
            await self.visit.do(self.visit.api.ask("DELETE", path, {}), f"Reservation {name} is given up.")


def _draw_warning(jobs: list[str]) -> None:
    ui.label(_WARN)
    for job in jobs[:20]:
        link(job_path(job), job)
    if len(jobs) > 20:
        ui.label(f"and {len(jobs) - 20} more")


_STATES = {
    "free": ("free", "gy-succeeded"), "ours": ("busy", "gy-running"), "foreign": ("foreign", "gy-held"),
    "unknown": ("lost", "gy-failed"), "drained": ("drained", "gy-held"), "lost": ("lost", "gy-failed"),
}  # fmt: skip


class GpusSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Permission.DRAIN)
        self._drains = DrainReasons(visit.feed)
        self._reasons: dict[int, str] = {}

    async def build(self) -> None:
        ui.label("On a drained GPU nothing new starts; what runs there goes on.").classes("gy-soft")
        heads = ("GPU", "Name", "State", "Jobs", "Drained")
        self._rows = Rows("GPUs", heads, self._act if self.free else None)
        self._none = empty("This machine has no GPU that gpuyard could see.", "gpuyard doctor")
        self._none.set_visibility(False)
        if self.free:
            with ui.element("div").classes("gy-buttons gy-set-left"):
                self._drain_all = button("Drain all", lambda: self._drain(None))
                self._resume_all = button("Resume all", lambda: self._resume(None))
        self.visit.live(self.show)

    async def show(self) -> None:
        gpus = (await self.visit.feed.ask("/gpus"))["gpus"]
        drained = [gpu["index"] for gpu in gpus if gpu["drained"]]
        self._reasons = {index: drain_text(drain) for index, drain in (await self._drains.of(gpus)).items()}
        self._rows.put([self._row(gpu) for gpu in gpus])
        self._none.set_visibility(not gpus)
        if self.free:
            self._drain_all.set_visibility(len(drained) < len(gpus))
            self._resume_all.set_visibility(bool(drained))

    def _row(self, gpu: Facts) -> Row:
        text, look = _STATES.get(gpu["state"], (gpu["state"], ""))
        index, drained = gpu["index"], gpu["drained"]
        acts = [act("resume", "Resume") if drained else act("drain", "Drain")] if self.free else []
        why: Cell = (self._reasons.get(index) or "yes") if drained else {"text": "no", "soft": True}
        jobs: Cell = {"links": list(map(job_cell, gpu["jobs"]))} if gpu["jobs"] else {"text": "none", "soft": True}
        return row(str(index), f"GPU {index}", gpu["name"], {"text": text, "chip": look}, jobs, why, acts=acts)

    async def _act(self, key: str, name: str) -> None:
        await (self._drain([int(key)]) if name == "drain" else self._resume([int(key)]))

    async def _drain(self, gpus: list[int] | None) -> None:
        which = "all GPUs" if gpus is None else f"GPU {gpus[0]}"
        why = await ask(
            f"Drain {which}?", lambda: _reader(text_field("Reason", "for others to read; may be empty")), "Drain",
            "Nothing new starts there until it is resumed. What runs there goes on.",
        )  # fmt: skip
        if why is not None:
            body = {"gpus": gpus, "reason": why}
            done = "All GPUs are drained." if gpus is None else f"GPU {gpus[0]} is drained."
            await self.visit.do(self.visit.api.post("/gpus/drain", body), done)

    async def _resume(self, gpus: list[int] | None) -> None:
        if gpus is None and not await confirm("Let jobs on all GPUs again?", "Resume all"):
            return
        which = "All GPUs are" if gpus is None else f"GPU {gpus[0]} is"
        await self.visit.do(self.visit.api.post("/gpus/resume", {"gpus": gpus}), f"{which} used again.")


def drain_text(drain: Drain) -> str:
    why, by = drain
    return f"{why} ({by})" if why and by else why or (f"by {by}" if by else "")


def _reader(field: ui.input) -> Any:
    return lambda: str(field.value or "").strip()
