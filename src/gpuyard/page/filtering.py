"""Filters above a table: fields, a row of choices, and the address that has them, so that a view can be shared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from nicegui import ui
from nicegui.element import Element

LONGEST = 200
"""Characters of what may be looked for."""
Changed = Callable[[], Awaitable[None]]


class Field(NamedTuple):
    """A field to type in."""

    name: str
    label: str
    icon: str = ""


class Filters:
    """What is looked for, by name; kept in the address."""

    def __init__(self, path: str, given: Mapping[str, str], known: Sequence[str]) -> None:
        self._path = path
        self.values = {name: given.get(name, "")[:LONGEST].strip() for name in known}

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def set(self, **values: str) -> bool:
        """Look for something else; says whether it is."""
        new = {name: value[:LONGEST].strip() for name, value in values.items()}
        if all(self.values[name] == value for name, value in new.items()):
            return False
        self.values |= new
        return True

    def asked(self, *names: str) -> dict[str, str]:
        """Those of these that are set, as a query."""
        return {name: self.values[name] for name in names if self.values[name]}

    @property
    def address(self) -> str:
        """The page as it is seen now."""
        given = {name: value for name, value in self.values.items() if value}
        return f"{self._path}?{urlencode(given)}" if given else self._path

    def tell_address(self) -> None:
        """Let the browser's address say what is looked for."""
        ui.navigate.history.replace(self.address)


class Fields:
    """Fields of a set of filters."""

    def __init__(self, filters: Filters, fields: Sequence[Field], changed: Changed) -> None:
        self._filters, self._changed = filters, changed
        self._inputs = {field.name: self._field(field) for field in fields}
        self._suggested: dict[str, set[str]] = {field.name: set() for field in fields}

    def _field(self, field: Field) -> ui.input:
        async def change() -> None:
            if self._filters.set(**{field.name: found.value or ""}):
                await self._changed()

        found = ui.input(field.label, value=self._filters[field.name], on_change=change)
        found.props("dense outlined clearable debounce=250").props(f"maxlength={LONGEST}").classes("gy-list-field")
        found._props["clear-icon"] = "close"
        if field.icon:
            with found.add_slot("prepend"):
                ui.icon(field.icon).props("aria-hidden=true")
        return found

    def suggest(self, name: str, words: Sequence[str]) -> None:
        """Complete these in a field, as well as what was suggested before."""
        new = self._suggested[name] | set(words)
        if new != self._suggested[name] and len(new) < 1000:
            self._suggested[name] = new
            self._inputs[name].set_autocomplete(sorted(new))

    def show(self) -> None:
        """Let the fields say what the filters do."""
        for name, found in self._inputs.items():
            if (found.value or "").strip() != self._filters[name]:  # a blank at the end is somebody who types on
                found.value = self._filters[name]


class Choices:
    """A row of buttons of which one is chosen, each with a count if there is one."""

    def __init__(self, label: str, names: Mapping[str, str], choose: Callable[[str], Awaitable[None]]) -> None:
        self._names = names
        self._labels: dict[str, ui.label] = {}
        self._buttons: dict[str, Element] = {}
        with ui.element("div").classes("gy-list-choices").props("role=group") as group:
            group._props["aria-label"] = label
            for name in names:
                self._add(name, choose)

    def _add(self, name: str, choose: Callable[[str], Awaitable[None]]) -> None:
        async def click() -> None:
            await choose(name)

        with ui.element("button").props("type=button aria-pressed=false").classes("gy-list-choice") as button:
            self._labels[name] = ui.label(self._names[name])
        button.on("click", click)
        self._buttons[name] = button

    def show(self, chosen: str, counts: Mapping[str, int] | None = None) -> None:
        """Tell which is chosen, and how many there are of each."""
        for name, button in self._buttons.items():
            pressed = "true" if name == chosen else "false"
            if button._props["aria-pressed"] != pressed:
                button._props["aria-pressed"] = pressed
                button.update()
            count = "" if counts is None else f" {counts.get(name, 0):,}"
            self._labels[name].set_text(self._names[name] + count)
