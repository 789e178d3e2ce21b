"""The history: finished jobs, usage per user, and a chart of jobs on GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import nicegui.elements.echart  # noqa: F401  what the chart imports in the browser
from nicegui import ui
from nicegui.element import Element

from gpuyard.api.types import OVER
from gpuyard.errors import UserError
from gpuyard.page.api import Facts, Unavailable
from gpuyard.page.parts import STATES, Section, button, empty, epoch, heading, set_props, span, tagged
from gpuyard.page.table import Choices, Field, Fields, Filters, Table
from gpuyard.page.views import history_tables as tables
from gpuyard.page.visit import Visit


class Gantt(Element, component="../assets/history_gantt.js"):
    """Bars for the times that jobs were on GPUs, and the GPUs' metrics; the browser requests the data."""

    def __init__(
        self, window: tables.Window, user: str, take: Callable[[float, float], Any], choose: Callable[[str], Any]
    ) -> None:
        super().__init__()
        self.show(window, user)
        self.on("span", lambda event: take(float(event.args["since"]), float(event.args["until"])))
        self.on("metric", lambda event: choose(str(event.args)))

    def show(self, window: tables.Window, user: str) -> None:
        since = None if window.back else window.since
        set_props(self, back=window.back, since=since, until=window.until, user=user)


class Bars(Element, component="../assets/history_bars.js"):
    def __init__(self) -> None:
        super().__init__()
        self._props |= {"label": "", "edges": [], "counts": []}

    def show(self, spread: Facts, what: str) -> None:
        histogram = spread["histogram"]
        set_props(self, label=spread_text(spread, what), edges=histogram["edges"], counts=histogram["counts"])


def spread_text(spread: Facts, what: str) -> str:
    if not spread["count"]:
        return f"No job {what} in this time."
    if spread["count"] == 1:
        return f"The only job {what} {_took(spread['mean'])}."
    half, most, nearly = (_took(spread[name], "at most ") for name in ("median", "p90", "p99"))
    begin = f"Half of {spread['count']:,} jobs {what} {half}"
    return f"{begin}, 90 % {most}, 99 % {nearly}; {_took(spread['mean'])} in the mean."


def _took(seconds: float, bound: str = "") -> str:
    return "less than 0.1s" if seconds < 0.1 else f"{bound}{span(seconds)}"


_KEEP = 20.0  # seconds; the daemon may need a while to compute them


class UsageSection:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self.ended = 0  # jobs that ended in the time that was shown last
        self._seen: Any = None

    def build_summary(self) -> None:
        self._sum = Section("gy-past-sum")

    def build(self) -> None:
        with ui.element("div").classes("gy-past-two"):
            self._users, self._more_users = self._table("By user", "User")
            self._tags, self._more_tags = self._table("By project", "Tag")
        with ui.element("div").classes("gy-past-two"):
            self._wait, self._wait_words = self._bars("How long jobs waited")
            self._run, self._run_words = self._bars("How long jobs ran")

    def _table(self, title: str, name: str) -> tuple[Table, ui.label]:
        with ui.element("section"):
            heading(title)
            table = Table(f"GPU-hours {title.lower()}", tables.usage_columns(name)).classes("gy-data-slim")
            return table, ui.label().classes("gy-soft")

    def _bars(self, title: str) -> tuple[Bars, ui.label]:
        with ui.element("section"):
            heading(title)
            with ui.element("div").classes("gy-card"):
                return Bars(), ui.label().classes("gy-soft")

    async def show(self, window: tables.Window) -> None:
        stats = await self._visit.feed.ask(f"/stats?{urlencode(window.query)}", _KEEP, until_event=False)
        if stats is self._seen:
            return
        self._seen, self.ended = stats, stats["ended"]
        numbers = tables.summary(stats)
        self._sum.show(numbers, lambda: _draw_summary(numbers))
        for table, more, name, key in (
            (self._users, self._more_users, "user", "users"), (self._tags, self._more_tags, "tag", "tags"),
        ):  # fmt: skip
            table.show(tables.usage_rows(name, stats[key]))
            table.set_visibility(bool(stats[key]))
            nothing = "Nobody was on a GPU." if name == "user" else "No job had a tag; --tag gives one."
            more.set_text(tables.left_out(stats[key]) if stats[key] else nothing)
        for bars, words, key, what in (
            (self._wait, self._wait_words, "wait_seconds", "waited"),
            (self._run, self._run_words, "run_seconds", "ran"),
        ):  # fmt: skip
            bars.show(stats[key], what)
            bars.set_visibility(bool(stats[key]["count"]))
            words.set_text(spread_text(stats[key], what))


