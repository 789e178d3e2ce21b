"""The view itself: filters, and the parts that show what they find."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from gpuyard.client import OVER
from gpuyard.errors import UserError
from gpuyard.page import exporting
from gpuyard.page.api import Away
from gpuyard.page.filtering import Choices, Field, Fields, Filters
from gpuyard.page.parts import STATES, button, empty, heading
from gpuyard.page.table import Table
from gpuyard.page.views.history.charts import Gantt
from gpuyard.page.views.history.rows import JOBS, rows_of
from gpuyard.page.views.history.use import Use
from gpuyard.page.views.history.window import HOUR, NAMES, Window, fitting, given, instant, iso, local, window_of
from gpuyard.page.visit import Visit

SIZE = 25
"""Jobs on a page."""
_SEARCH = ("text", "user", "tag", "state")
_WHEN = ("span", "since", "until")
_METRIC = "show"
_FIELDS = (Field("text", "Search", "search"), Field("user", "User", "person"), Field("tag", "Tag", "label"))


class Board:
    """One viewer's history."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        request = visit.client.request
        self._filters = Filters(
            "/history", request.query_params if request is not None else {}, (*_SEARCH, *_WHEN, _METRIC)
        )
        if self._filters["state"] not in OVER:
            self._filters.set(state="")
        self._cursors = [""]
        """Where each page from the first to the one that is seen begins."""
        self._seen: Any = None
        self._usual = ""
        """Which preset it is if none is chosen; found out once, so that it stays while somebody looks."""

    async def build(self) -> None:
        """Make the elements, with what there is to see already."""
        self._times()
        self._use = Use(self._visit)
        self._use.build_summary()
        heading("On the GPUs")
        self._gantt = Gantt(self._window, self._filters["user"], self._take, self._metric)
        heading("Jobs that are over")
        self._search()
        self._nothing()
        self._table = Table("Jobs that are over, the latest first", JOBS)
        self._pages()
        self._use.build()
        try:
            await self._show()
        except Away:  # the banner tells, and the next beat shows it
            self._table.set_visibility(False)
        self._visit.live(self._show)

    @property
    def _window(self) -> Window:
        return window_of(
            self._filters["span"] or self._usual, self._filters["since"], self._filters["until"], time.time()
        )

    def _times(self) -> None:
        """Which time everything below is of."""
        with ui.element("div").classes("gy-list-filters"):
            self._presets = Choices("Time", NAMES, self._choose)
            self._from, self._to = self._time("From", "since"), self._time("To", "until")

    def _search(self) -> None:
        """Which jobs of that time the table, and the file, have."""
        with ui.element("search").classes("gy-list-filters"):
            self._fields = Fields(self._filters, _FIELDS, self._changed)
            self._fields.suggest("user", [self._visit.viewer.name])
            self._state = ui.select(
                {"": "Any", **{state: STATES[state] for state in sorted(OVER)}},
                label="State", value=self._filters["state"], on_change=self._pick_state,
            )  # fmt: skip
            self._state.props("dense outlined options-dense").classes("gy-list-field")
            with ui.element("a").classes("gy-past-export").props("download") as self._export:
                ui.icon("download").props("aria-hidden=true")
                ui.label("Export CSV")

    def _time(self, label: str, name: str) -> ui.input:
        async def change() -> None:
            text = given(field.value or "", self._visit.zone)
            if text[:16] != self._filters[name][:16] and (text or self._filters[name]):
                await self._look(**{name: text})

        field = ui.input(label, on_change=change)
        field.props("dense outlined stack-label type=datetime-local debounce=600").classes("gy-list-field")
        return field

    def _nothing(self) -> None:
        self._empty = empty("No job ended in this time. Run one, and see it here:", "gpuyard submit -- sleep 30")
        self._none = ui.element("div").classes("gy-empty")
        with self._none:
            ui.label("No job that ended in this time is like that.")
            button("Clear the filters", self._clear)

    def _pages(self) -> None:
        with ui.element("nav").classes("gy-list-pager").props('aria-label="Pages of the table"') as self._nav:
            self._text = ui.label().props("role=status")
            self._newer = ui.button("Newer", icon="chevron_left", on_click=self._back).props("flat no-caps dense")
            self._older = ui.button("Older", icon="chevron_right", on_click=self._on).props("flat no-caps dense")

    async def _fit(self) -> str:
        ask, now = self._visit.feed.ask, time.time()
        before, latest = await ask(f"/history?limit=1&until={iso(now - HOUR)}"), await ask("/history?limit=1")
        [older], [last] = ([instant(job["ended_at"]) for job in found["jobs"]] or [None] for found in (before, latest))
        return fitting(older, last, now)

    async def _show(self) -> None:
        self._usual = self._usual or await self._fit()
        window = self._window
        asked = {**self._filters.asked(*_SEARCH), **window.query, "limit": SIZE}
        if self._cursors[-1]:
            asked["cursor"] = self._cursors[-1]
        found = await self._visit.feed.ask(f"/history?{urlencode(asked)}")
        self._gantt.show(window, self._filters["user"])
        await self._use.show(window)
        if found is not self._seen:
            self._seen = found
            self._draw(found)
        self._controls(window)

    def _draw(self, found: Any) -> None:
        jobs = found["jobs"]
        there, searched = bool(jobs), bool(self._filters.asked(*_SEARCH, *_WHEN)) or self._use.ended > 0
        self._empty.set_visibility(not there and not searched)
        self._none.set_visibility(not there and searched)
        self._table.set_visibility(there)
        self._table.show(rows_of(jobs))
        self._nav.set_visibility(there)
        first = (len(self._cursors) - 1) * SIZE
        turned, more = len(self._cursors) > 1, bool(found["next"])
        some = f"{first + 1:,}–{first + len(jobs):,}" + ("" if more else ", the last")
        self._text.set_text(some if turned or more else f"{len(jobs):,} job{'s' * (len(jobs) != 1)}")
        self._newer.set_enabled(turned)
        self._older.set_enabled(more)
        for one in (self._newer, self._older):
            one.set_visibility(turned or more)
        self._fields.suggest("user", [job["user"] for job in jobs])
        self._fields.suggest("tag", [tag for job in jobs for tag in job["tags"]])

    def _controls(self, window: Window) -> None:
        """Let the fields of time, and the file, be of what is seen."""
        free = bool(self._filters["since"])
        self._presets.show("" if free else self._filters["span"] or self._usual)
        self._from.value = local(window.since, self._visit.zone) if free else ""
        self._to.value = local(window.until, self._visit.zone) if free else ""
        address = f"{exporting.PATH}?{urlencode({**self._filters.asked(*_SEARCH), **window.query})}"
        if self._export._props.get("href") != address:
            self._export._props["href"] = address
            self._export.update()

    async def _changed(self) -> None:
        self._cursors = [""]
        self._filters.tell_address()
        self._fields.show()
        await self._again()

    async def _again(self) -> None:
        try:
            await self._show()
        except Away as error:
            self._visit.tell(error)

    async def _look(self, **when: str) -> None:
        """Look at another time; a field that is cleared leaves the rest."""
        if "since" not in when and not self._filters["since"]:  # an end alone: a day up to then
            when["since"] = iso(self._window.since)
        if "since" in when and not when["since"]:
            when["until"] = ""
        begin, end = (instant(when.get(name, self._filters[name])) for name in ("since", "until"))
        if begin is not None and end is not None and end <= begin:
            self._visit.tell(UserError("the time would end before it begins; choose an end after its beginning"))
            self._controls(self._window)
            return
        self._filters.set(**{"span": "", **when})
        await self._changed()

    async def _choose(self, span: str) -> None:
        self._filters.set(span=span, since="", until="")
        await self._changed()

    async def _take(self, since: float, until: float) -> None:
        self._filters.set(span="", since=iso(since), until=iso(until))
        await self._changed()

    def _metric(self, name: str) -> None:
        """What is shown of the GPUs; the browser sees to it, and only the address is to say so."""
        self._filters.set(**{_METRIC: name})
        self._filters.tell_address()

    async def _pick_state(self) -> None:
        if self._filters.set(state=self._state.value or ""):
            await self._changed()

    async def _clear(self) -> None:
        self._filters.set(**dict.fromkeys((*_SEARCH, *_WHEN), ""))
        self._state.value = ""
        await self._changed()

    async def _on(self) -> None:
        cursor = exporting.cursor_of(self._seen["next"]) if self._seen else ""
        if cursor:
            self._cursors.append(cursor)
            await self._again()

    async def _back(self) -> None:
        if len(self._cursors) > 1:
            self._cursors.pop()
            await self._again()
