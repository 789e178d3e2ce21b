"""The daemon: its facts, its warnings, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from gpuyard.page.parts import STATES, Section, button, capitalized, command, facts_list, heading, tagged
from gpuyard.page.views.settings.controls import Row, Rows, job_cell, row, text_field
from gpuyard.page.visit import Visit
from gpuyard.spec.notation import describe_learned

_PAGE = 50
_EVERY = 10  # beats between updates, while the latest are shown
_ENDS = {401: "refused: not known", 403: "refused: may not", 421: "refused: wrong name", 429: "refused: too often"}


class AuditSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self._before: list[int] = []  # where the newer pages begin; empty while the latest are shown
        self._last: int | None = None

    async def build(self) -> None:
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
        self.visit.live(self.show, _EVERY)

    async def show(self) -> None:
        if not self._before:
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
            {"text": what, "code": True}, job_cell(entry["job"]), status_text(entry["status"], entry["times"]),
            " ".join(filter(None, (entry["via"], entry["address"]))),
        )  # fmt: skip


def status_text(status: int, times: int) -> dict[str, str]:
    if status < 400:
        text, look = "done", "gy-succeeded"
    else:
        text, look = _ENDS.get(status, f"failed ({status})"), "gy-failed"
    return {"text": text if times == 1 else f"{text}, {times:,} times", "chip": look}


_END = "That is for the command line, on its machine. Jobs go on, and the next daemon takes them up:"
_STANDINGS = {"ours": "in use", "foreign": "in use by somebody else"}
_CARE = (
    ("Look for what is wrong on its machine, and how to mend it:", "gpuyard doctor"),
    ("Write the queue and its history to a file, while it runs:", "gpuyard backup yard.backup"),
)


class DaemonSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    async def build(self) -> None:
        self._warnings = Section("gy-set-warning", props="role=status")
        self._facts = Section("gy-card gy-set-facts", "dl")
        heading("How to end it", 3)
        ui.label(_END)
        command("gpuyard down")
        heading("How to look after it", 3)
        for what, line in _CARE:
            ui.label(what)
            command(line)
        self.visit.live(self.show)

    async def show(self) -> None:
        status = await self.visit.feed.ask("/status", 5.0)
        wrong = warnings(status)
        self._warnings.show(wrong, lambda: _draw_warnings(wrong), visible=bool(wrong))
        found = facts(status, self.visit.when(status["since"]))
        self._facts.show(found, lambda: facts_list(found))


def _draw_warnings(found: list[str]) -> None:
    with ui.element("ul"):
        for text in found:
            tagged("li", text)


def warnings(status: Mapping[str, Any]) -> list[str]:
    store = status["store"]
    wrong = [] if store["state"] == "ok" else [f"What happens cannot be written down: {store['problem']}"]
    return [*wrong, *map(capitalized, status["warnings"])]


def facts(status: Mapping[str, Any], since: str) -> list[tuple[str, str]]:
    page = status.get("page") or {}
    found = [
        ("Version", f"gpuyard {status['version']}"),
        ("Runs since", f"{since}, as process {status['pid']}"),
        ("GPUs", _counted(status["gpus"], _STANDINGS) + (", all of them simulated" if status["simulated"] else "")),
        ("Jobs", _counted(status["jobs"], STATES)),
        ("Policy", status["policy"]),
        *([("Trained", describe_learned(status["learned"]))] if status.get("learned") else []),
        ("Planning takes", f"{_ms(status['plan']['mean_ms'])} on average, {_ms(status['plan']['max_ms'])} at most"),
        ("Address", status["url"] or "none: it does not listen on TCP"),
        ("Socket", status["socket"]),
        ("Data", status["data_dir"]),
        ("Store", "all is written down" if status["store"]["state"] == "ok" else "fails"),
    ]  # fmt: skip
    if page.get("pid"):
        starts = page.get("starts", 1)
        found.append(("This page", f"process {page['pid']}" + (f", started {starts} times" if starts > 1 else "")))
    return found


def _counted(numbers: Mapping[str, int], words: Mapping[str, str]) -> str:
    return ", ".join(f"{count:,} {words.get(name, name)}" for name, count in numbers.items() if count) or "none"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
