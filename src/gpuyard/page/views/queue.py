"""The queue: running, waiting and held jobs, with filters, actions, and moves by priority."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Unavailable
from gpuyard.page.parts import button, capitalized, empty
from gpuyard.page.table import Choices, Field, Fields, Filters, Pager, Table, page_number
from gpuyard.page.views.queue_jobs import ACTIONS, COLUMNS, JobActions, ListedJob, listed, rows_of
from gpuyard.page.visit import Visit
from gpuyard.spec.notation import LEARNED

_HOUR = 3600.0
_LEAST = 1e-9  # least difference of two ranks with room for a priority in between


@dataclass(frozen=True, slots=True)
class PriorityOrder:
    name: str
    doc: str
    counts: bool  # whether it uses priorities at all
    known: bool  # whether its formula is known here
    ageing: float = 0.0
    fairness: float = 0.0

    def others(self, job: JobRank) -> float:
        """A job's rank without its priority; the smallest rank goes first."""
        return job.submitted * self.ageing / _HOUR + job.usage * self.fairness

    def rank(self, job: JobRank) -> float:
        return self.others(job) - job.priority


@dataclass(frozen=True, slots=True)
class JobRank:
    priority: float
    submitted: float
    usage: float = 0.0  # GPU-hours that count against its user


def order_of(policy: Mapping[str, Any], known: Mapping[str, Any]) -> PriorityOrder:
    if str(policy["name"]).startswith(LEARNED):
        return PriorityOrder(str(policy["name"]), "A trained policy.", counts=False, known=False)
    name, _, given = str(policy["name"]).partition(":")
    found = next((one for one in known["policies"] if one["name"] == name), None)
    if found is None:
        return PriorityOrder(str(policy["name"]), "", counts=True, known=False)
    said = dict(part.partition("=")[::2] for part in given.split(",") if part)
    settings = {key: float(said.get(key, found["settings"].get(key, 0.0))) for key in ("ageing", "fairness")}
    usual = name in ("priority", "multifactor")
    doc = str(found["doc"])
    for key, value in settings.items():
        doc = doc.replace(f"`{key}`", f"{value:g}")
    return PriorityOrder(name, doc.replace("`", ""), "priority" in found["columns"], usual, **settings)


def priority_between(order: PriorityOrder, job: JobRank, above: JobRank | None, below: JobRank | None) -> float | None:
    """The simplest priority that puts a job between two others; None if there is none."""
    if above is None and below is None:
        return job.priority
    own = order.others(job)
    most = own - order.rank(above) if above is not None else math.inf
    least = own - order.rank(below) if below is not None else -math.inf
    if below is None:
        least = most - 1.0
    elif above is None:
        most = least + 1.0
    if most - least < _LEAST:
        return None
    return job.priority if least < job.priority < most else simplest(least, most)


def simplest(least: float, most: float) -> float:
    for digits in range(13):
        scale = 10.0**digits
        first, last = math.floor(least * scale) + 1, math.ceil(most * scale) - 1
        if first <= last:
            return (first + last) // 2 / scale
    return (least + most) / 2


_LOOKED = 2000  # waiting jobs among which the moved one is searched
_SETTLED = 0.7  # seconds after which the daemon's order surely includes the change


class QueueMoves:
    def __init__(self, visit: Visit, acts: JobActions, order: PriorityOrder) -> None:
        self._visit, self._acts, self._order = visit, acts, order

    async def move(self, job: ListedJob, above: ListedJob | None, below: ListedJob | None, up: bool) -> None:
        if not (self._order.known and self._order.counts):
            ui.notify(
                f"The policy {self._order.name} does not order by priority, so nothing can be moved.", type="info"
            )
            return
        above, below = _waiting(above), _waiting(below)
        priority = await self._priority(job, above, below)
        if priority is None:  # the two have equal ranks: go before both, or behind
            above, below = (None, below) if up else (above, None)
            priority = await self._priority(job, above, below)
            text = "No priority comes between those two, which are ranked alike: "
            text += f"{job.label} goes {'before' if up else 'behind'} all of their kind."
            ui.notify(text, type="info", multi_line=True, timeout=8000)
        if priority is None or priority == job.priority:
            ui.notify(f"{capitalized(job.label)} keeps its priority.", type="info")
        elif await self._acts.set_priority(job, priority):
            await self._look(job, above, below)

    async def _priority(self, job: ListedJob, above: ListedJob | None, below: ListedJob | None) -> float | None:
        had: dict[str, float] = {}
        if self._order.fairness:
            rules = await self._visit.feed.ask("/rules")
            had = {one["name"]: one["faded_gpu_hours"] for one in rules["users"]}

        def standing(one: ListedJob | None) -> JobRank | None:
            # Relative times: fractions of seconds since the epoch would lose precision.
            return None if one is None else JobRank(one.priority, one.submitted - job.submitted, had.get(one.user, 0.0))

        own = JobRank(job.priority, 0.0, had.get(job.user, 0.0))
        return priority_between(self._order, own, standing(above), standing(below))

    async def _look(self, job: ListedJob, above: ListedJob | None, below: ListedJob | None) -> None:
        """Notify the viewer if the job did not get to its place."""
        await asyncio.sleep(_SETTLED)
        try:
            found = await self._visit.api.get("/jobs", columns=True, fold=True, state="queued", limit=_LOOKED)
        except GpuyardError:
            return  # the banner says so
        ids: list[str] = found["columns"]["id"]
        if job.id in ids and not _between(ids, job.id, above, below):
            who = capitalized(job.label)
            ui.notify(
                f"{who} is number {ids.index(job.id) + 1} of those that wait now, not where it was put: "
                f"the policy {self._order.name} also counts what goes on changing.",
                type="warning", multi_line=True, timeout=8000,
            )  # fmt: skip


