"""Fields, and questions with fields: all with labels, and with what is wrong said under them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from gpuyard.page.parts import heading


def text_field(label: str, hint: str = "", value: str = "", kind: str = "text") -> ui.input:
    """A field for a line of text."""
    field = ui.input(label, value=value).props("outlined dense")
    field._props |= {"hint": hint, "type": kind, "autocomplete": "off", "stack-label": True}
    return field


def number_field(label: str, hint: str = "", value: float | None = None, least: float = 0) -> ui.number:
    """A field for a number."""
    field = ui.number(label, value=value, min=least).props("outlined dense")
    field._props |= {"hint": hint, "stack-label": True}
    return field


def choice_field(label: str, options: dict[Any, str], value: Any, hint: str = "") -> ui.select:
    """One of several."""
    field = ui.select(options, label=label, value=value).props("outlined dense options-dense")
    field._props["hint"] = hint
    return field


def mark(field: Any, wrong: str | None) -> None:
    """Say what is wrong with a field, or that nothing is."""
    if bool(field._props.get("error")) != (wrong is not None) or field._props.get("error-message", "") != (wrong or ""):
        field._props |= {"error": wrong is not None, "error-message": wrong or ""}
        field.update()


@contextmanager
def form(title: str, *, level: int = 3) -> Iterator[None]:
    """A form of its own, with a heading."""
    with ui.element("div").classes("gy-card gy-form"):
        heading(title, level)
        yield


@contextmanager
def fields() -> Iterator[None]:
    """Fields side by side, where there is room."""
    with ui.element("div").classes("gy-set-fields"):
        yield


async def ask(title: str, make: Callable[[], Callable[[], Any]], yes: str, text: str = "") -> Any:
    """Ask something with fields: `make` makes them, and returns what reads them. None if it is called off."""
    with ui.dialog() as dialog, ui.card().classes("gy-card gy-set-ask"):
        heading(title, 2)
        if text:
            ui.label(text)
        read = make()
        with ui.element("div").classes("gy-buttons"):
            ui.button("Never mind", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button(yes, on_click=lambda: dialog.submit(read())).props("unelevated no-caps color=primary")
    dialog._props["aria-label"] = title
    answer = await dialog
    dialog.delete()
    return answer


def tick_boxes(title: str, options: Sequence[tuple[str, str]], ticked: Sequence[str]) -> dict[str, ui.checkbox]:
    """Several of some, by name."""
    with ui.element("fieldset").classes("gy-set-ticks"):
        with ui.element("legend"):
            ui.label(title)
        return {name: ui.checkbox(text, value=name in ticked) for name, text in options}


Act = Callable[[], Awaitable[None]]
