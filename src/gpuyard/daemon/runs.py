"""What attempts took, as rows of the table `runs`: written with the events that ended them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from gpuyard.core.events import Exited, Preempted, Requeued
from gpuyard.daemon.journal import Record
from gpuyard.daemon.views import JobView, printable

COLUMNS = (
    "job", "attempt", "signature", "likeness", "user", "name", "command", "at", "seconds", "outcome", "peak", "mean",
    "samples", "utilization", "alone", "settled", "gpus", "promised", "predicted_peak", "predicted_seconds",
)  # fmt: skip
INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' for _ in COLUMNS)})"

TOLD = ("at", "seconds", "outcome", "peak", "command", "predicted_peak", "predicted_seconds", "settled")
"""What predictions go by."""
_SHOWN = (
    "job", "attempt", "at", "outcome", "peak", "seconds", "alone", "predicted_peak", "predicted_seconds"
)  # fmt: skip
_LATEST = {
    kind: f"SELECT {', '.join(TOLD)} FROM runs WHERE {kind} = ? ORDER BY at DESC LIMIT ?"
    for kind in ("signature", "likeness")
}


def latest(connection: sqlite3.Connection, kind: str, key: str, limit: int) -> list[tuple[Any, ...]]:
    """What the latest runs of a `signature` or `likeness` took, the newest first."""
    return connection.execute(_LATEST[kind], (key, limit)).fetchall()


def past(connection: sqlite3.Connection, kind: str, key: str, limit: int) -> list[dict[str, Any]]:
    """What people want to know of the latest runs of a `signature` or `likeness`, the newest first."""
    told = connection.execute(_LATEST[kind].replace(", ".join(TOLD), ", ".join(_SHOWN)), (key, limit))
    return [dict(zip(_SHOWN, row, strict=True)) for row in told]


def signatures(connection: sqlite3.Connection, user: str, limit: int) -> list[tuple[Any, ...]]:
    """Signatures that have run, the latest first: their user, name, command, number of runs and last end."""
    where = "WHERE user = ?" if user else ""
    return connection.execute(
        f"SELECT signature, user, name, command, count(*), max(at) FROM runs {where} "
        "GROUP BY signature ORDER BY max(at) DESC LIMIT ?",
        (*((user,) if user else ()), limit),
    ).fetchall()


def run_of(before: JobView, record: Record) -> tuple[Any, ...] | None:
    """What an attempt took, if this is the event that ended it; `before` is its job as it stood until then."""
    event, measured = record.event, record.details.get("measured", {})
    if not isinstance(event, Exited | Preempted | Requeued) or event.attempt != before.attempt:
        return None
    work = before.work
    if before.started is None or not work.get("signature"):
        return None
    predicted = work.get("predicted") or (None, None, "")
    return (
        before.id, event.attempt, work["signature"], work.get("likeness", ""), before.user, printable(before.name),
        json.dumps(work.get("command", [])), event.at, max(0.0, event.at - before.started),
        outcome_of(event, record.details), measured.get("peak"), measured.get("mean"), measured.get("samples", 0),
        measured.get("utilization"), bool(measured.get("alone")), measured.get("settled"), len(before.gpus),
        work.get("gpu_memory"), predicted[0] or None, predicted[1] or None,
    )  # fmt: skip


def outcome_of(event: Exited | Preempted | Requeued, details: Mapping[str, Any]) -> str:
    """How an attempt ended: a state, or `requeued` or `preempted`; `oom` also where there is another attempt."""
    if details.get("ooms"):
        return "oom"
    if isinstance(event, Exited):
        return event.cause or ("succeeded" if event.code == 0 else "failed")
    return "preempted" if isinstance(event, Preempted) else "requeued"
