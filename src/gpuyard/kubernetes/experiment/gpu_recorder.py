"""Reads GPU series from Prometheus while pods run, and writes them as CSV files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuyard.errors import GpuyardError, UserError, suggest
from gpuyard.figures.panels import key_of, subjects
from gpuyard.files import cell, csv_text, write_atomically
from gpuyard.monitor.sources import Source
from gpuyard.monitor.sources.prometheus_queries import BY_NAME
from gpuyard.monitor.tracks import Column, broken, gap_texts, taken, to_edges
from gpuyard.recordings.series import METRICS, Floats, Recording, Series, Subject

EVERY = 15.0  # seconds from one reading to the next
BEFORE = 6.0  # seconds before the beginning that are read too: what a GPU was like last is what it was like then
_LATE = 1.5  # seconds after which a sample can surely be read
_LOST = 2.5  # periods without a sample that are a gap
_SHORT = 1.0  # seconds without a sample that are not worth a word
_LAST_TRIES = 3


class Recorder:
    """Reads some metrics from a source in a thread of its own, until its end."""

    def __init__(
        self, source: Source, metrics: Sequence[str], warn: Callable[[str], None], *, every: float = EVERY
    ) -> None:
        self._source, self._metrics, self._warn, self._every = source, metrics, warn, every
        self._read: list[Recording] = []
        self._until = time.time() - BEFORE
        self._complaint = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._go_on(time.time() - _LATE)

    def _go_on(self, until: float) -> bool:
        """Read on from the end of the last answer; returns whether there is one."""
        if until <= self._until:
            return True
        try:
            found = self._source.read(self._metrics, self._until, until)
            problem = "" if found.series else "; ".join(found.warnings) or f"{self._source.name} tells nothing"
        except GpuyardError as error:
            problem = str(error)
        if problem:
            if not self._complaint:
                self._warn(f"{problem}; it is asked again while this goes on")
            self._complaint = problem
            return False
        if self._complaint:
            self._warn(f"{self._source.name} answers again")
        self._complaint, self._until = "", until
        self._read.append(found)
        return True

    def recording(self, begin: float, end: float, hosts: Collection[str] = (), *, edges: bool = True) -> Recording:
        """The recording of a span, of GPUs of these hosts, if any are known; with `edges` up to both ends."""
        self._ended.set()
        self._thread.join()
        time.sleep(max(0.0, end + _LATE - time.time()))
        for attempt in range(_LAST_TRIES):
            if self._go_on(end):
                break
            time.sleep(0.5 * attempt)
        found = joined(self._read, begin, end)
        if self._complaint:
            found.warnings.append(self._complaint)
        known = {one.subject.host for one in found.series}
        if known & set(hosts):
            found.series = [one for one in found.series if one.subject.host in hosts]
        if edges:
            period = max((one.period for one in found.series), default=1.0)
            return to_edges(found, begin, end, held=max(BEFORE, _LOST * period))
        inside = (taken(one, (one.at >= begin) & (one.at <= end)) for one in found.series)
        found.series = [one for one in inside if len(one.at)]
        return found


def joined(parts: Sequence[Recording], begin: float, end: float) -> Recording:
    """Recordings that follow each other as one; with a gap where nothing is known between two of them."""
    pieces: dict[tuple[str, int, str, str], list[Series]] = {}
    for part in parts:
        for one in part.series:
            subject = one.subject
            pieces.setdefault((subject.uuid or subject.host, subject.gpu, subject.job, one.metric), []).append(one)
    series = [_joined(several) for several in pieces.values()]
    texts = dict.fromkeys(text for part in parts for text in part.warnings if text not in _gaps(part))
    found = Recording(begin, end, series, [mark for part in parts for mark in part.marks])
    found.warnings = [*texts, *_gaps(found, _SHORT)]
    found.simulated = bool(parts) and all(part.simulated for part in parts)
    return found


def _gaps(recording: Recording, least: float = 0.0) -> list[str]:
    """Warnings of gaps; those of the whole replace those of its parts."""
    of_gpus = [one for one in recording.series if not one.subject.job and one.metric != "xid"]  # which come and go
    return gap_texts(of_gpus, recording.start, min(recording.end, time.time()), least=least)


def _joined(several: Sequence[Series]) -> Series:
    last = several[-1]
    period = float(np.median([one.period for one in several]))
    at, places = np.unique(np.concatenate([one.at for one in several]), return_index=True)
    mean, low, high = (
        None if values is None else values[places]
        for values in (_one([getattr(one, name) for one in several]) for name in ("mean", "low", "high"))
    )
    assert mean is not None
    column = broken(Column(at, mean, low, high), period, _LOST * period)
    return Series(last.subject, last.metric, *column, period=period)


def _one(tables: Sequence[Floats | None]) -> Floats | None:
    known = [table for table in tables if table is not None]
    return np.concatenate(known) if len(known) == len(tables) else None


COMBINED = "combined.csv"
_MIB = 2.0**20


class Wanted(NamedTuple):
    name: str  # ours, or one of DCGM's, as `dcgm_fb_used`
    metric: str

    @property
    def unit(self) -> str:
        unit = METRICS[self.metric].unit
        return "MiB" if unit == "bytes" else unit

    @property
    def factor(self) -> float:
        return _MIB if METRICS[self.metric].unit == "bytes" else 1.0


def wanted(names: Sequence[str]) -> list[Wanted]:
    """Metrics by our names or those of DCGM, old and new; unknown ones are refused."""
    found = []
    for name in dict.fromkeys(names):
        if name in METRICS:
            found.append(Wanted(name, name))
        elif name in BY_NAME and BY_NAME[name].metric in METRICS:
            found.append(Wanted(name, BY_NAME[name].metric))
        else:
            known = (*METRICS, *(one for one in BY_NAME if one.lower().startswith("dcgm")))
            raise UserError(f"there is no metric '{name}'{suggest(name, known)} (there are {', '.join(METRICS)})")
    return found


def write_metrics(folder: Path, recording: Recording, names: Sequence[str]) -> list[Path]:
    """Write a CSV file of each metric; one per GPU, if there are several. Seconds are since the start."""
    asked = wanted(names)
    gpus = subjects(recording)
    texts: dict[str, str] = {}
    for one in asked:
        for series in recording.of(one.metric):
            if series.subject.job or np.isnan(series.mean).all():
                continue
            ending = f"-{_place(series.subject)}" if len(gpus) > 1 else ""
            texts[f"{one.name}{ending}.csv"] = _single(series, one, recording.start)
    if texts:
        texts[COMBINED] = _combined(recording, asked)
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def _place(subject: Subject) -> str:
    return f"{subject.host}-{subject.gpu}" if subject.host else str(subject.gpu)


def _single(series: Series, asked: Wanted, start: float) -> str:
    known = ~np.isnan(series.mean)
    pairs = zip((series.at[known] - start).tolist(), (series.mean[known] / asked.factor).tolist(), strict=True)
    return csv_text(("second", "value"), ([cell(at, 3), cell(value, 3)] for at, value in pairs))


def _combined(recording: Recording, asked: Sequence[Wanted]) -> str:
    heads = [f"{one.name} [{one.unit}]" if one.unit else one.name for one in asked]
    rows: dict[tuple[float, str], dict[str, float]] = {}
    named = {key_of(subject): _place(subject) for subject in subjects(recording)}
    for one in recording.series:
        if one.subject.job:
            continue
        for at, value in zip(one.at.tolist(), one.mean.tolist(), strict=True):
            if value == value:  # NaN is not
                rows.setdefault((at, named[key_of(one.subject)]), {})[one.metric] = value
    lines = [
        [cell(at - recording.start, 3), gpu, *(_scaled(values.get(one.metric), one) for one in asked)]
        for (at, gpu), values in sorted(rows.items())
        if any(one.metric in values for one in asked)
    ]
    return csv_text(("second", "gpu", *heads), lines)


def _scaled(value: float | None, asked: Wanted) -> str:
    return cell(None if value is None else value / asked.factor, 3)
