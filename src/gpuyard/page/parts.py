"""Small elements that all views are made of. Text from users goes through here as text, never as HTML."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, overload
from urllib.parse import quote

from nicegui import ui
from nicegui.element import Element

from gpuyard.units import format_duration, format_size

_NOTHING = object()


class Section:
    """A part of the page that is redrawn only when its content changes."""

    def __init__(self, classes: str = "", tag: str = "div", props: str = "") -> None:
        self._box = ui.element(tag).classes(classes).props(props)
        self._shown: Any = _NOTHING

    def show(self, facts: Any, draw: Callable[[], object], *, visible: bool = True) -> None:
        self._box.set_visibility(visible)
        if facts == self._shown:
            return
        self._shown = facts
        self._box.clear()
        with self._box:
            draw()


def set_props(element: Element, **props: Any) -> None:
    """Set them; the browser is told if one has changed."""
    if any(element._props.get(name, _NOTHING) != value for name, value in props.items()):
        element._props |= props
        element.update()


class Since(Element, component="assets/since.js"):
    """The time since an instant; the browser keeps counting."""

    def __init__(self, since: str | float) -> None:
        super().__init__()
        self._props["since"] = epoch(since) if isinstance(since, str) else since
        self._props["now"] = time.time()


STATES = {
    "queued": "waiting", "held": "held", "running": "running", "succeeded": "succeeded", "failed": "failed",
    "cancelled": "cancelled", "timeout": "out of time", "oom": "out of memory", "interrupted": "interrupted",
}  # fmt: skip
"""What people call the states of a job."""


def link(path: str, text: str = "") -> Element:
    found = ui.element("a").classes("gy-link")
    found._props["href"] = path
    if text:
        with found:
            ui.label(text)
    return found


def job_path(id: str) -> str:
    return f"/jobs/{quote(id, safe='')}"


def tagged(tag: str, text: str) -> Element:
    with ui.element(tag) as found:
        ui.label(text)
    return found


def fact(term: str, text: str) -> None:
    tagged("dt", term)
    tagged("dd", text)


def facts_list(pairs: Iterable[tuple[str, str]]) -> None:
    for term, text in pairs:
        fact(term, text)


def chip(state: str) -> Element:
    return tagged("span", STATES.get(state, state)).classes(f"gy-chip gy-{state}")


def heading(text: str, level: int = 2) -> Element:
    return tagged(f"h{level}", text).classes(f"gy-h{level}")


def code(text: str) -> Element:
    return tagged("code", text).classes("gy-code")


def command(text: str) -> Element:
    with ui.element("div").classes("gy-command") as found:
        code(text).props("tabindex=0")
        button = ui.button(icon="content_copy").props('flat dense round size=sm aria-label="Copy the command"')
        button.on("click", js_handler="(event) => gyCopy(event.currentTarget.parentElement.querySelector('code'))")
    return found


def empty(text: str, *commands: str) -> Element:
    with ui.element("div").classes("gy-empty") as found:
        ui.label(text)
        for line in commands:
            command(line)
    return found


async def confirm(question: str, yes: str) -> bool:
    with ui.dialog() as dialog, ui.card().classes("gy-card"):
        ui.label(question).classes("gy-question")
        with ui.element("div").classes("gy-buttons"):
            ui.button("No, leave it", on_click=lambda: dialog.submit(False)).props("flat no-caps autofocus")
            ui.button(yes, on_click=lambda: dialog.submit(True)).props("unelevated no-caps color=negative")
    answer = await dialog
    dialog.delete()
    return bool(answer)


def button(text: str, act: Callable[[], Awaitable[None] | None], icon: str | None = None, kind: str = "") -> Element:
    look = {"primary": "unelevated color=primary", "danger": "outline color=negative"}.get(kind, "outline")
    return ui.button(text, icon=icon, on_click=act).props(f"no-caps {look}").classes("gy-button")


def size(bytes_: float | None) -> str:
    if bytes_ is None:
        return "unknown"
    if bytes_ < 1024:
        return f"{bytes_:.0f} B"
    text = format_size(bytes_)
    return f"{text[:-1]} {text[-1]}iB"


def span(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return ""
    return format_duration(round(seconds) if seconds >= 10 else float(f"{seconds:.2g}"))


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{capitalized(text)}." if text else ""


def doc_sentence(doc: str) -> str:
    return sentence(doc.replace("`", ""))


@overload
def epoch(iso: str) -> float: ...
@overload
def epoch(iso: str | None) -> float | None: ...
def epoch(iso: str | None) -> float | None:
    """Seconds since the epoch of an ISO-8601 time."""
    return datetime.fromisoformat(iso).timestamp() if iso else None


def brief_epoch(iso: str | None) -> float | None:
    """Rounded to 0.1 s, to be sent to the browser."""
    return round(epoch(iso), 1) if iso else None


def priority(value: float) -> str:
    """All digits that distinguish it from its neighbours, without the rounding errors of steps of 0.1."""
    return f"{value:.12g}"


def amount(value: float) -> str:
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}" if value else "0"


def watt_hours(value: float) -> str:
    return f"{amount(value / 1000)} kWh" if value >= 1000 else f"{amount(value)} Wh"
