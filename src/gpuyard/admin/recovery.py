"""A damaged store is read page by page, without its trees, and what is found is put into a new one.

SQLite finds a row by the pages above it, from the first one on: where one of these is damaged, or the file is cut off,
it reads nothing of what lies below. But each page can be read by itself, and how many columns a row has tells which
table it is of. So what is lost is what stood in damaged pages, and no more.

The log is the truth: events are kept with their numbers, and jobs follow from them. What makes no sense without an
event that is lost is left out, and a time that fits in nowhere is that of the event before. Of a job that is over and
whose events are not all there, its row is kept. A job that would wait again since the rest of its story is lost, is
cancelled: whether it has run, its folder tells, not the log. One that waits, and may have been held, edited or begun
by what is lost, is held. One whose processes live runs, whatever is left of its story: its GPUs are not given twice.
"""

from __future__ import annotations

import json
import mmap
import os
import sqlite3
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuyard.config import Settings
from gpuyard.core.events import Cancelled, Held, Opened, Placed, Started
from gpuyard.core.model import Cluster, Phase
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.jobs.outcomes import UNKNOWN, LostJob, beginning, running_jobs
from gpuyard.daemon.store import views
from gpuyard.daemon.store.database import BESIDE, FARTHEST, NONSENSE, VERSION, HighWater, open_store, set_aside
from gpuyard.daemon.store.log import Store, key_of
from gpuyard.daemon.store.records import Record, Row, decode, encode
from gpuyard.daemon.store.views import JobView, fold_view
from gpuyard.errors import GpuyardError, UserError
from gpuyard.files import sync
from gpuyard.spec.notation import number_of

_MESSAGE = "cancelled: what happened after it was submitted could not be read from a damaged store; see its output"
_HELD = (
    "held: it could not be read from a damaged store whether it was held, edited or begun; look at it, then release it"
)
_OTHERS = {"answers": 3, "runs": 6, "intents": 2}  # tables, and which of their columns is JSON
_FAR = 2**20  # events that a store is never ahead of its mark
_NONSENSE = (GpuyardError, OverflowError, StopIteration, *NONSENSE)

Numbered = tuple[int, Record]
Rows = Mapping[str, list[Sequence[Any]]]  # by table


@dataclass(frozen=True, slots=True)
class Recovered:
    events: int  # that are in the new store
    dropped: int  # that could be read, and make no sense without others
    last: int  # the number of the last event, and what it should be; 0: not known
    expected: int
    jobs: int
    cancelled: list[str]
    held: list[str]
    running: list[str]  # by their processes, not by what is left of the log
    former: str  # where the damaged store is now


def recover(settings: Settings) -> Recovered:
    """Replace a damaged store by what can be read of it. Call this within `alone`."""
    draft = settings.database.with_name(f".{settings.database.name}.recovered")
    parts = [draft.with_name(draft.name + ending) for ending in ("", *BESIDE)]
    try:
        for part in parts:
            part.unlink(missing_ok=True)
        return _recover(settings, draft)
    finally:
        for part in parts:  # where the disk is full, say
            part.unlink(missing_ok=True)


def _recover(settings: Settings, draft: Path) -> Recovered:
    database, expected = settings.database, HighWater(settings.database).read().last
    rows = Pages(database).rows()
    shared = {key: content for key, content in rows["environments"] if key_of(content) == key}
    with closing(open_store(draft)) as target:
        columns = [name for _, name, *_ in target.execute("PRAGMA table_info(jobs)")]
    found, views_of = _events(rows["events"], expected), _by_rows(rows["jobs"], columns, shared)
    over = {job: view for job, view in views_of.items() if view.over}
    if not found and not over:
        raise UserError(
            f"nothing can be read of {database}; gpuyard restore FILE puts a backup in its place. If there is none, "
            "move it away: gpuyard up --accept-loss takes up the jobs that have begun by their folders"
        )
    told = _told(found)
    whole = _whole(found, told, over, shared)
    last = max((view.ended or 0.0 for view in over.values()), default=0.0)
    doubtful, living = _doubtful(whole, told, views_of, expected), list(running_jobs(settings.jobs_dir))
    kept, cancelled, held, running = sensible(whole, last, doubtful, living)
    with closing(open_store(draft)) as target:
        _insert(target, "events", [(seq, *encode(record)) for seq, record in kept])
        _insert(target, "environments", list(shared.items()))
        for table, column in _OTHERS.items():
            _insert(target, table, [row for row in rows[table] if _is_json(row[column])])
    jobs = _rebuild(draft, over)
    sync(draft)
    aside = set_aside(database, "damaged", move=True)
    os.replace(draft, database)
    sync(settings.data_dir)
    there = {id(record) for _, record in kept}
    dropped = sum(id(record) not in there for _, record in found)
    return Recovered(len(kept), dropped, kept[-1][0], expected, jobs, cancelled, held, running, str(aside))


