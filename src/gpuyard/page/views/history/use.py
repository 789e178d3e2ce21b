"""Who used how much in a span of time, and how long jobs waited and ran; of everybody, whatever is searched for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from gpuyard.page.parts import heading
from gpuyard.page.table import Table
from gpuyard.page.views.history.charts import Bars, said
from gpuyard.page.views.history.rows import left_out, summary, use_columns, use_rows
from gpuyard.page.views.history.window import Window
from gpuyard.page.visit import Visit

_KEEP = 20.0  # seconds: it may take the daemon a while to count


class Use:
    """The parts that are made of statistics."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self.ended = 0
        """Jobs that ended in the time that was shown last."""
        self._seen: Any = None

    def build_summary(self) -> None:
        """The line on top."""
        self._sum = ui.element("div").classes("gy-past-sum")
        self._told: list[tuple[str, str]] = []

    def build(self) -> None:
        """The rest, below."""
        with ui.element("div").classes("gy-past-two"):
            self._users, self._more_users = self._table("By user", "User")
            self._tags, self._more_tags = self._table("By project", "Tag")
        with ui.element("div").classes("gy-past-two"):
            self._wait, self._wait_words = self._bars("How long jobs waited")
            self._run, self._run_words = self._bars("How long jobs ran")

    def _table(self, title: str, name: str) -> tuple[Table, ui.label]:
        with ui.element("section"):
            heading(title)
            table = Table(f"GPU-hours {title.lower()}", use_columns(name)).classes("gy-data-slim")
            return table, ui.label().classes("gy-soft")

    def _bars(self, title: str) -> tuple[Bars, ui.label]:
        with ui.element("section"):
            heading(title)
            with ui.element("div").classes("gy-card"):
                return Bars(), ui.label().classes("gy-soft")

    async def show(self, window: Window) -> None:
        """Show what there is of a span of time."""
        stats = await self._visit.feed.ask(f"/stats?{urlencode(window.query)}", _KEEP, until_event=False)
        if stats is self._seen:
            return
        self._seen, self.ended = stats, stats["ended"]
        self._show_summary(stats)
        for table, more, name, key in (
            (self._users, self._more_users, "user", "users"), (self._tags, self._more_tags, "tag", "tags"),
        ):  # fmt: skip
            table.show(use_rows(name, stats[key]))
            table.set_visibility(bool(stats[key]))
            nothing = "Nobody was on a GPU." if name == "user" else "No job had a tag; --tag gives one."
            more.set_text(left_out(stats[key]) if stats[key] else nothing)
        for bars, words, key, what in (
            (self._wait, self._wait_words, "wait_seconds", "waited"),
            (self._run, self._run_words, "run_seconds", "ran"),
        ):  # fmt: skip
            bars.show(stats[key], what)
            bars.set_visibility(bool(stats[key]["count"]))
            words.set_text(said(stats[key], what))

    def _show_summary(self, stats: Mapping[str, Any]) -> None:
        told = summary(stats)
        if told == self._told:
            return
        self._told = told
        self._sum.clear()
        with self._sum:
            for number, what in told:
                with ui.element("div"):
                    with ui.element("b"):
                        ui.label(number)
                    with ui.element("span"):
                        ui.label(what)
