"""The job's side of a grant, with a daemon that the test makes up: it goes away, comes back, and refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpuyard.client.transport import NoDaemon, Refused
from gpuyard.grants import GrantEvent, Grants, client_of

VARIABLES = {
    "GPUYARD_ADAPTIVE": "1", "GPUYARD_CONTROL": "unix:/nowhere/gpuyard.sock", "GPUYARD_JOB_ID": "3",
    "GPUYARD_BUDGET": "3600", "GPUYARD_DEADLINE": "1794825000.5", "GPUYARD_GRACE": "7", "CUDA_VISIBLE_DEVICES": "0",
}  # fmt: skip


class Daemon:
    """Answers what the test says, and remembers what it was told."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = []
        self.away = False
        self.refusal: int | None = None
        self.told: list[tuple[str, Any]] = []
        self.asked: list[int] = []
        self._news = threading.Condition()

    def change(self, kind: str, gpus: tuple[int, ...] = (0,), **more: Any) -> None:
        with self._news:
            number = 10 + len(self.changes)
            change = {
                "number": number,
                "kind": kind,
                "at": 1.0,
                "budget": 3600.0,
                "deadline": 9.0,
                "grace": 7.0,
                "why": "w",
            }
            self.changes.append({**change, "gpus": list(map(str, gpus)), "indices": list(gpus), **more})
            self._news.notify_all()

    def grant(self, id: str, *, since: int = 0, wait: float = 0.0) -> dict[str, Any]:
        self._check()
        self.asked.append(since)
        with self._news:
            self._news.wait_for(lambda: self._after(since) or self.away or self.refusal, min(wait, 0.05))
        self._check()
        return self._standing(self._after(since))

    def report(self, id: str, **report: Any) -> dict[str, Any]:
        self._check()
        self.told.append(("report", report))
        return self._standing([])

    def give_back_grant(self, id: str, gpus: Any = None, *, reason: str = "") -> dict[str, Any]:
        self._check()
        self.told.append(("return", (gpus, reason)))
        return self._standing([])

    def _after(self, since: int) -> list[dict[str, Any]]:
        return [change for change in self.changes if change["number"] > since]

    def _standing(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        last: dict[str, Any] = self.changes[-1] if self.changes else {"gpus": ["0"], "indices": [0], "number": 4}
        return {
            "gpus": last["gpus"], "granted": last["indices"][1:], "budget": 3600.0, "deadline": 9.0, "grace": 7.0,
            "last": last["number"], "events": events,
        }  # fmt: skip

    def _check(self) -> None:
        if self.refusal is not None:
            raise Refused(self.refusal, "no")
        if self.away:
            raise NoDaemon("away")


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    found = Daemon()
    monkeypatch.setattr("gpuyard.grants.client_of", lambda control, token: found)
    return found


@pytest.fixture
def grants(daemon: Daemon) -> Iterator[Grants]:
    found = Grants.from_environment(VARIABLES)
    assert found is not None
    yield found
    found.close()


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


@pytest.mark.parametrize("missing", ["GPUYARD_ADAPTIVE", "GPUYARD_CONTROL", "GPUYARD_JOB_ID"])
def test_outside_a_job_that_adapts_there_is_nothing(missing: str) -> None:
    assert Grants.from_environment({name: value for name, value in VARIABLES.items() if name != missing}) is None


def test_it_begins_with_what_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Grants.from_environment(VARIABLES)  # and nobody answers
    assert found is not None
    assert (found.job, found.gpus, found.budget, found.deadline, found.grace) == (
        "3",
        ("0",),
        3600.0,
        1794825000.5,
        7.0,
    )
    found.report(step_seconds=1.0)
    found.report(decision="x")
    found.give_back()
    assert found.events() == []
    assert found.flush(0.05) is False
    found.close()


def test_nothing_waits_for_a_daemon_that_does_not_answer(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        over.wait(120)
        raise NoDaemon("over")

    monkeypatch.setattr(daemon, "_check", hang)
    found = Grants.from_environment(VARIABLES)
    assert found is not None
    assert asked.wait(120)
    found.report(step_seconds=1.0)
    found.report(decision="x")
    found.give_back()
    assert found.events() == []
    assert found.flush(0.05) is False
    over.set()
    found.close()


def test_every_change_comes_once_and_in_order(grants: Grants, daemon: Daemon) -> None:
    daemon.change("up", (0, 1))
    daemon.change("extend", (0, 1), budget=7200.0)
    assert grants.wait(20)
    seen: list[GrantEvent] = []
    while len(seen) < 2:
        seen += grants.events()
    assert [(event.kind, event.gpus, event.number) for event in seen] == [
        ("up", ("0", "1"), 10),
        ("extend", ("0", "1"), 11),
    ]
    until(lambda: daemon.asked[-1] == 11)
    assert (grants.events(), grants.gpus, grants.granted) == ([], ("0", "1"), (1,))
    assert grants.wait(0.01) is False


def test_a_daemon_that_was_away_is_asked_from_where_it_stopped(grants: Grants, daemon: Daemon) -> None:
    daemon.change("up", (0, 1))
    assert grants.wait(20)
    assert [event.kind for event in grants.events()] == ["up"]
    daemon.away = True
    grants.report(decision="grew", reason="it pays")
    grants.report(gain_per_second=1.0)
    grants.report(gain_per_second=2.0)
    grants.give_back([1])
    time.sleep(0.05)
    assert daemon.told == []
    daemon.change("down")
    daemon.away = False
    assert grants.wait(20)
    assert [(event.kind, event.number) for event in grants.events()] == [("down", 11)]
    assert grants.flush(20)
    assert daemon.told == [
        ("report", {"decision": "grew", "reason": "it pays"}), ("return", ((1,), "")),
        ("report", {"gain_per_second": 2.0}),
    ]  # fmt: skip


def test_of_reports_in_quick_succession_the_last_counts(grants: Grants, daemon: Daemon) -> None:
    for step in range(500):
        grants.report(parameters=step)
    grants.report(decision="one")
    grants.report(decision="two")
    assert grants.flush(20)
    numbers = [told["parameters"] for _, told in daemon.told if "parameters" in told]
    assert numbers[-1] == 499
    assert len(numbers) < 10
    assert [told["decision"] for _, told in daemon.told if "decision" in told] == ["one", "two"]


def test_numbers_of_others_are_numbers_and_what_is_none_is_left_out(grants: Grants, daemon: Daemon) -> None:
    odd: dict[str, Any] = {
        "step_seconds": np.float32(0.5), "gain_per_second": float("nan"), "noise": "much", "accuracy": np.array(0.25),
        "parameters": np.int64(7), "accepted": np.True_, "decision": "d" * 600, "reason": None,
    }  # fmt: skip
    grants.report(**odd)
    assert grants.flush(20)
    [(_, told)] = daemon.told
    assert told == {"step_seconds": 0.5, "accuracy": 0.25, "parameters": 7, "accepted": True, "decision": "d" * 500}
    assert [type(value) for value in told.values()] == [float, float, int, bool, str]


@pytest.mark.parametrize(("status", "warns"), [(409, 0), (404, 0), (403, 1)])
def test_who_is_not_answered_any_more_is_quiet(
    daemon: Daemon, status: int, warns: int, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.refusal = status
    grants = Grants.from_environment(VARIABLES)
    assert grants is not None
    assert grants.wait(20) is False
    until(grants._over.is_set)
    grants.report(decision="x")
    assert capfd.readouterr().err.count("warning") == warns


def test_nothing_is_printed_once_it_is_closed(daemon: Daemon) -> None:
    """Not even what is being printed then: who closes it waits for that."""
    order: list[str] = []
    closers: list[threading.Thread] = []

    def close() -> None:
        found.close()
        order.append("closed")

    def say(message: str) -> None:
        closers.append(threading.Thread(target=close))
        closers[0].start()
        closers[0].join(0.2)  # it cannot end before this
        order.append("said")

    found = Grants("unix:/nowhere", "3", say=say)
    daemon.refusal = 422
    until(lambda: order[1:])
    found._complain("another mistake")
    assert order == ["said", "closed"]
    closers[0].join(120)


def test_an_output_that_nobody_reads_ends_no_thread(
    grants: Grants, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: daemon.asked)
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    daemon.refusal = 422
    grants.report(decision="x")
    until(lambda: grants._said and not grants._decisions)
    daemon.refusal = None
    daemon.change("up", (0, 1))
    assert grants.wait(120)
    grants.report(decision="y")
    until(lambda: daemon.told)


def test_what_cannot_be_meant_is_told_once_and_dropped(
    grants: Grants, daemon: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    until(lambda: daemon.asked)
    daemon.refusal = 422
    grants.report(decision="x" * 1000)
    grants.report(decision="y" * 1000)
    until(lambda: not grants._decisions)
    daemon.refusal = None
    grants.report(decision="z")
    assert grants.flush(20)
    assert daemon.told[-1] == ("report", {"decision": "z"})
    assert capfd.readouterr().err.count("warning") == 1


def test_addresses() -> None:
    assert client_of("unix:/run/x.sock").socket == "/run/x.sock"
    assert client_of("http://127.0.0.1:62333").host == "http://127.0.0.1:62333"


def test_a_process_that_has_it_ends_as_usual() -> None:
    text = "from gpuyard.grants import Grants; g = Grants.from_environment(); g.report(decision='x'); print(bool(g))"
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **VARIABLES}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
