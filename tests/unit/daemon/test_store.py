"""The store: all of a batch or nothing, views that follow from the log, and clear words when the disk is no help."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.events import (
    Adapted,
    Booked,
    Cancelled,
    Charged,
    Chosen,
    ClockSet,
    Edited,
    Event,
    Exited,
    GpusDrained,
    GpusRestored,
    GpusResumed,
    GpusWithdrawn,
    Granted,
    HarmMeasured,
    Held,
    HostTaken,
    MemoryTaken,
    Opened,
    Placed,
    PolicySet,
    Preempted,
    Promised,
    Recalled,
    Reclaimed,
    Rejected,
    Released,
    Renewed,
    Requeued,
    Returned,
    RulesSet,
    Spared,
    Started,
    Submitted,
    Unbooked,
    Unpromised,
)
from gpuyard.core.model import GIB, Booking, Cluster, Quota, Request, Rules
from gpuyard.daemon.store.database import VERSION, StoreFailing
from gpuyard.daemon.store.log import Store, hashed
from gpuyard.daemon.store.reader import EventFilter, Reader
from gpuyard.daemon.store.records import KINDS, Record, Row, decode, encode
from gpuyard.daemon.store.views import JobView, fold_view, work_of
from gpuyard.errors import Bug, UserError
from gpuyard.spec.work import Work

TWO = Cluster((2,))
OPENED = Record(Opened(1.0, TWO, ("a", "b")), {"version": "0.1.0"})
WORK = {"work": Work(("python", "x.py"), "/tmp", name="x", time_limit=60.0).to_json()}


def submitted(job: str, at: float = 2.0) -> Record:
    return Record(Submitted(at, job, Request(user="ann", estimate=60.0)), WORK)


def ran(job: str, gpu: int, code: int = 0) -> list[Record]:
    events: list[Event] = [Placed(3.0, job, 1, (gpu,)), Started(3.5, job, 1), Exited(9.0, job, 1, code)]
    return [Record(event) for event in events]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "store.db")
    yield found
    found.close()


# -- events as rows ------------------------------------------------------------------------------------

EVENTS: list[Event] = [
    Submitted(1.5, "a", Request(gpus=2, scope=(0, 1), memory=4 * GIB, compute=0, user="ann")),
    Rejected(1.0, "a", "too large"), Held(1.0, "a"), Released(1.0, "a"), Cancelled(1.0, "a"),
    Chosen(1.0, "a", 7.0), Placed(1.0, "a", 3, (0, 1)), Started(1.0, "a", 1, 2.5), Renewed(1.0, "a", 1),
    Preempted(1.0, "a", 1), Requeued(1.0, "a", 1), Recalled(1.0, "a", 1, "timeout"), Spared(1.0, "a", 1),
    HostTaken(1.0, 0, 2.5, 2.0**30), Exited(1.0, "a", 1),
    Exited(1.0, "a", 1, None, "oom"), Opened(1.0, Cluster((2,), gpu_memory=(GIB, 2 * GIB)), ("x", "y")),
    PolicySet(1.0, "sjf"), GpusWithdrawn(1.0, (1,), "foreign"), GpusRestored(1.0, (1,)),
    Edited(1.0, "a", Request(begin=9.0, limit=8.0, after=("ok:1", "any:2"), array="7", at_most=2, group="lab")),
    Promised(1.0, "a", (0, 1)), Unpromised(1.0, "a"), GpusDrained(1.0, (0,)), GpusResumed(1.0, (0,)),
    Booked(1.0, Booking("demo", (0, 1), 5.0, 9.0, ("ann",))), Unbooked(1.0, "demo"), RulesSet(1.0, Rules()),
    MemoryTaken(1.0, (2.0**29, 2.0**30), 2.0**29), MemoryTaken(1.0, (0.5,)),
    ClockSet(1.0, -3.5), HarmMeasured(1.0, "a b", "c", 1.75),
    Charged(1.0, "a", 2.0**31, "history", "3 runs"), Charged(1.0, "a", 0.5),
    Placed(1.0, "a", 4, (1,), "cbp"), Granted(1.0, "a", 1, (1,)), Reclaimed(1.0, "a", 1, (1,)),
    Returned(1.0, "a", 1, (1,)), Adapted(1.0, "a", 1),
    RulesSet(1.0, Rules(3600.0, (("ann", 2.0),), (("@lab", Quota(4)), ("*", Quota(0, 10.5))), preempts=False)),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_as_it_went(event: Event) -> None:
    record = Record(event, {"by": "ann", "command": ["\udcff", "ü"]})
    row = encode(record)
    assert decode(row) == record
    row.data.encode()  # a database takes valid UTF-8 only


def test_every_kind_of_event_is_tried() -> None:
    assert {type(event) for event in EVENTS} == set(KINDS.values())


def test_an_event_of_a_later_version() -> None:
    with pytest.raises(Bug, match="'Teleported', which this version"):
        decode(Row(1.0, "Teleported", "a", 1, ""))


# -- views ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([], {"state": "queued", "gpus": (), "attempt": 0}),
        ([Held(3.0, "1")], {"state": "held"}),
        ([Held(3.0, "1"), Released(4.0, "1")], {"state": "queued"}),
        ([Cancelled(3.0, "1")], {"state": "cancelled", "ended": 3.0}),
        ([Placed(3.0, "1", 1, (1,))], {"state": "running", "gpus": (1,), "attempt": 1, "started": None}),
        ([Placed(3.0, "1", 1, (1,)), Started(4.0, "1", 1)], {"state": "running", "started": 4.0}),
        ([Placed(3.0, "1", 1, (1,)), Exited(5.0, "1", 1)], {"state": "succeeded", "ended": 5.0, "exit_code": 0}),
        ([Placed(3.0, "1", 1, (1,)), Exited(5.0, "1", 1, 7)], {"state": "failed", "exit_code": 7}),
        ([Placed(3.0, "1", 1, (1,)), Exited(5.0, "1", 1, None)], {"state": "failed", "exit_code": None}),
        ([Placed(3.0, "1", 1, (1,)), Requeued(5.0, "1", 1)], {"state": "queued", "gpus": (), "started": None}),
        (
            [Placed(3.0, "1", 1, (1,)), Recalled(4.0, "1", 1, "timeout"), Exited(5.0, "1", 1, 143, "timeout")],
            {"state": "timeout", "exit_code": 143},
        ),
        (
            [Placed(3.0, "1", 1, (1,)), Requeued(4.0, "1", 1), Placed(5.0, "1", 2, (0,)), Exited(6.0, "1", 1, 9)],
            {"state": "running", "gpus": (0,), "attempt": 2},  # a late report
        ),
    ],
)
def test_views_follow_from_events(events: list[Event], wanted: dict[str, object]) -> None:
    view: JobView | None = None
    for record in (submitted("1"), *map(Record, events)):
        view = fold_view(view, 1, record)
    assert view is not None
    assert {name: getattr(view, name) for name in wanted} == wanted
    assert work_of(view) == Work(("python", "x.py"), "/tmp", name="x", time_limit=60.0)


# -- writing and reading -------------------------------------------------------------------------------


def test_what_was_written_is_there_for_the_next(store: Store) -> None:
    key, content = hashed({"A": "1", "BYTES": "\udcff"})
    store.append([OPENED, submitted("1"), submitted("2"), *ran("1", 0)], {key: content})
    store.append([submitted("3")])
    again = Store(store.path)
    assert (again.last, again.jobs, list(again.open)) == (7, 3, ["2", "3"])
    assert again.last_at >= 9.0
    assert again.environment(key) == {"A": "1", "BYTES": "\udcff"}
    assert [record.event for _, record in again.records(after=6)] == [submitted("3").event]
    again.close()
    reader = Reader(store.path)
    assert [view.id for view in reader.jobs(over=None, wanted={})] == ["1", "2", "3"]
    assert [view.id for view in reader.jobs(over=True, wanted={"user": "ann"}, ended_after=8.0)] == ["1"]
    assert reader.counts() == {"queued": 2, "succeeded": 1}
    assert [row.kind for _, row, _ in reader.happened(0, 100, EventFilter("1"), 100)] == [
        "Submitted",
        "Placed",
        "Started",
        "Exited",
    ]
    reader.close()


jobs = st.lists(st.sampled_from(["submit", "run", "fail", "cancel", "hold", "keep"]), max_size=30)


@given(steps=jobs)
def test_views_and_state_can_be_made_anew(steps: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("store") / "store.db"
    store = Store(path)
    store.append([OPENED])
    waiting: list[str] = []
    for step in steps:
        if step == "submit" or not waiting:
            waiting.append(str(store.jobs + 1))
            store.append([submitted(waiting[-1])])
        elif step == "keep":
            state = store.load()
            assert state is not None
            store.keep(state)
        elif step == "hold":
            job = waiting.pop()
            store.append([Record(Held(3.0, job)), Record(Released(3.0, job)), Record(Cancelled(3.0, job))])
        elif step == "cancel":
            store.append([Record(Cancelled(3.0, waiting.pop(0)))])
        else:
            store.append(ran(waiting.pop(0), 1, code=step == "fail"))
    before = Reader(path).jobs(over=None, wanted={})
    kept = store.load()
    store.rebuild()
    assert Reader(path).jobs(over=None, wanted={}) == before
    folded = store.load()
    assert kept is not None
    assert folded is not None
    assert (
        [folded.ids[r] for r in folded.waiting.array] == [kept.ids[r] for r in kept.waiting.array] == list(store.open)
    )
    assert kept.used == folded.used
    store.close()


def test_a_batch_is_written_whole_or_not_at_all(store: Store) -> None:
    store.append([OPENED, submitted("1")])
    bad = Record(Submitted(2.0, "2", Request()), {"work": {"command": object()}})
    with pytest.raises(Bug):
        store.append([submitted("2"), bad])
    with pytest.raises(StoreFailing):  # the id is taken, so the view cannot be written, nor the event
        store.append([submitted("2"), submitted("1")])
    again = Store(store.path)
    assert (again.last, list(again.open)) == (2, ["1"])
    again.close()
    store.append([submitted("2")])
    assert list(store.open) == ["1", "2"]


def test_a_torn_transaction_never_happened(store: Store, tmp_path: Path) -> None:
    store.append([OPENED, submitted("1")])
    wal = store.path.with_name("store.db-wal")
    whole = wal.stat().st_size
    store.append([submitted("2")])
    for cut in range(whole + 1, wal.stat().st_size, 997):
        torn = tmp_path / f"torn-{cut}.db"
        shutil.copy(store.path, torn)
        torn.with_name(torn.name + "-wal").write_bytes(wal.read_bytes()[:cut])
        found = Store(torn)
        assert (found.last, list(found.open)) == (2, ["1"])
        found.append([submitted("2")])
        found.close()


def test_a_full_disk(store: Store) -> None:
    store.append([OPENED])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFailing, match=r"is full; free some space, nothing is lost"):
        store.append([submitted(str(n)) for n in range(1, 500)])
    assert (store.last, store.jobs, store.open) == (1, 0, {})
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.append([submitted("1")])
    assert list(store.open) == ["1"]


def test_a_store_that_may_not_be_written(store: Store) -> None:
    store.append([OPENED])
    store._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreFailing, match=r"cannot be written .*check its permissions"):
        store.append([submitted("1")])
    assert store.open == {}


@pytest.mark.parametrize("damage", ["header", "middle"])
def test_a_damaged_store(store: Store, damage: str, tmp_path: Path) -> None:
    store.append([OPENED, *(submitted(str(n)) for n in range(1, 300))])
    store.close()
    content = bytearray(store.path.read_bytes())
    begin = 0 if damage == "header" else 4096
    content[begin : begin + 8192] = b"\xff" * 8192
    broken = tmp_path / "broken.db"
    broken.write_bytes(content)
    with pytest.raises(UserError, match=r"broken.db is damaged .*gpuyard restore FILE"):
        Store(broken)


def test_other_peoples_databases(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    with pytest.raises(UserError, match="is a database, but not one of gpuyard"):
        Store(path)
    newer = tmp_path / "newer.db"
    Store(newer).close()
    later = sqlite3.connect(newer)
    later.execute(f"PRAGMA user_version = {VERSION + 1}")
    later.close()
    with pytest.raises(UserError, match="written by a newer version"):
        Store(newer)
    with pytest.raises(UserError, match="cannot be written"):
        Store(tmp_path / "missing" / "store.db")


# -- older versions ------------------------------------------------------------------------------------


def _schema(path: Path) -> set[tuple[str, str]]:
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {(name, "".join("".join(line.split("--")[0].split()) for line in sql.splitlines())) for name, sql in found}


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_older_store_is_brought_up_to_date(version: int, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = sqlite3.connect(path)
    old.executescript((Path(__file__).parents[2] / "stores" / f"version-{version}.sql").read_text())
    old.close()
    store = Store(path)
    assert {job: view.state for job, view in store.open.items()} == {"2": "queued", "4": "held"}
    assert store.jobs == 4
    state = store.load()
    assert state is not None
    assert [state.ids[row] for row in state.waiting.array] == ["2"]
    assert [r.event.policy for r in store.latest("PolicySet") if isinstance(r.event, PolicySet)] == [
        "sjf@easy@pack", "priority@easy@pack",
    ]  # fmt: skip
    before = Reader(path).jobs(over=None, wanted={})
    assert [(v.id, v.state, v.exit_code) for v in before if v.over] == [("1", "failed", 3), ("3", "cancelled", 143)]
    assert store.environment(str(before[0].work["environment"])) == {"HOME": "/home/ann", "PATH": "/usr/bin"}
    store.rebuild()
    assert Reader(path).jobs(over=None, wanted={}) == before
    store.close()
    Store(tmp_path / "new.db").close()
    assert _schema(path) == _schema(tmp_path / "new.db")
    assert json.dumps(before[0].work["command"]) == '["python", "train.py"]'


def test_a_closed_store_is_one_file(store: Store) -> None:
    store.append([OPENED, submitted("1")])
    reader = Reader(store.path)
    reader.jobs(over=None, wanted={})
    store.close()
    wal = store.path.with_name("store.db-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    reader.close()
    copy = store.path.with_name("copy.db")
    shutil.copy(store.path, copy)
    again = Store(copy)
    assert list(again.open) == ["1"]
    again.close()
