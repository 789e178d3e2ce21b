"""The element that shows batches to one viewer, and ends one for those who may."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.page.parts import confirm
from gpuyard.page.views.sharing.board import board_of
from gpuyard.page.visit import Visit


class Batches(Element, component="../../assets/sharing.js"):
    """Has a card for each; what changes is sent to its component's `take`."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self._visit = visit
        self._board = board_of(visit.feed)
        self._version = 0
        viewer = visit.viewer
        self._props |= {"name": viewer.name, "acts": viewer.acts, "rules": viewer.rules}
        self.on("cancel", self._cancel)

    async def begin(self) -> None:
        """Have the page come with what there is."""
        self._props["begin"] = await self._news()

    async def show(self) -> None:
        """Send what is new."""
        if news := await self._news():
            self.run_method("take", news)

    async def _news(self) -> str:
        await self._board.refresh()
        parts = self._board.ledger.after(self._version)
        self._version = self._board.ledger.version
        return f'{{"now":{time.time():.2f},"parts":{parts}}}' if parts else ""

    async def _cancel(self, event: GenericEventArguments) -> None:
        given: Any = event.args if isinstance(event.args, dict) else {}
        id, name = str(given.get("id", "")), str(given.get("name", ""))[:80]
        if not self._visit.viewer.owns(self._board.owners.get(id, "")):
            return  # there is no button for who may not; the daemon would refuse it, too
        question = f"Cancel all that is left of batch {id} ({name})? Rows that run are stopped, and none is begun."
        if await confirm(question, "Cancel it"):
            await self._visit.do(
                self._visit.api.post(f"/batches/{quote(id, safe='')}/cancel"), f"Cancelled what was left of batch {id}."
            )
