"""HTTP server of the scheduler: health, metrics and the cluster view. Read-only."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from gpuyard.errors import UserError
from gpuyard.kubernetes.cluster.quantity import address_of
from gpuyard.kubernetes.cluster_view import dumps

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from gpuyard.kubernetes.scheduler import Scheduler

_STUCK = 60.0  # seconds without a turn after which the scheduler counts as dead
_OLD = 0.5  # seconds for which an answer is good: several may look at once


class StatusServer:
    def __init__(self, scheduler: Scheduler, listen: str) -> None:
        self._scheduler = scheduler
        serving = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_GET(self) -> None:
                serving.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are not worth a line."""

        try:
            self._server = ThreadingHTTPServer(address_of(listen), Handler)
        except OSError as error:
            raise UserError(f"cannot listen at {listen}: {error.strerror}; choose another with --listen") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="serving", daemon=True)
        self._thread.start()
        self._seen: tuple[float, bytes] = (0.0, b"")
        self._lock = threading.Lock()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        found = {
            "/healthz": self._health, "/livez": self._health, "/readyz": self._readiness,
            "/metrics": self._metrics, "/cluster": self._cluster,
        }.get(path)  # fmt: skip
        status, kind, body = found() if found else (404, "text/plain", b"there is nothing here\n")
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _health(self) -> tuple[int, str, bytes]:
        late = time.time() - self._scheduler.heard_at
        if late > _STUCK:
            return 503, "text/plain", f"no turn for {late:.0f} s\n".encode()
        return 200, "text/plain", b"ok\n"

    def _readiness(self) -> tuple[int, str, bytes]:
        if self._scheduler.ready:
            return 200, "text/plain", b"ok\n"
        troubles = [reflector.trouble for reflector in self._scheduler.reflectors if reflector.trouble]
        return 503, "text/plain", f"not everything has been heard of yet {'; '.join(troubles)}\n".encode()

    def _cluster(self) -> tuple[int, str, bytes]:
        with self._lock:
            at, body = self._seen
            if time.monotonic() - at > _OLD:
                try:
                    view = self._scheduler.ask(self._scheduler.view)
                except queue.Empty:
                    return 503, "text/plain", b"busy; try again\n"
                body = dumps(view)
                self._seen = time.monotonic(), body
        return 200, "application/json", body

    def _metrics(self) -> tuple[int, str, bytes]:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(self._scheduler))
        return 200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry)


class _Collector:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        scheduler, world = self._scheduler, self._scheduler.world
        prefix = "gpuyard_kubernetes_"
        for name, (metric, text) in _COUNTERS.items():
            yield CounterMetricFamily(prefix + metric, text, scheduler.counts[name])
        state = world.state
        gauges = {
            "leader": ("Whether this replica decides.", float(scheduler.leads)),
            "pending_pods": ("Pods that wait in the queue.", float(len(state.waiting) if state else 0)),
            "aside_pods": ("Pods that wait and can start on no node as it is.", float(len(world.aside))),
            "placed_pods": ("Pods that have GPUs.", float(len(state.running) if state else 0)),
            "bindings_in_flight": ("Pods that are being bound.", float(len(world.assumed))),
            "calls_in_flight": ("Calls to the API server that are to be made.", float(len(scheduler.writer))),
            "nodes": ("Nodes with GPUs.", float(len(world.layout.nodes))),
            "gpus": ("GPUs of the cluster.", float(world.layout.first[-1])),
            "gpus_idle": ("GPUs that nobody has.", float(state.pool.idle.sum()) if state else 0.0),
            "plan_seconds": ("What the last plan took.", scheduler.plan_seconds),
            "prometheus_up": ("Whether usage is known.", float(not scheduler.observed.trouble)),
            "learned_workloads": ("Kinds of pods of which runs tell.", float(len(scheduler.observed.learned))),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(prefix + name, text, value)
        if scheduler.shadow is not None:
            shadow = CounterMetricFamily(prefix + "shadow", "Decisions that nobody obeys.", labels=["what"])
            for what, count in sorted(scheduler.shadow.counts.items()):
                shadow.add_metric([what], count)
            yield shadow


_COUNTERS = {
    "bound": ("bindings", "Pods that were bound."),
    "conflicts": ("binding_conflicts", "Bindings that came too late: the pod was bound, or gone."),
    "bind_failures": ("binding_failures", "Bindings that the API server could not take."),
    "evicted": ("evictions", "Pods that were evicted."),
    "evictions_refused": ("evictions_refused", "Evictions that a budget did not allow."),
    "plans": ("plans", "Plans that were made."),
}
