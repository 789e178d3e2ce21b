"""Samples of every GPU of the cluster, read from Prometheus in a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuyard.errors import GpuyardError
from gpuyard.monitor.sources.prometheus_client import Prometheus
from gpuyard.monitor.sources.prometheus_queries import BY_NAME, Labels, names_for, numbers, whose

_METRICS = ("memory_used", "memory_free", "utilization")
_BACK = 60.0  # seconds that are looked back at first
_WINDOW = 15.0  # seconds that are looked back later: exporters may be scraped that rarely
_SHARE = 10.0  # times as long as an answer takes, at least, between two questions
_SILENT = 30.0  # seconds without any GPU after which that is reported
_HOSTS = ("Hostname", "hostname", "node", "kubernetes_node", "exported_node", "nodename", "kubernetes_io_hostname")


class Series(NamedTuple):
    metric: str
    rank: int  # of several names for one metric, the lowest counts
    gpu: int
    hosts: tuple[str, ...]  # names and addresses of the node or of the exporter's pod, from labels
    times: list[float]
    values: list[float]


class Samples(NamedTuple):
    series: list[Series]


class Outage(NamedTuple):
    why: str


class Sampler(threading.Thread):
    def __init__(self, url: str, tell: Callable[[Samples | Outage], None], period: float) -> None:
        super().__init__(name="prometheus", daemon=True)
        self._url, self._tell, self._period = url, tell, period
        self._stopped = threading.Event()
        self._latest: dict[tuple[tuple[str, str], ...], float] = {}
        self._server: Prometheus | None = None
        self._heard_at = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        back = _BACK
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                found = self._ask(back)
            except GpuyardError as error:
                self._close()
                self._tell(Outage(str(error)))
            else:
                back = max(_WINDOW, 3 * self._period)
                if found:
                    self._heard_at = time.monotonic()
                elif time.monotonic() - self._heard_at > _SILENT:
                    self._tell(Outage(f"{self._url} knows of no metrics of GPUs; does it scrape dcgm-exporter?"))
                if found or time.monotonic() - self._heard_at <= _SILENT:
                    self._tell(Samples(found))
            self._stopped.wait(max(self._period, _SHARE * (time.monotonic() - began)))
        self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.__exit__()
            self._server = None

    def _ask(self, back: float) -> list[Series]:
        if self._server is None:
            self._server = Prometheus(self._url, os.environ.get("GPUYARD_PROMETHEUS_TOKEN", ""), patience=0.0)
        wanted = "|".join(name.name for name in names_for(_METRICS))
        query = f'{{__name__=~"{wanted}"}}[{back:.0f}s]'
        answer: dict[str, Any] = self._server.ask("query", {"query": query})
        found = [series for one in answer["result"] if (series := self._series(one)) is not None]
        if len(self._latest) > 4 * max(len(answer["result"]), 1000):
            self._latest = {}
        return found

    def _series(self, one: dict[str, Any]) -> Series | None:
        """New samples of a series; None without any, or if it is about no GPU."""
        labels: Labels = one["metric"]
        name, owner = BY_NAME.get(labels.get("__name__", "")), whose(labels)
        if name is None or owner is None or owner.job or not one["values"]:
            return None
        key = tuple(sorted(labels.items()))
        after = self._latest.get(key, 0.0)
        new = [(float(at), text) for at, text in one["values"] if float(at) > after]
        if not new:
            return None
        self._latest[key] = new[-1][0]
        values = numbers([text for _, text in new], name)
        good = [(at, value) for (at, _), value in zip(new, values.tolist(), strict=True) if value == value]
        hosts = [labels[label] for label in _HOSTS if labels.get(label)]
        hosts += [owner.host, labels.get("instance", "").rpartition(":")[0]]
        return Series(
            name.metric, name.rank, owner.gpu, tuple(dict.fromkeys(host for host in hosts if host)),
            [at for at, _ in good], [value for _, value in good],
        )  # fmt: skip
