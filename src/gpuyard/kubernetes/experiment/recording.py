"""What GPUs do while pods run, read from Prometheus bit by bit: whatever becomes of it, what was read is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from gpuyard.errors import GpuyardError
from gpuyard.monitor.edges import to_edges
from gpuyard.monitor.joining import told
from gpuyard.monitor.source import Source
from gpuyard.monitor.track import Column, broken
from gpuyard.recordings.series import Floats, Recording, Series

EVERY = 15.0
"""Seconds from one reading to the next."""
BEFORE = 6.0
"""Seconds before the beginning that are read too: what a GPU was like last is what it was like then."""
_LATE = 1.5  # seconds after which a sample can surely be read
_LOST = 2.5  # periods without a sample that are a gap
_SHORT = 1.0  # seconds without a sample that are not worth a word
_LAST_TRIES = 3


class Recorder:
    """Reads some metrics from a source, from a thread of its own, until it is told that it is over."""

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
        """Read on from where the last answer ended; whether there was one."""
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
        """All of it, from when to when: of GPUs of these hosts, where those are told; with `edges` to both ends."""
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
        inside = (_between(one, begin, end) for one in found.series)
        found.series = [one for one in inside if len(one.at)]
        return found


def joined(parts: Sequence[Recording], begin: float, end: float) -> Recording:
    """Recordings that follow each other as one; where nothing is known between two of them, there is a gap."""
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
    """Sentences on times of which nothing is known: what parts say of theirs, the whole says better."""
    of_gpus = [one for one in recording.series if not one.subject.job and one.metric != "xid"]  # which come and go
    return told(of_gpus, recording.start, min(recording.end, time.time()), least=least)


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


def _between(one: Series, begin: float, end: float) -> Series:
    inside = (one.at >= begin) & (one.at <= end)
    low, high = (None if table is None else table[inside] for table in (one.low, one.high))
    return Series(one.subject, one.metric, one.at[inside], one.mean[inside], low, high, one.period)
