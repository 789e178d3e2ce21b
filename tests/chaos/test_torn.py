"""A store whose last writes are torn, or whose pages are garbage: what was synced is there, or it says why not."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from gpuyard.core.events import Exited, Opened, Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.errors import GpuyardError
from gpuyard.spec.work import Work
from tests.chaos.checks import check_projections, jobs_of

SEED = 20260704
WORK = {"work": Work(("python", "train.py"), "/home/ann", name="train").to_json()}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """A store as a sudden end leaves it, and how long its log of writes was when each job was acknowledged."""
    place = tmp_path / "written"
    place.mkdir()
    store = Store(place / "gpuyard.db")
    store.append([Record(Opened(1.0, Cluster((2,)), ("a", "b")))])
    sizes = {}
    for number in range(1, 41):
        job, at = str(number), float(number)
        store.append([Record(Submitted(at, job, Request(estimate=60.0)), WORK), Record(Placed(at, job, 1, (0,)))])
        sizes[job] = (place / "gpuyard.db-wal").stat().st_size
        store.append([Record(Started(at, job, 1)), Record(Exited(at + 0.5, job, 1, number % 7))])
    for path in list(place.iterdir()):
        shutil.copy(path, tmp_path)
    store.close()
    return tmp_path / "gpuyard.db", sizes


def test_a_torn_last_transaction(written: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    database, sizes = written
    log = database.with_name("gpuyard.db-wal").read_bytes()
    rng = random.Random(SEED)
    for offset in [0, 1, len(log) - 1, *(rng.randrange(len(log)) for _ in range(60))]:
        torn = tmp_path / "torn" / "gpuyard.db"
        shutil.rmtree(torn.parent, ignore_errors=True)
        torn.parent.mkdir()
        shutil.copy(database, torn)
        torn.with_name("gpuyard.db-wal").write_bytes(log[:offset])
        Store(torn).close()
        jobs = jobs_of(torn)
        lost = [job for job, size in sizes.items() if size <= offset and job not in jobs]
        assert not lost, f"cut at {offset}: jobs {lost} were synced before"
        for view in jobs.values():
            assert (view.state, view.over) in [("running", False), ("succeeded", True), ("failed", True)]
            assert view.exit_code in (None, view.number % 7)
        if jobs:
            check_projections(torn)


def test_pages_of_garbage(written: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    database, _ = written
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    whole, rng, refused = database.read_bytes(), random.Random(SEED), 0
    for _ in range(60):
        broken = bytearray(whole)
        offset = rng.randrange(len(broken))
        garbage = rng.randbytes(rng.choice([1, 50, 4096]))[: len(broken) - offset]
        broken[offset : offset + len(garbage)] = garbage
        path = tmp_path / "broken.db"
        path.write_bytes(broken)
        if problem := _problem(path):
            assert str(path) in str(problem)
            refused += 1
        for left in tmp_path.glob("broken.db*"):
            left.unlink()
    assert refused


def _problem(path: Path) -> GpuyardError | None:
    """What is wrong with a store, in a sentence."""
    store = None
    try:
        store = Store(path)
        store.load()
        store.rebuild()
    except GpuyardError as error:
        return error
    finally:
        if store is not None:
            store.close()
    return None
