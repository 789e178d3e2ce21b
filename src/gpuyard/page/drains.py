"""Why GPUs are drained, as the events tell: the GPUs themselves say only that they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuyard.page.feed import Feed


class Drain(NamedTuple):
    """Why a GPU was drained, and by whom; both may be empty."""

    why: str
    by: str


class Drains:
    """Those of a yard, asked for when other GPUs are drained than before."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._drained: list[int] = []
        self._found: dict[int, Drain] = {}

    async def of(self, gpus: Sequence[Mapping[str, Any]]) -> dict[int, Drain]:
        """Why these GPUs, as the API lists them, are drained."""
        drained = [gpu["index"] for gpu in gpus if gpu["drained"]]
        if drained != self._drained:
            told = await self._feed.ask("/events?kind=GpusDrained&limit=10000", 0.0) if drained else {"events": []}
            self._drained, self._found = drained, drains(told["events"])
        return self._found


def drains(events: Sequence[Mapping[str, Any]]) -> dict[int, Drain]:
    """Why GPUs were drained last, and by whom."""
    found: dict[int, Drain] = {}
    for event in events:
        found |= dict.fromkeys(event.get("gpus") or (), Drain(event.get("reason") or "", event.get("by") or ""))
    return found