def _rebuild(draft: Path, over: Mapping[str, JobView]) -> int:
    """Make the jobs follow from the log; of those that are over and not in it, the history has the rows."""
    store = Store(draft)
    try:
        jobs = store.rebuild()
        store.load()
    finally:
        store.close()
        store.mark.remove()
    with closing(open_store(draft)) as target:
        known = {id for (id,) in target.execute("SELECT id FROM jobs")}
        lost = [view for job, view in over.items() if job not in known]
        rows = [views.to_row(replace(view, number=number)) for number, view in enumerate(lost, jobs + 1)]
        _insert(target, f"jobs ({', '.join(views.COLUMNS)})", rows)
    return jobs + len(lost)


def _insert(target: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Of rows with one key the first counts."""
    with target:
        target.execute("BEGIN")
        for row in rows:
            with suppress(sqlite3.IntegrityError, OverflowError):
                target.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


# -- which rows make sense -----------------------------------------------------------------------------


def _is_json(text: Any) -> bool:
    with suppress(*_NONSENSE):
        json.loads(text)
        return True
    return False


def _events(rows: Sequence[Sequence[Any]], expected: int) -> list[Numbered]:
    """The events that can be read, in order."""
    found: dict[int, Record] = {}
    for seq, at, kind, job, attempt, data in rows:
        with suppress(*_NONSENSE):
            record = decode(Row(float(at), kind, job, attempt, data))
            if 0 <= seq <= (expected or seq) + _FAR and (job is None or number_of(job)):
                found.setdefault(seq, record)
    numbered = sorted(found.items())
    times = _rising([record.event.at for _, record in numbered])
    return [
        (seq, record if record.event.at == at else Record(replace(record.event, at=at), record.details))
        for (seq, record), at in zip(numbered, times, strict=True)
    ]


def _rising(times: Sequence[float]) -> list[float]:
    """Times of a log, which never fall: most are kept, and those that fit in nowhere are as the one before."""
    tails, ends, before = list[float](), list[int](), dict[int, int]()  # of the longest rows that rise
    for n, at in enumerate(times):
        if 0 <= at <= FARTHEST:
            place = bisect_right(tails, at)
            before[n] = ends[place - 1] if place else -1
            tails[place : place + 1], ends[place : place + 1] = [at], [n]
    good, n = set[int](), ends[-1] if ends else -1
    while n >= 0:
        good.add(n)
        n = before[n]
    latest = times[min(good)] if good else 0.0
    found = list[float]()
    for n, at in enumerate(times):
        latest = at if n in good else latest
        found.append(latest)
    return found


def _by_rows(rows: Sequence[Sequence[Any]], columns: list[str], shared: Mapping[str, str]) -> dict[str, JobView]:
    """The jobs by their rows, in the order of submission."""
    found: dict[str, JobView] = {}
    for row in sorted(rows, key=lambda row: row[0]):
        with suppress(*_NONSENSE):
            values = dict(zip(columns, row, strict=True))
            key = json.loads(values["work"]).get("shared")
            view = views.from_row((*(values[name] for name in views.COLUMNS), shared.get(key)), repair=True)
            if key not in shared and key:  # what it did is known, not what it was
                work = {name: value for name, value in view.work.items() if name != "shared"}
                view = replace(view, work={"command": [UNKNOWN], "directory": "/", **work})
            if view.over == Phase(view.state).over and number_of(view.id):
                found.setdefault(view.id, _with_times(view))
    return found


def _with_times(view: JobView) -> JobView:
    """A time that cannot be is another one of the job's."""
    times = [view.submitted, view.started, view.ended]
    good = next(at for at in times if at is not None and 0 <= at <= FARTHEST)
    submitted, started, ended = (at if at is None or 0 <= at <= FARTHEST else good for at in times)
    return replace(view, submitted=submitted or good, started=started, ended=ended)


def _told(found: list[Numbered]) -> dict[str, JobView | None]:
    """The jobs as far as events tell of them."""
    told: dict[str, JobView | None] = {}
    for _, record in found:
        if (job := record.job) is not None:
            with suppress(*_NONSENSE):
                told[job] = fold_view(told.get(job), 0, record)
    return told


def _doubtful(
    found: list[Numbered], told: Mapping[str, JobView | None], rows: Mapping[str, JobView], expected: int
) -> set[str]:
    """Jobs that wait by what is left of the log, and may have been held, edited or started by what is lost."""
    last = found[-1][0] if found else 0
    complete = bool(found) and last - found[0][0] == len(found) - 1 and last >= expected
    waiting = [view for view in told.values() if view is not None and view.state == "queued"]
    return {view.id for view in waiting if not complete and not _agree(view, rows.get(view.id))}


def _whole(
    found: list[Numbered], told: Mapping[str, JobView | None], over: Mapping[str, JobView], shared: Mapping[str, str]
) -> list[Numbered]:
    """The events without those of jobs that are over, and for which some are missing: of these the row is kept.

    Nor does a task of an array make sense without what it shares with the others.
    """
    partial = {job for job, view in over.items() if not _agree(told.get(job), view)}
    keys = {*shared, None}
    return [one for one in found if one[1].job not in partial and _shared(one[1]) in keys]


def _shared(record: Record) -> str | None:
    """The hash of what a task shares with others of its array."""
    key: str | None = record.details.get("work", {}).get("shared")
    return key


def _agree(told: JobView | None, row: JobView | None) -> bool:
    """Whether events and a row tell the same of a job, as far as events change it."""
    facts = [(v.state, v.attempt, v.exit_code, v.ended, v.priority, v.name) for v in (told, row) if v is not None]
    return len(facts) == 2 and facts[0] == facts[1]


def sensible(
    found: list[Numbered], at: float, doubtful: Collection[str], living: Sequence[LostJob]
) -> tuple[list[Numbered], list[str], list[str], list[str]]:
    """The events that can follow each other, and the jobs that are cancelled, held and running at the end.

    `at`: the time where there is no event; `doubtful`: jobs that are held if they wait; `living`: jobs that run.
    """
    first = next((record.event for _, record in found if isinstance(record.event, Opened)), None)
    if first is None:  # as many GPUs as were used; the next daemon says how many there are
        used = (gpu for _, record in found if isinstance(record.event, Placed) for gpu in record.event.gpus)
        first = Opened(0.0, Cluster((1 + max(used, default=0),)))
    state, kept, holes = State(first.cluster), list[Numbered](), dict[str, None]()
    if not found or not isinstance(found[0][1].event, Opened):
        before, at = (found[0][0] - 1, found[0][1].event.at) if found else (1, at)
        found = [(max(0, before), Record(Opened(at, first.cluster, first.gpus))), *found]
    for seq, record in found:
        try:
            apply(state, record.event)
            kept.append((seq, record))
        except _NONSENSE:
            if record.job is not None:
                holes[record.job] = None
    (last, record), at = kept[-1], max(record.event.at for _, record in kept)
    more, running = list[Record](), list[str]()
    for lost in living:
        with suppress(*_NONSENSE):
            for event, details in beginning(state, lost, at):
                apply(state, event)
                more.append(Record(event, details))
                running += [lost.job] if isinstance(event, Started) else []
    rows = ((job, state.row_of.get(job, -1)) for job in holes)
    cancelled = [job for job, row in rows if row >= 0 and state.phase[row] in (Phase.QUEUED, Phase.HELD)]
    doubtful = [job for job in state.ids if job in doubtful and job not in holes]
    held = [job for job in doubtful if state.phase[state.row_of[job]] is Phase.QUEUED]
    more += [Record(Cancelled(at, job), {"message": _MESSAGE}) for job in cancelled]
    more += [Record(Held(at, job), {"message": _HELD}) for job in held]
    return [*kept, *((last + n, record) for n, record in enumerate(more, 1))], cancelled, held, running


# -- pages, as https://sqlite.org/fileformat2.html has them --------------------------------------------

_SIZE = 4096  # bytes of a page: SQLite's default, which gpuyard keeps
_ROWS, _KEYED, _KEYED_INNER = 13, 10, 2  # pages of rows, and of those of tables that have no numbers for them
_TABLES = {
    (True, 6): "events", (True, 20): "jobs", (True, 3): "intents",
    (False, 2): "environments", (False, 5): "answers", (False, 20): "runs",
}  # fmt: skip
"""By whether its rows have numbers, and how many columns."""
_LATER = ("job", "", 0, 0, "")  # columns of `jobs` that its first version did not have
_WIDTHS = (0, 1, 2, 3, 4, 6, 8)  # bytes of an integer, by its kind


class Pages:
    """The pages of a store: those of its file, or newer ones in the log beside it."""

    def __init__(self, database: Path) -> None:
        with database.open("rb") as file:
            empty = not os.fstat(file.fileno()).st_size
            self._file: bytes | mmap.mmap = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._file[:15] == b"SQLite format 3" and VERSION < (found := self._number(60)) < VERSION + 1000:
            raise UserError(f"{database} was written by a newer version of gpuyard ({found}); use that version")
        self._newer: dict[int, bytes] = {}
        with suppress(FileNotFoundError):
            self._read_log(database.with_name(database.name + BESIDE[0]).read_bytes())

    def _number(self, offset: int) -> int:
        return int.from_bytes(self._file[offset : offset + 4])

    def _read_log(self, log: bytes) -> None:
        """Take the pages of transactions that are complete; the log's first page tells which are of its last life."""
        life, coming = log[40:48], dict[int, bytes]()
        for begin in range(32, len(log) - _SIZE - 23, _SIZE + 24):
            page, commits = struct.unpack(">II", log[begin : begin + 8])
            if log[begin + 8 : begin + 16] != life:
                break
            coming[page] = log[begin + 24 : begin + 24 + _SIZE]
            if commits:
                self._newer |= coming
                coming = {}

    def _page(self, number: int) -> bytes:
        return self._newer.get(number) or self._file[(number - 1) * _SIZE : number * _SIZE]

    def _free(self) -> set[int]:
        """Pages that hold nothing any more, whatever stands there."""
        found, trunk = set[int](), int.from_bytes(self._page(1)[32:36])
        while trunk and trunk not in found and (page := self._page(trunk)):
            found.add(trunk)
            trunk, count, *leaves = struct.unpack(f">{len(page) // 4}I", page[: len(page) // 4 * 4])
            found.update(leaves[: min(count, _SIZE // 4 - 2)])
        return found

    def rows(self) -> Rows:
        """All rows that can be read, by table."""
        found: dict[str, list[Sequence[Any]]] = defaultdict(list)
        free = self._free()
        for number in sorted({*range(1, len(self._file) // _SIZE + 2), *self._newer}):
            for rowid, values in () if number in free else self._cells(self._page(number)):
                if 15 <= len(values) < 20 and rowid is not None:
                    values = [*values, *_LATER[len(values) - 15 :]]
                if (table := _TABLES.get((rowid is not None, len(values)))) and (values[0] is None) is (
                    rowid is not None
                ):
                    found[table].append(values if rowid is None else [rowid, *values[1:]])
        return found

    def _cells(self, page: bytes) -> Iterator[tuple[int | None, list[Any]]]:
        kind, count = page[:1], int.from_bytes(page[3:5])
        if kind and kind[0] in (_ROWS, _KEYED, _KEYED_INNER):
            head = 12 if kind[0] == _KEYED_INNER else 8
            for at in struct.unpack_from(f">{max(0, min(count, (len(page) - head) // 2))}H", page, head):
                with suppress(ValueError, IndexError, struct.error):
                    yield self._cell(page, at + head - 8, kind[0] == _ROWS)

    def _cell(self, page: bytes, at: int, numbered: bool) -> tuple[int | None, list[Any]]:
        length, at = _varint(page, at)
        rowid, at = _varint(page, at) if numbered else (None, at)
        most = _SIZE - 35 if numbered else (_SIZE - 12) * 64 // 255 - 23
        least = (_SIZE - 12) * 32 // 255 - 23
        here = least + (length - least) % (_SIZE - 4)  # the rest is in a chain of pages
        here = length if length <= most else here if here <= most else least
        parts, following = [page[at : at + here]], int.from_bytes(page[at + here : at + here + 4])
        passed, rest = {0}, length - len(parts[0])
        while rest > 0:
            if following in passed:
                raise ValueError("the chain is broken")
            passed.add(following)
            more = self._page(following)[: 4 + rest]
            parts.append(more[4:])
            rest, following = rest - len(parts[-1]), int.from_bytes(more[:4])
        return rowid, _values(b"".join(parts))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for place in range(at, at + 8):
        number = number << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return number, place + 1
    return number << 8 | data[at + 8], at + 9


def _values(record: bytes) -> list[Any]:
    end, at = _varint(record, 0)
    kinds, values = list[int](), list[Any]()
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    for kind in kinds:
        size = (kind - 12) // 2 if kind >= 12 else 8 if kind == 7 else _WIDTHS[kind] if kind < 7 else 0
        data, at = record[at : at + size], at + size
        if len(data) < size:
            raise ValueError("the record is cut off")
        if kind >= 12:
            values.append(data.decode() if kind % 2 else data)
        elif kind == 7:
            values.append(struct.unpack(">d", data)[0])
        else:
            values.append((None, *[int.from_bytes(data, signed=True)] * 7, 0, 1)[kind])
    return values
