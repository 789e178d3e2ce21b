"""Series: what was seen of a GPU, or of a job on it, over time. Every source gives them, and every plot takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Metric(NamedTuple):
    name: str
    unit: str  # `%`, `bytes`, `W`, `°C`, `MHz`; empty for what has none
    title: str
    most: float | None = None  # the highest value that there can be, where there is one


METRICS = {
    metric.name: metric
    for metric in (
        Metric("utilization", "%", "GPU utilization", 100.0),
        Metric("memory_used", "bytes", "Memory in use"),
        Metric("memory_free", "bytes", "Memory free"),
        Metric("memcopy", "%", "Memory-copy utilization", 100.0),
        Metric("power", "W", "Power"),
        Metric("temperature", "°C", "Temperature"),
        Metric("sm_clock", "MHz", "SM clock"),
        Metric("memory_clock", "MHz", "Memory clock"),
        Metric("throttle", "", "Throttle reasons"),
        Metric("xid", "", "XID errors"),
        Metric("process_memory", "bytes", "Memory in use by the job"),
        Metric("process_utilization", "%", "Utilization by the job", 100.0),
    )
}
"""All of them by name. `throttle` is NVML's bits; `xid` is the number of the latest error, 0 where there was none."""
OF_GPUS = tuple(name for name in METRICS if not name.startswith("process_"))
OF_JOBS = tuple(name for name in METRICS if name.startswith("process_"))
USUAL = ("utilization", "temperature", "memcopy", "power")  # what is plotted by default


@dataclass(frozen=True, slots=True)
class Subject:
    gpu: int
    uuid: str = ""
    name: str = ""  # what the GPU is called
    job: str = ""  # empty: the GPU as a whole
    host: str = ""  # the machine, where a source knows several


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one subject. NaN is a gap: unknown."""

    subject: Subject
    metric: str
    at: Floats  # seconds since the epoch, rising. Of a value that stands for a span, when that began
    mean: Floats
    low: Floats | None = None
    high: Floats | None = None  # the least and the most of each span; None where every value is a single look
    period: float = 1.0  # seconds from one value to the next


class Mark(NamedTuple):
    at: float
    label: str
    until: float | None = None
    subject: Subject | None = None


@dataclass(slots=True)
class Recording:
    start: float
    end: float
    series: list[Series] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)  # when jobs began and ended, and errors
    warnings: list[str] = field(default_factory=list)
    """Sentences on what could not be had, as for how long a server did not answer."""
    simulated: bool = False  # whether the GPUs exist in a program only

    def of(self, metric: str) -> list[Series]:
        return [one for one in self.series if one.metric == metric]


def energy(series: Series) -> float:
    """Watt-hours of a series of power; gaps count for nothing."""
    at, power = series.at, series.mean
    if len(at) < 2:
        return 0.0
    width, level = np.diff(at), (power[1:] + power[:-1]) / 2
    known = ~np.isnan(level)
    return float((width[known] * level[known]).sum() / 3600)


def names_of(metrics: Sequence[str]) -> list[str]:
    return [name for name in METRICS if name in metrics]
