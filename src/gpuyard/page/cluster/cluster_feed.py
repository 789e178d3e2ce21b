"""The scheduler's latest report of the cluster, requested once for all viewers, and a viewer's open page."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import httpx
from nicegui.element import Element

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Facts
from gpuyard.page.feed import Listener, run_forever
from gpuyard.page.visit import Tab

WAITING = ("waiting", "gated")
_NUMBER = re.compile(r"(\d+)")


class UnexpectedAnswer(GpuyardError):
    """What answers there is not gpuyard's scheduler."""


class Cluster:
    def __init__(self, report: Facts) -> None:
        self.facts = report
        self.at: float = report["at"]
        self.nodes: dict[str, Facts] = {
            node["name"]: node for node in sorted(report["nodes"], key=lambda node: natural(node["name"]))
        }
        self.pods: dict[str, Facts] = {key_of(pod): pod for pod in sorted(report["pods"], key=_rank)}
        self._on: defaultdict[str, list[Facts]] = defaultdict(list)
        for pod in self.pods.values():
            if pod["node"]:
                self._on[pod["node"]].append(pod)

    def on(self, node: str) -> list[Facts]:
        return self._on.get(node, [])

    def gang_of(self, pod: Facts) -> list[Facts]:
        if not pod["gang"]:
            return []
        same = (pod["namespace"], pod["gang"])
        return [one for one in self.pods.values() if (one["namespace"], one["gang"]) == same]

    def is_ours(self, pod: Facts) -> bool:
        return bool(pod["scheduler"] == self.facts["scheduler"])

    @cached_property
    def waiting(self) -> list[Facts]:
        return [pod for pod in self.pods.values() if pod["phase"] in WAITING]

    @cached_property
    def namespaces(self) -> list[str]:
        return sorted({pod["namespace"] for pod in self.pods.values()})


def read_cluster(content: bytes) -> Cluster:
    try:
        report = json.loads(content)
        cluster = Cluster(report)
        for node in cluster.nodes.values():
            node["ready"], node["cordoned"], node["model"]
            for gpu in node["gpus"]:
                gpu["state"], gpu["memory_charged"] + gpu["memory_total"], len(gpu["pods"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnexpectedAnswer from error
    return cluster


def key_of(pod: Facts) -> str:
    return f"{pod['namespace']}/{pod['name']}"


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts `node-2` before `node-10`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _NUMBER.split(name)]


def _rank(pod: Facts) -> tuple[int, float, str]:
    """Waiting pods first, in queue order; then the latest started."""
    if pod["phase"] in WAITING:
        return 0, pod["position"] or float("inf"), key_of(pod)
    return 1, -(pod["started_at"] or pod["created_at"]), key_of(pod)


_PERIOD = 0.8  # seconds between requests
_CONSIDERATE = 3.0  # least pause as a multiple of the response time: the scheduler has other work
_SOON = 2.0  # seconds that a page waits for an answer while it is opened


class ClusterFeed:
    def __init__(self, scheduler: str, client: httpx.AsyncClient | None = None) -> None:
        self.scheduler = scheduler
        self.listeners: set[Listener] = set()
        self.cluster: Cluster | None = None  # None until the first answer
        self.away = ""  # what is wrong; empty if the scheduler answers
        patience = httpx.Timeout(10.0, connect=3.0)
        self._client = client or httpx.AsyncClient(timeout=patience, trust_env=False)  # no proxy
        self._asked = -_PERIOD
        self._asking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(run_forever(self._follow))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()

    async def fresh(self) -> None:
        try:
            async with asyncio.timeout(_SOON):
                await self._ask()
        except TimeoutError:
            self.away = self.away or f"The scheduler at {self.scheduler} takes long to answer."

    async def _follow(self) -> None:
        while True:
            begun = time.monotonic()
            if self.listeners:
                await self._ask()
                for listener in list(self.listeners):
                    listener.beat()
            took = time.monotonic() - begun
            await asyncio.sleep(max(_PERIOD - took, _CONSIDERATE * took) if self.listeners else _PERIOD / 4)

    async def _ask(self) -> None:
        async with self._asking:
            if time.monotonic() - self._asked < _PERIOD / 2:
                return  # another page has just asked
            try:
                answer = await self._client.get(f"{self.scheduler}/cluster")
                if not answer.is_success:
                    raise UnexpectedAnswer
                self.cluster = await asyncio.to_thread(read_cluster, answer.content)
                self.away = ""
            except UnexpectedAnswer:
                self.away = f"What answers at {self.scheduler} is not gpuyard's scheduler."
            except httpx.HTTPError:
                self.away = f"The scheduler at {self.scheduler} does not answer."
            self._asked = time.monotonic()


class ClusterVisit(Tab):
    def __init__(self, feed: ClusterFeed, cookies: Mapping[str, str]) -> None:
        super().__init__(feed.listeners, cookies)
        self.feed = feed

    def follow(self, show: Callable[[Cluster], None]) -> None:
        """Call this now and after every report, once there is one."""

        async def shown() -> None:
            if self.feed.cluster is not None:
                show(self.feed.cluster)

        if self.feed.cluster is not None:
            show(self.feed.cluster)
        self.live(shown)


class LiveElement(Element):
    """An element whose component keeps what it was sent; changes are sent to its `take`."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[str, Any] = {}
        self._props["begin"] = "{}"

    def show(self, parts: Mapping[str, Any], now: float) -> None:
        """Set the parts; those that are gone are sent as null."""
        new: dict[str, Any] = {name: part for name, part in parts.items() if self._sent.get(name) != part}
        new |= {name: None for name in self._sent if name not in parts}
        if not new:
            return
        self._sent = dict(parts)
        with self._props.suspend_updates():  # for browsers that reload the page
            self._props["begin"] = _encoded(parts, now)
        if self.client.has_socket_connection:
            self.run_method("take", _encoded(new, now))
        elif self.client._response_built:  # before that, it is part of the page
            self.update()


def _encoded(parts: Mapping[str, Any], now: float) -> str:
    return json.dumps({"now": round(now, 2), "parts": parts}, separators=(",", ":"))
