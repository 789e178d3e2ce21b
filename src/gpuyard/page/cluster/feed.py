"""Asks the scheduler how the cluster is, once for everybody who looks, and only while somebody does."""

from __future__ import annotations

import asyncio
import time

import httpx

from gpuyard.page.cluster.model import Cluster, Unlike, read
from gpuyard.page.feed import Listener, forever

_PERIOD = 0.8  # seconds between two questions
_CONSIDERATE = 3.0  # how many times as long as an answer took to wait at least: the scheduler has other work
_SOON = 2.0  # seconds that a page which is being opened waits for an answer


class Feed:
    """The cluster as it was told last."""

    def __init__(self, scheduler: str, client: httpx.AsyncClient | None = None) -> None:
        self.scheduler = scheduler
        self.listeners: set[Listener] = set()
        self.cluster: Cluster | None = None
        """None until there was an answer."""
        self.away = ""
        """What is wrong, in words; empty if all is well."""
        patience = httpx.Timeout(10.0, connect=3.0)
        self._client = client or httpx.AsyncClient(timeout=patience, trust_env=False)  # no proxy is in between
        self._asked = -_PERIOD
        self._asking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(forever(self._follow))

    async def stop(self) -> None:
        """Ask no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()

    async def fresh(self) -> None:
        """Have an answer of just now, for a page that is being opened; not for long if there is none."""
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
                return  # somebody else has
            try:
                answer = await self._client.get(f"{self.scheduler}/cluster")
                if not answer.is_success:
                    raise Unlike
                self.cluster = await asyncio.to_thread(read, answer.content)
                self.away = ""
            except Unlike:
                self.away = f"What answers at {self.scheduler} is not gpuyard's scheduler."
            except httpx.HTTPError:
                self.away = f"The scheduler at {self.scheduler} does not answer."
            self._asked = time.monotonic()
