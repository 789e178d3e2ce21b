"""What is asked for once for everybody."""

from __future__ import annotations

import asyncio

from gpuyard.page.api import Api
from gpuyard.page.feed import Feed


class Answering(Api):
    """A daemon that tells what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, method: str, path: str, *_: object, **__: object) -> str:
        self.asked.append(path)
        return path


def test_of_many_answers_the_latest_are_kept() -> None:
    async def ask() -> list[str]:
        api = Answering()
        feed = Feed(api)
        for number in range(400):
            await feed.ask(f"/history?text={number}", 60.0)
        feed._forget()
        api.asked.clear()
        await feed.ask("/history?text=399", 60.0)
        await feed.ask("/history?text=0", 60.0)
        return api.asked

    assert asyncio.run(ask()) == ["/history?text=0"]
