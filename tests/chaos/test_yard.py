"""The yard where things go wrong around it: a store that cannot be written, an engine that fails, an early end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config import settings
from gpuyard.core.events import Exited, Started
from gpuyard.core.model import Request
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.database import StoreFailing
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.base import Ended, EngineError, LaunchRefused, NeverBegan, Node, Placement, Report, Running, Task
from gpuyard.errors import UserError
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.spec.work import Work
from tests.chaos.checks import check_projections, check_times, jobs_of

ANY = Request(estimate=1.0)


class Scripted:
    """An engine that says what the test tells it to."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.adopted: dict[str, Report] = {}
        self.launched: list[tuple[str, int]] = []
        self.stopped: list[str] = []
        self.asked: list[tuple[str, int, float, str]] = []
        self.fails: Exception | None = None
        self.quick = False
        """Whether it says of what it launches that it runs, before anybody asks."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)

    def tell(self, *reports: Report) -> None:
        """See something happen."""
        self.reports += reports
        os.eventfd_write(self._bell, 1)

    def nodes(self) -> Sequence[Node]:
        return (Node("here", ("a", "b")),)

    def last_job(self) -> int:
        return 0

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        if self.fails:
            raise self.fails
        self.launched.append((task.job, attempt))
        if self.quick:
            self.tell(Running(task.job, attempt, time.time(), "17"))

    def adopt(self, job: str, attempt: int) -> Report:
        if self.fails:
            raise self.fails
        return self.adopted.get(job) or NeverBegan(job, attempt)

    def stop(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        self.stopped.append(job)
        self.asked.append((job, attempt, grace, signal))

    def observe(self) -> list[Report]:
        if isinstance(self.fails, EngineError):
            raise self.fails
        if self.reports:
            os.eventfd_read(self._bell)
        found, self.reports = self.reports, []
        return found

    def fileno(self) -> int:
        return self._bell

    def due(self) -> float | None:
        return None

    def owner(self, pid: int) -> tuple[str, int] | None:
        return None

    def read_log(self, job: str, attempt: int, offset: int, size: int, *, exact: bool = False) -> tuple[int, bytes]:
        return offset, b""

    def log_size(self, job: str, attempt: int) -> int:
        return 0

    def close(self) -> None:
        os.close(self._bell)


class Place:
    """A yard on two GPUs, in as many lives as a test wants; nothing happens but by `turn`."""

    def __init__(self, data_dir: Path, policy: str = "fcfs") -> None:
        self.database = data_dir / "gpuyard.db"
        self.engine = Scripted()
        self._settings = settings({"data_dir": data_dir, "policy": policy}, {})
        self.begin()

    def begin(self) -> None:
        """A life."""
        gpus = SimulatedGpus.parse("2x16G")
        self.store = Store(self.database)
        machine = Machine(gpus, self.engine)
        self.yard = Daemon(self.store, self.engine, machine, self._settings)
        self.yard.open(machine.cluster, machine.uuids)
        self.desk = self.yard.commands

    def ask(self, command: Callable[[], Any]) -> Any:
        """Ask for something, and let one turn pass."""
        answer = self.yard.ask(command)
        self.yard.turn(0)
        return answer.result(0)

    def submit(self, request: Request = ANY, **more: Any) -> str:
        work = Work(("true",), "/", **more)
        job: str = self.ask(lambda: self.desk.submit(work, request, {}))
        return job

    def tell(self, *reports: Report) -> None:
        """Let it see something happen, and write that down: a beginning may wait a little for that."""
        self.engine.tell(*reports)
        self.yard.turn(0)
        time.sleep(0.006)
        self.yard.turn(0)

    def end(self) -> None:
        """As if told to, and check what is left."""
        self.yard.stop()
        self.yard.run()
        self.store.close()
        check_times(self.database)
        check_projections(self.database)

    def job(self, job: str = "1") -> JobView:
        return jobs_of(self.database)[job]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.store.close()
    found.engine.close()


class Full:
    """A disk that is full for as long as a test wants."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.tried = 0
        for name in ("append", "keep"):
            monkeypatch.setattr(place.store, name, self._guarded(getattr(place.store, name)))

    def _guarded(self, write: Callable[..., None]) -> Callable[..., None]:
        def attempt(*arguments: Any) -> None:
            self.tried += 1
            if self.is_full:
                raise StoreFailing("the disk is full")
            write(*arguments)

        return attempt

    def empty(self, place: Place) -> None:
        """Make room, and let the yard notice."""
        self.is_full = False
        place.yard._retry_at = 0.0
        place.yard.turn(0)


