"""The route of what jobs that share a GPU do to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Response

from gpuyard.core.consideration import AVOIDED, NEVER
from gpuyard.core.placements import CONSIDERATE
from gpuyard.daemon.slowdowns import Finding
from gpuyard.server.answers import reply
from gpuyard.server.times import iso

if TYPE_CHECKING:
    from gpuyard.server.api import Api


class InterferenceRoute:
    """The handler; the API adds it to its routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def interference(self) -> Response:
        """What jobs of each kind suffer beside those of another on one GPU, as far as it was seen; the worst first."""
        api = self._api
        known = sorted(api.interference.known.values(), key=lambda one: (-one.slowdown, one.sufferer, one.beside))
        considered = api.yard.planner.placement == CONSIDERATE
        return reply({"considered": considered, "pairs": [_pair(one) for one in known]})


def _pair(one: Finding) -> dict[str, Any]:
    return {
        "sufferer": _kind(one, 0), "beside": _kind(one, 1), "slowdown": round(one.slowdown, 3),
        "verdict": verdict(one.slowdown), "evidence": one.evidence, "seconds": round(one.seconds, 1), "at": iso(one.at),
    }  # fmt: skip


def _kind(one: Finding, which: int) -> dict[str, str]:
    """A kind of jobs: what tells it, what they are called, and the last of them that this was seen at."""
    signature = (one.sufferer, one.beside)[which]
    return {"signature": signature, "name": one.names[which], "job": one.jobs[which]}


def verdict(slowdown: float) -> str:
    """What placement `considerate` makes of it."""
    if slowdown >= NEVER:
        return "apart"
    return "avoided" if slowdown >= AVOIDED else "together"
