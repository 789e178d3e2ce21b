"""A table whose rows change while people look at it; see `Table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nicegui.element import Element
from nicegui.events import GenericEventArguments


class Column(NamedTuple):
    """A column: its heading, and what its cells hold.

    Kinds and their values (None or "" is shown as a dash): `text`; `code`; `chip` {"state", "text"}; `link` {"text",
    "href": a path of ours, "title", "tags": [...]}; `time` (seconds since the epoch, in the viewer's zone); `since`
    (the same, as a duration that goes on); `span` (seconds); `stand` {"fraction": 0..1 or None, "text"}, a bar of
    progress and a sentence; `step`, a number with buttons for the actions `lower` and `raise`.
    """

    label: str
    kind: str = "text"
    right: bool = False
    grow: bool = False
    """Whether it takes the room that is left."""


class Action(NamedTuple):
    """What may be done to a row: a button at its end (without an icon: none), and a key while it has the focus."""

    name: str
    label: str
    """As in `Cancel`, which is followed by the row's label."""
    icon: str = ""
    key: str = ""
    """As the browser calls it: `Delete`, `h`."""
    danger: bool = False


class Row(NamedTuple):
    """A row. What users wrote may be in its cells, which are shown as text, and nowhere else."""

    key: str
    """Who it is, while its cells change."""
    label: str
    """What screen readers call it: `job 17`."""
    cells: tuple[Any, ...]
    acts: tuple[str, ...] = ()
    """Names of actions that are offered: those that the viewer may do, and that make sense now."""
    picks: bool = False
    """Whether it can be selected."""
    moves: bool = False
    """Whether it can be dragged to another place."""


class Table(Element, component="assets/table.js"):
    """A table with real semantics, which are cards at phone width.

    Make it with `Table("Jobs", columns, actions, picks=True)`, and call `show(rows, now)` whenever they may have
    changed: only rows that differ from the last ones are sent. A page of some hundred rows is meant, not thousands: ask
    the API for a part. What is given to `on_act(name, key)`, `on_pick(keys)` and `on_move(key, above, below)` (keys of
    its new neighbours, "" at an end) is called with what the viewer does; check again what they may. Keys while a row
    has the focus: arrows, Home and End go to others, space selects, Enter follows its first link, alt with an arrow
    moves it, and those of the actions.
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
        """Show these rows, at this time of the daemon's clock."""
        before, self._shown = self._shown, {row.key: row for row in rows}
        changed = [row._asdict() for row in self._shown.values() if before.get(row.key) != row]
        keys = list(self._shown)
        moved = keys != list(before)
        if not changed and not moved:
            return
        with self._props.suspend_updates():  # they are for whoever draws all of it anew
            self._props["rows"] = [row._asdict() for row in self._shown.values()]
            self._props["now"] = now
        if self.client.has_socket_connection:
            self.run_method("patch", changed, keys if moved else None, now)
        else:
            self.update()

    def unpick(self) -> None:
        """Select nothing."""
        self.run_method("clear")

    def on_act(self, act: Callable[[str, str], Any]) -> None:
        """Have this called with the action's name and the row's key."""
        self.on("act", lambda event: act(*_texts(event, "name", "key")))

    def on_pick(self, pick: Callable[[list[str]], Any]) -> None:
        """Have this called with the keys of all rows that are selected."""
        self.on("pick", lambda event: pick([key for key in _listed(event) if key in self._shown]))

    def on_move(self, move: Callable[[str, str, str], Any]) -> None:
        """Have this called with the row's key, and those of the rows that it is to come between."""
        self.on("move", lambda event: move(*_texts(event, "key", "above", "below")))


def _texts(event: GenericEventArguments, *names: str) -> list[str]:
    given = event.args if isinstance(event.args, dict) else {}
    return [str(given.get(name, "")) for name in names]


def _listed(event: GenericEventArguments) -> list[str]:
    given = event.args
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        given = given[0]
    return [str(key) for key in given] if isinstance(given, list) else []
