"""The batches, worked out and encoded once for everybody who looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from gpuyard.page.feed import Feed
from gpuyard.page.views.overview.board import Ledger
from gpuyard.page.views.sharing.shaping import Facts, card, chosen

_LOOKED_AT = 100  # batches among which those that are on are found
_KEEP = 2.0  # seconds for which an answer will do, whatever happens: rows may end by the dozen
_NOBODY_ENDED_THEN = 20_000_000_000  # of what is on only the rows that run are wanted, not all that are over


class Board:
    """The batches of one daemon."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._seen: list[Any] = []
        self._reports: dict[str, Facts] = {}
        self.ledger = Ledger()
        self.owners: dict[str, str] = {}
        """Whose each batch is."""

    async def refresh(self) -> None:
        """Ask for what there is, and work it out if nobody else has."""
        heads = (await self._ask(f"/batches?limit={_LOOKED_AT}"))["batches"]
        shown = chosen(heads)
        answers = await asyncio.gather(*map(self._detail, shown))
        seen = [heads, *answers]
        if len(seen) == len(self._seen) and all(map(_same, seen, self._seen)):
            return
        self._seen = seen
        self._reports = {
            head["batch"]: self._reports[head["batch"]] for head in shown if head["batch"] in self._reports
        }
        self.owners = {head["batch"]: head["user"] for head in shown}
        self.ledger.take(self._parts(shown, answers, len(heads) - len(shown)))

    def _parts(self, heads: Sequence[Facts], details: Sequence[Any], more: int) -> dict[str, Any]:
        now = time.time()
        cards = {
            f"batch {head['batch']}": card(
                head, detail if head["state"] == "open" else None, None if head["state"] == "open" else detail, now
            )
            for head, detail in zip(heads, details, strict=True)
        }
        return {"order": [head["batch"] for head in heads], "earlier": more, **cards}

    async def _detail(self, head: Facts) -> Any:
        """How one stands; or what it achieved, which is asked for once: that may take long to add up."""
        id, path = head["batch"], f"/batches/{quote(head['batch'], safe='')}"
        if head["state"] == "open":
            self._reports.pop(id, None)
            return await self._ask(f"{path}?since={_NOBODY_ENDED_THEN}")
        if id not in self._reports:
            self._reports[id] = await self._ask(f"{path}/report")
        return self._reports[id]

    async def _ask(self, path: str) -> Any:
        return await self._feed.ask(path, _KEEP, until_event=False)


_BOARDS: WeakKeyDictionary[Feed, Board] = WeakKeyDictionary()


def board_of(feed: Feed) -> Board:
    """The board that everybody shares."""
    return _BOARDS.setdefault(feed, Board(feed))


def _same(answer: Any, other: Any) -> bool:
    return answer is other