def _draw_summary(numbers: Sequence[tuple[str, str]]) -> None:
    for number, what in numbers:
        with ui.element("div"):
            tagged("b", number)
            tagged("span", what)


SIZE = 25  # jobs on a page
_SEARCH = ("text", "user", "tag", "state")
_WHEN = ("span", "since", "until")
_METRIC = "show"
_FIELDS = (Field("text", "Search", "search"), Field("user", "User", "person"), Field("tag", "Tag", "label"))


class HistoryView:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._filters = Filters("/history", visit.query, (*_SEARCH, *_WHEN, _METRIC))
        if self._filters["state"] not in OVER:
            self._filters.set(state="")
        self._cursors = [""]  # where each page begins, up to the current one
        self._seen: Any = None
        self._usual = ""  # the initial preset; chosen once, so that it does not change while the page is open

    async def build(self) -> None:
        with ui.element("div").classes("gy-list-filters"):
            self._presets = Choices("Time", tables.NAMES, self._choose)
            self._from, self._to = self._time("From", "since"), self._time("To", "until")
        self._use = UsageSection(self._visit)
        self._use.build_summary()
        heading("On the GPUs")
        self._gantt = Gantt(self._window, self._filters["user"], self._take, self._metric)
        heading("Jobs that are over")
        self._search()
        self._nothing()
        self._table = Table("Jobs that are over, the latest first", tables.JOB_COLUMNS)
        self._pages()
        self._use.build()
        try:
            await self._show()
        except Unavailable:  # the banner says so, and the next beat retries
            self._table.set_visibility(False)
        self._visit.live(self._show)

    @property
    def _window(self) -> tables.Window:
        return tables.window_of(
            self._filters["span"] or self._usual, self._filters["since"], self._filters["until"], time.time()
        )

    def _search(self) -> None:
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
            text = tables.typed_instant(field.value or "", self._visit.zone)
            if text[:16] != self._filters[name][:16] and (text or self._filters[name]):
                await self._look(**{name: text})

        field = ui.input(label, on_change=change)
        field.props("dense outlined stack-label type=datetime-local debounce=600").classes("gy-list-field")
        return field

    def _nothing(self) -> None:
        self._empty = empty("No job ended in this time. Run one, and see it here:", "gpuyard submit -- sleep 30")
        with empty("No job that ended in this time is like that.") as self._none:
            button("Clear the filters", self._clear)

    def _pages(self) -> None:
        with ui.element("nav").classes("gy-list-pager").props('aria-label="Pages of the table"') as self._nav:
            self._text = ui.label().props("role=status")
            self._newer = ui.button("Newer", icon="chevron_left", on_click=self._back).props("flat no-caps dense")
            self._older = ui.button("Older", icon="chevron_right", on_click=self._on).props("flat no-caps dense")

    async def _fit(self) -> str:
        ask, now = self._visit.feed.ask, time.time()
        older = await ask(f"/history?limit=1&until={tables.iso(now - tables.HOUR)}")
        latest = await ask("/history?limit=1")
        [begin], [end] = ([epoch(job["ended_at"]) for job in found["jobs"]] or [None] for found in (older, latest))
        return tables.initial_preset(begin, end, now)

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
        self._table.show([tables.job_row(job) for job in jobs])
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

    def _controls(self, window: tables.Window) -> None:
        free = bool(self._filters["since"])
        self._presets.show("" if free else self._filters["span"] or self._usual)
        self._from.value = tables.local_text(window.since, self._visit.zone) if free else ""
        self._to.value = tables.local_text(window.until, self._visit.zone) if free else ""
        address = f"{tables.EXPORT_PATH}?{urlencode({**self._filters.asked(*_SEARCH), **window.query})}"
        set_props(self._export, href=address)

    async def _changed(self) -> None:
        self._cursors = [""]
        self._filters.tell_address()
        self._fields.show()
        await self._visit.show_now(self._show)

    async def _look(self, **when: str) -> None:
        """Set the window; clearing its begin clears its end."""
        if "since" not in when and not self._filters["since"]:  # only an end is given: a day up to it
            when["since"] = tables.iso(self._window.since)
        if "since" in when and not when["since"]:
            when["until"] = ""
        begin, end = (tables.instant(when.get(name, self._filters[name])) for name in ("since", "until"))
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
        self._filters.set(span="", since=tables.iso(since), until=tables.iso(until))
        await self._changed()

    def _metric(self, name: str) -> None:
        """The browser draws another metric; put it into the URL."""
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
        cursor = tables.cursor_of(self._seen["next"]) if self._seen else ""
        if cursor:
            self._cursors.append(cursor)
            await self._visit.show_now(self._show)

    async def _back(self) -> None:
        if len(self._cursors) > 1:
            self._cursors.pop()
            await self._visit.show_now(self._show)
