"""Routes of the daemon itself: health checks, Prometheus metrics, status and shutdown."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from fastapi import Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from gpuyard import __version__
from gpuyard.api import replies
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.meters import Histogram, Meters
from gpuyard.daemon.store.views import JobView
from gpuyard.policies.guard import Counts, guard_of
from gpuyard.server.context import Context
from gpuyard.server.problems import problem
from gpuyard.server.proxy.supervisor import PageSupervisor
from gpuyard.server.responses import iso, reply
from gpuyard.server.routes.gpus import gpus_json, listed_gpus
from gpuyard.server.routing import AT, Answer, Route, admin, ok
from gpuyard.server.security import exposure_warnings
from gpuyard.server.stream.event_stream import EventHub

_OPEN = ("queued", "held", "running")
_OUTCOMES = ("succeeded", "failed", "cancelled", "timeout", "oom", "interrupted")
_STATES = ("free", "ours", "foreign", "unknown", "drained")
_OLD = 30.0  # seconds after which a reading is stale


class StreamCounts(NamedTuple):
    """Clients that follow events, and all streams, those of logs included."""

    events: int
    streams: int


class MetricsCollector(Collector):
    def __init__(self, daemon: Daemon, since: float, followers: Any) -> None:
        self._daemon, self._since, self._followers = daemon, since, followers

    def collect(self) -> Iterator[Metric]:
        views = list(self._daemon.store.open.values())
        yield from _process(self._since, self._daemon)
        yield from _queue(views)
        yield from _work(self._daemon.meters)
        yield from _learned(self._daemon)
        followers: StreamCounts = self._followers()
        yield GaugeMetricFamily("gpuyard_event_followers", "Clients that follow events now.", followers.events)
        yield GaugeMetricFamily("gpuyard_streams", "Streams of events and of logs now.", followers.streams)
        yield from _gpus(self._daemon, views)
        yield from _more_of_gpus(self._daemon)
        yield from _jobs(self._daemon, views)


def registry_of(daemon: Daemon, since: float, followers: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(MetricsCollector(daemon, since, followers))
    ProcessCollector(registry=registry)
    return registry


def _process(since: float, daemon: Daemon) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "gpuyard_build", "The daemon's version, and the policy in force.",
        {"version": __version__, "policy": daemon.planner.text},
    )  # fmt: skip
    yield GaugeMetricFamily("gpuyard_start_time_seconds", "When the daemon began, since the epoch.", since)
    yield GaugeMetricFamily("gpuyard_store_writable", "Whether events can be written.", float(not daemon.failing))
    text = "Whether a thread of the daemon does its work; 0: it fails, is stuck or dead."
    up = GaugeMetricFamily("gpuyard_thread_up", text, labels=["thread"])
    yield _filled(up, (([one["name"]], float(one["state"] == "ok")) for one in threads_json(daemon)))
    text = "Steps of a background thread that failed."
    failures = CounterMetricFamily("gpuyard_thread_failures", text, labels=["thread"])
    yield _filled(failures, (([one.name], one.failures) for one in daemon.context.threads if one.state != "off"))


def threads_json(daemon: Daemon) -> list[dict[str, Any]]:
    """How each thread does that works: the loop, and those beside it."""
    late = time.monotonic() - daemon.due_back > _SLOW
    loop = {"name": "loop", "state": "stuck" if late else "ok", "problem": None}
    working = [one for one in daemon.context.threads if one.state != "off"]
    return [loop, *({"name": one.name, "state": one.state, "problem": one.problem or None} for one in working)]


def _filled(family: Any, values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    for labels, value in values:
        family.add_metric(labels, value)
    found: Metric = family
    return found


def _queue(views: list[JobView]) -> Iterator[Metric]:
    states = Counter(view.state for view in views)
    family = GaugeMetricFamily("gpuyard_jobs", "Jobs and leases that are not over, by state.", labels=["state"])
    yield _filled(family, (([state], states[state]) for state in _OPEN))
    wanted = sum(view.work["gpu_count"] for view in views if view.state == "queued")
    yield GaugeMetricFamily("gpuyard_queue_gpus_wanted", "GPUs that queued jobs ask for, in all.", wanted)


def _work(meters: Meters) -> Iterator[Metric]:
    yield CounterMetricFamily("gpuyard_jobs_submitted", "Jobs that came in since the daemon began.", meters.submitted)
    finished = CounterMetricFamily("gpuyard_jobs_finished", "Jobs that ended, by outcome.", labels=["outcome"])
    yield _filled(finished, (([outcome], meters.finished[outcome]) for outcome in _OUTCOMES))
    yield _histogram("gpuyard_job_wait_seconds", "From when a job began to wait, or to wait again, to its start.",
                     [({}, meters.waits)])  # fmt: skip
    runs = [({"outcome": outcome}, histogram) for outcome, histogram in list(meters.runs.items())]
    yield _histogram("gpuyard_job_run_seconds", "How long jobs ran, with preempted attempts.", runs, "outcome")
    yield _histogram("gpuyard_plan_seconds", "How long it takes to decide who starts.", [({}, meters.plans)])
    yield CounterMetricFamily("gpuyard_plans", "Plans that were made.", meters.plans.cumulative()[-1])
    yield CounterMetricFamily("gpuyard_plan_cpu_seconds", "CPU time that planning took.", meters.plan_cpu)
    yield _histogram("gpuyard_commit_seconds", "How long it takes to write events to disk.", [({}, meters.commits)])
    events = CounterMetricFamily("gpuyard_events", "Events since the daemon began, by kind.", labels=["kind"])
    yield _filled(events, (([kind], count) for kind, count in sorted(meters.events.copy().items())))


def _learned(daemon: Daemon) -> Iterator[Metric]:
    counts = Counts()
    counts.add(daemon.meters.learned)
    if (guard := guard_of(daemon.planner)) is not None:
        counts.add(guard.counts)
    text = "How often trained policies were asked to rank the queue."
    yield CounterMetricFamily("gpuyard_learned_plans", text, counts.plans)
    text = "How often the base heuristic ranked it instead, by why."
    fallbacks = CounterMetricFamily("gpuyard_learned_fallbacks", text, labels=["kind"])
    yield _filled(fallbacks, (([kind], count) for kind, count in counts.fallbacks.items()))
    text = "Jobs that trained policies put ahead for having waited too long."
    yield CounterMetricFamily("gpuyard_learned_starved", text, counts.starved)


def _histogram(name: str, text: str, values: Iterable[tuple[dict[str, str], Histogram]], *labels: str) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for given, histogram in values:
        bounds = [*map(repr, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
        family.add_metric([given[label] for label in labels], buckets, histogram.total)
    return family


_GPU_LABELS = ("uuid", "gpu", "name")
_READINGS = {
    "gpuyard_gpu_utilization_ratio": ("utilization", 0.01, "Share of the last sample period that a GPU was busy."),
    "gpuyard_gpu_memory_used_bytes": ("memory_used", 1.0, "Memory of a GPU that is in use."),
    "gpuyard_gpu_memory_total_bytes": ("memory_total", 1.0, "Memory of a GPU."),
    "gpuyard_gpu_power_watts": ("power", 1.0, "Power that a GPU draws."),
    "gpuyard_gpu_temperature_celsius": ("temperature", 1.0, "Temperature of a GPU."),
}


def _gpus(daemon: Daemon, views: list[JobView]) -> Iterator[Metric]:
    old = daemon.machine.age() > _OLD
    found = [([gpu["uuid"], str(gpu["index"]), gpu["name"]], gpu)
             for gpu in gpus_json(daemon.machine, views, daemon.state)]  # fmt: skip
    answering = [(labels, gpu) for labels, gpu in found if gpu["state"] != "unknown" and not old]
    for name, (field, factor, text) in _READINGS.items():
        known = [
            (labels, gpu[field] * factor)
            for labels, gpu in answering
            if gpu[field] is not None and (field != "memory_total" or gpu[field])
        ]
        yield _filled(GaugeMetricFamily(name, text, labels=_GPU_LABELS), known)
    info = GaugeMetricFamily("gpuyard_gpu_info", "What a GPU is.", labels=[*_GPU_LABELS, "simulated"])
    yield _filled(info, (([*labels, str(gpu["simulated"]).lower()], 1.0) for labels, gpu in answering))
    jobs = GaugeMetricFamily("gpuyard_gpu_jobs", "Jobs on a GPU.", labels=_GPU_LABELS)
    yield _filled(jobs, ((labels, len(gpu["jobs"])) for labels, gpu in answering))
    states = GaugeMetricFamily("gpuyard_gpu_state", "Whether a GPU is in a state.", labels=[*_GPU_LABELS, "state"])
    for labels, gpu in found:
        now = "unknown" if old else gpu["state"]
        _filled(states, (([*labels, state], float(state == now)) for state in _STATES))
    yield states


_EXTRAS = {
    "gpuyard_gpu_memory_copy_ratio": (
        "memcopy", 0.01, "Share of the last sample period in which a GPU's memory was read or written."
    ),
    "gpuyard_gpu_sm_clock_hertz": ("sm_clock", 1e6, "Clock of a GPU's processors."),
    "gpuyard_gpu_memory_clock_hertz": ("memory_clock", 1e6, "Clock of a GPU's memory."),
    "gpuyard_gpu_throttle_reasons": ("throttle", 1.0, "What slows a GPU down, as NVML's bits; 0: nothing."),
}  # fmt: skip


def _more_of_gpus(daemon: Daemon) -> Iterator[Metric]:
    """Further readings; those of simulated GPUs come from a model, and `gpuyard_gpu_info` says which GPUs are."""
    labels = [[device.uuid, str(device.index), device.name] for device in daemon.machine.gpus.devices]
    readings = [] if daemon.machine.age() > _OLD else list(daemon.machine.readings())
    for name, (field, factor, text) in _EXTRAS.items():
        values = [
            (labels[one.device.index], value * factor)
            for one in readings
            if not one.reading.lost and (value := getattr(one.reading, field)) is not None
        ]
        yield _filled(GaugeMetricFamily(name, text, labels=_GPU_LABELS), values)
    errors = CounterMetricFamily(
        "gpuyard_gpu_xid_errors", "Errors that the driver told of, by number.", labels=[*_GPU_LABELS, "xid"]
    )
    xids = sorted(daemon.machine.xids.copy().items())
    yield _filled(errors, (([*labels[gpu], str(xid)], count) for (gpu, xid), count in xids))


def _jobs(daemon: Daemon, views: list[JobView]) -> Iterator[Metric]:
    running = [view.id for view in views if view.state == "running"]
    measured = [(job, measure) for job in running if (measure := daemon.measures.of(job)) is not None]
    memory = GaugeMetricFamily(
        "gpuyard_job_gpu_memory_bytes", "Memory of a GPU that a running job uses, as measured.", labels=["job", "gpu"]
    )
    yield _filled(memory, (([job, str(gpu)], size) for job, one in measured for gpu, size in one.current.items()))
    energy = CounterMetricFamily(
        "gpuyard_job_energy_joules", "Energy that GPUs drew for a running job, this attempt.", labels=["job"]
    )
    if not daemon.machine.gpus.simulated:  # no label would say that it is simulated
        _filled(energy, (([job], one.energy_wh * 3600) for job, one in measured if one.energy_wh is not None))
    yield energy


Encoder = tuple[Callable[[Any], bytes], str]
_PLAIN_FORMAT: Encoder = exposition.generate_latest, "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS_FORMAT: Encoder = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
_SLOW = 30.0  # seconds by which the daemon's thread may be late: a large array takes long

_LEARNED: dict[str, Any] = {
    "file": "/srv/policies/week.json", "hash": "9f2b6c01d4aa", "base": "saf", "forced": False,
    "gate": {
        "passed": True, "ratio": 0.91, "ratio_low": 0.88, "ratio_high": 0.95, "mean_ratio": 0.93, "p99_ratio": 0.97,
        "best_heuristic": "saf", "reasons": [],
    },
    "plans": 5120, "fallbacks": {"not-a-number": 0, "unusual": 3, "late": 0}, "starved": 1,
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "0.6.0", "pid": 812, "since": AT, "data_dir": "/var/lib/gpuyard", "socket": "/run/gpuyard/gpuyard.sock",
    "url": "http://127.0.0.1:62333", "warnings": [], "simulated": False, "gpus": {"free": 3, "ours": 1},
    "policy": "learned:/srv/policies/week.json@easy@pack", "learned": _LEARNED, "admission": "requests",
    "jobs": {"running": 1, "queued": 7, "succeeded": 950},
    "plan": {"last_ms": 0.4, "mean_ms": 0.3, "max_ms": 2.1}, "store": {"state": "ok", "problem": None},
    "page": {"url": "http://127.0.0.1:62333/", "pid": 813, "starts": 1, "state": "running"},
    "threads": [{"name": name, "state": "ok", "problem": None} for name in ("loop", "retention")],
}  # fmt: skip
_ALIVE = ok("It is.", replies.Probed, {"status": "ok"})
_SCRAPE = (
    "# HELP gpuyard_streams Streams of events and of logs now.\n# TYPE gpuyard_streams gauge\ngpuyard_streams 2.0\n"
)
_METRICS = ok(
    "All metrics.", None, None, also={"text/plain": _SCRAPE, "application/openmetrics-text": f"{_SCRAPE}# EOF\n"}
)


class HealthRoutes:
    """Probes and metrics, outside the API's prefix; status and shutdown of the daemon."""

    def __init__(
        self,
        context: Context,
        hub: EventHub,
        page: PageSupervisor,
        url: Callable[[], str],
        shutdown: Callable[[], None],
    ) -> None:
        self._context, self._hub, self._page, self._url, self._shutdown = context, hub, page, url, shutdown
        self._since = time.time()

    @Route("GET /healthz", "isAlive", "Does the daemon live?", "Daemon", _ALIVE, (503,), public=True, root="")
    async def healthz(self) -> Response:
        """Whether the daemon lives: if not, start it again."""
        late = time.monotonic() - self._context.daemon.due_back
        if late > _SLOW:
            return problem(503, f"the daemon plans nothing: its thread is {late:.0f} seconds late; start it again")
        return reply({"status": "ok"})

    @Route("GET /readyz", "isReady", "Can the daemon do its work?", "Daemon", _ALIVE, (503,), public=True, root="")
    async def readyz(self) -> Response:
        """Whether the daemon can do its work: if not, somebody has to look."""
        daemon = self._context.daemon
        if self._context.watch.over:
            return problem(503, "the daemon is about to end; ask the next one")
        if daemon.failing:
            return problem(503, "the store cannot be written; gpuyard status tells why")
        if all(verdict.state == "unknown" for verdict in daemon.machine.verdicts):
            return problem(503, "no GPU can be read; gpuyard gpus tells why")
        return reply({"status": "ok"})

    @Route("GET /metrics", "getMetrics", "Numbers for Prometheus", "Daemon", _METRICS, root="")
    async def metrics(self, request: Request) -> Response:
        """The daemon's numbers, for Prometheus."""
        accepted = request.headers.get("accept", "")
        encode, kind = _OPENMETRICS_FORMAT if "application/openmetrics-text" in accepted else _PLAIN_FORMAT
        return Response(await asyncio.to_thread(encode, self._registry), media_type=kind)

    @cached_property
    def _registry(self) -> CollectorRegistry:
        streams = self._context.streams
        return registry_of(self._context.daemon, self._since, lambda: StreamCounts(len(self._hub), len(streams)))

    @Route("GET /status", "getStatus", "How the daemon does", "Daemon", ok("How it does.", replies.Status, STATUS))
    async def status(self) -> Response:
        """How the daemon does."""
        context, daemon, settings = self._context, self._context.daemon, self._context.settings
        url, facts = self._url(), await context.look(context.commands.facts)
        try:
            counts = await asyncio.to_thread(lambda: context.reader.counts())
        except sqlite3.Error as error:  # of jobs that are over nothing can be told
            counts = dict(Counter(view.state for view in list(daemon.store.open.values())))
            await context.damage_behind(error)
        failing = daemon.damage or daemon.failing
        gpus = dict(Counter(gpu["state"] for gpu in listed_gpus(daemon)))
        return reply(
            {
                "version": __version__, "pid": os.getpid(), "since": iso(self._since),
                "data_dir": str(settings.data_dir), "socket": str(settings.socket),
                "url": url or None, "warnings": facts["warnings"] + exposure_warnings(settings, url),
                "simulated": daemon.machine.gpus.simulated, "gpus": gpus, "policy": daemon.planner.text,
                "learned": facts["learned"], "admission": settings.admission,
                "jobs": counts, "plan": facts["plan"],
                "store": {"state": "failing" if failing else "ok", "problem": failing or None},
                "page": self._page.facts(), "threads": threads_json(daemon),
            }
        )  # fmt: skip

    @Route(
        "POST /shutdown", "shutDown", "End the daemon", "Daemon",
        {202: Answer("It ends.", replies.Ending, {"running": 2})}, may=admin("end the daemon"),
    )  # fmt: skip
    async def shutdown(self) -> Response:
        """End the daemon. Jobs go on running, and the next daemon finds them."""
        self._shutdown()
        running = sum(view.state == "running" for view in list(self._context.daemon.store.open.values()))
        return reply({"running": running}, 202)
