"""The audit trail: who changed what, and who was refused, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from gpuyard.page.parts import button
from gpuyard.page.views.settings.forms import text_field
from gpuyard.page.views.settings.tables import Row, Rows, job_cell, row
from gpuyard.page.visit import Visit

_PAGE = 50
_EVERY = 10  # beats between looks, while the latest are shown
_ENDS = {401: "refused: not known", 403: "refused: may not", 421: "refused: wrong name", 429: "refused: too often"}


async def build(visit: Visit) -> None:
    """Make the section."""
    _Audit(visit).build()


class _Audit:
    """The trail as an admin sees it."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self._before: list[int] = []
        """Where the pages begin that lie before this one; empty: the latest are shown."""
        self._last: int | None = None
        self._beats = 0

    def build(self) -> None:
        """Make the elements."""
        ui.label("Who changed what, and who was refused, the latest first.").classes("gy-soft")
        self._user = text_field("User", "only what this user did")
        self._user.classes("gy-set-narrow").props("debounce=400 clearable").on_value_change(self._latest)
        self._rows = Rows("Audit trail", ("When", "Who", "What", "Job", "How it went", "From"))
        self._none = ui.label("Nothing of the kind.").classes("gy-soft")
        with ui.element("nav").classes("gy-buttons gy-set-left").props('aria-label="Pages of the audit trail"'):
            self._newer = button("Latest", self._latest)
            self._older = button("Older", self._go_on)
        for element in (self._none, self._newer, self._older):
            element.set_visibility(False)
        self.visit.live(self.show)

    async def show(self) -> None:
        """Show the latest anew, now and then."""
        self._beats += 1
        if not self._before and self._beats % _EVERY == 1:
            await self._load()

    async def _latest(self) -> None:
        self._before = []
        await self.visit.do(self._load())

    async def _go_on(self) -> None:
        if self._last is not None:
            self._before.append(self._last)
            await self.visit.do(self._load())

    async def _load(self) -> None:
        before = self._before[-1] if self._before else None
        user = str(self._user.value or "").strip()
        told = await self.visit.api.get("/audit", limit=_PAGE, before=before, user=user)
        entries = told["entries"]
        self._last = entries[-1]["id"] if len(entries) == _PAGE else None
        self._rows.put([self._row(entry) for entry in entries])
        self._none.set_visibility(not entries)
        self._newer.set_visibility(bool(self._before))
        self._older.set_visibility(self._last is not None)

    def _row(self, entry: Mapping[str, Any]) -> Row:
        what = " ".join(filter(None, (entry["method"], entry["path"].removeprefix("/api/v1"))))
        return row(
            str(entry["id"]), self.visit.when(entry["at"], seconds=True), entry["user"] or "nobody known",
            {"text": what, "code": True}, job_cell(entry["job"]), ended(entry["status"], entry["times"]),
            " ".join(filter(None, (entry["via"], entry["address"]))),
        )  # fmt: skip


def ended(status: int, times: int) -> dict[str, str]:
    """How a request went, in words."""
    if status < 400:
        text, look = "done", "gy-succeeded"
    else:
        text, look = _ENDS.get(status, f"failed ({status})"), "gy-failed"
    return {"text": text if times == 1 else f"{text}, {times:,} times", "chip": look}
