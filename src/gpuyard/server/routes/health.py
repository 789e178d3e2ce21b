"""Health checks and Prometheus metrics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import FastAPI, Request, Response
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
from gpuyard.daemon.loop import Yard
from gpuyard.daemon.meters import Histogram, Meters
from gpuyard.daemon.store.views import JobView
from gpuyard.policies.deployment import guard_of
from gpuyard.policies.guard import Counts
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.problems import problem
from gpuyard.server.responses import reply
from gpuyard.server.routes.gpus import gpus_json

if TYPE_CHECKING:
    from gpuyard.server.api import Api


_OPEN = ("queued", "held", "running")
_OUTCOMES = ("succeeded", "failed", "cancelled", "timeout", "oom", "interrupted")
_STATES = ("free", "ours", "foreign", "unknown", "drained")
_OLD = 30.0  # seconds after which a reading tells nothing any more


class StreamCounts(NamedTuple):
    """How many follow events, and how many streams there are in all, logs included."""

    events: int
    streams: int


class MetricsCollector(Collector):
    """Turns what the yard knows into metrics, when somebody asks."""

    def __init__(self, yard: Yard, since: float, followers: Any) -> None:
        self._yard, self._since, self._followers = yard, since, followers

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now."""
        views = list(self._yard.store.open.values())
        yield from _daemon(self._since, self._yard)
        yield from _queue(views)
        yield from _work(self._yard.meters)
        yield from _learned(self._yard)
        followers: StreamCounts = self._followers()
        yield GaugeMetricFamily("gpuyard_event_followers", "Clients that follow events now.", followers.events)
        yield GaugeMetricFamily("gpuyard_streams", "Streams of events and of logs now.", followers.streams)
        yield from _gpus(self._yard, views)
        yield from _more_of_gpus(self._yard)
        yield _uses(self._yard, views)
        yield _energy(self._yard, views)


