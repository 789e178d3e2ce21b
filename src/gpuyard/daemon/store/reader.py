"""What attempts took, as rows of the table `runs`: written with the events that ended them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.core.events import Exited, Preempted, Requeued
from gpuyard.daemon.store import views
from gpuyard.daemon.store.records import Record, Row
from gpuyard.daemon.store.views import JobView, printable

RUN_COLUMNS = (
    "job", "attempt", "signature", "likeness", "user", "name", "command", "at", "seconds", "outcome", "peak", "mean",
    "samples", "utilization", "alone", "settled", "gpus", "promised", "predicted_peak", "predicted_seconds",
)  # fmt: skip
INSERT_RUN = f"INSERT OR REPLACE INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({', '.join('?' for _ in RUN_COLUMNS)})"

RUN_EVIDENCE = ("at", "seconds", "outcome", "peak", "command", "predicted_peak", "predicted_seconds", "settled")
"""What predictions go by."""
_SHOWN_OF_RUNS = (
    "job", "attempt", "at", "outcome", "peak", "seconds", "alone", "predicted_peak", "predicted_seconds"
)  # fmt: skip
_LATEST_RUNS = {
    kind: f"SELECT {', '.join(RUN_EVIDENCE)} FROM runs WHERE {kind} = ? ORDER BY at DESC LIMIT ?"
    for kind in ("signature", "likeness")
}


def run_of(before: JobView, record: Record) -> tuple[Any, ...] | None:
    """The run that this event ended, if any; `before` is its job's view until then."""
    event, measured = record.event, record.details.get("measured", {})
    if not isinstance(event, Exited | Preempted | Requeued) or event.attempt != before.attempt:
        return None
    work = before.work
    if before.started is None or not work.get("signature"):
        return None
    predicted = work.get("predicted") or (None, None, "")
    return (
        before.id, event.attempt, work["signature"], work.get("likeness", ""), before.user, printable(before.name),
        json.dumps(work.get("command", [])), event.at, seconds_taken(before, before.started, event),
        outcome_of(event, record.details), measured.get("peak"), measured.get("mean"), measured.get("samples", 0),
        measured.get("utilization"), bool(measured.get("alone")), measured.get("settled"), len(before.gpus),
        work.get("gpu_memory"), predicted[0] or None, predicted[1] or None,
    )  # fmt: skip


def seconds_taken(before: JobView, started: float, event: Exited | Preempted | Requeued) -> float:
    """The seconds of a run: of all attempts that went on with each other, where this is the last; else of this one."""
    return max(0.0, event.at - started) + (before.ran_before if isinstance(event, Exited) else 0.0)


def outcome_of(event: Exited | Preempted | Requeued, details: Mapping[str, Any]) -> str:
    """How an attempt ended: a state, or `requeued` or `preempted`; `oom` also if another attempt follows."""
    if details.get("ooms"):
        return "oom"
    if isinstance(event, Exited):
        return event.cause or ("succeeded" if event.code == 0 else "failed")
    return "preempted" if isinstance(event, Preempted) else "requeued"


_LITERALLY, _ESCAPED = re.compile("[%_!]"), r"!\g<0>"
_COMMAND = f"(SELECT group_concat(value, ' ') FROM json_each({views.WORK}, '$.command'))"
_WHERE = ("id", "name", "user", _COMMAND)
_HOLDS = "(" + " OR ".join(f"{where} LIKE ? ESCAPE '!'" for where in _WHERE) + ")"
"""Where a text is looked for; small letters are as good as large ones, if they are English."""
_DATA = """CASE WHEN instr(data, '"shared":') THEN coalesce((
    SELECT json_patch(json_object('details', json_object('work', json(content))), data) FROM environments
    WHERE hash = json_extract(data, '$.details.work.shared')), data) ELSE data END"""
"""An event with what its job shares with the other tasks of its array."""
OF_ARRAY = "array = ? AND array <> ''"  # else SQLite reads all jobs that ever were: the index has no empty names
_AT_ONCE = 500  # jobs that one question names


class Answered(NamedTuple):
    user: str
    key: str
    request: str  # a hash of what was asked for
    answer: str  # as JSON
    at: float


