"""A table whose rows are updated live, with its filters and pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments


class Column(NamedTuple):
    """A column: its heading, and the kind of its cells.

    Kinds and their values (None or "" is shown as a dash): `text`; `code`; `chip` {"state", "text"}; `link` {"text",
    "href": a path of the page, "title", "tags": [...]}; `time` (seconds since the epoch, in the viewer's zone); `since`
    (the same, as a running duration); `span` (seconds); `stand` {"fraction": 0..1 or None, "text"}, a bar of
    progress and a sentence; `step`, a number with buttons for the actions `lower` and `raise`.
    """

    label: str
    kind: str = "text"
    right: bool = False
    grow: bool = False  # whether it takes the remaining width


class Action(NamedTuple):
    """A button at the end of a row (without an icon: none), and a key for the focused row."""

    name: str
    label: str  # as in `Cancel`, which is followed by the row's label
    icon: str = ""
    key: str = ""  # the browser's name of it: `Delete`, `h`
    danger: bool = False


class Row(NamedTuple):
    key: str  # identifies the row while its cells change
    label: str  # what screen readers call it: `job 17`
    cells: tuple[Any, ...]
    acts: tuple[str, ...] = ()  # names of the actions that the viewer may do and that make sense now
    picks: bool = False  # whether it can be selected
    moves: bool = False  # whether it can be dragged


class Table(Element, component="assets/table.js"):
    """An HTML table, shown as cards at phone width.

    Call `show(rows, now)` whenever rows may have changed: only rows that differ are sent. It is made for some hundred
    rows, not thousands: request a page from the API. Callbacks of `on_act(name, key)`, `on_pick(keys)` and
    `on_move(key, above, below)` (keys of the new neighbours, "" at an end) must check the viewer's permissions again.
    Keys of the focused row: arrows, Home and End go to other rows, space selects, Enter follows the first link, alt
    with an arrow moves it, and the keys of the actions.
    """

    def __init__(
        self, caption: str, columns: Sequence[Column], actions: Sequence[Action] = (), *, picks: bool = False
    ) -> None:
        super().__init__()
        self._props["caption"] = caption
        self._props["columns"] = [column._asdict() for column in columns]
        self._props["actions"] = [action._asdict() for action in actions]
        self._props["picks"] = picks
        self._props["rows"] = []
        self._shown: dict[str, Row] = {}

    def show(self, rows: Sequence[Row], now: float | None = None) -> None:
        """Show these rows; `now` is the daemon's time."""
        before, self._shown = self._shown, {row.key: row for row in rows}
        changed = [row._asdict() for row in self._shown.values() if before.get(row.key) != row]
        keys = list(self._shown)
        moved = keys != list(before)
        if not changed and not moved:
            return
        with self._props.suspend_updates():  # for browsers that reload the page
            self._props["rows"] = [row._asdict() for row in self._shown.values()]
            self._props["now"] = now
        if self.client.has_socket_connection:
            self.run_method("patch", changed, keys if moved else None, now)
        else:
            self.update()

    def on_act(self, act: Callable[[str, str], Any]) -> None:
        self.on("act", lambda event: act(*_texts(event, "name", "key")))

    def on_pick(self, pick: Callable[[list[str]], Any]) -> None:
        self.on("pick", lambda event: pick([key for key in _listed(event) if key in self._shown]))

    def on_move(self, move: Callable[[str, str, str], Any]) -> None:
        self.on("move", lambda event: move(*_texts(event, "key", "above", "below")))


def _texts(event: GenericEventArguments, *names: str) -> list[str]:
    given = event.args if isinstance(event.args, dict) else {}
    return [str(given.get(name, "")) for name in names]


def _listed(event: GenericEventArguments) -> list[str]:
    given = event.args
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        given = given[0]
    return [str(key) for key in given] if isinstance(given, list) else []


LONGEST = 200  # characters of a filter's text
Changed = Callable[[], Awaitable[None]]


class Field(NamedTuple):
    name: str
    label: str
    icon: str = ""


class Filters:
    def __init__(self, path: str, given: Mapping[str, str], known: Sequence[str]) -> None:
        self._path = path
        self.values = {name: given.get(name, "")[:LONGEST].strip() for name in known}

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def set(self, **values: str) -> bool:
        """Change filters; returns whether anything changed."""
        new = {name: value[:LONGEST].strip() for name, value in values.items()}
        if all(self.values[name] == value for name, value in new.items()):
            return False
        self.values |= new
        return True

    def asked(self, *names: str) -> dict[str, str]:
        return {name: self.values[name] for name in names if self.values[name]}

    @property
    def address(self) -> str:
        given = {name: value for name, value in self.values.items() if value}
        return f"{self._path}?{urlencode(given)}" if given else self._path

    def tell_address(self) -> None:
        ui.navigate.history.replace(self.address)


class Fields:
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
        new = self._suggested[name] | set(words)
        if new != self._suggested[name] and len(new) < 1000:
            self._suggested[name] = new
            self._inputs[name].set_autocomplete(sorted(new))

    def show(self) -> None:
        for name, found in self._inputs.items():
            if (found.value or "").strip() != self._filters[name]:  # a trailing blank: the viewer is still typing
                found.value = self._filters[name]


class Choices:
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
        for name, button in self._buttons.items():
            pressed = "true" if name == chosen else "false"
            if button._props["aria-pressed"] != pressed:
                button._props["aria-pressed"] = pressed
                button.update()
            count = "" if counts is None else f" {counts.get(name, 0):,}"
            self._labels[name].set_text(self._names[name] + count)


SIZES = (50, 100, 200)


class Pager:
    def __init__(self, go: Callable[[int], Awaitable[None]]) -> None:
        self.page, self.pages = 1, 1
        self._go = go
        with ui.element("nav").classes("gy-list-pager").props('aria-label="Pages of the table"') as self._nav:
            self._text = ui.label().props("role=status")
            self._back = [
                self._button("first_page", "First page", lambda: 1),
                self._button("chevron_left", "Page before", lambda: self.page - 1),
            ]
            self._on = [
                self._button("chevron_right", "Next page", lambda: self.page + 1),
                self._button("last_page", "Last page", lambda: self.pages),
            ]

    def _button(self, icon: str, label: str, page: Callable[[], int]) -> ui.button:
        async def click() -> None:
            await self._go(page())

        found = ui.button(icon=icon, on_click=click).props("flat round dense")
        found._props["aria-label"] = label
        return found

    def show(self, page: int, size: int, rows: int, what: str) -> None:
        self.page, self.pages = page, max(1, -(-rows // size))
        first, last = min((page - 1) * size + 1, rows), min(page * size, rows)
        self._nav.set_visibility(rows > 0)
        self._text.set_text(f"{first:,}–{last:,} of {what}" if self.pages > 1 else what)
        for button in self._back:
            button.set_enabled(page > 1)
        for button in self._on:
            button.set_enabled(page < self.pages)
        for button in (*self._back, *self._on):
            button.set_visibility(self.pages > 1)


def page_number(text: str) -> int:
    """The page that a URL names; the first if it names none."""
    return max(1, int(text)) if text.isdecimal() and len(text) < 8 else 1
