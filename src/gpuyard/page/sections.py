"""Parts of a page that are drawn anew when their facts change, and durations that go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from nicegui import ui
from nicegui.element import Element

_NOTHING = object()


class Section:
    """A part of the page that is drawn anew when what it shows is another, and left alone else."""

    def __init__(self, classes: str = "", tag: str = "div", props: str = "") -> None:
        self._box = ui.element(tag).classes(classes).props(props)
        self._shown: Any = _NOTHING

    def show(self, facts: Any, draw: Callable[[], object], *, visible: bool = True) -> None:
        """Draw it, if these facts are not those that it was drawn with."""
        self._box.set_visibility(visible)
        if facts == self._shown:
            return
        self._shown = facts
        self._box.clear()
        with self._box:
            draw()


class Since(Element, component="assets/since.js"):
    """How long ago something was, which goes on by itself in the browser."""

    def __init__(self, since: str | float) -> None:
        super().__init__()
        self._props["since"] = datetime.fromisoformat(since).timestamp() if isinstance(since, str) else since
        self._props["now"] = time.time()
