"""What jobs need: what is known of each kind of them, and how right that was."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from gpuyard.page.api import Away
from gpuyard.page.filtering import Field, Fields, Filters
from gpuyard.page.paging import Pager
from gpuyard.page.parts import button, empty
from gpuyard.page.table import Table
from gpuyard.page.views.sharing.section import note
from gpuyard.page.views.sharing.words import NEEDS, ORDERS, found, need_rows
from gpuyard.page.visit import Visit

_MOST = 500  # kinds of jobs that are asked for: the daemon looks at fifty runs of each
_KEEP = 8.0  # seconds for which an answer will do
SIZE = 20
"""Kinds of jobs on a page."""


class Needs:
    """One viewer's table."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        request = visit.client.request
        self._filters = Filters("/sharing", request.query_params if request is not None else {}, ("text", "order"))
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
        self._none = ui.element("div").classes("gy-empty")
        with self._none:
            self._nothing = ui.label()
            button("Clear the filter", self._clear)
        self._table = Table("What jobs need, by their kind", NEEDS).classes("gy-share-table")
        self._pager = Pager(self._turn)
        for part in (self._empty, self._none, self._table):
            part.set_visibility(False)

    async def show(self) -> None:
        """Show what is known by now."""
        answer = await self._visit.feed.ask(f"/estimates?limit={_MOST}", _KEEP, until_event=False)
        drawn = (answer, self._page, *self._filters.values.values())
        if len(drawn) == len(self._drawn) and answer is self._drawn[0] and drawn[1:] == self._drawn[1:]:
            return
        self._drawn = drawn
        self._draw(answer["estimates"])

    def _draw(self, known: list[Any]) -> None:
        some = found(known, self._filters["text"], self._filters["order"])
        self._page = max(1, min(self._page, -(-len(some) // SIZE)))
        begin = (self._page - 1) * SIZE
        self._search.set_visibility(bool(known))
        self._empty.set_visibility(not known)
        self._none.set_visibility(bool(known) and not some)
        self._table.set_visibility(bool(some))
        self._table.show(need_rows(some[begin : begin + SIZE]))
        among = f"Nothing among the latest {_MOST:,} kinds of jobs is like that."
        self._nothing.set_text(among if len(known) == _MOST else "Nothing that is known is like that.")
        latest = "the latest " if len(known) == _MOST else ""
        kinds = f"{latest}{len(some):,} kind{'s' * (len(some) != 1)} of jobs"
        self._pager.show(self._page, SIZE, len(some), kinds)

    async def _changed(self) -> None:
        self._page = 1
        self._filters.tell_address()
        self._fields.show()
        await self._again()

    async def _again(self) -> None:
        try:
            await self.show()
        except Away as error:
            self._visit.tell(error)

    async def _reorder(self) -> None:
        if self._filters.set(order=self._order.value or ""):
            await self._changed()

    async def _turn(self, page: int) -> None:
        self._page = page
        await self._again()

    async def _clear(self) -> None:
        self._filters.set(text="")
        await self._changed()
