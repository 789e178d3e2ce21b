"""The element that shows the overview, of one viewer."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

from nicegui.element import Element

from gpuyard.page.api import Away, Refused
from gpuyard.page.views.overview.board import board_of
from gpuyard.page.views.overview.shaping import day, midnight
from gpuyard.page.visit import Visit

_PATIENCE = 0.1  # seconds that the tiles wait for the day's numbers, which may take long to add up
_SOON = 1.0  # seconds that a new page waits for its content
_DAY = 30.0  # seconds for which they will do


class Screen(Element, component="../../assets/overview.js"):
    """Has all of it; what changes is sent to its component's `take`."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self._visit = visit
        self._board = board_of(visit.feed)
        self._version, self._at = 0, 0.0
        self._day: dict[str, Any] | None = None
        self._props["acts"] = visit.viewer.acts

    async def begin(self) -> None:
        """Have the page come with what there is, if the daemon answers soon; else it follows."""
        with suppress(Away, Refused, TimeoutError):
            async with asyncio.timeout(_SOON):
                self._props["begin"] = await self._news()

    async def show(self) -> None:
        """Send what is new."""
        if news := await self._news():
            self.run_method("take", news)

    async def _news(self) -> str:
        """What this viewer has not been sent yet, as JSON."""
        board = self._board
        today = await self._today()
        await board.refresh()
        parts = board.ledger.after(self._version)
        self._version = board.ledger.version
        self._at, samples = board.curves.after(self._at, board.gpus)
        if not (parts or samples or today):
            return ""
        return _joined(now=f"{time.time():.2f}", parts=parts, samples=samples, day=today)

    async def _today(self) -> str:
        """The numbers of the day, if they are others than before; none before it is known whose day that is."""
        if self._visit.zone is None:
            return ""
        since = quote(midnight(datetime.now(self._visit.zone)), safe="")
        with suppress(TimeoutError, Refused):
            async with asyncio.timeout(_PATIENCE):
                stats = await self._visit.feed.ask(f"/stats?since={since}", _DAY, until_event=False)
                found = day(stats)
                if found != self._day:
                    self._day = found
                    return json.dumps(found)
        return ""


def _joined(**parts: str) -> str:
    """JSON of several things that are encoded already."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items() if text) + "}"