def registry_of(yard: Yard, since: float, followers: Any) -> CollectorRegistry:
    """What a scrape shows: the yard, and the daemon's process."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(yard, since, followers))
    ProcessCollector(registry=registry)
    return registry


def _daemon(since: float, yard: Yard) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "gpuyard_build", "The daemon's version, and the policy in force.",
        {"version": __version__, "policy": yard.planner.text},
    )  # fmt: skip
    yield GaugeMetricFamily("gpuyard_start_time_seconds", "When the daemon began, since the epoch.", since)
    yield GaugeMetricFamily("gpuyard_store_writable", "Whether events can be written.", float(not yard.failing))


def _queue(views: list[JobView]) -> Iterator[Metric]:
    states = Counter(view.state for view in views)
    jobs = GaugeMetricFamily("gpuyard_jobs", "Jobs and leases that are not over, by state.", labels=["state"])
    for state in _OPEN:
        jobs.add_metric([state], states[state])
    yield jobs
    wanted = sum(view.work["gpu_count"] for view in views if view.state == "queued")
    yield GaugeMetricFamily("gpuyard_queue_gpus_wanted", "GPUs that queued jobs ask for, in all.", wanted)


def _work(meters: Meters) -> Iterator[Metric]:
    yield CounterMetricFamily("gpuyard_jobs_submitted", "Jobs that came in since the daemon began.", meters.submitted)
    finished = CounterMetricFamily("gpuyard_jobs_finished", "Jobs that ended, by outcome.", labels=["outcome"])
    for outcome in _OUTCOMES:
        finished.add_metric([outcome], meters.finished[outcome])
    yield finished
    yield _histogram("gpuyard_job_wait_seconds", "From when a job began to wait, or to wait again, to its start.",
                     [({}, meters.waits)])  # fmt: skip
    runs = [({"outcome": outcome}, histogram) for outcome, histogram in list(meters.runs.items())]
    yield _histogram("gpuyard_job_run_seconds", "From the start of a job's last attempt to its end.", runs, "outcome")
    yield _histogram("gpuyard_plan_seconds", "How long it takes to decide who starts.", [({}, meters.plans)])
    yield CounterMetricFamily("gpuyard_plans", "Plans that were made.", meters.plans.cumulative()[-1])
    yield CounterMetricFamily("gpuyard_plan_cpu_seconds", "CPU time that planning took.", meters.plan_cpu)
    yield _histogram("gpuyard_commit_seconds", "How long it takes to write events to disk.", [({}, meters.commits)])
    events = CounterMetricFamily("gpuyard_events", "Events since the daemon began, by kind.", labels=["kind"])
    for kind, count in sorted(meters.events.copy().items()):
        events.add_metric([kind], count)
    yield events


def _learned(yard: Yard) -> Iterator[Metric]:
    counts = Counts()
    counts.add(yard.meters.learned)
    if (guard := guard_of(yard.planner)) is not None:
        counts.add(guard.counts)
    text = "How often trained policies were asked to rank the queue."
    yield CounterMetricFamily("gpuyard_learned_plans", text, counts.plans)
    text = "How often the base heuristic ranked it instead, by why."
    fallbacks = CounterMetricFamily("gpuyard_learned_fallbacks", text, labels=["kind"])
    for kind, count in counts.fallbacks.items():
        fallbacks.add_metric([kind], count)
    yield fallbacks
    text = "Jobs that trained policies put ahead for having waited too long."
    yield CounterMetricFamily("gpuyard_learned_starved", text, counts.starved)


def _histogram(name: str, text: str, values: Iterable[tuple[dict[str, str], Histogram]], *labels: str) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for given, histogram in values:
        bounds = [*map(repr, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
        family.add_metric([given[label] for label in labels], buckets, histogram.total)
    return family


_READINGS = {
    "gpuyard_gpu_utilization_ratio": ("utilization", 0.01, "Share of the last sample period that a GPU was busy."),
    "gpuyard_gpu_memory_used_bytes": ("memory_used", 1.0, "Memory of a GPU that is in use."),
    "gpuyard_gpu_memory_total_bytes": ("memory_total", 1.0, "Memory of a GPU."),
    "gpuyard_gpu_power_watts": ("power", 1.0, "Power that a GPU draws."),
    "gpuyard_gpu_temperature_celsius": ("temperature", 1.0, "Temperature of a GPU."),
}


def _gpus(yard: Yard, views: list[JobView]) -> Iterator[Metric]:
    found = gpus_json(yard.machine, views, yard.state)
    old = yard.machine.age() > _OLD
    answering = [gpu for gpu in found if gpu["state"] != "unknown" and not old]
    labels = ["uuid", "gpu", "name"]
    for name, (field, factor, text) in _READINGS.items():
        family = GaugeMetricFamily(name, text, labels=labels)
        for gpu in answering:
            if gpu[field] is not None and (field != "memory_total" or gpu[field]):
                family.add_metric(_labels(gpu), gpu[field] * factor)
        yield family
    info = GaugeMetricFamily("gpuyard_gpu_info", "What a GPU is.", labels=[*labels, "simulated"])
    jobs = GaugeMetricFamily("gpuyard_gpu_jobs", "Jobs on a GPU.", labels=labels)
    for gpu in answering:
        info.add_metric([*_labels(gpu), str(gpu["simulated"]).lower()], 1.0)
        jobs.add_metric(_labels(gpu), len(gpu["jobs"]))
    yield from (info, jobs)
    states = GaugeMetricFamily("gpuyard_gpu_state", "Whether a GPU is in a state.", labels=[*labels, "state"])
    for gpu in found:
        now = "unknown" if old else gpu["state"]
        for state in _STATES:
            states.add_metric([*_labels(gpu), state], float(state == now))
    yield states


_EXTRAS = {
    "gpuyard_gpu_memory_copy_ratio": (
        "memcopy", 0.01, "Share of the last sample period in which a GPU's memory was read or written."
    ),
    "gpuyard_gpu_sm_clock_hertz": ("sm_clock", 1e6, "Clock of a GPU's processors."),
    "gpuyard_gpu_memory_clock_hertz": ("memory_clock", 1e6, "Clock of a GPU's memory."),
    "gpuyard_gpu_throttle_reasons": ("throttle", 1.0, "What slows a GPU down, as NVML's bits; 0: nothing."),
}  # fmt: skip


def _more_of_gpus(yard: Yard) -> Iterator[Metric]:
    """What else is recorded of GPUs; of simulated ones it is the model's, and `gpuyard_gpu_info` says which are."""
    looks = [] if yard.machine.age() > _OLD else list(yard.machine.readings())
    answering = [look for look in looks if not look.reading.lost]
    for name, (field, factor, text) in _EXTRAS.items():
        family = GaugeMetricFamily(name, text, labels=["uuid", "gpu", "name"])
        for device, reading, _, _ in answering:
            if (value := getattr(reading, field)) is not None:
                family.add_metric([device.uuid, str(device.index), device.name], value * factor)
        yield family
    errors = CounterMetricFamily(
        "gpuyard_gpu_xid_errors", "Errors that the driver told of, by number.", labels=["uuid", "gpu", "name", "xid"]
    )
    devices = yard.machine.gpus.devices
    for (gpu, xid), count in sorted(yard.machine.xids.copy().items()):
        errors.add_metric([devices[gpu].uuid, str(gpu), devices[gpu].name, str(xid)], count)
    yield errors


