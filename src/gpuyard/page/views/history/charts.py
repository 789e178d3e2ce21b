"""The charts: who was on which GPU, and how long jobs waited and ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import nicegui.elements.echart  # noqa: F401  what the chart imports in the browser
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.page.parts import span
from gpuyard.page.views.history.window import Window


class Gantt(Element, component="../../assets/history_gantt.js"):
    """A bar for each time that a job was on a GPU, and what the GPUs did; it asks the API itself."""

    def __init__(
        self, window: Window, user: str, take: Callable[[float, float], Any], choose: Callable[[str], Any]
    ) -> None:
        super().__init__()
        self._set(window, user)
        self.on("span", lambda event: take(*_span(event)))
        self.on("metric", lambda event: choose(str(event.args)))

    def show(self, window: Window, user: str) -> None:
        """Look at another time, or at somebody's jobs among the others'."""
        if self._set(window, user):
            self.update()

    def _set(self, window: Window, user: str) -> bool:
        since = None if window.back else window.since
        new = {"back": window.back, "since": since, "until": window.until, "user": user}
        changed = any(self._props.get(name, "") != value for name, value in new.items())
        for name, value in new.items():
            self._props[name] = value
        return changed


def _span(event: GenericEventArguments) -> tuple[float, float]:
    return float(event.args["since"]), float(event.args["until"])


class Bars(Element, component="../../assets/history_bars.js"):
    """How many took how long."""

    def __init__(self) -> None:
        super().__init__()
        self._props |= {"label": "", "edges": [], "counts": []}

    def show(self, spread: Mapping[str, Any], what: str) -> None:
        """Show how long something took."""
        histogram = spread["histogram"]
        new = {"label": said(spread, what), "edges": histogram["edges"], "counts": histogram["counts"]}
        if any(self._props[name] != value for name, value in new.items()):
            for name, value in new.items():
                self._props[name] = value
            self.update()


def said(spread: Mapping[str, Any], what: str) -> str:
    """The same as a sentence."""
    if not spread["count"]:
        return f"No job {what} in this time."
    if spread["count"] == 1:
        return f"The only job {what} {_took(spread['mean'])}."
    half, most, nearly = (_took(spread[name], "at most ") for name in ("median", "p90", "p99"))
    begin = f"Half of {spread['count']:,} jobs {what} {half}"
    return f"{begin}, 90 % {most}, 99 % {nearly}; {_took(spread['mean'])} in the mean."


def _took(seconds: float, bound: str = "") -> str:
    """How long something took; milliseconds matter to nobody."""
    return "less than 0.1s" if seconds < 0.1 else f"{bound}{span(seconds)}"