def test_what_happened_last_is_written_before_the_end(place: Place) -> None:
    place.engine.fails = LaunchRefused("no such directory")
    place.submit()
    place.end()
    assert (place.job().state, place.job().message) == ("failed", "no such directory")


def test_a_start_that_nobody_has_written_yet_is_written_before_the_end(place: Place) -> None:
    place.engine.quick = True
    place.submit()
    place.end()
    assert place.job().started is not None


def test_a_job_cancelled_before_it_began_never_begins(place: Place) -> None:
    place.submit()
    place.ask(lambda: place.desk.cancel("1"))
    place.store.close()
    place.begin()  # whose engine says that it never began
    place.yard.turn(0)
    assert place.engine.launched == [("1", 1)]
    assert place.job().state == "cancelled"
    place.end()


def test_a_job_that_never_began_waits_again_but_not_in_a_frenzy(place: Place) -> None:
    place.submit()
    place.tell(NeverBegan("1", 1))
    assert place.engine.launched == [("1", 1)]
    assert 0.5 < place.yard._timeout() <= 1.0
    place.yard.planning._quiet_until = 0.0
    place.yard.turn(0)
    assert place.engine.launched == [("1", 1), ("1", 2)]


def test_an_exit_seen_while_nothing_can_be_written_is_not_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit()
    place.tell(Running("1", 1, time.time(), "17"))
    full = Full(place, monkeypatch)
    place.tell(Ended("1", 1, time.time(), 7))  # the engine tells it once, and will know no more
    assert place.yard.failing == "the disk is full"
    place.engine.adopted["1"] = Ended("1", 1, time.time(), None)
    full.empty(place)
    place.yard.turn(0)
    assert (place.job().state, place.job().exit_code) == ("failed", 7)
    place.end()


def test_what_is_asked_while_nothing_can_be_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.submit()
    full = Full(place, monkeypatch)
    with pytest.raises(StoreFailing, match="the disk is full"):
        place.submit()
    with pytest.raises(StoreFailing, match="the disk is full"):
        place.ask(lambda: place.desk.cancel("1"))
    answer = place.yard.ask(place.desk.facts, changes=False)
    place.yard.turn(0)
    assert answer.result(0)["policy"].startswith("fcfs")
    place.engine.adopted["1"] = Running("1", 1, time.time(), "17")
    full.empty(place)
    assert place.submit() == "2"
    assert place.engine.launched == [("1", 1), ("2", 1)]


