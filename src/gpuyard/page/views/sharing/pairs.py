"""Who slows whom: what jobs suffer beside others on the same GPU."""

from __future__ import annotations

import shlex
from typing import Any

from nicegui import ui

from gpuyard.page.parts import command
from gpuyard.page.table import Table
from gpuyard.page.views.sharing.section import note
from gpuyard.page.views.sharing.words import PAIRS, pair_rows
from gpuyard.page.visit import Visit

_KEEP = 8.0  # seconds for which an answer will do
_MOST = 50  # pairs that are listed, the worst first
_NOTHING = (
    "No two jobs have shared a GPU for long enough to tell. It is measured by itself: how fast a job goes on, as far "
    "as it tells, or how busy it keeps the GPU, beside one other and alone. "
)
_KEPT_APART = "The placement is considerate: jobs that hurt each other are kept apart."
_WOULD = "The placement considerate keeps those apart that hurt each other; now nothing follows from this:"


class Pairs:
    """The table, and what follows from it."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._seen: tuple[Any, Any] = (None, None)
        self._words = ui.element("div")
        self._table = Table("Jobs that slow each other down, the worst first", PAIRS).classes("gy-share-table")
        self._table.set_visibility(False)
        self._more = ui.label().classes("gy-soft")

    async def show(self) -> None:
        """Show what was seen until now."""
        answer = await self._visit.feed.ask("/interference", _KEEP, until_event=False)
        policy = await self._visit.feed.ask("/policy", _KEEP, until_event=False)
        if answer is self._seen[0] and policy is self._seen[1]:
            return
        self._seen = answer, policy
        pairs = answer["pairs"]
        self._tell(bool(pairs), answer["considered"], str(policy["policy"]))
        self._table.set_visibility(bool(pairs))
        self._table.show(pair_rows(pairs[:_MOST]))
        self._more.set_text(f"gpuyard interference lists {len(pairs) - _MOST:,} more." if len(pairs) > _MOST else "")

    def _tell(self, any_pairs: bool, considered: bool, policy: str) -> None:
        """What this is, and what follows from it."""
        self._words.clear()
        self._words.classes(remove="gy-share-says gy-empty", add="gy-share-says" if any_pairs else "gy-empty")
        with self._words:
            if considered:
                note(_KEPT_APART if any_pairs else _NOTHING + _KEPT_APART)
                return
            note(_WOULD if any_pairs else _NOTHING + _WOULD.partition(";")[0] + ":")
            command(f"gpuyard policy set {shlex.quote(considerate(policy))}")


def considerate(policy: str) -> str:
    """The same policy and discipline, with the placement that goes by this."""
    name, _, rest = policy.partition("@")
    return f"{name}@{rest.partition('@')[0] or 'easy'}@considerate"
