"""A store that has lost writes, or is damaged: it is noticed, told, and what is left of it is saved."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.chaos.checks import check_projections, jobs_of

from gpuyard.admin import recovery
from gpuyard.config import Settings, settings
from gpuyard.core.events import Exited, Held, Opened, Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.background.retention import StoreWatch
from gpuyard.daemon.store.database import HighWater, Mark, StoreBehind, integrity
from gpuyard.daemon.store.log import Intent, Store, hashed
from gpuyard.daemon.store.records import Record
from gpuyard.engines.local import stored_attempts
from gpuyard.errors import UserError
from gpuyard.server.responses import job_json
from gpuyard.spec.work import Work

WORK = {"work": Work(("python", "train.py"), "/home/ann", name="train").to_json()}
JOBS = 200


def _write(store: Store, jobs: int) -> None:
    store.append([Record(Opened(1.0, Cluster((2,)), ("a", "b")))])
    for number in range(1, jobs + 1):
        job, at = str(number), float(number)
        store.append([Record(Submitted(at, job, Request(estimate=60.0)), WORK), Record(Placed(at, job, 1, (0,)))])
        store.append([Record(Started(at, job, 1)), Record(Exited(at + 0.5, job, 1, number % 7))])


@pytest.fixture
def place(tmp_path: Path) -> Settings:
    """A data directory with a store as a sudden end leaves it: half of it is in the log beside it."""
    found = settings({"data_dir": tmp_path / "data"}, {})
    (tmp_path / "first").mkdir()
    store = Store(tmp_path / "first" / "gpuyard.db")
    _write(store, 10)
    shutil.copytree(tmp_path / "first", found.data_dir)
    store.close()
    return found


def _cut(path: Path) -> None:
    os.truncate(f"{path}-wal", Path(f"{path}-wal").stat().st_size // 2)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


LOSSES: dict[str, Callable[[Path], None]] = {
    "log cut": _cut,
    "log deleted": lambda path: os.unlink(f"{path}-wal"),
    "store emptied": _empty,
    "store deleted": lambda path: os.unlink(path),
}


@pytest.mark.parametrize("how", LOSSES)
def test_lost_writes_are_told_and_accepted_by_a_person_only(place: Settings, how: str) -> None:
    path = place.database
    LOSSES[how](path)
    before = {name: Path(name).read_bytes() for name in (path, Path(f"{path}-wal")) if Path(name).exists()}
    for _ in range(2):  # looking changes nothing
        with pytest.raises(
            StoreBehind, match=r"has lost writes .* of 41 events, with \d+ submitted jobs?.*--accept-loss"
        ):
            Store(path)
        assert {name: Path(name).read_bytes() for name in before} == before
    store = Store(path, accept_loss=True)
    assert store.lost.last == 41 - store.last > 0
    assert store.lost.jobs == 10 - store.jobs
    assert store.newest == 10  # so that no id is given again
    assert len(list(place.data_dir.glob("gpuyard.db.behind-*Z"))) == (how != "store deleted")
    store.append([Record(Opened(99.0, Cluster((2,)), ("a", "b")))])
    store.close()
    Store(path).close()


def test_a_sudden_end_is_no_loss(place: Settings) -> None:
    mark = HighWater(place.database)
    assert mark.read() == Mark(41, 10, 10)
    mark.write(Mark(39, 10, 10))  # it died between the commit and the mark
    mark.close()
    store = Store(place.database)
    assert (store.last, store.lost) == (41, Mark())
    store.close()


@pytest.mark.parametrize("content", [b"", b"17", b"41 10 10 ffffffff\n", b"\0" * 64])
def test_a_mark_that_makes_no_sense_is_none(place: Settings, content: bytes) -> None:
    mark = HighWater(place.database)
    mark.path.write_bytes(content)
    assert mark.read() == Mark()
    Store(place.database).close()


@pytest.mark.parametrize("mark", [Mark(), Mark(41, 10, 10)])
def test_folders_tell_of_a_loss_too(place: Settings, mark: Mark) -> None:
    """Where there is no mark, or one as old as the store."""
    begun = partial(stored_attempts.begun_after, place.jobs_dir)
    for name in ("9", "11/1", "13_2/1", "x/1", "12_\udcff/1", "99999999999999999999999/1"):
        (place.jobs_dir / name).mkdir(parents=True)
    HighWater(place.database).remove()
    Store(place.database, begun=begun).close()  # all that has begun is known
    for name in ("11", "13_2", "x", "12_\udcff", "99999999999999999999999"):
        (place.jobs_dir / name / "1" / "pid").touch()
    HighWater(place.database).write(mark)
    with pytest.raises(StoreBehind, match=r"lost writes .*: 2 jobs that began, by the folders of jobs.*--accept-loss"):
        Store(place.database, begun=begun)
    store = Store(place.database, accept_loss=True, begun=begun)
    assert store.lost == Mark(0, 2, 13)
    store.append([Record(Opened(99.0, Cluster((2,)), ("a", "b")))])
    store.close()
    Store(place.database, begun=begun).close()  # it has a mark now


def test_the_log_is_deleted_under_a_running_daemon(place: Settings) -> None:
    store = Store(place.database)
    watch = StoreWatch(store, print)
    assert watch.replaced() == watch.check() == ""
    os.unlink(f"{place.database}-wal")
    assert "gpuyard.db-wal was deleted or replaced" in watch.replaced()
    store.close()  # which writes what it held
    Store(place.database).close()


def _flip(path: Path, seed: int) -> None:
    rng, content = random.Random(seed), bytearray(path.read_bytes())
    for page in rng.sample(range(8, len(content) // 4096), 3):
        content[page * 4096 : page * 4096 + 64] = rng.randbytes(64)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_what_can_be_read_of_a_damaged_store_is_saved(tmp_path: Path, seed: int) -> None:
    place = settings({"data_dir": tmp_path}, {})
    store = Store(place.database)
    _write(store, JOBS)
    store.close()
    _flip(place.database, seed)
    assert integrity(place.database, thorough=False)
    found = recovery.recover(place)
    assert found.expected == 1 + 4 * JOBS
    assert not integrity(place.database, thorough=True)
    assert integrity(Path(found.former), thorough=False)
    saved = Store(place.database, accept_loss=True)
    assert saved.load() is not None
    saved.close()
    jobs = jobs_of(place.database)
    assert len(jobs) == found.jobs > 0
    for view in jobs.values():
        assert view.exit_code in (None, int(view.id) % 7)


def _zeros(page: int) -> Callable[[bytearray], bytes]:
    return lambda content: bytes([*content[: page * 4096], *bytes(4096), *content[page * 4096 + 4096 :]])


DAMAGES: dict[str, tuple[Callable[[bytearray], bytes], int]] = {  # and how many jobs may be lost at most
    "format": (lambda content: bytes([*content[:18], 9, 9, *content[20:]]), 0),
    "first page": (_zeros(0), 0),
    "root of the log": (_zeros(1), 0),
    "cut off": (lambda content: bytes(content[: len(content) * 9 // 10]), JOBS // 5),
    "name in the schema": (
        lambda content: bytes(content.replace(b"CREATE TABLE events", b"CREATE TABLE ev\xffnts")),
        0,
    ),
    "version": (lambda content: bytes([*content[:60], 255, *content[61:]]), 0),
    "older version": (lambda content: bytes([*content[:63], 3, *content[64:]]), 0),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_what_stands_in_sound_pages_is_saved_whatever_leads_there(tmp_path: Path, how: str) -> None:
    place = settings({"data_dir": tmp_path}, {})
    store = Store(place.database)
    _write(store, JOBS)
    store.close()
    before = jobs_of(place.database)
    damage, most = DAMAGES[how]
    content = damage(bytearray(place.database.read_bytes()))
    place.database.write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged .*gpuyard restore FILE.*gpuyard recover"):
        Store(place.database).load()
    place.database.write_bytes(content)
    found = recovery.recover(place)
    assert Path(found.former).read_bytes() == content
    assert not integrity(place.database, thorough=True)
    after = jobs_of(place.database)
    assert len(after) >= len(before) - most
    assert all((view.state, view.ended) == (before[job].state, before[job].ended) for job, view in after.items())
    assert not found.cancelled


def test_a_job_that_is_over_stays_so_where_its_end_is_lost_from_the_log(place: Settings) -> None:
    before = jobs_of(place.database)
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM events WHERE job = '3' AND kind IN ('Placed', 'Exited')")
        connection.execute("DELETE FROM events WHERE job = '5' AND kind = 'Exited'")
    found = recovery.recover(place)
    assert found.cancelled == []
    after = jobs_of(place.database)
    assert {job: (view.state, view.exit_code) for job, view in after.items()} == {
        job: (view.state, view.exit_code) for job, view in before.items()
    }


def test_a_job_that_may_have_been_held_does_not_start_by_itself(place: Settings) -> None:
    store = Store(place.database)
    for job in ("11", "12", "13"):
        store.append([Record(Submitted(20.0, job, Request()), WORK), Record(Held(20.0, job))])
    store.append([Record(Submitted(21.0, "14", Request()), WORK), Record(Submitted(22.0, "15", Request()), WORK)])
    store.close()
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM events WHERE kind = 'Held' AND job IN ('11', '12')")
        connection.execute("DELETE FROM jobs WHERE id IN ('12', '14')")
    found = recovery.recover(place)
    assert (found.held, found.cancelled, found.dropped) == (["11", "12", "14"], [], 0)
    states = {job: view.state for job, view in jobs_of(place.database).items() if int(job) > 10}
    assert states == {"11": "held", "12": "held", "13": "held", "14": "held", "15": "queued"}


def test_an_id_that_nobody_was_given_is_no_job(place: Settings) -> None:
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("UPDATE events SET job = '3 ' WHERE job = '3' AND kind = 'Submitted'")
        connection.execute("UPDATE jobs SET id = '4_r' WHERE id = '4'")
    found = recovery.recover(place)
    assert (found.held, found.cancelled, set(jobs_of(place.database))) == ([], [], set(map(str, range(1, 11))))


@pytest.mark.parametrize("at", [1e18, -1.0, math.nan, math.inf, 21.5])
def test_a_time_that_fits_in_nowhere_is_that_of_the_event_before(place: Settings, at: float) -> None:
    store = Store(place.database)
    for n in range(4):
        store.append([Record(Submitted(20.0 + n / 10, str(11 + n), Request()), WORK)])
    store.close()
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("UPDATE events SET at = ? WHERE job = '12'", (at if at == at else "nan",))
    if at != 21.5:
        assert "rows of events" in integrity(place.database, thorough=False)
    recovery.recover(place)
    assert not integrity(place.database, thorough=True)
    after = jobs_of(place.database)
    assert [after[job].submitted for job in ("11", "12", "13", "14")] == [20.0, 20.0, 20.2, 20.3]


def test_a_task_that_is_over_is_kept_without_what_it_shared(place: Settings) -> None:
    store = Store(place.database)
    key, content = hashed(WORK["work"])
    details = {"work": {**WORK["work"], "shared": key}}
    store.append([Record(Submitted(20.0, "11_0", Request(array="11")), details)], {key: content})
    store.append([Record(Placed(20.0, "11_0", 1, (0,))), Record(Started(20.0, "11_0", 1))])
    store.append([Record(Exited(25.0, "11_0", 1, 3))])
    store.close()
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM environments WHERE hash = ?", (key,))
    recovery.recover(place)
    view = jobs_of(place.database)["11_0"]
    assert (view.state, view.exit_code, view.ran, view.array) == ("failed", 3, 5.0, "11")
    assert view.work["command"]


def test_a_sound_store_loses_nothing_by_recovery(place: Settings) -> None:
    before = jobs_of(place.database)
    found = recovery.recover(place)
    assert (found.events, found.dropped, found.jobs, found.last, found.cancelled) == (41, 0, 10, 41, [])
    assert jobs_of(place.database) == before
    Store(place.database).close()
    check_projections(place.database)


def test_recovery_keeps_tasks_with_what_they_share_and_long_requests(place: Settings) -> None:
    store = Store(place.database)
    for number in (11, 12):
        key, content = hashed({**WORK["work"], "name": f"array{number}"})
        details = {"work": {**WORK["work"], "name": f"array{number}", "shared": key}}
        store.append([Record(Submitted(20.0, f"{number}_0", Request(array=str(number))), details)], {key: content})
    store.append([], intents={1: Intent(3, '{"kind":"hold"}')})
    store.close()
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM environments WHERE hash = ?", (key,))
    found = recovery.recover(place)
    assert (found.jobs, found.dropped) == (11, 1)
    saved = Store(place.database, accept_loss=True)
    assert saved.open["11_0"].work["command"] == list(WORK["work"]["command"])
    assert saved.unfinished() == [(1, 3, {"kind": "hold"})]
    saved.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET data = '{' WHERE seq = 2",
        "UPDATE jobs SET measured = CAST(X'7B2270656100FF' AS TEXT) WHERE number = 2",
        "UPDATE jobs SET work = replace(work, 'gpu_count', 'gpu_counu') WHERE number = 2",
        "UPDATE jobs SET ended = 1e300 WHERE number = 2",
        "UPDATE jobs SET started = -1 WHERE number = 2",
    ],
)
def test_rows_that_make_no_sense_are_damage(place: Settings, damage: str) -> None:
    store = Store(place.database)
    assert integrity(place.database, thorough=False) == ""
    store._connection.execute(damage)
    assert "1 rows of events or jobs cannot be read" in StoreWatch(store, print).check()
    store.close()


def test_what_is_recovered_of_rows_with_a_flipped_bit_can_be_shown(place: Settings) -> None:
    """Also where it is JSON as before, with another name for a field, or a time of another age."""
    store = Store(place.database)
    work = Work(("python", "train.py"), "/home/ann", name="train", tags=("a", "b"), time_limit=90.0).to_json()
    measured = {"peak": 1e9, "mean": 9e8, "samples": 3, "period": 1.0, "seconds": 2.0, "energy_wh": 0.5}
    last = 11 + 400
    for number in range(11, last):
        job, at = str(number), 20.0 + number
        request = Request(gpus=2, estimate=60.0, memory=1e9, compute=0.0, begin=10.0, scope=(0, 1))
        store.append([Record(Submitted(at, job, request), {"work": work}), Record(Placed(at, job, 1, (0, 1)))])
        store.append([Record(Started(at, job, 1)), Record(Exited(at, job, 1, 1), {"measured": measured})])
    store.close()
    rng = random.Random(7)
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM events WHERE CAST(job AS INTEGER) > 10")
        for number in range(11, last):
            column = ("work", "measured", "submitted", "started", "ended", "gpus", "id")[number % 7]
            (value,) = connection.execute(f"SELECT {column} FROM jobs WHERE number = ?", (number,)).fetchone()
            content = bytearray(struct.pack(">d", value) if isinstance(value, float) else value.encode())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            changed = struct.unpack(">d", content)[0] if isinstance(value, float) else content.decode(errors="replace")
            with suppress(sqlite3.OperationalError):  # an index goes by the JSON, which is none
                connection.execute(f"UPDATE OR IGNORE jobs SET {column} = ? WHERE number = ?", (changed, number))
    recovery.recover(place)
    assert not integrity(place.database, thorough=True)
    jobs = jobs_of(place.database)
    assert len(jobs) > 300
    for view in jobs.values():
        job_json(view)


def test_a_job_in_a_state_that_there_is_not_is_not_recovered(place: Settings) -> None:
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("UPDATE jobs SET state = 'failgd' WHERE number IN (3, 4)")
        connection.execute("DELETE FROM events WHERE job = '4'")
    recovery.recover(place)
    after = jobs_of(place.database)
    assert (after["3"].state, "4" in after) == ("failed", False)


def test_an_upgrade_is_logged_and_keeps_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gpuyard.db"
    script = (Path(__file__).parents[2] / "stores" / "version-4.sql").read_text()
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    rows = connection.execute("SELECT count(*) FROM events").fetchone()
    connection.close()
    with caplog.at_level(logging.INFO, "gpuyard"):
        Store(path).close()
    assert f"upgraded {path} from version 4 to 6; a copy of the former is {path}.version-4" in caplog.text
    with sqlite3.connect(f"{path}.version-4") as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (4,)
        assert copy.execute("SELECT count(*) FROM events").fetchone() == rows
