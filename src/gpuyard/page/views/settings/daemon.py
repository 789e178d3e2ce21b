"""This daemon: what it is, where it is, and what it warns of. Ending it is for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from gpuyard.page.parts import STATES, command, heading
from gpuyard.page.visit import Visit
from gpuyard.policytext import describe_learned

_END = "That is for the command line, on its machine. Jobs go on, and the next daemon takes them up:"
_STANDINGS = {"ours": "in use", "foreign": "in use by somebody else"}
_CARE = (
    ("Look for what is wrong on its machine, and how to mend it:", "gpuyard doctor"),
    ("Write the queue and its history to a file, while it runs:", "gpuyard backup yard.backup"),
)


async def build(visit: Visit) -> None:
    """Make the section."""
    _Daemon(visit).build()


class _Daemon:
    """The facts as one viewer sees them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self._shown: list[tuple[str, str]] = []
        self._warned: list[str] | None = None

    def build(self) -> None:
        """Make the elements."""
        self._warnings = ui.element("div").classes("gy-set-warning").props("role=status")
        self._facts = ui.element("dl").classes("gy-card gy-set-facts")
        heading("How to end it", 3)
        ui.label(_END)
        command("gpuyard down")
        heading("How to look after it", 3)
        for what, line in _CARE:
            ui.label(what)
            command(line)
        self.visit.live(self.show)

    async def show(self) -> None:
        """Show how it does."""
        status = await self.visit.feed.ask("/status", 5.0)
        self._warn(warnings(status))
        found = facts(status, self.visit.when(status["since"]))
        if found != self._shown:
            self._shown = found
            self._facts.clear()
            with self._facts:
                for name, value in found:
                    with ui.element("dt"):
                        ui.label(name)
                    with ui.element("dd"):
                        ui.label(value)

    def _warn(self, found: list[str]) -> None:
        if found == self._warned:
            return
        self._warned = found
        self._warnings.set_visibility(bool(found))
        self._warnings.clear()
        with self._warnings, ui.element("ul"):
            for text in found:
                with ui.element("li"):
                    ui.label(text)


def warnings(status: Mapping[str, Any]) -> list[str]:
    """What is not as it should be."""
    store = status["store"]
    wrong = [] if store["state"] == "ok" else [f"What happens cannot be written down: {store['problem']}"]
    return [*wrong, *(f"{text[:1].upper()}{text[1:]}" for text in status["warnings"])]


def facts(status: Mapping[str, Any], since: str) -> list[tuple[str, str]]:
    """What there is to say of it, in order."""
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