class Cursor(NamedTuple):
    """A place in the history: after a job, by its end and number."""

    ended: float
    number: int


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to select; an empty field selects all."""

    job: str = ""  # a job, or an array
    kinds: frozenset[str] = frozenset()
    user: str = ""  # whose jobs they happened to

    @property
    def everything(self) -> bool:
        return not (self.job or self.kinds or self.user)


class Queries:
    """What both the writer and readers ask."""

    _connection: sqlite3.Connection

    def answer(self, user: str, key: str) -> Answered | None:
        """The answer to a user's request with this key; None if there was none."""
        found = self._connection.execute(
            "SELECT user, key, request, answer, at FROM answers WHERE user = ? AND key = ?", (user, key)
        ).fetchone()
        return Answered(*found) if found else None

    def environment(self, key: str) -> dict[str, str]:
        """The environment with a hash; empty if there is none."""
        found = self._connection.execute("SELECT content FROM environments WHERE hash = ?", (key,)).fetchone()
        return dict(json.loads(found[0])) if found else {}

    def latest_runs(self, kind: str, key: str, limit: int) -> list[tuple[Any, ...]]:
        """The latest runs of a `signature` or `likeness` (`RUN_EVIDENCE`), the newest first."""
        return self._connection.execute(_LATEST_RUNS[kind], (key, limit)).fetchall()


