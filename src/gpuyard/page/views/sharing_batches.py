"""Batches of jobs as cards, computed and encoded once for all viewers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.api.types import OVER
from gpuyard.page.api import Facts
from gpuyard.page.feed import Feed, SharedState
from gpuyard.page.parts import STATES, brief_epoch, confirm, size, span
from gpuyard.page.visit import Visit

OPEN, CLOSED = 10, 5  # the most batches shown: open ones and closed ones
_RUNNING = 6  # running rows that are listed
_ORDER = (
    "succeeded", "running", "queued", "held", "failed", "oom", "timeout", "interrupted", "cancelled", "refused",
)  # fmt: skip


def shown_batches(heads: Sequence[Facts]) -> list[Facts]:
    on = [head for head in heads if head["state"] == "open"]
    over = [head for head in heads if head["state"] != "open"]
    return on[:OPEN] + over[:CLOSED]


def card(head: Facts, standing: Facts | None, report: Facts | None, now: float) -> dict[str, Any]:
    counts = [
        {"state": state, "count": count, "word": STATES.get(state, state)}
        for state, count in _counts(head)
        if count
    ]  # fmt: skip
    running = standing["running"] if standing else []
    return {
        "id": head["batch"], "name": head["name"], "user": head["user"], "open": head["state"] == "open",
        "rows": head["rows"], "counts": counts, "told": counts_text(head), "wave": _wave(standing),
        "left": remaining_text(head, now),
        "submitted": brief_epoch(head["submitted_at"]), "ended": brief_epoch(head["ended_at"]),
        "running": [_row(job) for job in running[:_RUNNING]], "more": max(0, len(running) - _RUNNING),
        "achieved": list(batch_results(report)) if report else [],
    }  # fmt: skip


def counts_text(head: Facts) -> str:
    counted = ", ".join(f"{count:,} {STATES.get(state, state)}" for state, count in _counts(head) if count)
    return f"{head['rows']:,} row{'s' * (head['rows'] != 1)}: {counted}"


def _counts(head: Facts) -> Iterator[tuple[str, int]]:
    states = {**head["states"], "refused": head["refused"]}
    yield from ((state, states.get(state, 0)) for state in _ORDER)


def _wave(standing: Facts | None) -> str:
    if standing is None or standing["waves"] < 2 or standing["wave"] is None:
        return ""
    return f"Wave {standing['wave']:,} of {standing['waves']:,}"


def remaining_text(head: Facts, now: float) -> str:
    """Time left at the present rate; empty if unknown."""
    over = sum(count for state, count in head["states"].items() if state in OVER)
    open_ones = sum(head["states"].values()) - over
    if not over or not open_ones:
        return ""
    seconds = (now - (brief_epoch(head["submitted_at"]) or now)) / over * open_ones
    return f"about {span(_rough(seconds))} left" if seconds >= 1 else ""


def _rough(seconds: float) -> float:
    """Rounded, so that it does not change all the time."""
    grain = 60.0 if seconds >= 600 else 10.0 if seconds >= 60 else 1.0
    return max(1.0, round(seconds / grain) * grain)


def _row(job: Facts) -> dict[str, Any]:
    row, progress = job["row"], job["progress"]
    peak = (job["measured"] or {}).get("peak")
    promised = f" of {size(job['gpu_memory'])}" if job["gpu_memory"] else ""
    return {
        "id": job["id"], "name": job["name"] or f"job {job['id']}", "row": row["number"] if row else None,
        "gpus": ", ".join(map(str, job["gpus"])), "memory": f"{size(peak)}{promised}" if peak else "",
        "share": None if progress is None else round(progress["fraction"], 2), "why": job["reason"] or "",
    }  # fmt: skip


def batch_results(report: Facts) -> Iterator[str]:
    if not report["makespan"]:
        return
    took, alone = span(report["makespan"]), span(report["sequential"])
    speedup = report["speedup"] or 0.0
    if speedup >= 1.05:
        yield f"{speedup:.1f} times as fast as one row after another: {took} instead of {alone}."
    else:
        yield f"Took {took}; one row after another takes {alone}."
    saved, used = report["gpu_hours_saved"], gpu_hours(report["gpu_hours"])
    if saved > 0:
        alone = gpu_hours(report["gpu_hours_sequential"])
        yield f"{gpu_hours(saved)} GPU-hours saved: {used} used, {alone} one by one."
    else:
        yield f"{used} GPU-hours used, none saved."
    most, ooms = report["most_at_once"], report["ooms"]
    ran_out = f"; ran out of memory {ooms:,} time{'s' * (ooms != 1)}" if ooms else ""
    yield f"At most {most:,} row{'s' * (most != 1)} at once{ran_out}."


def gpu_hours(number: float) -> str:
    if 0 < number < 0.001:
        return "under 0.001"
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2g}"


_LOOKED_AT = 100  # latest batches among which open ones are looked for
_KEEP = 2.0  # seconds for which an answer is used, regardless of events: rows may end by the dozen
_FAR_FUTURE = 20_000_000_000  # far in the future: list the running rows only, no finished ones


class BatchesState(SharedState):
    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._reports: dict[str, Facts] = {}
        self.owners: dict[str, str] = {}  # user of each batch

    async def refresh(self) -> None:
        heads = (await self._ask(f"/batches?limit={_LOOKED_AT}"))["batches"]
        shown = shown_batches(heads)
        answers = await asyncio.gather(*map(self._detail, shown))
        seen = [heads, *answers]
        if not self.differs(seen):
            return
        self.seen = seen
        self._reports = {
            head["batch"]: self._reports[head["batch"]] for head in shown if head["batch"] in self._reports
        }
        self.owners = {head["batch"]: head["user"] for head in shown}
        self.take(self._compute(shown, answers, len(heads) - len(shown)))

    def _compute(self, heads: Sequence[Facts], details: Sequence[Any], more: int) -> dict[str, Any]:
        now = time.time()
        cards = {
            f"batch {head['batch']}": card(
                head, detail if head["state"] == "open" else None, None if head["state"] == "open" else detail, now
            )
            for head, detail in zip(heads, details, strict=True)
        }
        return {"order": [head["batch"] for head in heads], "earlier": more, **cards}

    async def _detail(self, head: Facts) -> Any:
        """Progress of an open batch, or the report of a closed one; reports are requested once, since they are slow."""
        id, path = head["batch"], f"/batches/{quote(head['batch'], safe='')}"
        if head["state"] == "open":
            self._reports.pop(id, None)
            return await self._ask(f"{path}?since={_FAR_FUTURE}")
        if id not in self._reports:
            self._reports[id] = await self._ask(f"{path}/report")
        return self._reports[id]

    async def _ask(self, path: str) -> Any:
        return await self._feed.ask(path, _KEEP, until_event=False)


class Batches(Element, component="../assets/sharing.js"):
    """A card for each batch; changes are sent to the component's `take`."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self._visit = visit
        self._state = visit.feed.shared(BatchesState)
        self._version = 0
        viewer = visit.viewer
        self._props |= {"name": viewer.name, "acts": viewer.acts, "rules": viewer.rules}
        self.on("cancel", self._cancel)

    async def begin(self) -> None:
        self._props["begin"] = await self._news()

    async def show(self) -> None:
        if news := await self._news():
            self.run_method("take", news)

    async def _news(self) -> str:
        await self._state.refresh()
        parts = self._state.after(self._version)
        self._version = self._state.version
        return f'{{"now":{time.time():.2f},"parts":{parts}}}' if parts else ""

    async def _cancel(self, event: GenericEventArguments) -> None:
        given: Any = event.args if isinstance(event.args, dict) else {}
        id, name = str(given.get("id", "")), str(given.get("name", ""))[:80]
        if not self._visit.viewer.owns(self._state.owners.get(id, "")):
            return  # such viewers have no button, and the daemon would refuse it, too
        question = f"Cancel all that is left of batch {id} ({name})? Rows that run are stopped, and none is begun."
        if await confirm(question, "Cancel it"):
            await self._visit.do(
                self._visit.api.post(f"/batches/{quote(id, safe='')}/cancel"), f"Cancelled what was left of batch {id}."
            )
