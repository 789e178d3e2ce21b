"""One open page of the cluster, and elements that keep what they were sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nicegui.element import Element

from gpuyard.page.cluster.feed import Feed
from gpuyard.page.cluster.model import Cluster
from gpuyard.page.visit import Tab


class Look(Tab):
    """What a page is built with."""

    def __init__(self, feed: Feed, cookies: Mapping[str, str]) -> None:
        super().__init__(feed.listeners, cookies)
        self.feed = feed

    @property
    def asked(self) -> Mapping[str, str]:
        """What the address says."""
        request = self.client.request
        return {} if request is None else request.query_params

    def follow(self, show: Callable[[Cluster], None]) -> None:
        """Have this called now, and whenever the cluster may be another; not before there was an answer."""

        async def shown() -> None:
            if self.feed.cluster is not None:
                show(self.feed.cluster)

        if self.feed.cluster is not None:
            show(self.feed.cluster)
        self.live(shown)


class Kept(Element):
    """An element whose component keeps what it was sent: `take` is called with what is another than before."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[str, Any] = {}
        self._props["begin"] = "{}"

    def show(self, parts: Mapping[str, Any], now: float) -> None:
        """These are the parts now; those that are gone are sent as null."""
        new: dict[str, Any] = {name: part for name, part in parts.items() if self._sent.get(name) != part}
        new |= {name: None for name in self._sent if name not in parts}
        if not new:
            return
        self._sent = dict(parts)
        with self._props.suspend_updates():  # it is for whoever draws all of it anew
            self._props["begin"] = _encoded(parts, now)
        if self.client.has_socket_connection:
            self.run_method("take", _encoded(new, now))
        elif self.client._response_built:  # before that, the page comes with it
            self.update()


def _encoded(parts: Mapping[str, Any], now: float) -> str:
    return json.dumps({"now": round(now, 2), "parts": parts}, separators=(",", ":"))