def _energy(yard: Yard, views: list[JobView]) -> Metric:
    family = CounterMetricFamily(
        "gpuyard_job_energy_joules", "Energy that GPUs drew for a running job, this attempt.", labels=["job"]
    )
    for view in () if yard.machine.gpus.simulated else views:  # its labels could not say that a model made it up
        measure = yard.measures.of(view.id) if view.state == "running" else None
        if measure is not None and measure.energy_wh is not None:
            family.add_metric([view.id], measure.energy_wh * 3600)
    return family


def _uses(yard: Yard, views: list[JobView]) -> Metric:
    family = GaugeMetricFamily(
        "gpuyard_job_gpu_memory_bytes", "Memory of a GPU that a running job uses, as measured.", labels=["job", "gpu"]
    )
    for view in views:
        measure = yard.measures.of(view.id) if view.state == "running" else None
        for gpu, size in measure.current.items() if measure else ():
            family.add_metric([view.id, str(gpu)], size)
    return family


def _labels(gpu: dict[str, Any]) -> list[str]:
    return [gpu["uuid"], str(gpu["index"]), gpu["name"]]


Encoder = tuple[Callable[[Any], bytes], str]
_PLAIN_FORMAT: Encoder = exposition.generate_latest, "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS_FORMAT: Encoder = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
_SLOW = 30.0  # seconds by which the yard's thread may be late: a large array takes some


class HealthRoutes:
    """The routes outside the API's own prefix; the first two tell nothing, and ask for no name."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, app: FastAPI) -> None:
        """Make the routes known."""
        everybody = {"x-may": Permission.EVERYBODY.value}
        for path, handler in (("/healthz", self.healthz), ("/readyz", self.readyz), ("/metrics", self.metrics)):
            app.add_api_route(path, handler, methods=["GET"], openapi_extra=everybody)

    async def healthz(self) -> Response:
        """Whether the daemon lives: if not, start it again."""
        late = time.monotonic() - self._api.yard.due_back
        if late > _SLOW:
            return problem(503, f"the daemon plans nothing: its thread is {late:.0f} seconds late; start it again")
        return reply({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether the daemon can do its work: if not, somebody has to look."""
        api = self._api
        if api.watch.over:
            return problem(503, "the daemon is about to end; ask the next one")
        if api.yard.failing:
            return problem(503, "the store cannot be written; gpuyard status tells why")
        if all(verdict.state == "unknown" for verdict in api.yard.machine.verdicts):
            return problem(503, "no GPU can be read; gpuyard gpus tells why")
        return reply({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """The daemon's numbers, for Prometheus."""
        accepted = request.headers.get("accept", "")
        encode, kind = _OPENMETRICS_FORMAT if "application/openmetrics-text" in accepted else _PLAIN_FORMAT
        return Response(await asyncio.to_thread(encode, self._registry), media_type=kind)

    @cached_property
    def _registry(self) -> CollectorRegistry:
        api = self._api
        return registry_of(api.yard, api.since, lambda: StreamCounts(len(api.hub), len(api.streams)))
