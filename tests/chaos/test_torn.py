"""A store whose last writes are torn, or whose pages are garbage: what was synced is there, or it says why not."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.admin.recovery import recover
from gpuyard.client.client import Client
from gpuyard.client.transport import Refused
from gpuyard.config import settings
from gpuyard.core.events import Exited, Opened, Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.errors import GpuyardError
from gpuyard.spec.work import Work
from tests.chaos.checks import check_projections, check_starts, check_times, jobs_of
from tests.chaos.harness import PATIENCE, Daemon, exit_code, job_command, read_stamps

SEED = 20260704
VARIABLES = {"PATH": "/usr/bin:/bin"}
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


def test_a_daemon_whose_store_lost_writes_goes_on_with_what_folders_tell(tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    stamps.mkdir()
    daemon = Daemon(tmp_path / "data")
    try:
        daemon.start()
        client = daemon.client
        commands = [job_command(stamps, tmp_path / "end"), job_command(stamps, 0)]
        running, over = (client.submit(command, directory="/", environment=VARIABLES) for command in commands)
        waiting = client.submit(["true"], directory="/", environment=VARIABLES, gpus=4)
        client.wait(over, timeout=PATIENCE)
        daemon.kill()
        (daemon.data_dir / "gpuyard.db-wal").unlink()
        (daemon.data_dir / "jobs" / "77").touch()  # no folder
        (daemon.data_dir / "jobs" / "odd").symlink_to("odd")
        os.utime(daemon.data_dir / "jobs" / over / "1" / "pid")  # later than its end, as after a copy
        assert daemon.spawn().wait(PATIENCE) == 2
        assert "with 3 submitted jobs" in daemon.words()
        daemon.start("--accept-loss")
        found = {job["id"]: job for job in client.jobs(all=True)}
        assert waiting not in found
        assert (found[over]["state"], found[over]["exit_code"]) == ("failed", exit_code(over))
        assert (found[running]["state"], found[running]["gpus"]) == ("running", [0])
        assert found[running]["command"] == commands[0]
        assert {"77", "odd"} <= set(os.listdir(daemon.data_dir / "jobs"))
        beside = client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES, gpus=3)
        assert int(beside) > int(waiting)
        client.wait(beside, timeout=PATIENCE)
        (tmp_path / "end").touch()
        assert client.wait(running, timeout=PATIENCE)["exit_code"] == exit_code(running)
        daemon.stop()
        check_starts(read_stamps(stamps))
        check_times(daemon.data_dir / "gpuyard.db")
        check_projections(daemon.data_dir / "gpuyard.db")
    finally:
        daemon.close()


@pytest.mark.parametrize("lost", ["kind <> 'Opened'", "kind <> 'Submitted'", "kind = 'Placed'"])
def test_a_job_that_runs_keeps_its_gpu_where_the_store_is_recovered_without_it(tmp_path: Path, lost: str) -> None:
    stamps = tmp_path / "stamps"
    stamps.mkdir()
    daemon = Daemon(tmp_path / "data")
    try:
        daemon.start()
        client = daemon.client
        running = client.submit(job_command(stamps, tmp_path / "end"), directory="/", environment=VARIABLES)
        client.job(running, wait=PATIENCE, until="start")
        daemon.stop()
        place = settings({"data_dir": daemon.data_dir}, {})
        with closing(sqlite3.connect(place.database)) as connection, connection:
            connection.execute(f"DELETE FROM events WHERE job = ? AND {lost}", (running,))
            connection.execute("DELETE FROM jobs")
        assert recover(place).running == [running]
        daemon.start("--accept-loss")  # the newest events are lost as well
        found = client.job(running)
        assert (found["state"], found["gpus"], found["attempt"]) == ("running", [0], 1)
        (tmp_path / "end").touch()
        assert client.wait(running, timeout=PATIENCE)["exit_code"] == exit_code(running)
        daemon.stop()
        check_starts(read_stamps(stamps))
        check_projections(daemon.data_dir / "gpuyard.db")
    finally:
        daemon.close()


def test_a_daemon_on_a_damaged_store_says_so_and_takes_nothing(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "data")
    database = daemon.data_dir / "gpuyard.db"
    try:
        daemon.start()
        client = daemon.client
        array = client.submit(["true"], directory="/", environment=VARIABLES, array="0-199")
        daemon.wait_until_empty()
        daemon.stop()
        _overwrite(database, "jobs_over")  # history goes by this index
        daemon.start()
        assert client.status()["store"]["state"] == "failing"  # by the check at the start
        _refuses(client)
        daemon.stop()
        daemon.data_dir.joinpath("gpuyard.db").unlink()
        daemon.start("--accept-loss")
        daemon.wait_until_empty()
        _bring_into_one_file(database)
        _overwrite(database, "jobs_over")
        with pytest.raises(Refused, match=r"is damaged .*gpuyard restore FILE.*gpuyard recover"):
            client.history(limit=1000)
        _refuses(client)
        assert client.job(f"{array}_7")["exit_code"] == 0  # what can be read is shown
        daemon.stop()
        assert "Traceback" not in daemon.words()
    finally:
        daemon.close()


def test_a_daemon_whose_store_is_damaged_beneath_it_says_so(tmp_path: Path) -> None:
    """Also where what SQLite says does not mention damage, and where rows are read that make no sense."""
    daemon = Daemon(tmp_path / "data")
    database = daemon.data_dir / "gpuyard.db"
    try:
        daemon.start()
        client = daemon.client
        client.submit(["true"], directory="/", environment=VARIABLES, array="0-199")
        daemon.wait_until_empty()
        daemon.stop()
        whole = database.read_bytes()
        work = whole.index(b'{"command"') + 1  # of a job
        for begin, junk in ((18, b"\x09\x09"), (work, b"\xff")):
            database.write_bytes(whole)
            daemon.start()
            _bring_into_one_file(database)
            with database.open("r+b") as file:
                file.seek(begin)
                file.write(junk)
            with pytest.raises(Refused, match=r"is damaged .*gpuyard restore FILE.*gpuyard recover"):
                client.history(limit=1000)
            assert client.status()["store"]["state"] == "failing"
            _refuses(client)
            daemon.kill()
            for name in ("gpuyard.db-wal", "gpuyard.db-shm", "gpuyard.mark"):
                database.with_name(name).unlink()
        assert "Traceback" not in daemon.words()
    finally:
        daemon.close()


def test_damage_beside_the_store_is_not_the_stores(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "data")
    try:
        daemon.start()
        _bring_into_one_file(notices := daemon.data_dir / "notices.db")
        with notices.open("r+b") as file:
            file.seek(4096)
            file.write(random.Random(SEED).randbytes(notices.stat().st_size - 4096))
        with pytest.raises(Refused, match=r"notices.db is damaged .*move it away"):
            daemon.client.notifications(all=True)
        assert daemon.client.status()["store"]["state"] == "ok"
        daemon.client.wait(daemon.client.submit(["true"], directory="/", environment=VARIABLES), timeout=PATIENCE)
    finally:
        daemon.close()


def _bring_into_one_file(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _overwrite(database: Path, name: str) -> None:
    """Put garbage in the place of the pages of an index, or a table."""
    with closing(sqlite3.connect(database)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    with database.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(random.Random(SEED).randbytes(64))


def _refuses(client: Client) -> None:
    with pytest.raises(Refused, match=r"is damaged .*gpuyard restore FILE") as refusal:
        client.submit(["true"], directory="/", environment=VARIABLES)
    assert refusal.value.status == 503
