"""The daemon's recordings as a source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from gpuyard.monitor.sources import checked_metrics, is_selected
from gpuyard.monitor.tracks import taken
from gpuyard.recordings.series import Floats, Mark, Recording, Series, Subject

_POINTS = 2000
_MOST_POINTS = 11_000
Ask = Callable[..., Any]  # `Client.recording`


class Recorded:
    name = "the daemon's recordings"

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def read(
        self, metrics: Sequence[str], start: float, end: float,
        *, gpus: Sequence[str] = (), job: str = "", step: float | None = None,
    ) -> Recording:  # fmt: skip
        """The recordings of a span of time; for a job, of its own time if the span is endless."""
        asked: dict[str, Any] = {"metrics": checked_metrics(metrics), "points": _points(start, end, step)}
        if job:
            asked["job"] = job
        else:
            asked |= {name: at for name, at in (("since", start), ("until", end)) if math.isfinite(at)}
            if gpus and all(gpu.isdigit() for gpu in gpus):
                asked["gpus"] = [int(gpu) for gpu in gpus]
        found = recording_of(self._ask(**asked))
        return _within(found, start, end, gpus) if job or gpus else found


def recording_of(said: Mapping[str, Any]) -> Recording:
    period = float(said["period"])
    subjects = {gpu["index"]: Subject(gpu["index"], gpu["uuid"], gpu["name"]) for gpu in said["gpus"]}
    series = [one for gpu in said["gpus"] for one in _series(subjects[gpu["index"]], gpu, period)]
    for job in said["jobs"]:
        gpu = subjects.get(job["gpu"], Subject(job["gpu"]))
        series += _series(Subject(gpu.gpu, gpu.uuid, gpu.name, str(job["id"])), job, period)
    marks = [_mark(mark, subjects) for mark in said["marks"]]
    return Recording(
        _instant(said["start"]), _instant(said["end"]), series, marks, list(said["warnings"]), bool(said["simulated"])
    )  # fmt: skip


def _mark(said: Mapping[str, Any], subjects: Mapping[int, Subject]) -> Mark:
    gpu, until = said.get("gpu"), said.get("until")
    subject = None if gpu is None else subjects.get(gpu, Subject(gpu))
    if said.get("job"):
        known = subject or Subject(0)
        subject = Subject(known.gpu, known.uuid, known.name, str(said["job"]))
    return Mark(_instant(said["at"]), said["label"], None if until is None else _instant(until), subject)


def _series(subject: Subject, said: Mapping[str, Any], period: float) -> list[Series]:
    at, found = _floats(said["at"]), []
    for metric, values in said["metrics"].items():
        low, high = (None if values.get(kind) is None else _floats(values[kind]) for kind in ("min", "max"))
        found.append(Series(subject, metric, at, _floats(values["mean"]), low, high, period))
    return found


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _instant(value: float | str) -> float:
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value)


def _points(start: float, end: float, step: float | None) -> int:
    if step is None or not math.isfinite(end - start):
        return _POINTS
    return min(_MOST_POINTS, max(2, math.ceil((end - start) / step)))


def _within(found: Recording, start: float, end: float, gpus: Sequence[str]) -> Recording:
    series = [
        taken(one, (one.at > start - one.period) & (one.at <= end))
        for one in found.series
        if is_selected(one.subject, gpus)
    ]
    marks = [mark for mark in found.marks if mark.at <= end and _end(mark) >= start]
    return Recording(max(start, found.start), min(end, found.end), series, marks, found.warnings, found.simulated)


def _end(mark: Mark) -> float:
    """Until when a mark stands: a job without an end goes on, an error is an instant."""
    if mark.until is None and mark.subject is not None and mark.subject.job:
        return math.inf
    return mark.at if mark.until is None else mark.until
