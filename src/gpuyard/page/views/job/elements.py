"""What a job prints, as an element with a component of its own."""

from __future__ import annotations

from nicegui import ui
from nicegui.element import Element

_LOG_PARTS = ("ansi", "logfile", "logrows", "logscreen", "logsearch", "logtemplate")
"""Scripts that `log.js` imports, and those import: asked for at once, and not one after the other."""


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
