"""Series of GPUs in Prometheus: names and units by exporter, the queries that read them piece by piece, and outages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuyard.monitor.sources.prometheus_client import Prometheus, TooMuch, Unanswered
from gpuyard.monitor.tracks import (
    Column,
    Gap,
    beside,
    broken,
    filled,
    highest,
    in_order,
    increments,
    joined,
    single,
    usual_period,
)
from gpuyard.recordings.series import Floats
from gpuyard.spec.times import format_when

Labels = Mapping[str, str]
MIB = float(2**20)
_NEW, _OLD, _OWN = 0, 1, 2


class Name(NamedTuple):
    name: str
    metric: str
    factor: float = 1.0  # what a value is multiplied by to be in our unit
    rank: int = _NEW  # 0 is asked first: `DCGM_FI_DEV_*`, then `dcgm_*`, then gpuyard's own


TOTAL = "memory_total"  # no metric of a recording: gpuyard exports it in place of what is free
NAMES = (
    Name("DCGM_FI_DEV_GPU_UTIL", "utilization"),
    Name("DCGM_FI_DEV_MEM_COPY_UTIL", "memcopy"),
    Name("DCGM_FI_DEV_POWER_USAGE", "power"),
    Name("DCGM_FI_DEV_GPU_TEMP", "temperature"),
    Name("DCGM_FI_DEV_FB_USED", "memory_used", MIB),
    Name("DCGM_FI_DEV_FB_FREE", "memory_free", MIB),
    Name("DCGM_FI_DEV_SM_CLOCK", "sm_clock"),
    Name("DCGM_FI_DEV_MEM_CLOCK", "memory_clock"),
    Name("DCGM_FI_DEV_XID_ERRORS", "xid"),
    Name("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "throttle"),
    Name("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "throttle", rank=_OLD),
    Name("dcgm_gpu_utilization", "utilization", rank=_OLD),
    Name("dcgm_mem_copy_utilization", "memcopy", rank=_OLD),
    Name("dcgm_power_usage", "power", rank=_OLD),
    Name("dcgm_gpu_temp", "temperature", rank=_OLD),
    Name("dcgm_fb_used", "memory_used", MIB, _OLD),
    Name("dcgm_fb_free", "memory_free", MIB, _OLD),
    Name("dcgm_sm_clock", "sm_clock", rank=_OLD),
    Name("dcgm_memory_clock", "memory_clock", rank=_OLD),
    Name("dcgm_xid_errors", "xid", rank=_OLD),
    Name("gpuyard_gpu_utilization_ratio", "utilization", 100.0, _OWN),
    Name("gpuyard_gpu_memory_copy_ratio", "memcopy", 100.0, _OWN),
    Name("gpuyard_gpu_power_watts", "power", rank=_OWN),
    Name("gpuyard_gpu_temperature_celsius", "temperature", rank=_OWN),
    Name("gpuyard_gpu_memory_used_bytes", "memory_used", rank=_OWN),
    Name("gpuyard_gpu_memory_total_bytes", TOTAL, rank=_OWN),
    Name("gpuyard_gpu_sm_clock_hertz", "sm_clock", 1e-6, _OWN),
    Name("gpuyard_gpu_memory_clock_hertz", "memory_clock", 1e-6, _OWN),
    Name("gpuyard_gpu_throttle_reasons", "throttle", rank=_OWN),
    Name("gpuyard_gpu_xid_errors_total", "xid", rank=_OWN),
    Name("gpuyard_job_gpu_memory_bytes", "process_memory", rank=_OWN),
)
BY_NAME = {one.name: one for one in NAMES}
COUNTED = "gpuyard_gpu_xid_errors_total"
"""Counts errors, each number of them by itself, where DCGM tells the number of the latest."""
LEVELS = frozenset(("throttle", "xid"))  # metrics without a mean: a span has its maximum
_BLANKS = ((0x7FFFFFF0, 0x7FFFFFF3), (2.0**47, 2.0**47 + 3), (float(0x7FFFFFFFFFFFFFF0), np.inf))
"""Numbers by which DCGM says that it does not know: of 32 bits, of 64 bits, and with a point."""


def names_for(metrics: Sequence[str]) -> list[Name]:
    wanted = set(metrics)
    if "memory_free" in wanted:
        wanted |= {TOTAL, "memory_used"}
    return [one for one in NAMES if one.metric in wanted]


def numbers(texts: Sequence[str], name: Name) -> Floats:
    """Values as Prometheus writes them, in our unit; NaN: no number, or not known to DCGM."""
    values = np.array([float(text) for text in texts], dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    if name.rank != _OWN:
        for least, most in _BLANKS:
            values[(values >= least) & (values <= most)] = np.nan
    return values * name.factor


class Whose(NamedTuple):
    key: str  # the same for all series of one GPU, of any exporter and any pod
    gpu: int
    uuid: str
    name: str
    host: str
    instance: str
    job: str  # of a series about one job; empty for those about a GPU
    hpc_job: str  # the job for whom the GPU works, by what dcgm-exporter was told

    @property
    def place(self) -> tuple[str, str, int]:
        """Which GPU of which machine, by which exporter: one may export several machines."""
        return self.host, self.instance, self.gpu


def whose(labels: Labels) -> Whose | None:
    """The subject of labels; None if they name no GPU."""
    index = re.search(r"\d+$", labels.get("gpu") or labels.get("device") or labels.get("minor_number") or "")
    if index is None:
        return None
    instance = labels.get("instance", "")
    host = _first(labels, "Hostname", "hostname", "node", "kubernetes_node") or re.sub(r":\d+$", "", instance)
    uuid, name = _first(labels, "UUID", "uuid"), _first(labels, "modelName", "name")
    if labels.get("GPU_I_ID"):  # a MIG device, which counts as a GPU of its own
        uuid = f"{uuid}/{labels['GPU_I_ID']}"
        name = f"{name} MIG {labels.get('GPU_I_PROFILE', '')}".strip()
    job = ""
    if labels.get("__name__", "").startswith("gpuyard_job_"):
        job = _first(labels, "exported_job", "job")  # Prometheus renames what it has a label of its own for
    unique = uuid and not uuid.startswith("SIMULATED-")
    key = uuid if unique else f"{instance or host} {index[0]} {uuid}".strip()
    return Whose(f"{key} {job}".strip(), int(index[0]), uuid, name, host, instance, job, labels.get("hpc_job", ""))


def _first(labels: Labels, *names: str) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


class Outage(NamedTuple):
    """A query for a metric without an answer."""

    start: float
    end: float
    why: str
    metric: str
    peaks: bool = False  # whether only the least or the most of each span is not known, while the mean is


def outage_times(lost: Iterable[Outage]) -> dict[str, list[Gap]]:
    found: dict[str, list[Gap]] = {}
    for one in lost:
        if not one.peaks:
            found.setdefault(one.metric, []).append(Gap(one.start, one.end))
    return {metric: _merged(times) for metric, times in found.items()}


def outage_texts(lost: Sequence[Outage], asked: Iterable[str], start: float, end: float) -> Iterator[str]:
    """What is not known of the requested metrics between two instants, and why."""
    everything = set(asked)
    for peaks in (False, True):
        groups: dict[tuple[Gap, ...], set[str]] = {}
        some = [one for one in lost if one.peaks == peaks]
        for metric, times in outage_times(one._replace(peaks=False) for one in some).items():
            groups.setdefault(tuple(times), set()).add(metric)
        for spans, metrics in groups.items():
            about = "" if metrics >= everything else f" of {', '.join(sorted(metrics))}"
            what = f"the least and the most{about} are not known" if peaks else f"nothing is known{about}"
            for span in spans:
                why = next(one.why for one in some if one.metric in metrics and one.start == span.start)
                yield f"{why}: {what} {between(max(span.start, start), min(span.end, end))}"


def between(start: float, end: float) -> str:
    """`from 14:00 to 15:00`."""
    return f"from {format_when(start, end)} to {format_when(end, end)}"


def _merged(times: Iterable[Gap]) -> list[Gap]:
    found: list[Gap] = []
    for time in sorted(times):
        if found and time.start <= found[-1].end:
            found[-1] = Gap(found[-1].start, max(found[-1].end, time.end))
        else:
            found.append(time)
    return found


POINTS = 11_000  # values of one series that Prometheus tells at once, at most
_VALUES = 300_000  # of all series at once, so that an answer is some megabytes
_LOST = 2.5  # periods without a sample that are a gap
_APART = 0.75  # periods from any sample of a newer name, from which on one of an older name is needed
_FEW = 3  # samples of an older name that are worth a word
Key = tuple[str, str]  # A GPU, or a job on it, and a metric
Found = dict[Key, dict[Name, list[Column]]]


class Query(Protocol):
    period: float

    def pieces(self) -> Iterator[tuple[float, float]]:
        """Times to query, one after the other."""

    def fetch(self, server: Prometheus, start: float, end: float) -> list[Outage]:
        """Query one of them; returns what had no answer."""

    def columns(self) -> dict[Key, tuple[Column, float, list[Name]]]:
        """The values, with their period and the names that they are from."""


class Samples:
    def __init__(
        self, names: Sequence[Name], matchers: str, series: int, start: float, end: float, period: float
    ) -> None:
        self._metrics = sorted({name.metric for name in names})
        self._selector = "{__name__=~" + f'"{"|".join(name.name for name in names)}"{matchers}' + "}"
        self._start, self._end, self.period = start, end, period
        self._width = max(60.0, period * min(POINTS, _VALUES // max(1, series)))
        self._found: dict[tuple[Key, Name, tuple[tuple[str, str], ...]], list[Column]] = defaultdict(list)

    def pieces(self) -> Iterator[tuple[float, float]]:
        return _pieces(self._start, self._end, self._width)

    def fetch(self, server: Prometheus, start: float, end: float) -> list[Outage]:
        width = round((end - start) * 1000) + 1  # Prometheus 3 leaves out a sample at the very beginning
        try:
            answer = server.ask("query", {"query": f"{self._selector}[{width}ms]", "time": f"{end:.3f}"})
        except Unanswered as error:
            return [Outage(start, end, str(error), metric) for metric in self._metrics]
        self._keep(answer["result"])
        return []

    def _keep(self, result: Sequence[Mapping[str, Any]]) -> None:
        for one in result:
            labels: Labels = one["metric"]
            name, subject = BY_NAME.get(labels.get("__name__", "")), whose(labels)
            if name is None or subject is None:
                continue
            at = np.array([pair[0] for pair in one["values"]], dtype=np.float64)
            values = numbers([pair[1] for pair in one["values"]], name)
            inside = (at >= self._start - 0.0005) & (at <= self._end + 0.0005)
            place = (subject.key, name.metric), name, tuple(sorted(labels.items()))
            self._found[place].append(single(at[inside], values[inside]))

    def columns(self) -> dict[Key, tuple[Column, float, list[Name]]]:
        found: Found = defaultdict(lambda: defaultdict(list))
        for (key, name, labels), columns in self._found.items():
            column = in_order(columns)
            if name.name == COUNTED:
                column = increments(column, float(dict(labels).get("xid", 0)), self._start, self.period)
            found[key][name].append(column)
        return {key: self._column(names) for key, names in found.items()}

    def _column(self, names: dict[Name, list[Column]]) -> tuple[Column, float, list[Name]]:
        used: list[Name] = []
        column, period = single(np.empty(0), np.empty(0)), self.period
        for name in sorted(names, key=lambda one: one.rank):
            labelled = sorted(names[name], key=lambda one: -len(one.at))
            if not used:
                period = usual_period(labelled[0].at, self.period)
            own = highest(labelled) if name.name == COUNTED else labelled[0]
            for other in (
                labelled[1:] if name.name != COUNTED else ()
            ):  # the same GPU with other labels, as when a pod began or ended
                own = joined(own, other, period / 2)
            before = len(column.at)
            column = joined(column, own, _APART * period)
            if len(column.at) - before >= (_FEW if used else 1):
                used.append(name)
        return broken(column, period, _LOST * period), period, used


class Spans:
    def __init__(
        self, names: Sequence[Name], matchers: str, series: int, start: float, end: float, step: float
    ) -> None:
        self.period = step
        first, last = np.floor(start / step), np.floor(end / step)
        self._grid = (first + np.arange(int(last - first) + 1)) * step
        self._names, self._matchers = names, "{" + matchers.removeprefix(",") + "}"
        self._width = step * max(1, min(POINTS, _VALUES // max(1, series)))
        self._found: dict[tuple[Key, Name, tuple[tuple[str, str], ...]], dict[str, np.ndarray]] = {}

    def pieces(self) -> Iterator[tuple[float, float]]:
        return _pieces(float(self._grid[0]), float(self._grid[-1]) + self.period, self._width)

    def fetch(self, server: Prometheus, start: float, end: float) -> list[Outage]:
        return [lost for name in self._names for lost in self._fetch(server, name, start, end)]

    def _fetch(self, server: Prometheus, name: Name, start: float, end: float) -> Iterator[Outage]:
        step = self.period
        first, last = start + step - 0.001, end - 0.001  # a span is queried at its last millisecond
        kinds = ("max",) if name.metric in LEVELS else ("avg",) if name.metric == TOTAL else ("avg", "min", "max")
        for kind in kinds:
            query = f"{kind}_over_time({name.name}{self._matchers}[{round(step * 1000) - 1}ms])"
            params = {"query": query, "start": f"{first:.3f}", "end": f"{last:.3f}", "step": f"{step:.3f}"}
            try:
                answer = server.ask("query_range", params)
            except Unanswered as error:
                yield Outage(start, end, str(error), name.metric, peaks=kind != kinds[0])
                return  # what is least and most is of no use without the mean
            for one in answer["result"]:
                self._keep(name, kind, {"__name__": name.name, **one["metric"]}, one["values"])

    def _keep(self, name: Name, kind: str, labels: Labels, pairs: Sequence[tuple[float, str]]) -> None:
        subject = whose(labels)
        if subject is None:
            return
        place = (subject.key, name.metric), name, tuple(sorted(labels.items()))
        table = self._found.setdefault(place, {})
        values = table.setdefault(kind, np.full(len(self._grid), np.nan))
        at = np.array([pair[0] for pair in pairs], dtype=np.float64)
        rows = np.round((at + 0.001 - self._grid[0]) / self.period).astype(np.int64) - 1
        inside = (rows >= 0) & (rows < len(self._grid))
        values[rows[inside]] = numbers([pair[1] for pair in pairs], name)[inside]

    def columns(self) -> dict[Key, tuple[Column, float, list[Name]]]:
        found: Found = defaultdict(lambda: defaultdict(list))
        for (key, name, labels), kinds in self._found.items():
            mean = kinds["avg"] if "avg" in kinds else kinds["max"] if name.metric in LEVELS else None
            if mean is not None:  # else only the least or the most came before an outage
                low, high = (None if name.metric in LEVELS else kinds.get(kind) for kind in ("min", "max"))
                column = Column(self._grid, mean, low, high)
                found[key][name].append(self._risen(column, labels) if name.name == COUNTED else column)
        return {key: self._column(names) for key, names in found.items()}

    def _column(self, names: dict[Name, list[Column]]) -> tuple[Column, float, list[Name]]:
        used: list[Name] = []
        column: Column | None = None
        for name in sorted(names, key=lambda one: one.rank):
            own = highest(names[name]) if name.name == COUNTED else beside(names[name])
            before = 0 if column is None else int((~np.isnan(column.mean)).sum())
            column = own if column is None else filled(column, own)
            if int((~np.isnan(column.mean)).sum()) > before:
                used.append(name)
        assert column is not None
        return column, self.period, used

    def _risen(self, counts: Column, labels: tuple[tuple[str, str], ...]) -> Column:
        column = increments(counts, float(dict(labels).get("xid", 0)), float(self._grid[0]), self.period)
        values = np.full(len(self._grid), np.nan)
        values[np.round((column.at - self._grid[0]) / self.period).astype(np.int64)] = column.mean
        return single(self._grid, values)


def fetch_all(query: Query, server: Prometheus) -> list[Outage]:
    """Query all pieces; returns those without an answer."""
    return [lost for start, end in query.pieces() for lost in _fetch(query, server, start, end)]


def _fetch(query: Query, server: Prometheus, start: float, end: float) -> list[Outage]:
    """Query one piece, in halves if that is too much at once."""
    try:
        return query.fetch(server, start, end)
    except TooMuch:
        whole = round((end - start) / query.period)
        if whole < 2:
            raise
        middle = start + whole // 2 * query.period
        return _fetch(query, server, start, middle) + _fetch(query, server, middle, end)


def _pieces(start: float, end: float, width: float) -> Iterator[tuple[float, float]]:
    while end - start > width:
        yield start, start + width
        start += width
    if end > start:
        yield start, end


def subjects(labels: Sequence[Labels]) -> list[tuple[Name, Whose]]:
    found = []
    for one in labels:
        name, subject = BY_NAME.get(one.get("__name__", "")), whose(one)
        if name is not None and subject is not None:
            found.append((name, subject))
    return found
