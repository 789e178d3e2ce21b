"""The log of a yard on this machine: `history`, or the path of a store.

Jobs that ran to some end, each with its last attempt. Jobs that asked for certain GPUs may run on any in a simulation.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np

from gpuyard.config import settings
from gpuyard.errors import UserError
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
    """The jobs of a store."""
    if not path.is_file():
        raise UserError(f"there is no history yet: {path} does not exist (gpuyard up starts a queue)")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        found = connection.execute(
            "SELECT id, user, submitted, started, ended, priority, name, state, work FROM jobs ORDER BY number"
        ).fetchall()
        opened = connection.execute(
            "SELECT data FROM events WHERE kind = 'Opened' AND job IS NULL ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        connection.close()
    except sqlite3.Error as error:
        raise UserError(f"{path} is not a store of gpuyard, or is damaged: {error}") from error
    ran = [row for row in found if row[3] is not None and row[4] is not None]
    works = [json.loads(row[8]) for row in ran]
    ended = sum(row[4] is not None for row in found)
    return Trace.of(
        [row[2] for row in ran],
        [max(row[4] - row[3], _SHORTEST) for row in ran],
        [work["gpu_count"] for work in works],
        ids=[row[0] for row in ran],
        users=[row[1] for row in ran],
        requested=[work["estimate"] if work.get("estimated", True) else np.nan for work in works],
        priority=[row[5] for row in ran],
        memory=[work["gpu_memory"] or 0.0 for work in works],
        preemptible=np.zeros(len(ran), dtype=bool),
        labels={"name": [row[6] for row in ran], "state": [row[7] for row in ran]},
        source=str(path),
        format=NAME,
        dropped={
            reason: count
            for reason, count in ((STILL_THERE, len(found) - ended), (NEVER_RAN, ended - len(ran)))
            if count
        },
        capacity=sum(json.loads(opened[0])["cluster"]["nodes"]) if opened else None,
    )
