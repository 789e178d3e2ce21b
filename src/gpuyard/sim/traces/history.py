"""The log of a daemon on this machine: `history`, or the path of a store.

Jobs that ran to some end, each with its last attempt. Jobs that asked for certain GPUs may run on any in a simulation.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuyard.config import settings
from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.trace import Trace

NAME = "history"
STILL_THERE, NEVER_RAN = "not ended", "never ran"
_SHORTEST = 0.001  # seconds; a job cannot take none


def store_of(path: str | Path) -> Path | None:
    """The store that a trace's name stands for; None if it is a file of another kind."""
    if str(path) == NAME and not Path(path).exists():
        return settings().database
    try:
        with open(path, "rb") as file:
            return Path(path) if file.read(16) == b"SQLite format 3\0" else None
    except OSError:
        return None


def read(path: Path) -> Trace:
    return _trace(path, *_look(path))


def _trace(path: Path, found: list[_Row], opened: dict[str, Any]) -> Trace:
    ended = sum(row.ended is not None for row in found)
    ran = [row for row in found if row.started is not None and row.ended is not None]
    works = [json.loads(row.work) for row in ran]
    return Trace.of(
        [row.submitted for row in ran],
        [max(row.ended - row.started + _ran_before(row), _SHORTEST) for row in ran],
        [work["gpu_count"] for work in works],
        ids=[row.id for row in ran],
        users=[row.user for row in ran],
        requested=[work["estimate"] if work.get("estimated", True) else np.nan for work in works],
        priority=[row.priority for row in ran],
        memory=[work["gpu_memory"] or 0.0 for work in works],
        compute=[100.0 if work.get("alone") else np.nan for work in works],
        preemptible=np.zeros(len(ran), dtype=bool),
        labels={"name": [row.name for row in ran], "state": [row.state for row in ran]},
        source=str(path),
        format=NAME,
        dropped={
            reason: count
            for reason, count in ((STILL_THERE, len(found) - ended), (NEVER_RAN, ended - len(ran)))
            if count
        },
        capacity=sum(opened["nodes"]) if opened else None,
    )


def schedule(path: Path) -> Result:
    """What happened: each job's last attempt, where it really ran and from when to when."""
    found, opened = _look(path)
    if not opened:
        raise UserError(f"{path} does not say which GPUs there were")
    trace = _trace(path, found, opened).with_gpus().by_arrival()
    rows = {row.id: row for row in found}
    ran = [rows[job] for job in trace.ids]
    placed = Placements.of([tuple(int(index) for index in row.gpus.split(",")) for row in ran])
    start = np.array([row.started for row in ran])
    end = start + np.array([max(row.ended - row.started, _SHORTEST) for row in ran])
    job = np.repeat(np.arange(len(ran)), placed.sizes)
    facts: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in opened.items()}
    return Result(
        trace, Cluster(**facts), "history", start, end, np.zeros(len(ran), dtype=np.int64), placed, {},
        Segments(job, placed.gpus, start[job], end[job]),
    )  # fmt: skip


class _Row(NamedTuple):
    id: str
    name: str
    user: str
    state: str
    gpus: str
    submitted: float
    started: Any  # a number, or None
    ended: Any
    priority: float
    work: str
    measured: str


def _ran_before(row: _Row) -> float:
    """Seconds of the attempts that were preempted: the last one went on with their work."""
    return float(json.loads(row.measured).get("ran_before", 0.0)) if row.measured else 0.0


def _look(path: Path) -> tuple[list[_Row], dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"there is no history yet: {path} does not exist (gpuyard up starts a queue)")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        found = connection.execute(f"SELECT {', '.join(_Row._fields)} FROM jobs ORDER BY number").fetchall()
        opened = connection.execute(
            "SELECT data FROM events WHERE kind = 'Opened' AND job IS NULL ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        connection.close()
    except sqlite3.Error as error:
        raise UserError(f"{path} is not a store of gpuyard, or is damaged: {error}") from error
    return [_Row(*row) for row in found], json.loads(opened[0])["cluster"] if opened else {}
