"""Threads beside the daemon: what a step fails of is not their end, and it can be seen how they do."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time

import pytest
from tests.yard import PATIENCE, until

from gpuyard.admin import doctor
from gpuyard.daemon import context
from gpuyard.daemon.background import retention
from gpuyard.daemon.background.dcgm import JobMapping
from gpuyard.daemon.background.interference import Interference
from gpuyard.daemon.background.recorder import Recorder
from gpuyard.daemon.background.retention import MemoryTrimmer, Retention
from gpuyard.daemon.context import BackgroundThread
from gpuyard.daemon.devices.simulation import SimulatedLoad
from gpuyard.notify.service import Dispatcher
from gpuyard.server.auth.audit import AuditEntry, AuditLog
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.routes.health import threads_json


class Worker(BackgroundThread):
    """Does what it is told to, one thing a step."""

    retry = 0.0

    def __init__(self, *orders: Exception | None) -> None:
        super().__init__("worker")
        self.orders, self.done = list(orders), 0
        self.hangs, self.go_on = threading.Event(), threading.Event()

    def _step(self) -> None:
        if not self.orders:
            return
        order = self.orders.pop(0)
        self.done += 1
        if self.orders:
            self._wake.set()
        if isinstance(order, TimeoutError):
            self.hangs.set()
            self.go_on.wait(PATIENCE)
        elif order is not None:
            raise order


def test_whatever_a_step_fails_of_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    errors = [
        RecursionError("deep"),
        RecursionError("deep"),
        sqlite3.OperationalError("full"),
        OSError("x"),
        MemoryError(),
    ]
    worker = Worker(*errors, None)
    assert worker.state == "off"
    worker.start()
    until(lambda: worker.done == 6 and not worker.problem, "the sixth step")
    assert (worker.state, worker.failures) == ("ok", 5)
    worker.stop()
    assert worker.state == "off"
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 4, "the same twice is told once"
    assert [bool(record.exc_info) for record in told] == [True, False, False, True], (
        "a traceback where nobody foresaw it"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_that_fails_is_stuck_or_dead_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    failing, stuck, dead = Worker(ValueError("a user's doing")), Worker(TimeoutError()), Worker(SystemExit())  # type: ignore[arg-type]
    failing.retry = PATIENCE
    for one in (failing, stuck, dead):
        one.start()
    until(lambda: failing.problem and stuck.hangs.is_set() and dead.state == "dead")
    monkeypatch.setattr(context, "_STUCK", -1.0)
    assert [one.state for one in (failing, stuck, dead)] == ["failing", "stuck", "dead"]

    class Loop:
        due_back = float("inf")
        context = type("", (), {"threads": [failing, stuck, dead, Worker()]})

    told = threads_json(Loop())  # type: ignore[arg-type]
    assert [(one["name"], one["state"]) for one in told] == [
        ("loop", "ok"), ("worker", "failing"), ("worker", "stuck"), ("worker", "dead"),
    ]  # fmt: skip
    patient = type("", (), {"status": {"threads": told}})()
    found = list(doctor.threads(patient))
    assert [one.found for one in found] == [
        "the daemon's worker thread fails, and tries again: ValueError: a user's doing",
        "the daemon's worker thread is stuck",
        "the daemon's worker thread has ended",
    ]
    stuck.go_on.set()
    for one in (failing, stuck, dead):
        one.stop()


def test_an_audit_that_is_ended_just_before_it_writes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = AuditLog(CredentialStore())

    def wait(seconds: float) -> bool:
        audit._over.set()
        audit._wake.set()  # as who ends it does, when this has waited long enough
        return False

    monkeypatch.setattr(audit._over, "wait", wait)
    audit.add(AuditEntry(time.time(), "ann", "socket", "", "POST", "/api/v1/jobs", 201))
    audit.start()
    audit._thread.join(PATIENCE)
    assert not audit._thread.is_alive()
    assert [entry.user for _, entry in audit.find()] == ["ann"]


def test_memory_is_given_back_where_much_was_taken_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 110, 500, 490, 300, 170, 180])  # MiB: at first, grown a little, much, trimmed, shrunk, trimmed
    monkeypatch.setattr(retention, "resident", lambda: next(sizes) * 2**20)
    trimmer, trimmed = MemoryTrimmer(), list[object]()
    monkeypatch.setattr(trimmer, "_trim", trimmed.append)
    counts = []
    for _ in range(4):
        trimmer._step()
        counts.append(len(trimmed))
    assert counts == [0, 1, 2, 2]


def test_every_thread_beside_the_daemon_is_one_of_these() -> None:
    for kind in (AuditLog, Retention, SimulatedLoad, Interference, Recorder, JobMapping, Dispatcher, MemoryTrimmer):
        assert issubclass(kind, BackgroundThread)
        assert kind._run is BackgroundThread._run
