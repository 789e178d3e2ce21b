"""Sharing: batches, what jobs are known to need, and which jobs slow each other down."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nicegui import ui
from nicegui.element import Element

from gpuyard.page.api import Facts, Refused, Unavailable
from gpuyard.page.parts import button, command, empty, epoch, heading, job_path, size, span
from gpuyard.page.table import Column, Field, Fields, Filters, Pager, Row, Table
from gpuyard.page.views.sharing_batches import Batches
from gpuyard.page.visit import Visit


def section(name: str) -> Element:
    """A section with the anchor `/sharing#NAME`."""
    return ui.element("section").props(f"id={name}").classes("gy-share-part")


def note(text: str) -> ui.label:
    return ui.label(text).classes("gy-list-note")


NEED_COLUMNS = (
    Column("Command", "code"), Column("User"), Column("Runs", right=True), Column("Memory", "stand"),
    Column("Run time"), Column("How right that was", "stand", grow=True), Column("Last run", "time", right=True),
)  # fmt: skip
ORDERS = {
    "": "Last run",
    "memory": "Most memory",
    "time": "Longest run time",
    "off": "Furthest off",
    "runs": "Most runs",
}
PAIR_COLUMNS = (
    Column("Jobs like", "link"), Column("Beside jobs like", "link"), Column("What that does", "stand", grow=True),
    Column("How it was seen", grow=True), Column("Placement considerate"), Column("Last seen", "time", right=True),
)  # fmt: skip
_SEEN = {"progress": "by its own progress", "utilization": "by its load", "run time": "by how long it ran"}
_VERDICTS = {"apart": "never together", "avoided": "only if there is no other room", "together": "may share"}


def matching_estimates(estimates: Sequence[Facts], text: str, order: str) -> list[Facts]:
    """Estimates that contain a text, in an order; they come latest first."""
    wanted = text.casefold()
    some = [one for one in estimates if wanted in f"{one['command']}\n{one['name']}\n{one['user']}".casefold()]

    def furthest(one: Facts) -> float:
        return max((abs(error["worst"]) for error in (one["memory_error"], one["time_error"]) if error), default=-1.0)

    keys = {
        "memory": lambda one: one["memory"] or 0, "time": lambda one: one["seconds"] or 0,
        "runs": lambda one: one["runs"], "off": furthest,
    }  # fmt: skip
    return sorted(some, key=keys[order], reverse=True) if order in keys else some


def need_rows(estimates: Sequence[Facts]) -> list[Row]:
    return [
        Row(
            one["signature"],
            f"jobs like {one['name'] or one['signature']}",
            (
                one["command"], one["user"], f"{one['runs']:,}", {"fraction": None, "text": _memory(one)}, _time(one),
                {"fraction": None, "text": accuracy_text(one["memory_error"], one["time_error"])},
                epoch(one["last_at"]),
            ),
        )
        for one in estimates
    ]  # fmt: skip


def _memory(one: Facts) -> str:
    if one["memory"] is None:
        return "not known yet"
    evidence = f" ({one['evidence']})" if one["evidence"] else ""
    return f"{size(one['memory'])}{evidence}".replace(" %", "\N{NO-BREAK SPACE}%")


def _time(one: Facts) -> str:
    if one["seconds"] is None:
        return ""
    return f"about {span(one['seconds'])}" + (" an epoch" if one["per_epoch"] else "")


def accuracy_text(memory: Facts | None, time: Facts | None) -> str:
    told = [f"{what} {_off(error)}" for what, error in (("Memory", memory), ("Run time", time)) if error]
    return " ".join(told) if told else "No prediction was put to the test yet."


def _off(error: Facts) -> str:
    """`is off by 2 % usually, by 5 % too little at worst (14 runs).`"""
    count, worst = error["count"], error["worst"]
    runs = f"{count:,} run{'s' * (count != 1)}"
    if abs(worst) < 0.005:
        return f"was right ({runs})."
    way = "too much" if worst > 0 else "too little"
    if count == 1:
        return f"was {_percent(worst)} {way} the one time."
    usual = "right" if error["median"] < 0.005 else f"{_percent(error['median'])} off"
    return f"was usually {usual}, at worst {_percent(worst)} {way} ({runs})."


def _percent(part: float) -> str:
    share = abs(100 * part)
    return f"{share:,.0f}\N{NO-BREAK SPACE}%" if share >= 1 else "under 1\N{NO-BREAK SPACE}%"


def pair_rows(pairs: Sequence[Facts]) -> list[Row]:
    return [
        Row(
            f"{pair['sufferer']['signature']} {pair['beside']['signature']}",
            f"{_called(pair['sufferer'])} beside {_called(pair['beside'])}",
            (
                _kind(pair["sufferer"]), _kind(pair["beside"]), {"fraction": None,
                "text": slowdown_text(pair["slowdown"])},
                f"{_SEEN.get(pair['evidence'], pair['evidence'])}, for {span(pair['seconds'])}",
                _VERDICTS.get(pair["verdict"], pair["verdict"]), epoch(pair["at"]),
            ),
        )
        for pair in pairs
    ]  # fmt: skip


def slowdown_text(slowdown: float) -> str:
    if slowdown < 1.01:
        return "Runs as fast as alone."
    return f"Runs at {100 / slowdown:.0f} % of its speed: takes {slowdown:.2g} times as long as alone."


def _kind(kind: Facts) -> dict[str, str]:
    job = kind["job"]
    return {"text": _called(kind), "href": job_path(job) if job else "", "title": f"job {job}" if job else ""}


def _called(kind: Facts) -> str:
    return str(kind["name"] or (f"job {kind['job']}" if kind["job"] else kind["signature"][:8]))


_MAX_ESTIMATES = 500  # kinds of jobs that are requested: the daemon reads fifty runs of each
_KEEP = 8.0  # seconds for which an answer is used
SIZE = 20  # kinds of jobs on a page


class Needs:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._filters = Filters("/sharing", visit.query, ("text", "order"))
        if self._filters["order"] not in ORDERS:
            self._filters.set(order="")
        self._page = 1
        self._drawn: tuple[Any, ...] = ()
        self._build()

    def _build(self) -> None:
        note(
            "Jobs are measured as they run. What the next one of a kind is expected to need comes from the runs "
            "before it, and --gpu-memory auto goes by it."
        )
        with ui.element("search").classes("gy-list-filters") as self._search:
            self._fields = Fields(self._filters, (Field("text", "Command or user", "search"),), self._changed)
            self._order = ui.select(ORDERS, label="Order by", value=self._filters["order"], on_change=self._reorder)
            self._order.props("dense outlined options-dense").classes("gy-list-field gy-share-order")
        self._empty = empty(
            "Nothing is known yet. Run a job, and see here what it used:",
            "gpuyard submit --gpu-memory auto -- python train.py",
        )
        with ui.element("div").classes("gy-empty") as self._none:
            self._nothing = ui.label()
            button("Clear the filter", self._clear)
        self._table = Table("What jobs need, by their kind", NEED_COLUMNS).classes("gy-share-table")
        self._pager = Pager(self._turn)
        for part in (self._empty, self._none, self._table):
            part.set_visibility(False)

    async def show(self) -> None:
        answer = await self._visit.feed.ask(f"/estimates?limit={_MAX_ESTIMATES}", _KEEP, until_event=False)
        drawn = (answer, self._page, *self._filters.values.values())
        if len(drawn) == len(self._drawn) and answer is self._drawn[0] and drawn[1:] == self._drawn[1:]:
            return
        self._drawn = drawn
        self._draw(answer["estimates"])

    def _draw(self, known: list[Any]) -> None:
        some = matching_estimates(known, self._filters["text"], self._filters["order"])
        self._page = max(1, min(self._page, -(-len(some) // SIZE)))
        begin = (self._page - 1) * SIZE
        self._search.set_visibility(bool(known))
        self._empty.set_visibility(not known)
        self._none.set_visibility(bool(known) and not some)
        self._table.set_visibility(bool(some))
        self._table.show(need_rows(some[begin : begin + SIZE]))
        among = f"Nothing among the latest {_MAX_ESTIMATES:,} kinds of jobs is like that."
        self._nothing.set_text(among if len(known) == _MAX_ESTIMATES else "Nothing that is known is like that.")
        latest = "the latest " if len(known) == _MAX_ESTIMATES else ""
        kinds = f"{latest}{len(some):,} kind{'s' * (len(some) != 1)} of jobs"
        self._pager.show(self._page, SIZE, len(some), kinds)

    async def _changed(self) -> None:
        self._page = 1
        self._filters.tell_address()
        self._fields.show()
        await self._visit.show_now(self.show)

    async def _reorder(self) -> None:
        if self._filters.set(order=self._order.value or ""):
            await self._changed()

    async def _turn(self, page: int) -> None:
        self._page = page
        await self._visit.show_now(self.show)

    async def _clear(self) -> None:
        self._filters.set(text="")
        await self._changed()


_MAX_PAIRS = 50  # pairs that are listed, worst first
_NOTHING = (
    "No two jobs have shared a GPU for long enough to tell. It is measured by itself: how fast a job goes on, as far "
    "as it tells, or how busy it keeps the GPU, beside one other and alone. "
)
_KEPT_APART = "The placement is considerate: jobs that hurt each other are kept apart."
_WOULD = "The placement considerate keeps those apart that hurt each other; now nothing follows from this:"


class Pairs:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._seen: tuple[Any, Any] = (None, None)
        self._words = ui.element("div")
        self._table = Table("Jobs that slow each other down, the worst first", PAIR_COLUMNS).classes("gy-share-table")
        self._table.set_visibility(False)
        self._more = ui.label().classes("gy-soft")

    async def show(self) -> None:
        answer = await self._visit.feed.ask("/interference", _KEEP, until_event=False)
        policy = await self._visit.feed.ask("/policy", _KEEP, until_event=False)
        if answer is self._seen[0] and policy is self._seen[1]:
            return
        self._seen = answer, policy
        pairs = answer["pairs"]
        self._tell(bool(pairs), answer["considered"], str(policy["policy"]))
        self._table.set_visibility(bool(pairs))
        self._table.show(pair_rows(pairs[:_MAX_PAIRS]))
        self._more.set_text(
            f"gpuyard interference lists {len(pairs) - _MAX_PAIRS:,} more." if len(pairs) > _MAX_PAIRS else ""
        )

    def _tell(self, any_pairs: bool, considered: bool, policy: str) -> None:
        self._words.clear()
        self._words.classes(remove="gy-share-says gy-empty", add="gy-share-says" if any_pairs else "gy-empty")
        with self._words:
            if considered:
                note(_KEPT_APART if any_pairs else _NOTHING + _KEPT_APART)
                return
            note(_WOULD if any_pairs else _NOTHING + _WOULD.partition(";")[0] + ":")
            command(f"gpuyard policy set {shlex.quote(considerate_policy(policy))}")


def considerate_policy(policy: str) -> str:
    name, _, rest = policy.partition("@")
    return f"{name}@{rest.partition('@')[0] or 'easy'}@considerate"


_SOON = 1.0  # seconds that a new page waits for its content


async def build(visit: Visit) -> None:
    """Build the view with its content, since anchors would move if it came later."""
    with section("batches"):
        heading("Batches")
        batches = Batches(visit)
    with section("estimates"):
        heading("What jobs need")
        needs = Needs(visit)
    with section("interference"):
        heading("Who slows whom")
        pairs = Pairs(visit)
    with suppress(Unavailable, Refused, TimeoutError):  # the banner says so, and late content follows
        async with asyncio.timeout(_SOON):
            await batches.begin()
            await needs.show()
            await pairs.show()
    for part in (batches.show, needs.show, pairs.show):
        visit.live(part)
