"""What is removed when it is too old, and what never is."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.config import Settings
from gpuyard.core.events import (
    ClockSet,
    Event,
    Exited,
    GpusRestored,
    GpusWithdrawn,
    Opened,
    Placed,
    PolicySet,
    Started,
    Submitted,
)
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.background.retention import Removed, Retention, check_kept
from gpuyard.daemon.store.log import Checkpoints, Store, hashed
from gpuyard.daemon.store.reader import Answered, Reader
from gpuyard.daemon.store.records import Record
from gpuyard.engines.local import stored_attempts
from gpuyard.spec.work import Work

DAY = 86400.0
NOW = 1_000 * DAY


class Yard:
    """What retention needs of a yard: it does what it is asked at once, and then makes a checkpoint if one is due."""

    def __init__(self, store: Store) -> None:
        self.store, self.checkpoints = store, Checkpoints(store)
        self.environments: dict[str, str] = {}

    def ask(self, command: Callable[[], int], *, changes: bool = True) -> Future[int]:
        answer: Future[int] = Future()
        answer.set_result(command())
        state = self.store.load()
        assert state is not None
        self.checkpoints.make(state, idle=True)
        return answer

    def job(self, number: int, ended: float | None, variables: dict[str, str] | None = None) -> None:
        """A job that ended then, or runs."""
        job, at = str(number), NOW - 500 * DAY if ended is None else ended - 10
        key, content = hashed(variables or {"JOB": job})
        work = Work(("true",), "/", environment=key).to_json()
        events: list[Event] = [Placed(at, job, 1, (number % 2,)), Started(at, job, 1)]
        events += [] if ended is None else [Exited(ended, job, 1)]
        self.store.append(
            [Record(Submitted(at, job, Request()), {"work": work}), *map(Record, events)], environments={key: content}
        )


def retention(yard: Yard, settings: Settings) -> Retention:
    return Retention(cast(Any, yard), settings)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path / "s", keep_logs=90 * DAY, keep_history=365 * DAY)


@pytest.fixture
def yard(settings: Settings) -> Iterator[Yard]:
    store = Store(settings.database)
    store.append([Record(Opened(1.0, Cluster((2,)), ("a", "b"))), Record(PolicySet(1.0, "sjf"), {"configured": True})])
    yield Yard(store)
    store.close()


def files(settings: Settings, job: int, age: float = 0.0) -> Path:
    """What an attempt leaves behind."""
    folder = settings.jobs_dir / str(job) / "1"
    folder.mkdir(parents=True)
    (folder / "output.log").write_text("hello\n")
    (folder / "exit").write_text("0\n")
    for path in (folder / "output.log", folder / "exit", folder, folder.parent):
        os.utime(path, (NOW - age, NOW - age))
    return folder


def kept(settings: Settings) -> list[str]:
    return sorted(os.listdir(settings.jobs_dir), key=lambda name: int(name))


def known(settings: Settings) -> list[str]:
    return [view.id for view in Reader(settings.database).jobs(over=None, wanted={})]


@pytest.mark.parametrize("ago", [0.1, 1.1])
def test_a_clock_that_was_set_ahead_removes_nothing_for_a_day(yard: Yard, settings: Settings, ago: float) -> None:
    for number in (1, 2):
        yard.job(number, NOW - 400 * DAY)
        files(settings, number)
    yard.job(3, None)
    files(settings, 3)
    yard.store.append([Record(ClockSet(NOW - ago * DAY, 399 * DAY)), Record(Opened(NOW, Cluster((2,)), ("a", "b")))])
    assert retention(yard, settings).sweep(NOW) == ((0, 0) if ago < 1 else (2, 2))


def test_files_go_before_history(yard: Yard, settings: Settings) -> None:
    for number, age in enumerate((400, 100, 80, 0), 1):
        yard.job(number, NOW - age * DAY)
        files(settings, number)
    assert retention(yard, settings).sweep(NOW) == (2, 1)
    assert (kept(settings), known(settings)) == (["3", "4"], ["2", "3", "4"])
    assert retention(yard, settings).sweep(NOW) == (0, 0)


def test_who_is_not_over_is_left_alone_however_old(yard: Yard, settings: Settings) -> None:
    yard.job(1, None)
    yard.job(2, NOW - 400 * DAY)
    yard.job(3, NOW - 399 * DAY)
    files(settings, 1, 450 * DAY)
    files(settings, 3)
    retention(yard, settings).sweep(NOW)
    assert (kept(settings), known(settings)) == (["1", "3"], ["1", "3"])
    again = Store(settings.database)
    state = again.load()
    assert state is not None
    assert [state.ids[row] for row in state.running.array] == ["1"]
    again.close()


def test_no_id_is_ever_given_again(yard: Yard, settings: Settings) -> None:
    for number in (1, 2, 3):
        yard.job(number, NOW - 500 * DAY)
        files(settings, number)
    retention(yard, settings).sweep(NOW)
    assert (kept(settings), known(settings)) == (["3"], ["3"])
    assert Store(settings.database).newest == 3


def test_nothing_goes_that_the_checkpoint_does_not_cover(yard: Yard, settings: Settings) -> None:
    for number in (1, 2, 3):
        yard.job(number, NOW - 500 * DAY)
    assert yard.store.forget(NOW, 100) == 0
    yard.store.keep(yard.store.load())  # type: ignore[arg-type]
    assert yard.store.forget(NOW, 1) == 1
    assert yard.store.forget(NOW, 100) == 1
    assert known(settings) == ["3"]


def test_what_is_left_of_the_log_can_be_read_also_without_a_checkpoint(yard: Yard, settings: Settings) -> None:
    old: list[Event] = [
        GpusWithdrawn(3.0, (1,), "foreign"),
        GpusRestored(4.0, (1,)),
        GpusWithdrawn(NOW - 1, (0,), "foreign"),
    ]
    yard.store.append([Record(event) for event in old])
    yard.job(1, NOW - 500 * DAY)
    yard.job(2, NOW - 400 * DAY)
    yard.job(3, None)
    retention(yard, settings).sweep(NOW)
    kinds = [type(record.event).__name__ for _, record in yard.store.records()]
    assert kinds == ["Opened", "PolicySet", "GpusWithdrawn", "Submitted", "Placed", "Started"]
    with_checkpoint = yard.store.load()
    yard.store.rebuild()
    state = yard.store.load()
    assert state is not None
    assert with_checkpoint is not None
    for name in ("withdrawn", "ids"):
        assert getattr(state, name) == getattr(with_checkpoint, name)
    assert known(settings) == ["3"]


def test_environments_go_with_the_last_job_that_has_them(yard: Yard, settings: Settings) -> None:
    yard.job(1, NOW - 500 * DAY, {"MINE": "alone"})
    yard.job(2, NOW - 500 * DAY, {"OURS": "shared"})
    yard.job(3, NOW, {"OURS": "shared"})
    yard.environments = dict([hashed({"COMING": "soon"})])
    yard.store.append([], yard.environments)
    retention(yard, settings).sweep(NOW)
    found = sqlite3.connect(settings.database).execute("SELECT content FROM environments").fetchall()
    assert {name for (content,) in found for name in json.loads(content)} == {"OURS", "COMING"}


def test_a_removal_that_was_cut_short_is_finished(yard: Yard, settings: Settings) -> None:
    yard.job(1, NOW)
    files(settings, 1)
    (settings.jobs_dir / ".removed-7" / "1").mkdir(parents=True)
    retention(yard, settings).sweep(NOW)
    assert os.listdir(settings.jobs_dir) == ["1"]


def test_files_that_the_store_knows_nothing_of_go_when_nobody_has_touched_them(yard: Yard, settings: Settings) -> None:
    yard.job(1, NOW)
    for number, age in ((1, 0), (5, 100), (6, 80), (9, 100)):
        files(settings, number, age * DAY)
    retention(yard, settings).sweep(NOW)
    assert kept(settings) == ["1", "6", "9"]


def test_folders_with_odd_names_keep_nothing_else_from_being_removed(yard: Yard, settings: Settings) -> None:
    yard.job(1, NOW - 100 * DAY)
    yard.job(2, NOW)
    files(settings, 1)
    files(settings, 2)
    odd = [b"3_\xff", b"\xff", b"9" * 40, "\u0663".encode(), b"1_\n", b"4_" + b"1" * 200]
    for name in odd:
        (settings.jobs_dir / os.fsdecode(name)).mkdir()
    (settings.jobs_dir / "1_2").touch()  # a file
    yard.job(3, NOW - 100 * DAY)
    (settings.jobs_dir / "3").touch()
    yard.job(4, NOW)
    files(settings, 4)
    (settings.data_dir / "work").mkdir()
    (settings.data_dir / "work" / "1").symlink_to(settings.jobs_dir)
    assert retention(yard, settings).sweep(NOW)[0] == 2
    assert os.listdir(settings.data_dir / "work") == []
    assert sorted(os.listdir(os.fsencode(settings.jobs_dir))) == sorted([*odd, b"1_2", b"2", b"4"])


def nested(folder: Path, depth: int) -> None:
    """A directory in a directory and so on, deeper than any path can tell."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("x" * 20, dir_fd=here)
        inner = os.open("x" * 20, os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.fchmod(inner, 0o500)
        os.fchmod(here, 0o500)
        os.close(here)
        here = inner
    os.close(here)


def test_a_directory_nested_thousands_deep_is_removed_and_so_are_others(yard: Yard, settings: Settings) -> None:
    for number in (1, 2, 3):
        yard.job(number, NOW - 100 * DAY)
        files(settings, number)
    yard.job(4, NOW)
    files(settings, 4)
    nested(settings.jobs_dir / "1" / "1", 1500)
    (settings.data_dir / "work" / "2").mkdir(parents=True)
    os.symlink(settings.data_dir / "outside", settings.data_dir / "work" / "2" / "link")
    (settings.data_dir / "outside").mkdir()
    (settings.data_dir / "outside" / "precious").touch()
    nested(settings.data_dir / "work" / "2", 1500)
    assert retention(yard, settings).sweep(NOW)[0] == 3
    assert kept(settings) == ["4"]
    assert os.listdir(settings.data_dir / "work") == []
    assert (settings.data_dir / "outside" / "precious").exists()


def test_what_cannot_be_removed_keeps_nothing_else_from_being_removed(
    yard: Yard, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3, 4, 5):
        yard.job(number, NOW - 500 * DAY if number < 5 else NOW)
        files(settings, number)
    yard.store.keep(yard.store.load())  # type: ignore[arg-type]
    (settings.jobs_dir / "1").rename(settings.jobs_dir / ".removed-1")  # a former daemon could not either
    remove = stored_attempts.remove_tree

    def fail(path: Path) -> None:
        if path.name in (".removed-1", ".removed-2"):
            raise RecursionError("too deep")
        remove(path)

    monkeypatch.setattr(stored_attempts, "remove_tree", fail)
    retention(yard, settings).sweep(NOW)
    assert sorted(os.listdir(settings.jobs_dir)) == [".removed-1", ".removed-2", "5"]
    assert known(settings) == ["5"], "rows go as well"
    assert [record.message.split(": ")[-1] for record in caplog.records if record.levelname == "WARNING"] == [
        "too deep"
    ] * 2


def test_nothing_is_removed_where_all_is_to_be_kept(yard: Yard, settings: Settings) -> None:
    yard.job(1, NOW - 500 * DAY)
    yard.job(2, NOW)
    files(settings, 1)
    files(settings, 2)
    for_ever = Settings(settings.data_dir, settings.socket, keep_logs=0, keep_history=0)
    sweeper = retention(yard, for_ever)
    sweeper.start()
    sweeper.stop()
    assert (kept(settings), known(settings)) == (["1", "2"], ["1", "2"])


def test_who_asks_for_removed_output_is_told(yard: Yard, settings: Settings) -> None:
    yard.job(1, NOW - 100 * DAY)
    yard.job(2, time.time() + 100)
    old, new = Reader(settings.database).jobs(over=None, wanted={})
    with pytest.raises(Removed, match=r"output of job 1 is gone: it is kept for 90d 00h after a job's end"):
        check_kept(settings, old, 1)
    with pytest.raises(Removed, match=r"output of job 2 is gone: its files were in .*jobs"):
        check_kept(settings, new, 1)
    check_kept(settings, old, 7)
    files(settings, 1)
    check_kept(settings, old, 1)


def test_a_daemon_that_dies_while_it_removes_has_removed_nothing(yard: Yard, settings: Settings) -> None:
    for number in (1, 2, 3):
        yard.job(number, NOW - 500 * DAY)
    yard.store.keep(yard.store.load())  # type: ignore[arg-type]
    yard.store.close()
    code = f"from gpuyard.daemon.store.log import Store, Path; Store(Path({str(settings.database)!r})).forget({NOW}, 9)"
    dying = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "GPUYARD_FAULT": "store:forgetting"}, check=False
    )
    assert dying.returncode == -9
    assert known(settings) == ["1", "2", "3"]
    yard.store = Store(settings.database)
    assert len(list(yard.store.records())) == 14
    assert yard.store.forget(NOW, 9) == 2
    assert known(settings) == ["3"]


def test_answers_to_requests_with_a_key_are_kept_for_a_week(yard: Yard, settings: Settings) -> None:
    told = [Answered("ann", str(n), "hash", '{"id":"1"}', NOW - n * DAY) for n in range(1, 1500)]
    work = {"work": Work(("true",), "/").to_json()}
    yard.store.append([Record(Submitted(NOW, "1", Request()), work)], answers=told)
    retention(yard, settings._replace(keep_logs=0.0, keep_history=0.0)).sweep(NOW + 1.0)
    reader = Reader(settings.database)
    assert [n for n in range(1, 1500) if reader.answer("ann", str(n))] == [1, 2, 3, 4, 5, 6]
    assert reader.answer("bob", "1") is None
    reader.close()
