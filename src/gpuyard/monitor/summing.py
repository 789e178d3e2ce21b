"""What GPUs did over a time, in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypedDict

import numpy as np

from gpuyard.recordings.series import Floats, Recording, Series, Subject, energy


class GpuSummary(TypedDict):
    """One GPU; sizes in bytes, power in watts, null where nobody knows."""

    index: int
    host: str
    """The machine, where a source knows several; empty: there is one."""
    uuid: str
    name: str
    used: bool
    """Whether what was watched had a process on it."""
    peak_memory: int | None
    peak_process_memory: int | None
    """Of what was watched alone."""
    utilization_mean: float | None
    utilization_max: float | None
    memcopy_mean: float | None
    temperature_max: float | None
    power_mean: float | None
    power_max: float | None
    energy_wh: float | None


def gpu_summaries(recording: Recording) -> list[GpuSummary]:
    """Every GPU of a recording, in the order of their indices; parts of a GPU that share one are apart."""
    own = [one.subject for one in recording.series if one.subject.job]
    subjects = {
        (one.subject.host, one.subject.gpu, one.subject.uuid): one.subject
        for one in recording.series
        if not one.subject.job
    }
    return [
        _gpu(recording, subjects[place], any(_same(one, subjects[place]) for one in own)) for place in sorted(subjects)
    ]


def used_energy(gpus: list[GpuSummary]) -> float | None:
    """Watt-hours of the GPUs that were used; None if that is not known of one of them, or there is none."""
    known = [gpu["energy_wh"] for gpu in gpus if gpu["used"]]
    told = [one for one in known if one is not None]
    return sum(told) if told and len(told) == len(known) else None


def mean(series: Series) -> float | None:
    """The mean over time; gaps do not count."""
    at, values = series.at, series.mean
    known = ~np.isnan(values)
    if not known.any():
        return None
    if len(at) < 2:
        return float(values[known][0])
    width, level = np.diff(at), (values[1:] + values[:-1]) / 2
    told = ~np.isnan(level)
    whole = float(width[told].sum())
    return float((width[told] * level[told]).sum()) / whole if whole > 0 else float(values[known].mean())


def most(series: Series) -> float | None:
    """The highest value that was seen."""
    return _largest(series.mean if series.high is None else series.high)


def _largest(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _energy(series: Series) -> float | None:
    return energy(series) if not np.isnan(series.mean).all() else None


def _gpu(recording: Recording, subject: Subject, used: bool) -> GpuSummary:
    def of(metric: str, measure: Callable[[Series], float | None], own: bool = False) -> float | None:
        found = [
            value
            for one in recording.series
            if one.metric == metric and _same(one.subject, subject) and bool(one.subject.job) == own
            if (value := measure(one)) is not None
        ]
        return max(found) if found else None

    return {
        "index": subject.gpu,
        "host": subject.host,
        "uuid": subject.uuid,
        "name": subject.name,
        "used": used,
        "peak_memory": _whole(of("memory_used", most)),
        "peak_process_memory": _whole(of("process_memory", most, own=True)),
        "utilization_mean": _rounded(of("utilization", mean)),
        "utilization_max": of("utilization", most),
        "memcopy_mean": _rounded(of("memcopy", mean)),
        "temperature_max": of("temperature", most),
        "power_mean": _rounded(of("power", mean)),
        "power_max": of("power", most),
        "energy_wh": _rounded(of("power", _energy), 6),
    }


def _same(one: Subject, other: Subject) -> bool:
    """Whether both are of one GPU; not everybody who tells of a job knows the GPU's UUID."""
    alike = one.uuid == other.uuid or not (one.uuid and other.uuid)
    return alike and (one.host, one.gpu) == (other.host, other.gpu)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or math.isnan(value) else round(value, digits)


def overall(recording: Recording, metric: str) -> float | None:
    """The mean of a metric over all GPUs of a recording."""
    found = [value for one in recording.of(metric) if not one.subject.job if (value := mean(one)) is not None]
    return sum(found) / len(found) if found else None
