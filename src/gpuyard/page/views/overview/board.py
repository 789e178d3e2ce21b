"""What the overview shows, worked out and encoded once for everybody who looks, and what of it is new since when."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from gpuyard.page.drains import Drain, Drains
from gpuyard.page.feed import Feed
from gpuyard.page.samples import Samples
from gpuyard.page.views.overview.shaping import finished, tile, waiting

HEAD = 10
"""Jobs of the queue, and of those that have ended, that are shown."""
_PATHS = {
    "/gpus": 2.0,
    "/jobs?state=running&limit=1000": 2.0,
    f"/jobs?state=queued&fold=true&limit={HEAD}": 5.0,
    "/jobs?state=held&columns=true&limit=1": 5.0,
    f"/history?limit={HEAD}": 30.0,
}
"""What is asked for, and for how many seconds an answer will do if nothing happens."""
_WHOLE = {"utilization": 1.0, "temperature": 1.0, "power": 1.0, "memory_used": 2.0**20}
"""What the numbers of samples are sent as: so many percent, degrees, watts and mebibytes."""


class Ledger:
    """Parts of something that is shown, by their names, and when each was last another one."""

    def __init__(self) -> None:
        self.version = 0
        self._parts: dict[str, Any] = {}
        self._since: dict[str, int] = {}
        self._told: dict[int, str] = {}

    def take(self, parts: Mapping[str, Any]) -> None:
        """These are the parts now."""
        gone = {name: None for name, part in self._parts.items() if part is not None and name not in parts}
        changed = {name: part for name, part in {**parts, **gone}.items() if self._parts.get(name) != part}
        if not changed:
            return
        self.version += 1
        self._parts |= changed
        self._since |= dict.fromkeys(changed, self.version)
        self._told.clear()

    def after(self, version: int) -> str:
        """What is new since a version, as JSON; empty if nothing is."""
        if version >= self.version:
            return ""
        if version not in self._told:
            new = {name: part for name, part in self._parts.items() if self._since[name] > version}
            self._told[version] = json.dumps(new, separators=(",", ":"))
        return self._told[version]


class Curves:
    """The samples, in the way that they are sent."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._last: float | None = None
        self._told: dict[float, str] = {}

    def after(self, at: float, gpus: list[int]) -> tuple[float, str]:
        """The samples since an instant, as JSON, and when the last of them is of."""
        last = self._samples.last
        if last is None or last <= at:
            return at, ""
        if last != self._last:
            self._told.clear()
            self._last = last
        if at not in self._told:
            self._told[at] = self._encoded(at, gpus)
        return last, self._told[at]

    def _encoded(self, at: float, gpus: list[int]) -> str:
        new = sum(1 for sample in self._samples.at if sample > at)
        values = {
            metric: [[_whole(value, unit) for value in self._latest(gpu, metric, new)] for gpu in gpus]
            for metric, unit in _WHOLE.items()
        }
        times = [round(sample, 1) for sample in list(self._samples.at)[-new:]]
        return json.dumps({"at": times, "gpus": gpus, **values}, separators=(",", ":"))

    def _latest(self, gpu: int, metric: str, count: int) -> list[float | None]:
        known = list(self._samples.of(gpu, metric)[-count:])
        return [None] * (count - len(known)) + known


class Board:
    """The overview of one daemon."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._seen: list[Any] = []
        self._drains = Drains(feed)
        self._drained: dict[int, Drain] = {}
        self.ledger = Ledger()
        self.curves = Curves(feed.samples)
        self.gpus: list[int] = []

    async def refresh(self) -> None:
        """Ask for what there is, and work it out if nobody else has."""
        answers = await asyncio.gather(*(self._feed.ask(path, keep) for path, keep in _PATHS.items()))
        if len(answers) == len(self._seen) and all(map(_same, answers, self._seen)):
            return
        self._drained = await self._drains.of(answers[0]["gpus"])
        self._seen = answers
        self.ledger.take(self._parts(*answers))

    def _parts(self, machine: Any, running: Any, queued: Any, held: Any, ended: Any) -> dict[str, Any]:
        now = time.time()
        jobs = {job["id"]: job for job in running["jobs"]}
        self.gpus = [gpu["index"] for gpu in machine["gpus"]]
        tiles = {
            f"gpu {gpu['index']}": tile(gpu, jobs, now, self._drained.get(gpu["index"])) for gpu in machine["gpus"]
        }
        return {
            "order": self.gpus,
            **tiles,
            "counts": {"waiting": queued["total"], "held": held["total"], "running": running["total"]},
            "head": [waiting(job) for job in queued["jobs"]],
            "ended": [finished(job) for job in ended["jobs"]],
        }


_BOARDS: WeakKeyDictionary[Feed, Board] = WeakKeyDictionary()


def board_of(feed: Feed) -> Board:
    """The board that everybody shares."""
    return _BOARDS.setdefault(feed, Board(feed))


def _same(answer: Any, other: Any) -> bool:
    return answer is other


def _whole(value: float | None, unit: float) -> int | None:
    return None if value is None else round(value / unit)
