"""What was sent to somebody, or is to be, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from gpuyard.page.parts import heading
from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings.tables import Row, Rows, job_cell, row
from gpuyard.page.visit import Visit

_MOST = 50
_EVERY = 6  # beats between looks
_STATES = {"waiting": ("waits", ""), "delivered": ("sent", "gy-succeeded"), "given-up": ("given up", "gy-failed")}


class Log:
    """The latest notifications."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self._beats = 0

    def build(self) -> None:
        """Make the elements."""
        heading("What was sent")
        with ui.element("div").classes("gy-buttons gy-set-left"):
            self._failed = ui.checkbox("Only what failed", on_change=self._load)
            self._all = ui.checkbox("Everybody's", on_change=self._load)
            self._all.set_visibility(may(self.visit.viewer, Deed.READ_DELIVERIES))
        self._rows = Rows("What was sent", ("When", "Job", "Of what", "To", "How it went", "Why"))
        self._none = ui.label("Nothing was sent in the last days.").classes("gy-soft")
        self.visit.live(self.show)

    async def show(self) -> None:
        """Show it anew, now and then."""
        self._beats += 1
        if self._beats % _EVERY == 1:
            await self._load()

    async def _load(self) -> None:
        asked = {"limit": _MOST, "failed": bool(self._failed.value), "all": bool(self._all.value)}
        told = (await self.visit.api.get("/notifications", **asked))["notifications"]
        self._rows.put([self._row(one) for one in told])
        self._none.set_visibility(not told)

    def _row(self, one: Mapping[str, Any]) -> Row:
        text, look = _STATES.get(one["state"], (one["state"], ""))
        to = one["subscription"] or one["target"] or f"{one['user']}'s"
        again = f"; again at {self.visit.when(one['next_at'])}" if one["next_at"] and one["error"] else ""
        return row(
            f"{one['id']}", self.visit.when(one["at"]), job_cell(one["job"]), one["event"], to,
            {"text": text, "chip": look or "gy-chip"}, f"{one['error'] or ''}{again}",
        )  # fmt: skip
