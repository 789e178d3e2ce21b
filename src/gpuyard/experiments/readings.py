"""What simulated GPUs showed during a run: series as from a real machine, and their means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpuyard.experiments.devices import Devices, Floats, Gpu, looks, steps, warmth
from gpuyard.experiments.model import Experiment, JobResult, RunResult, Scheduler
from gpuyard.recordings.series import Mark, Recording, Series, Subject
from gpuyard.units import format_duration

ALWAYS = ("utilization", "memory_used", "power")
"""What every result tells the means of."""
_MOST_LOOKS = 250_000  # at a GPU: of a second each, some days


def recorded(experiment: Experiment, devices: Devices, names: Sequence[str], end: float) -> Recording:
    """What the GPUs did from second 0 to the end of a run. Jobs' beginnings and ends are marked."""
    wanted = dict.fromkeys((*experiment.metrics, *ALWAYS))
    recording = Recording(0.0, end, simulated=True)
    period = experiment.period * max(1, math.ceil(end / experiment.period / _MOST_LOOKS))
    at = looks(0.0, end, period)
    if period > experiment.period:
        recording.warnings.append(f"the run is so long that GPUs are told of every {format_duration(period)} only")
    for index, (gpu, name) in enumerate(zip(devices.gpus, names, strict=True)):
        subject = Subject(index, f"SIMULATED-{index}", name)
        values = _values(gpu, at, period)
        recording.series += [
            Series(subject, metric, at, values[metric], period=period) for metric in wanted if metric in values
        ]
        recording.marks += [
            Mark(stay.began, stay.job, min(stay.ended, end), Subject(index, subject.uuid, name, stay.job))
            for stay in gpu.stays
        ]
    if missing := [metric for metric in experiment.metrics if metric not in values]:
        recording.warnings.append(f"simulated GPUs have no {', '.join(missing)}")
    return recording


def _values(gpu: Gpu, at: Floats, period: float) -> dict[str, Floats]:
    used, power = gpu.used(at), steps(gpu, gpu.power, at)
    return {
        "utilization": steps(gpu, gpu.busy, at),
        "memory_used": used,
        "memory_free": gpu.memory - used,
        "power": power,
        "temperature": warmth(power, period),
    }


def outcome(scheduler: Scheduler, percent: float, turn: int, jobs: list[JobResult], recording: Recording) -> RunResult:
    """A run in numbers."""
    return RunResult(
        scheduler.name, percent, turn, recording.end, jobs,
        _mean(recording, "utilization"), _mean(recording, "memory_used"), _mean(recording, "power"),
        sum(_watt_hours(series) for series in recording.of("power")), simulated=True,
    )  # fmt: skip


def _mean(recording: Recording, metric: str) -> float:
    """Over the run and its GPUs; a series' last value stands for no time."""
    return float(np.mean([series.mean[:-1].mean() if len(series.mean) > 1 else 0.0 for series in recording.of(metric)]))


def _watt_hours(power: Series) -> float:
    """What was drawn; each value stands until the next, as in the means."""
    return float((power.mean[:-1] * np.diff(power.at)).sum()) / 3600