class Reader(Queries):
    """The store's reader: for one thread, and never in the writer's way."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)

    def clock_gained(self, since: float, until: float) -> float:
        """Seconds by which the time of day was set ahead between these times."""
        (found,) = self._connection.execute(
            "SELECT coalesce(sum(max(0, json_extract(data, '$.by'))), 0) FROM events"
            " WHERE kind = 'ClockSet' AND at BETWEEN ? AND ?", (since, until),
        ).fetchone()  # fmt: skip
        return float(found)

    def job(self, job: str) -> JobView | None:
        return next(iter(self._select("WHERE id = ?", (job,))), None)

    def jobs(
        self,
        *,
        over: bool | None,
        wanted: Mapping[str, Any],
        states: Collection[str] = (),
        limit: int = -1,
        ended_after: float | None = None,
        ended_before: float | None = None,
        tag: str = "",
        text: str = "",
        behind: Cursor | None = None,
    ) -> list[JobView]:
        """Jobs that are over (the latest first), or not, or both (in the order of submission)."""
        terms = [OF_ARRAY if name == "array" else f"{name} = ?" for name in wanted]
        values = [*wanted.values(), *states]
        if states:
            terms.append(f"state IN ({', '.join('?' * len(states))})")
        if over is not None:
            terms.append(f"ended IS {'NOT NULL' if over else 'NULL'}")
        if ended_after is not None:
            terms.append("ended >= ?")
            values.append(ended_after)
        if ended_before is not None:
            terms.append("ended < ?")
            values.append(ended_before)
        if text:
            terms.append(_HOLDS)
            values += [f"%{_LITERALLY.sub(_ESCAPED, text)}%"] * len(_WHERE)
        if behind is not None:  # of those that are over
            terms.append("(ended, number) < (?, ?)")
            values += behind
        if tag:
            terms.append(f"EXISTS (SELECT 1 FROM json_each({views.WORK}, '$.tags') WHERE value = ?)")
            values.append(tag)
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        order = "ORDER BY ended DESC, number DESC" if over else "ORDER BY number"
        return self._select(f"{where} {order} LIMIT ?", (*values, limit))

    def tasks(self, array: str) -> dict[str, int]:
        return dict(
            self._connection.execute(f"SELECT state, count(*) FROM jobs WHERE {OF_ARRAY} GROUP BY state", (array,))
        )

    def ids(self, array: str) -> list[str]:
        found = self._connection.execute(f"SELECT id FROM jobs WHERE {OF_ARRAY} ORDER BY number", (array,))
        return [id for (id,) in found]

    def counts(self) -> dict[str, int]:
        return dict(self._connection.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())

    def happened(self, after: int, until: int, wish: EventFilter, limit: int) -> Iterator[tuple[int, Row, str | None]]:
        terms, values = ["seq > ?", "seq <= ?"], list[Any]((after, until))
        if wish.job:
            terms.append(f"events.job IN (SELECT ? UNION ALL SELECT id FROM jobs WHERE {OF_ARRAY})")
            values += [wish.job, wish.job]
        if wish.kinds:
            terms.append(f"events.kind IN ({','.join('?' * len(wish.kinds))})")
            values += sorted(wish.kinds)
        if wish.user:
            terms.append("user = ?")
            values.append(wish.user)
        found = self._connection.execute(
            f"SELECT seq, at, events.kind, job, events.attempt, {_DATA}, user "
            "FROM events LEFT JOIN jobs ON jobs.id = events.job "
            f"WHERE {' AND '.join(terms)} ORDER BY seq LIMIT ?",
            (*values, limit),
        )
        return ((seq, Row(*row), user) for seq, *row, user in found)

    def requeued(self, jobs: Sequence[str]) -> dict[str, float]:
        """When each of these jobs was last requeued; only those that were."""
        found: dict[str, float] = {}
        for first in range(0, len(jobs), _AT_ONCE):
            some = jobs[first : first + _AT_ONCE]
            marks = ",".join("?" * len(some))
            again = "kind IN ('Preempted', 'Requeued')"
            found |= self._connection.execute(
                f"SELECT job, max(at) FROM events WHERE job IN ({marks}) AND {again} GROUP BY job", some
            ).fetchall()
        return found

    def ends(self, jobs: Sequence[str]) -> dict[str, float | None]:
        """The end of each known job among these; None if it is not over."""
        marks = ",".join("?" * len(jobs))
        return dict(self._connection.execute(f"SELECT id, ended FROM jobs WHERE id IN ({marks})", jobs).fetchall())

    def any_ended_before(self, at: float) -> bool:
        return self._connection.execute("SELECT 1 FROM jobs WHERE ended < ? LIMIT 1", (at,)).fetchone() is not None

    def any_answered_before(self, at: float) -> bool:
        """Whether a request with a key was answered before an instant."""
        return self._connection.execute("SELECT 1 FROM answers WHERE at < ? LIMIT 1", (at,)).fetchone() is not None

    def needless_environments(self) -> tuple[list[str], int]:
        """Environments and scripts that no job has, and the number of the newest job that was checked."""
        self._connection.execute("BEGIN")  # both from one instant
        try:
            newest = self._connection.execute("SELECT max(number) FROM jobs").fetchone()[0] or 0
            found = self._connection.execute(
                "SELECT hash FROM environments EXCEPT SELECT json_extract(work, '$.environment') FROM jobs "
                "EXCEPT SELECT json_extract(work, '$.script') FROM jobs "
                "EXCEPT SELECT json_extract(work, '$.shared') FROM jobs"
            )
            return [key for (key,) in found], int(newest)
        finally:
            self._connection.execute("COMMIT")

    def past_runs(self, kind: str, key: str, limit: int) -> list[dict[str, Any]]:
        """The latest runs of a `signature` or `likeness` for listings, the newest first."""
        rows = self._connection.execute(
            _LATEST_RUNS[kind].replace(", ".join(RUN_EVIDENCE), ", ".join(_SHOWN_OF_RUNS)), (key, limit)
        )
        return [dict(zip(_SHOWN_OF_RUNS, row, strict=True)) for row in rows]

    def signatures(self, user: str, limit: int) -> list[tuple[Any, ...]]:
        """Signatures, the latest first: with user, name, command, number of runs and last end."""
        where = "WHERE user = ?" if user else ""
        return self._connection.execute(
            f"SELECT signature, user, name, command, count(*), max(at) FROM runs {where} "
            "GROUP BY signature ORDER BY max(at) DESC LIMIT ?",
            (*((user,) if user else ()), limit),
        ).fetchall()

    def owner_of(self, signature: str) -> str | None:
        found = self._connection.execute("SELECT user FROM runs WHERE signature = ? LIMIT 1", (signature,)).fetchone()
        return None if found is None else str(found[0])

    def script(self, key: str) -> str:
        """The script with a hash; empty if there is none."""
        found = self._connection.execute("SELECT content FROM environments WHERE hash = ?", (key,)).fetchone()
        return str(json.loads(found[0])) if found else ""

    def close(self) -> None:
        self._connection.close()

    def _select(self, rest: str, values: Iterable[Any]) -> list[JobView]:
        found = self._connection.execute(f"SELECT {views.SELECTED} FROM jobs {rest}", tuple(values))
        return list(map(views.from_row, found))