def test_a_failing_store_is_tried_once_a_second_whatever_happens(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.submit()
    full = Full(place, monkeypatch)
    place.tell(Running("1", 1, time.time(), "17"))
    for _ in range(20):
        place.tell(Ended("1", 1, time.time(), 0))
    assert full.tried == 1
    assert 0.5 < place.yard._timeout() <= 1.0


def test_a_recovery_that_fails_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.submit()
    full = Full(place, monkeypatch)
    place.tell(Running("1", 1, time.time(), "17"))
    place.engine.fails = EngineError("cannot create a directory")
    full.empty(place)
    assert place.yard.failing == "cannot create a directory"
    place.engine.fails, place.engine.adopted["1"] = None, Running("1", 1, time.time(), "17")
    full.empty(place)
    place.tell()
    assert place.yard.failing == ""
    assert place.job().started is not None
    place.end()


def test_an_engine_that_cannot_look(place: Place) -> None:
    place.submit()
    place.engine.fails = EngineError("too many open files")
    place.tell(Ended("1", 1, time.time(), 0))
    place.engine.fails = None
    place.yard.turn(0)
    assert place.job().state == "succeeded"


def test_a_checkpoint_that_fails_takes_nothing_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise StoreFailing("the disk is full")

    monkeypatch.setattr("gpuyard.daemon.store.log._EVERY", (0, 0))
    monkeypatch.setattr(place.store, "keep", fail)
    assert place.submit() == "1"
    assert place.engine.launched == [("1", 1)]
    place.yard.stop()
    place.yard.run()
    assert place.job().state == "running"


def test_whoever_is_told_of_commits_may_fail_without_harm(place: Place) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("nobody listens")

    place.yard.listeners.append(fail)
    with pytest.raises(RuntimeError):
        place.submit()
    place.store.close()
    place.engine.adopted["1"] = Running("1", 1, time.time(), "17")
    place.begin()
    assert place.engine.launched == [("1", 1)]
    place.end()
    assert place.job().started is not None


def test_a_clock_that_is_corrected_ends_no_job(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.submit(time_limit=60.0)
    place.tell(Running("1", 1, time.time(), "17"))
    real = time.time
    monkeypatch.setattr("gpuyard.daemon.context.time.time", lambda: real() + 3600)
    place.yard.turn(0)
    assert place.engine.stopped == []
    place.submit(time_limit=60.0)
    place.yard._stops._limits.watch("1", 1, 0.0)
    place.yard.turn(0)
    assert place.engine.stopped == ["1"]
    place.tell(Ended("1", 1, real(), 143))
    assert place.job().state == "timeout"
    place.end()


def test_no_job_goes_back_in_time_when_the_clock_does(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.submit()
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() - 3600)
    place.tell(Running("1", 1, time.time(), "17"))
    place.ask(lambda: place.desk.cancel("1"))
    place.tell(Ended("1", 1, time.time(), 143))
    place.submit()
    place.end()  # which checks the times
    place.begin()
    place.yard.turn(0)
    place.tell(Ended("2", 2, time.time(), 0))
    place.end()
    events = [record.event for _, record in Store(place.database).records()]
    assert [type(e) for e in events if isinstance(e, Started | Exited)] == [Started, Exited, Started, Exited]


def test_a_name_that_is_not_text(place: Place) -> None:
    place.submit(name="caf\udce9")
    assert place.job().name == "caf?"
    place.end()


def test_a_damaged_log_is_no_riddle(place: Place) -> None:
    place.submit()
    place.store._connection.execute("UPDATE events SET data = '{' WHERE kind = 'Submitted'")
    place.store.close()
    with pytest.raises(UserError, match=r"gpuyard.db is damaged .*gpuyard restore FILE"):
        place.begin()


class Hands:
    """The time of day, which somebody sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, real = 0.0, time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)


@pytest.mark.parametrize("by", [3600.0, -3600.0])
@pytest.mark.parametrize("restarted", [True, False])
def test_the_clock_jumps_and_nothing_ages(
    place: Place, monkeypatch: pytest.MonkeyPatch, by: float, restarted: bool
) -> None:
    hands, ages = Hands(monkeypatch), dict[str, float]()
    for job in ("1", "2"):
        assert place.submit(time_limit=1800.0, kind="job" if job == "1" else "lease") == job
        place.tell(Running(job, 1, time.time(), "17"))
        place.engine.adopted[job] = Running(job, 1, time.time(), "17")
        ages[job] = place.yard.clock.now() - (place.job(job).started or 0.0)
    waiting = place.submit(Request(gpus=2, estimate=1.0))
    hands.ahead = by
    if restarted:
        place.store.close()  # no end: it was killed
        place.begin()
    place.yard.turn(0)
    for job in ("1", "2"):
        assert place.engine.asked == []
        age = place.yard.clock.now() - (place.store.open[job].started or 0.0)
        assert ages[job] <= age < ages[job] + 60
        assert 0 <= (place.job(job).started or 0.0) - place.job(job).submitted < 60
        place.tell(Ended(job, 1, time.time(), 0))
        assert place.job(job).state == "succeeded"
        assert 0 <= (place.job(job).ended or 0.0) - (place.job(job).started or 0.0) < 60
    row = place.yard.state.row_of[waiting]
    for submitted in (place.job(waiting).submitted, place.yard.state.table.submit[row]):
        assert 0 <= place.yard.clock.now() - submitted < 60
    jumps = [record.event for record in place.store.latest("ClockSet")]
    assert len(jumps) == (by > 0)  # set back, the clock goes on as before
    place.end()


def test_reports_are_noted_in_the_order_of_what_happened(place: Place) -> None:
    place.submit()
    place.submit()
    now = time.time()
    place.engine.adopted = {"1": Ended("1", 1, now + 0.03, 0, began=now), "2": Ended("2", 1, now + 0.02, 0, began=now)}
    time.sleep(0.05)
    place.store.close()
    place.begin()
    assert [place.job(job).ended for job in ("1", "2")] == [now + 0.03, now + 0.02]
    assert [place.job(job).started for job in ("1", "2")] == [now, now]
    place.end()


def test_a_directory_with_signs_that_mean_something_in_a_uri(tmp_path: Path) -> None:
    (tmp_path / "a?b#c%20d").mkdir()
    found = Place(tmp_path / "a?b#c%20d")
    found.submit()
    assert found.job().state == "running"
    found.store.close()
    found.engine.close()
