"""GPUs that are kept for some users for a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.arrays import ranges
from gpuyard.errors import UserError
from gpuyard.page.parts import button, confirm, empty, heading, job_path, link
from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings import booking
from gpuyard.page.views.settings.forms import fields, form, mark, text_field
from gpuyard.page.views.settings.tables import Row, Rows, act, row
from gpuyard.page.visit import Visit

_WARN = "These jobs may still be on those GPUs when it begins, and nobody will stop them:"


async def build(visit: Visit) -> None:
    """Make the part."""
    _Reservations(visit).build()


class _Reservations:
    """The list and the form as one viewer sees them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Deed.RESERVE)
        self._count = 0
        self._running: list[Mapping[str, Any]] = []
        self._warned: list[str] = []

    def build(self) -> None:
        """Make the elements."""
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
            self._warning = ui.element("div").classes("gy-set-warning").props("role=status")
            self._warning.set_visibility(False)
            with ui.element("div").classes("gy-buttons gy-set-left"):
                button("Reserve", self._reserve, kind="primary")

    async def show(self) -> None:
        """Show those that are not over."""
        found = (await self.visit.feed.ask("/reservations"))["reservations"]
        self._rows.put([self._row(one) for one in found])
        self._none.set_visibility(not found)
        if not self.free:
            return
        self._count = len((await self.visit.feed.ask("/gpus"))["gpus"])
        self._running = (await self.visit.feed.ask("/jobs?state=running&limit=500"))["jobs"]
        if not self._begin.value:
            begin, end = booking.usual_span(datetime.now(UTC))
            self._begin.value, self._end.value = (booking.format_local(at, self._zone) for at in (begin, end))

    @property
    def _zone(self) -> Any:
        return self.visit.zone or UTC

    def _row(self, one: Mapping[str, Any]) -> Row:
        now = datetime.fromisoformat(one["begin_at"]).timestamp() <= time.time()
        begin = f"{self.visit.when(one['begin_at'])}{' (it is on)' if now else ''}"
        return row(
            one["name"], one["name"], ranges(one["gpus"]), begin, self.visit.when(one["end_at"]),
            ", ".join(one["users"]) or "nobody", acts=[act("end", "Give up", danger=True)] if self.free else (),
        )  # fmt: skip

    def _read(self) -> dict[str, Any] | None:
        """What is asked for; None if something is wrong, which is marked."""
        found: dict[str, Any] = {}
        for name, field, read in (
            ("gpus", self._gpus, lambda text: booking.parse_gpus(text, self._count)),
            ("begin", self._begin, lambda text: booking.parse_local(text, self._zone)),
            ("end", self._end, lambda text: booking.parse_local(text, self._zone)),
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
        """Mark what is wrong, and warn of jobs that are in the way."""
        wish = self._read()
        self._warn(booking.in_the_way(self._running, wish["gpus"], wish["begin"]) if wish else [])

    def _warn(self, jobs: list[str]) -> None:
        if jobs == self._warned:
            return
        self._warned = jobs
        self._warning.clear()
        self._warning.set_visibility(bool(jobs))
        with self._warning:
            ui.label(_WARN)
            for job in jobs[:20]:
                link(job_path(job), job)
            if len(jobs) > 20:
                ui.label(f"and {len(jobs) - 20} more")

    async def _reserve(self) -> None:
        wish = self._read()
        if wish is None:
            if not self._gpus.value:
                mark(self._gpus, "say which GPUs, as in 0,2-4")
            return
        wish |= {"name": str(self._name.value or "").strip(), "users": self._for()}
        made: dict[str, Any] = {}

        async def make() -> None:
            made.update(await self.visit.api.post("/reservations", wish))

        if await self.visit.do(make()):
            span = f"from {self.visit.when(made['begin_at'])} to {self.visit.when(made['end_at'])}"
            ui.notify(f"{booking.reserved(made['gpus'])} as {made['name']} {span}.", type="positive")
            self._gpus.value = self._name.value = ""
            self._warn(made["in_the_way"])

    def _for(self) -> list[str] | None:
        return [] if self._nobody.value else booking.parse_users(str(self._users.value or ""))

    async def _give_up(self, name: str, act: str) -> None:
        if await confirm(f"Give the reservation {name} up?", "Give it up"):
            path = f"/reservations/{quote(name, safe='')}"
            await self.visit.do(self.visit.api.ask("DELETE", path, {}), f"Reservation {name} is given up.")
