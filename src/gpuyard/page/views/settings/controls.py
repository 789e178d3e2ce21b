"""Fields, forms, tables and lists of choices of the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.page.parts import heading, job_path, set_props, tagged


def text_field(label: str, hint: str = "", kind: str = "text") -> ui.input:
    field = ui.input(label).props("outlined dense")
    field._props |= {"hint": hint, "type": kind, "autocomplete": "off", "stack-label": True}
    return field


def number_field(label: str, hint: str = "", value: float | None = None, least: float = 0) -> ui.number:
    field = ui.number(label, value=value, min=least).props("outlined dense")
    field._props |= {"hint": hint, "stack-label": True}
    return field


def choice_field(label: str, options: dict[Any, str], value: Any) -> ui.select:
    return ui.select(options, label=label, value=value).props("outlined dense options-dense")


def mark(field: Any, wrong: str | None) -> None:
    if bool(field._props.get("error")) != (wrong is not None) or field._props.get("error-message", "") != (wrong or ""):
        field._props |= {"error": wrong is not None, "error-message": wrong or ""}
        field.update()


@contextmanager
def form(title: str, *, level: int = 3) -> Iterator[None]:
    with ui.element("div").classes("gy-card gy-form"):
        heading(title, level)
        yield


@contextmanager
def fields() -> Iterator[None]:
    with ui.element("div").classes("gy-set-fields"):
        yield


async def ask(title: str, make: Callable[[], Callable[[], Any]], yes: str, text: str = "") -> Any:
    """A dialog: `make` makes its fields and returns a function that reads them. None if cancelled."""
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
    with ui.element("fieldset").classes("gy-set-ticks"):
        tagged("legend", title)
        return {name: ui.checkbox(text, value=name in ticked) for name, text in options}


Cell = str | dict[str, Any]
Row = dict[str, Any]
Acting = Callable[[str, str], Awaitable[None]]


class Rows(Element, component="../../assets/settings_rows.js"):
    def __init__(self, caption: str, heads: Sequence[str], act: Acting | None = None, *, cards: bool = True) -> None:
        super().__init__()
        self._props |= {"caption": caption, "heads": list(heads), "rows": [], "cards": cards}
        if act is not None:
            self._act = act
            self.on("act", self._acted)

    def put(self, rows: list[Row]) -> None:
        set_props(self, rows=rows)

    async def _acted(self, event: GenericEventArguments) -> None:
        key, name = event.args
        if any(act["name"] == name for row in self._props["rows"] if row["key"] == key for act in row["acts"]):
            await self._act(key, name)  # only buttons that are shown count


class Choices(Element, component="../../assets/settings_choices.js"):
    def __init__(
        self, title: str, options: Sequence[Mapping[str, str]], choose: Callable[[str], Awaitable[None]] | None
    ) -> None:
        super().__init__()
        self._props |= {
            "title": title, "options": list(options), "chosen": "", "present": "", "barred": [],
            "free": choose is not None,
        }  # fmt: skip
        if choose is not None:
            self.on("choose", lambda event: choose(str(event.args)))

    def put(self, chosen: str, present: str, barred: Sequence[str] = ()) -> None:
        set_props(self, chosen=chosen, present=present, barred=list(barred))


def row(key: str, *cells: Cell, acts: Sequence[Mapping[str, Any]] = (), over: bool = False) -> Row:
    return {"key": key, "cells": list(cells), "acts": list(acts), "over": over}


def act(name: str, text: str, *, danger: bool = False, busy: bool = False) -> dict[str, Any]:
    return {"name": name, "text": text, "danger": danger, "busy": busy}


def job_cell(id: str | None) -> Cell:
    return {"text": id, "href": job_path(id.partition("-")[0])} if id else ""


def bar_cell(used: float, most: float | None, text: str) -> Cell:
    """Usage in words and as a bar; no bar without a limit."""
    return {"text": text, "bar": round(used / most, 3), "full": used >= most} if most else text
