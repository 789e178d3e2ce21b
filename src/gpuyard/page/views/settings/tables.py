"""The tables and lists of choices that settings are made of: one element each, which sends only what changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.page.parts import job_path

Cell = str | dict[str, Any]
Row = dict[str, Any]
Acting = Callable[[str, str], Awaitable[None]]


class Rows(Element, component="rows.js"):
    """A table of texts, with buttons at the end of its rows."""

    def __init__(self, caption: str, heads: Sequence[str], act: Acting | None = None, *, cards: bool = True) -> None:
        super().__init__()
        self._props |= {"caption": caption, "heads": list(heads), "rows": [], "cards": cards}
        if act is not None:
            self._act = act
            self.on("act", self._acted)

    def put(self, rows: list[Row]) -> None:
        """Show these rows, if they are not shown already."""
        if rows != self._props["rows"]:
            self._props["rows"] = rows
            self.update()

    async def _acted(self, event: GenericEventArguments) -> None:
        key, name = event.args
        if any(act["name"] == name for row in self._props["rows"] if row["key"] == key for act in row["acts"]):
            await self._act(key, name)  # of what is not shown nothing can be pressed


class Choices(Element, component="choices.js"):
    """One of several, each with a line on what it does."""

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
        """Mark what is chosen, what is in force, and what cannot be chosen beside the rest."""
        marks = {"chosen": chosen, "present": present, "barred": list(barred)}
        if any(self._props[name] != mark for name, mark in marks.items()):
            self._props |= marks
            self.update()


def row(key: str, *cells: Cell, acts: Sequence[Mapping[str, Any]] = (), over: bool = False) -> Row:
    """A row: what it is called in events, its cells and its buttons."""
    return {"key": key, "cells": list(cells), "acts": list(acts), "over": over}


def act(name: str, text: str, *, danger: bool = False, busy: bool = False) -> dict[str, Any]:
    """A button of a row."""
    return {"name": name, "text": text, "danger": danger, "busy": busy}


def job_cell(id: str | None) -> Cell:
    """A job, by which one gets to it."""
    return {"text": id, "href": job_path(id.partition("-")[0])} if id else ""


def bar_cell(used: float, most: float | None, text: str) -> Cell:
    """How much of something is used, in words and as a bar; no bar where there is no end to it."""
    return {"text": text, "bar": round(used / most, 3), "full": used >= most} if most else text
