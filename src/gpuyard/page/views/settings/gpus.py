"""GPUs that are left alone, and GPUs that are kept for somebody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from gpuyard.page.drains import Drain, Drains
from gpuyard.page.parts import button, confirm, empty
from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings import reservations
from gpuyard.page.views.settings.forms import ask, text_field
from gpuyard.page.views.settings.tables import Cell, Row, Rows, act, job_cell, row
from gpuyard.page.visit import Visit

_STATES = {
    "free": ("free", "gy-succeeded"), "ours": ("busy", "gy-running"), "foreign": ("foreign", "gy-held"),
    "unknown": ("lost", "gy-failed"), "drained": ("drained", "gy-held"), "lost": ("lost", "gy-failed"),
}  # fmt: skip


async def build(visit: Visit) -> None:
    """Make the section."""
    _Gpus(visit).build()
    await reservations.build(visit)


class _Gpus:
    """The list as one viewer sees it."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Deed.DRAIN)
        self._drains = Drains(visit.feed)
        self._reasons: dict[int, str] = {}

    def build(self) -> None:
        """Make its elements."""
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
        """Show how they stand."""
        gpus = (await self.visit.feed.ask("/gpus"))["gpus"]
        drained = [gpu["index"] for gpu in gpus if gpu["drained"]]
        self._reasons = {index: reason(drain) for index, drain in (await self._drains.of(gpus)).items()}
        self._rows.put([self._row(gpu) for gpu in gpus])
        self._none.set_visibility(not gpus)
        if self.free:
            self._drain_all.set_visibility(len(drained) < len(gpus))
            self._resume_all.set_visibility(bool(drained))

    def _row(self, gpu: Mapping[str, Any]) -> Row:
        text, look = _STATES.get(gpu["state"], (gpu["state"], ""))
        index, drained = gpu["index"], gpu["drained"]
        acts = [act("resume", "Resume") if drained else act("drain", "Drain")] if self.free else []
        why: Cell = (self._reasons.get(index) or "yes") if drained else {"text": "no", "soft": True}
        return row(
            str(index), f"GPU {index}", gpu["name"], {"text": text, "chip": look}, _jobs(gpu["jobs"]), why, acts=acts
        )

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
            await self.visit.do(self.visit.api.post("/gpus/drain", body), f"{_first_up(which)} drained.")

    async def _resume(self, gpus: list[int] | None) -> None:
        if gpus is None and not await confirm("Let jobs on all GPUs again?", "Resume all"):
            return
        which = "All GPUs are" if gpus is None else f"GPU {gpus[0]} is"
        await self.visit.do(self.visit.api.post("/gpus/resume", {"gpus": gpus}), f"{which} used again.")


def reason(drain: Drain) -> str:
    """Why a GPU was drained, and by whom, in a few words."""
    why, by = drain
    return f"{why} ({by})" if why and by else why or (f"by {by}" if by else "")


def _jobs(ids: Sequence[str]) -> Cell:
    return {"links": [job_cell(id) for id in ids]} if ids else {"text": "none", "soft": True}


def _reader(field: ui.input) -> Any:
    return lambda: str(field.value or "").strip()


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:] + (" are" if text.startswith("all") else " is")
