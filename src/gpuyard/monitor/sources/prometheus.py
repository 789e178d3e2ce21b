"""Prometheus as a source: series of dcgm-exporter or of gpuyard, as they were scraped."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuyard.errors import UserError
from gpuyard.monitor.sources import checked_metrics
from gpuyard.monitor.sources.prometheus_client import PATIENCE, TIMEOUT, Prometheus, TooMuch, Unanswered, shown
from gpuyard.monitor.sources.prometheus_queries import (
    POINTS,
    TOTAL,
    Name,
    Outage,
    Query,
    Samples,
    Spans,
    Whose,
    between,
    fetch_all,
    names_for,
    outage_texts,
    outage_times,
    subjects,
)
from gpuyard.monitor.tracks import Column, gap_texts, usual_period
from gpuyard.recordings.series import Mark, Recording, Series, Subject
from gpuyard.recordings.throttling import errors

URL = "http://localhost:9090"
_USUAL = 15.0  # seconds from scrape to scrape, where nothing tells
_SHORT = 600.0  # seconds of which every sample is asked for at once
_SPANS = 3000  # about as many, where every sample would be too much
_MOST_SAMPLES = 2_000_000
_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_OF_JOBS = ("gpuyard_job_gpu_memory_bytes", "gpuyard_gpu_utilization_ratio")
"""What tells which GPUs a job had, and what these are."""


@dataclass(frozen=True, slots=True)
class _Request:
    metrics: list[str]
    start: float
    end: float
    gpus: Sequence[str]
    job: str
    step: float | None


class PrometheusSource:
    def __init__(
        self,
        url: str = "",
        *,
        token: str | None = None,
        patience: float | None = None,
        timeout: float = TIMEOUT,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """By default from GPUYARD_PROMETHEUS_URL, _TOKEN and _PATIENCE, or the one on this machine."""
        self._url = url or os.environ.get("GPUYARD_PROMETHEUS_URL") or URL
        self._token = os.environ.get("GPUYARD_PROMETHEUS_TOKEN", "") if token is None else token
        self._patience = _patience() if patience is None else patience
        self._timeout, self._sleep = timeout, sleep

    @property
    def name(self) -> str:
        return f"Prometheus at {shown(self._url)}"

    def read(
        self, metrics: Sequence[str], start: float, end: float,
        *, gpus: Sequence[str] = (), job: str = "", step: float | None = None,
    ) -> Recording:  # fmt: skip
        """What was scraped in a span of time: every sample, or spans of `step` if that is much coarser."""
        if not start < end:
            raise UserError("a span of time has to end after it begins")
        request = _Request(checked_metrics(metrics), start, end, gpus, job, step)
        with Prometheus(
            self._url, self._token, patience=self._patience, timeout=self._timeout, sleep=self._sleep
        ) as server:
            server.name = self.name
            try:
                return _Reading(server, request).recording()
            except Unanswered as error:
                return Recording(start, end, warnings=[f"{error}: nothing is known from it"])
            except TooMuch as error:
                raise UserError(f"{self.name} will not tell that much: {error}; ask for less time") from error


class _Reading:
    def __init__(self, server: Prometheus, request: _Request) -> None:
        self._server, self._request = server, request
        self._warnings: list[str] = []

    def recording(self) -> Recording:
        request = self._request
        known = self._known()
        chosen = self._chosen(known)
        if not chosen:
            return Recording(request.start, request.end, warnings=[*self._server.warnings, *self._warnings])
        query = self._query(chosen)
        asked = {name.metric for name, _ in chosen}
        lost = [one for one in _followed(fetch_all(query, self._server), asked) if one.metric in request.metrics]
        self._warnings += outage_texts(lost, asked.intersection(request.metrics), request.start, request.end)
        series = self._series(query, _described(chosen, known))
        of_gpus = [one for one in series if not one.subject.job and one.metric != "xid"]  # which come and go
        unknown = outage_times(lost)
        gaps = gap_texts(of_gpus, request.start, min(request.end, time.time()), unknown)
        self._missing(series, unknown)
        return Recording(
            request.start, request.end, series, _marks(series),
            [*self._server.warnings, *self._warnings, *gaps],
            simulated=bool(series) and all(one.subject.uuid.startswith("SIMULATED-") for one in series),
        )  # fmt: skip

    def _known(self) -> list[tuple[Name, Whose]]:
        names = [one.name for one in names_for(self._request.metrics)]
        if self._request.job or "process_memory" in self._request.metrics:
            names += [name for name in _OF_JOBS if name not in names]
        match = "{__name__=~" + f'"{"|".join(names)}"' + "}"
        span = {"start": f"{self._request.start:.3f}", "end": f"{self._request.end:.3f}"}
        found = subjects(self._server.ask("series", {"match[]": match, **span}))
        if not found:
            self._warnings.append(
                f"{self._server.name} knows no GPU {between(self._request.start, self._request.end)}; "
                "is dcgm-exporter, or gpuyard's /metrics, among its targets?"
            )
        return found

    def _chosen(self, known: list[tuple[Name, Whose]]) -> list[tuple[Name, Whose]]:
        request = self._request
        if known and request.job:
            known = self._of_job(known)
        hosts = {one.host for _, one in known}
        for text in request.gpus:
            if known and not any(_is(one, text, hosts) for _, one in known):
                self._warnings.append(f"{self._server.name} knows no GPU '{text}'")
        wanted = {name.metric for name in names_for(request.metrics)}
        meant = {
            one.place for _, one in known if not request.gpus or any(_is(one, text, hosts) for text in request.gpus)
        }
        keys = {one.key for _, one in known if not one.job and one.place in meant}
        return [
            (name, one) for name, one in known
            if name.metric in wanted and (one.key in keys or (one.job and one.place in meant))
        ]  # fmt: skip

    def _of_job(self, known: list[tuple[Name, Whose]]) -> list[tuple[Name, Whose]]:
        job = self._request.job
        places = {one.place for _, one in known if one.job == job}
        keys = {one.key for _, one in known if not one.job and (one.hpc_job == job or one.place in places)}
        if not keys and not places:
            if not self._request.gpus:
                self._warnings.append(
                    f'{self._server.name} knows nothing of job {job}: no series has hpc_job="{job}" (the setting '
                    f"dcgm_job_mapping sees to that) and gpuyard's /metrics is not scraped; or say which GPUs it had"
                )
                return []
            return [(name, one) for name, one in known if not one.job]
        return [(name, one) for name, one in known if one.job == job or one.key in keys]

    def _query(self, chosen: list[tuple[Name, Whose]]) -> Query:
        """Every sample, unless that is too much or not wanted."""
        request, names = self._request, sorted({name for name, _ in chosen})
        matchers = _matchers([one for _, one in chosen])
        length, count = request.end - request.start, len(chosen)
        if request.step is None and length <= _SHORT:
            return Samples(names, matchers, count, request.start, request.end, 1.0)
        finest, slowest = self._periods(names[0].name if len(names) == 1 else "|".join(n.name for n in names), matchers)
        points = length / finest
        if request.step is None and points <= POINTS and points * count <= _MOST_SAMPLES:
            return Samples(names, matchers, count, request.start, request.end, finest)
        if request.step is not None and request.step < 2 * finest:
            return Samples(names, matchers, count, request.start, request.end, finest)
        step = request.step if request.step is not None else _nice(length / _SPANS)
        return Spans(names, matchers, count, request.start, request.end, _whole(max(step, 2 * slowest)))

    def _periods(self, names: str, matchers: str) -> tuple[float, float]:
        """Seconds from scrape to scrape, of the series with most samples and of the one with fewest."""
        selector = "{__name__=~" + f'"{names}"{matchers}' + "}"
        until = min(self._request.end, time.time())
        length = max(0.0, until - self._request.start)
        for width in (120, 1200):
            for share in (1.0, 0.5, 0.25, 0.75, 0.0):
                at = self._request.start + max(share * length, min(length, width))
                found = self._server.ask("query", {"query": f"{selector}[{width}s]", "time": f"{at:.3f}"})["result"]
                periods = [usual_period(np.array([pair[0] for pair in one["values"]]), math.nan) for one in found]
                if known := [period for period in periods if period > 0]:
                    return max(0.05, min(known)), max(0.05, *known)
        return _USUAL, _USUAL

    def _series(self, query: Query, who: dict[str, Subject]) -> list[Series]:
        """The series, GPU by GPU; free memory is computed where only total and used are exported."""
        found = query.columns()
        for key in who:
            free, parts = (key, "memory_free"), ((key, TOTAL), (key, "memory_used"))
            if free not in found and all(part in found for part in parts):
                (total, _, _), (used, period, names) = (found[part] for part in parts)
                found[free] = _left(total, used), period, names
        series = []
        for key, subject in who.items():
            for metric in self._request.metrics:
                if (key, metric) in found and not np.isnan(found[key, metric][0].mean).all():
                    column, period, names = found[key, metric]
                    series.append(Series(subject, metric, *column, period=period))
                    self._say_names(subject, metric, names)
        return series

    def _say_names(self, subject: Subject, metric: str, names: list[Name]) -> None:
        if len(names) > 1 and metric != "memory_free":
            self._warnings.append(
                f"{metric} of GPU {subject.gpu} is {names[0].name}, and where that has gaps "
                f"{' or '.join(name.name for name in names[1:])}"
            )

    def _missing(self, series: list[Series], unknown: Container[str]) -> None:
        """Warn of metrics that are not exported; unanswered ones are not among them."""
        there = {one.metric for one in series}
        missing = [metric for metric in self._request.metrics if metric not in there and metric not in unknown]
        if missing:
            names = [one.name for one in names_for(missing) if one.metric in missing]
            tried = f" ({', '.join(names)})" if names and len(missing) == 1 else ""
            self._warnings.append(f"{self._server.name} has no {', '.join(missing)} of them{tried}")


def _patience() -> float:
    text = os.environ.get("GPUYARD_PROMETHEUS_PATIENCE")
    try:
        found = PATIENCE if text is None else float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise UserError(f"GPUYARD_PROMETHEUS_PATIENCE is '{text}'; it has to be a number of seconds")
    return found


def _is(one: Whose, text: str, hosts: Container[str]) -> bool:
    """Whether `0`, `host:0`, a UUID or its beginning means this GPU; an address counts if no host has it."""
    if text == str(one.gpu) or (len(text) > 5 and one.uuid.startswith(text)):
        return True
    host, _, index = text.rpartition(":")
    called = (one.host,) if host in hosts else (one.instance, re.sub(r":\d+$", "", one.instance))
    return index == str(one.gpu) and host in called


def _followed(lost: Sequence[Outage], asked: Container[str]) -> Iterator[Outage]:
    for one in lost:
        yield one
        if one.metric in (TOTAL, "memory_used") and "memory_free" not in asked:
            yield one._replace(metric="memory_free")


def _matchers(found: Sequence[Whose]) -> str:
    """Label matchers, so that Prometheus searches no more than it must."""
    gpus = sorted({one.gpu for one in found})
    instances = sorted({one.instance for one in found})
    texts = [f'gpu=~"{"|".join(map(str, gpus))}"'] if len(gpus) <= 64 else []
    if all(instances) and len(instances) <= 16:
        texts.append(f'instance=~"{"|".join(map(_quoted, instances))}"')
    return "".join(f",{text}" for text in texts)


def _quoted(text: str) -> str:
    return re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\\\1", text).replace('"', '\\"')


def _described(chosen: Sequence[tuple[Name, Whose]], known: Sequence[tuple[Name, Whose]]) -> dict[str, Subject]:
    """The subject of each key, in order; hosts only if there are several."""
    found: dict[str, Whose] = {}
    for _, one in sorted(chosen, key=lambda pair: pair[0].rank):
        other = found.get(one.key)
        if other is None or (not other.name and one.name):
            found[one.key] = one
    gpus = {one.place: one for _, one in known if not one.job}
    machines = {one.host for one in found.values() if not one.job} or {one.host for one in found.values()}
    subjects = {}
    for key, one in sorted(found.items(), key=lambda pair: (pair[1].host, pair[1].gpu, pair[1].uuid, pair[1].job)):
        gpu = gpus.get(one.place, one) if one.job else one
        subjects[key] = Subject(one.gpu, gpu.uuid, gpu.name, one.job, gpu.host if len(machines) > 1 else "")
    return subjects


def _left(total: Column, used: Column) -> Column:
    if not len(total.at):
        return Column(used.at, np.full(len(used.at), np.nan), None, None)
    place = np.maximum(np.searchsorted(total.at, used.at, side="right") - 1, 0)
    size = total.mean[place]
    if used.low is None or used.high is None:
        return Column(used.at, size - used.mean, None, None)
    return Column(used.at, size - used.mean, size - used.high, size - used.low)


def _marks(series: Sequence[Series]) -> list[Mark]:
    return [
        Mark(at, f"XID {number}", subject=one.subject)
        for one in series if one.metric == "xid" for at, number in errors(one)
    ]  # fmt: skip


def _nice(step: float) -> float:
    return float(next((one for one in _STEPS if one >= step), 86_400 * math.ceil(step / 86_400)))


def _whole(step: float) -> float:
    """A step in whole milliseconds, and in whole seconds from one on."""
    return float(math.ceil(step - 1e-6)) if step >= 1 else math.ceil(step * 1000 - 1e-6) / 1000
