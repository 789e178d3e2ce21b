"""Recordings of a past that was not: GPUs that were busy and idle for weeks, written as the daemon would have done."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from gpuyard.recordings.chunks import AT, COVERED, HIGH, HOURS, LOW, MINUTES, SAMPLES, Level, condensed, encode
from gpuyard.recordings.database import NAME, Chunk, RecordingFile, Who
from gpuyard.recordings.series import Floats

Columns = dict[str, Floats]
_DAY = 86400.0
_MOST = 500  # chunks in one transaction


def fill(folder: Path, gpus: int, days: float, memory: int, *, fine: float = 0.0) -> None:
    """Let a data directory hold so many days of simulated GPUs: by the minute and the hour, the last `fine` days by the
    second too. No daemon may run on it."""
    file = RecordingFile(folder / NAME)
    end = time.time() // 60 * 60
    for gpu in range(gpus):
        who = Who(gpu, f"SIMULATED-{gpu}", f"Simulated GPU {memory // 2**30}G", memory, simulated=True)
        subject = file.subject(who)
        random = np.random.default_rng(gpu)
        minutes = _spread(np.arange(end - days * _DAY, end, 60.0), memory, random)
        chunks = _chunks(MINUTES, subject, minutes) + _chunks(HOURS, subject, _hours(minutes))
        if fine:
            chunks += _chunks(SAMPLES, subject, _seen(np.arange(end - fine * _DAY, end), memory, random))
        for n in range(0, len(chunks), _MOST):
            file.write(chunks[n : n + _MOST])
    file.close()


def _seen(at: Floats, memory: int, random: np.random.Generator) -> Columns:
    """Looks at a GPU: jobs of some hours, with pauses between them."""
    changes = np.cumsum(random.exponential(4 * 3600.0, int((at[-1] - at[0]) / 3600) + 10)) + at[0]
    level = random.choice([0.0, 0.0, 35.0, 70.0, 90.0, 98.0], len(changes) + 1)[np.searchsorted(changes, at)]
    load = np.clip(level + random.normal(0.0, 4.0, len(at)) * (level > 0), 0.0, 100.0).round()
    return {
        AT: at, "utilization": load, "memory_used": level / 100 * memory * 0.9, "memcopy": (load / 3).round(),
        "power": 25 + 2.8 * load + random.normal(0.0, 2.0, len(at)), "temperature": (32 + load / 2).round(),
        "sm_clock": 300 + 15 * level, "memory_clock": np.where(level > 0, 1593.0, 405.0),
        "throttle": np.where(load > 99, 4.0, 0.0), "xid": np.zeros(len(at)),
    }  # fmt: skip


def _spread(at: Floats, memory: int, random: np.random.Generator) -> Columns:
    """The same of spans, each with its least and its most."""
    mean = _seen(at, memory, random)
    found: Columns = {AT: mean.pop(AT), COVERED: np.full(len(at), 60.0)}
    for name, values in mean.items():
        wide = np.abs(random.normal(0.0, 0.1, len(at))) * values * (name in ("utilization", "power", "memcopy"))
        most = 100.0 if name in ("utilization", "memcopy") else np.inf
        found |= {name: values, name + LOW: values - wide, name + HIGH: np.minimum(most, values + wide)}
    return found


def _hours(minutes: Columns) -> Columns:
    at = minutes[AT]
    bounds = np.flatnonzero(np.diff(at // HOURS.period, prepend=-1.0))
    rest = {name: values for name, values in minutes.items() if name not in (AT, COVERED)}
    return {AT: at[bounds] // HOURS.period * HOURS.period, **condensed(rest, minutes[COVERED], bounds)}


def _chunks(level: Level, subject: int, columns: Columns) -> list[Chunk]:
    begins = columns[AT] // level.chunk * level.chunk
    bounds = [*np.flatnonzero(np.diff(begins, prepend=-1.0)), len(begins)]
    found = []
    for first, last in pairwise(bounds):
        part = {name: values[first:last] for name, values in columns.items()}
        part[AT] = part[AT] - begins[first]
        found.append(Chunk(level.number, subject, int(begins[first]), False, encode(part, means=level is not SAMPLES)))
    return found