def _waiting(job: ListedJob | None) -> ListedJob | None:
    """The neighbour if it waits: running and held jobs do not matter for the order."""
    return job if job is not None and job.state == "queued" else None


def _between(ids: Sequence[str], job: str, above: ListedJob | None, below: ListedJob | None) -> bool:
    place = ids.index(job)
    behind = above is None or above.id not in ids or ids.index(above.id) < place
    return behind and (below is None or below.id not in ids or place < ids.index(below.id))


SIZE = 50  # rows on a page
_NAMES = {"": "All", "running": "Running", "queued": "Waiting", "held": "Held"}
_SEARCH = ("user", "tag", "text")
_FIELDS = (Field("text", "Search", "search"), Field("user", "User", "person"), Field("tag", "Tag", "label"))
_DRAG = "Drag a waiting job to another place, and it gets the priority for that."
_KEYS = (
    ("↑ ↓", "another row"), ("Enter", "open"), ("Space", "select"), ("+ -", "priority"), ("Alt ↑ ↓", "move"),
    ("h", "hold or release"), ("Del", "cancel"),
)  # fmt: skip


class QueueView:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._filters = Filters("/queue", visit.query, ("state", *_SEARCH, "page"))
        if self._filters["state"] not in _NAMES:
            self._filters.set(state="")
        self._seen: tuple[Any, Any, Any] = None, None, None
        self._jobs: dict[str, ListedJob] = {}
        self._picked: list[str] = []
        self._acts = JobActions(visit)

    async def build(self) -> None:
        self._search()
        with ui.element("p").classes("gy-list-note"):
            self._note, self._drag = ui.label(), ui.label(_DRAG).classes("gy-list-drag")
        self._nothing()
        acts = ACTIONS if self._visit.viewer.acts else ()
        self._table = Table("Jobs that run, wait or are held", COLUMNS, acts, picks=self._visit.viewer.acts)
        self._table.on_act(self._act)
        self._table.on_pick(self._pick)
        self._table.on_move(self._move)
        self._pager = Pager(self._go)
        self._selection()
        self._keys()
        try:
            await self._show()
        except Unavailable:  # the banner says so, and the next beat retries
            self._table.set_visibility(False)
        self._visit.live(self._show)

    def _search(self) -> None:
        with ui.element("search").classes("gy-list-filters"):
            self._states = Choices("State", _NAMES, self._choose)
            self._fields = Fields(self._filters, _FIELDS, self._change)
            self._fields.suggest("user", [self._visit.viewer.name])
            if self._visit.viewer.acts:
                self._only_mine = button("Mine", self._mine, "person")

    def _nothing(self) -> None:
        self._empty = empty("No job runs or waits. Queue one:", "gpuyard submit --gpus 1 -- python train.py")
        with empty("No job of the queue is like that.") as self._none:
            button("Clear the filters", self._clear)

    def _selection(self) -> None:
        with (
            ui.element("div").classes("gy-list-chosen").props('role=region aria-label="Selected jobs"') as self._chosen
        ):
            self._count = ui.label().props("role=status")
            button("Hold", lambda: self._all("hold"), "pause")
            button("Release", lambda: self._all("release"), "play_arrow")
            button("Cancel", lambda: self._all("cancel"), "close", "danger")
        self._chosen.set_visibility(False)

    def _keys(self) -> None:
        if not self._visit.viewer.acts:
            return
        with ui.element("p").classes("gy-list-keys") as self._legend:
            ui.label("In a row: ").style("display: inline")
            for keys, what in _KEYS:
                with ui.element("kbd"):
                    ui.label(keys).style("display: inline")
                ui.label(f" {what}   ").style("display: inline; white-space: pre")

    async def _show(self) -> None:
        order = await self._order()
        page = page_number(self._filters["page"])
        found = await self._page(page)
        if not found["columns"]["id"] and found["rows"]:  # the list has become shorter
            page = -(-found["rows"] // SIZE)
            found = await self._page(page)
        counts = await self._counts(found)
        last, *rest = self._seen
        if last is found and rest == [order, counts]:
            return
        self._seen = found, order, counts
        self._draw(found, order, counts, page)

    async def _order(self) -> PriorityOrder:
        ask = self._visit.feed.ask
        return order_of(await ask("/policy"), await ask("/policies", 3600.0, until_event=False))

    async def _page(self, page: int) -> Any:
        asked = self._filters.asked("state", *_SEARCH)
        return await self._visit.feed.ask(_path({**asked, "limit": SIZE, "offset": (page - 1) * SIZE}))

    async def _counts(self, found: Any) -> dict[str, int]:
        states = found["states"]
        if self._filters["state"]:
            states = (await self._visit.feed.ask(_path({**self._filters.asked(*_SEARCH), "limit": 1})))["states"]
        return {"": sum(states.values()), **states}

    def _draw(self, found: Any, order: PriorityOrder, counts: dict[str, int], page: int) -> None:
        columns, acts = found["columns"], self._visit.viewer.acts
        self._jobs = {job.key: job for job in listed(columns)}
        self._acts.shown(self._jobs.values())
        self._states.show(self._filters["state"], counts)
        self._note.set_text(_order_text(order))
        self._drag.set_visibility(acts and order.known and order.counts)
        there = bool(self._jobs)
        searched = bool(self._filters.asked("state", *_SEARCH))
        self._empty.set_visibility(not there and not searched)
        self._none.set_visibility(not there and searched)
        self._table.set_visibility(there)
        self._table.show(rows_of(columns, self._visit.viewer, order.known and order.counts), found["now"])
        total = f"{found['total']:,} job{'s' * (found['total'] != 1)}"
        folded = f" in {found['rows']:,} rows" if found["rows"] != found["total"] else ""
        self._pager.show(page, SIZE, found["rows"], total + folded)
        self._fields.suggest("user", columns["user"])
        self._fields.suggest("tag", [tag for tags in columns["tags"] for tag in tags])
        self._shown_picks()
        if acts:
            self._legend.set_visibility(there)
            mine = self._filters["user"] == self._visit.viewer.name
            self._only_mine.props(f"aria-pressed={'true' if mine else 'false'}")

    async def _change(self, page: str = "", **filters: str) -> None:
        self._filters.set(page=page, **filters)
        self._filters.tell_address()
        self._fields.show()
        await self._visit.show_now(self._show)

    async def _choose(self, state: str) -> None:
        await self._change(state=state)

    async def _go(self, page: int) -> None:
        await self._change("" if page <= 1 else str(page))
        ui.run_javascript("window.scrollTo({top: 0})")

    async def _mine(self) -> None:
        mine = self._visit.viewer.name
        await self._change(user="" if self._filters["user"] == mine else mine)

    async def _clear(self) -> None:
        await self._change(**dict.fromkeys(("state", *_SEARCH), ""))

    async def _act(self, name: str, key: str) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        if name in ("raise", "lower"):
            await self._acts.step(job, 1.0 if name == "raise" else -1.0)
        elif name in ("cancel", "hold", "release"):
            await self._acts.do(name, [job])

    async def _move(self, key: str, above: str, below: str) -> None:
        moves = QueueMoves(self._visit, self._acts, await self._order())
        job = self._jobs.get(key)
        if job is not None:
            keys = list(self._jobs)
            up = bool(below in self._jobs and keys.index(below) < keys.index(key))
            await moves.move(job, self._jobs.get(above), self._jobs.get(below), up)

    def _pick(self, keys: list[str]) -> None:
        self._picked = keys
        self._shown_picks()

    def _shown_picks(self) -> None:
        picked = [key for key in self._picked if key in self._jobs]
        self._chosen.set_visibility(bool(picked))
        yours = "" if self._visit.viewer.rules else " of yours"
        told = f"All{yours} that match selected, on all pages" if self._every else f"{len(picked)} selected"
        self._count.set_text(told)

    @property
    def _every(self) -> bool:
        """Whether all rows are selected and there are more pages: then all jobs that match are meant."""
        own = [key for key, job in self._jobs.items() if self._visit.viewer.owns(job.user)]
        found = self._seen[0]
        return bool(own) and set(own) <= set(self._picked) and found is not None and found["rows"] > len(self._jobs)

    async def _all(self, name: str) -> None:
        if self._every:
            viewer, asked = self._visit.viewer, self._filters.asked("state", *_SEARCH)
            user = asked.get("user") or ("*" if viewer.rules else viewer.name)
            await self._acts.do_to_all(name, {**asked, "user": user, "all": True})
            return
        jobs = [self._jobs[key] for key in self._picked if key in self._jobs]
        fit = [job for job in jobs if name == "cancel" or job.state == {"hold": "queued", "release": "held"}[name]]
        if not fit:
            what = "waits, so there is nothing to hold" if name == "hold" else "is held, so there is nothing to release"
            ui.notify(f"None of these {what}.", type="info")
            return
        await self._acts.do(name, fit)


def _path(asked: dict[str, Any]) -> str:
    return f"/jobs?{urlencode({'columns': 'true', 'fold': 'true', **asked})}"


def _order_text(order: PriorityOrder) -> str:
    if not order.counts:
        return (
            f"The policy {order.name} decides who is next: {_low(order.doc)} It does not look at priorities, so "
            "changing one moves nothing here."
        )
    return f"The policy {order.name} decides who is next" + (f": {_low(order.doc)}" if order.doc else ".")


def _low(text: str) -> str:
    return text[:1].lower() + text[1:]
