"""Elements of this view with a component of their own, and what draws a part of it anew when its facts change."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from nicegui import ui
from nicegui.element import Element

_NOTHING = object()
_LOG_PARTS = ("ansi", "logfile", "logrows", "logscreen", "logsearch", "logtemplate")
"""Scripts that `log.js` imports, and those import: asked for at once, and not one after the other."""


class Section:
    """A part of the page that is drawn anew when what it shows is another, and left alone else."""

    def __init__(self, classes: str = "", tag: str = "div") -> None:
        self._box = ui.element(tag).classes(classes)
        self._shown: Any = _NOTHING

    def show(self, facts: Any, draw: Callable[[], None], *, visible: bool = True) -> None:
        """Draw it, if these facts are not those that it was drawn with."""
        self._box.set_visibility(visible)
        if facts == self._shown:
            return
        self._shown = facts
        self._box.clear()
        with self._box:
            draw()


class Since(Element, component="../../assets/since.js"):
    """How long ago something was, which goes on by itself in the browser."""

    def __init__(self, since: str) -> None:
        super().__init__()
        self._props["since"] = datetime.fromisoformat(since).timestamp()
        self._props["now"] = time.time()


class Log(Element, component="../../assets/log.js"):
    """What a job prints; the browser reads it by itself."""

    def __init__(self, job: str, attempts: int, state: str, note: str) -> None:
        super().__init__()
        ui.add_head_html("".join(f'<link rel="modulepreload" href="/page/assets/{name}.js">' for name in _LOG_PARTS))
        self._props |= {"job": job, "attempts": attempts, "state": state, "note": note}

    def show(self, attempts: int, state: str) -> None:
        """Let it know that something changed."""
        if (attempts, state) != (self._props["attempts"], self._props["state"]):
            self._props |= {"attempts": attempts, "state": state}
            self.update()
