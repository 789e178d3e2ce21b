"""The engine of leases, with real processes that hold them."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from gpuyard.engines.base import Abandoned, Ended, LaunchRefused, Placement, Report, Running, Task
from gpuyard.engines.leases.lease_engine import Holder, LeaseEngine, Terms
from gpuyard.engines.local import processes
from gpuyard.errors import UserError
from gpuyard.server.routes.leases import Holders
from gpuyard.server.sockets import Peer

R = TypeVar("R", Running, Ended, Abandoned)
HERE = Placement("here", (0,))


class Engine:
    """The engine, what the log would know, and what was reported."""

    def __init__(self) -> None:
        self.terms: dict[str, Terms] = {}
        self.engine = LeaseEngine(self.terms.get, rest=0.4)
        self.seen: list[Report] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def process(self) -> subprocess.Popen[bytes]:
        """A process that does nothing for long."""
        self._started.append(subprocess.Popen(["sleep", "1000"]))
        return self._started[-1]

    def launch(self, job: str, terms: Terms, attempt: int = 1) -> None:
        """Let a lease begin."""
        self.terms[job] = terms
        self.engine.launch(Task(job, (), ""), attempt, HERE)

    def until(self, kind: type[R], job: str) -> R:
        """Wait for a report, as the daemon does."""
        poll, end = select.poll(), time.monotonic() + 30
        poll.register(self.engine.fileno(), select.POLLIN)
        while True:
            self.seen += self.engine.observe()
            if found := next((r for r in self.seen if isinstance(r, kind) and r.job == job), None):
                return found
            assert time.monotonic() < end, f"no {kind.__name__} of {job} but {self.seen}"
            due = self.engine.due()
            poll.poll(1000 * (1 if due is None else max(0.0, min(1.0, due - time.monotonic()))))

    def close(self) -> None:
        """Let nothing run on."""
        self.engine.close()
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine()
    yield found
    found.close()


def holder(process: subprocess.Popen[bytes], later: int = 0, life: str | None = None) -> Holder:
    seen = processes.look(process.pid)
    assert seen is not None
    return Holder(process.pid, seen.started + later, life or processes.life())


def test_a_lease_lasts_as_long_as_its_process(engine: Engine) -> None:
    files, process = len(os.listdir("/proc/self/fd")), engine.process()
    engine.launch("1", Terms(holder(process)))
    engine.launch("1", Terms(holder(process)))  # once, however often it is asked
    assert engine.until(Running, "1").handle == str(process.pid)
    assert engine.engine.adopt("1", 1) == engine.until(Running, "1")
    assert engine.engine.observe() == []
    process.kill()
    ended = engine.until(Ended, "1")
    assert (ended.code, ended.message, ended.interrupted) == (0, "its process ended", False)
    assert len(engine.seen) == 2
    assert engine.engine.due() is None
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_process_with_the_same_id_does_not_keep_a_lease(engine: Engine) -> None:
    process = engine.process()
    engine.launch("1", Terms(holder(process, later=-1)))
    assert engine.until(Ended, "1").message == "its process ended"
    engine.terms["2"] = Terms(holder(process, later=-1), since=time.time())
    assert isinstance(engine.engine.adopt("2", 1), Ended)
    engine.terms["3"] = Terms(holder(process, later=-1))
    engine.engine.watch("3")
    engine.until(Abandoned, "3")
    assert process.poll() is None


def test_a_reboot_ends_leases_and_requests(engine: Engine) -> None:
    process = engine.process()
    engine.terms["1"] = engine.terms["2"] = Terms(holder(process, life="another"))
    found = engine.engine.adopt("1", 1)
    assert isinstance(found, Ended)
    assert found.interrupted
    engine.engine.watch("2")
    engine.until(Abandoned, "2")


def test_who_asks_for_another_is_watched_until_the_lease_begins(engine: Engine) -> None:
    shell, first, second = engine.process(), engine.process(), engine.process()
    for job, command in (("1", first), ("2", second)):
        engine.terms[job] = Terms(holder(shell), holder(command))
        engine.engine.watch(job)
    first.kill()
    assert "whoever asked for it has gone" in engine.until(Abandoned, "1").message
    engine.launch("2", engine.terms["2"])
    second.kill()
    second.wait()
    assert isinstance(engine.until(Running, "2"), Running)
    assert engine.engine.observe() == []
    third = engine.process()
    terms = Terms(holder(shell), holder(third))
    third.kill()
    third.wait()
    engine.launch("3", terms)  # it went when its turn had come, before anybody could see that
    assert engine.until(Ended, "3").message == "whoever asked for it had gone"
    engine.terms["4"] = terms  # or when no daemon was there to tell that it had begun
    found = engine.engine.adopt("4", 1)
    assert isinstance(found, Ended)
    engine.terms["5"] = replace(terms, since=time.time())
    assert isinstance(engine.engine.adopt("5", 1), Running)


def test_stopping_ends_a_lease_at_once_and_leaves_the_process_alone(engine: Engine) -> None:
    process = engine.process()
    engine.launch("1", Terms(holder(process)))
    engine.terms["2"] = Terms(holder(process))
    engine.engine.watch("2")
    engine.engine.stop("1", 1)
    engine.engine.stop("2", 0)
    engine.engine.stop("3", 1)
    assert f"process {process.pid} was left alone" in engine.until(Ended, "1").message
    process.kill()
    process.wait()
    assert engine.engine.observe() == []
    with pytest.raises(LaunchRefused):
        engine.engine.launch(Task("9", (), ""), 1, HERE)


def test_what_descends_from_a_holder_is_ours(engine: Engine) -> None:
    script = "import subprocess, sys; subprocess.run(['sh', '-c', 'echo $$; exec sleep 1000'])"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert engine.engine.owner(child) is None
        engine.launch("1", Terms(holder(process), gpus=(3,)))
        assert engine.engine.owner(child, 3) == ("1", 1)
        assert engine.engine.owner(child, 2) is None
        engine.terms["2"] = Terms(holder(process))
        engine.engine.watch("2")  # what it has on other GPUs keeps others away, but not itself
        assert (engine.engine.owner(process.pid, 2), engine.engine.owner(child, 2)) == (("2", 0), None)
        assert engine.engine.owner(process.pid) == engine.engine.owner(child) == ("1", 1)
        assert engine.engine.owner(os.getpid()) is None
        assert engine.engine.owner(2**22 + 1) is None
        os.kill(child, 9)


def test_without_files_left_nobody_is_taken_for_dead(engine: Engine) -> None:
    process = engine.process()
    terms, soft = Terms(holder(process)), resource.getrlimit(resource.RLIMIT_NOFILE)
    engine.terms["1"] = terms
    for spare in (0, 1):  # for nothing, and for the pidfd but not for looking at the process
        used = 1 + max(map(int, os.listdir("/proc/self/fd")))
        held = [os.dup(0) for _ in range(used - len(os.listdir("/proc/self/fd")) + 2)]
        limit = 1 + max(map(int, held)) + spare
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, soft[1]))
        try:
            engine.engine.watch("1")
            assert engine.engine.observe() == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, soft)
            for file in held:
                os.close(file)
    process.kill()
    engine.until(Abandoned, "1")  # it was tried again


def test_without_a_process_a_lease_lasts_by_signs_of_life(engine: Engine) -> None:
    engine.terms["1"] = terms = Terms(None, gpus=(0,), heartbeat=0.4)
    engine.engine.watch("1")
    assert engine.until(Abandoned, "1").message == "given up: no sign of life for 0.4s"
    engine.launch("2", terms)
    began = time.monotonic()
    while time.monotonic() < began + 1:  # more than twice as long as it may be silent
        engine.engine.heartbeats.note("2")
        engine.seen += engine.engine.observe()
        time.sleep(0.05)
    assert engine.engine.owner(os.getpid(), 0) == ("2", 1)  # whoever is on its GPU belongs to it
    assert engine.engine.owner(os.getpid(), 1) is None
    assert engine.engine.owner(os.getpid()) is None
    assert [type(report) for report in engine.seen] == [Abandoned, Running]
    ended = engine.until(Ended, "2")
    assert (ended.code, ended.message) == (None, "no sign of life for 0.4s")
    engine.engine.heartbeats.note("2")
    assert engine.engine.heartbeats.last("2") is None
    assert engine.engine.due() is None
    assert isinstance(engine.engine.adopt("3", 1), Ended)
    engine.terms["4"] = replace(terms, since=time.time() - 1000)
    assert isinstance(engine.engine.adopt("4", 1), Running)  # after a restart the time counts anew
    assert engine.engine.observe() == []
    engine.until(Ended, "4")


def test_who_is_held_up_holds_silence_against_nobody(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.engines.leases.lease_engine._HELD_UP", 0.3)
    engine.launch("1", Terms(None, heartbeat=0.2))
    engine.engine.observe()
    time.sleep(1)
    assert engine.engine.observe() == []
    engine.engine.heartbeats.note("1")  # it was sent long ago, and is read only now
    time.sleep(0.1)
    assert engine.engine.observe() == []
    assert engine.until(Ended, "1").message == "no sign of life for 0.2s"


def test_a_lease_by_use_lasts_until_its_gpus_were_used_and_are_free_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.engines.leases.lease_engine._RETRY", 0.05)
    busy: dict[int, bool | None] = {0: False, 1: False}
    engine.engine.in_use = lambda gpu, seconds: busy[gpu]
    terms = Terms(None, gpus=(0, 1), heartbeat=0.5, by_use=True)
    engine.launch("1", terms)
    ended = engine.until(Ended, "1")
    assert (ended.code, ended.message) == (None, "its GPUs were not used within 0.5s")
    engine.launch("2", terms)
    for state in (True, False, True, None, True):  # it pauses, and a GPU does not answer for a while
        busy[1] = state
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            engine.seen += engine.engine.observe()
            time.sleep(0.02)
    assert [report.job for report in engine.seen if isinstance(report, Ended)] == ["1"]
    busy[1] = False
    ended = engine.until(Ended, "2")
    assert (ended.code, ended.message) == (0, "its GPUs were used, and free for 0.4s")


def test_who_may_hold_a_lease() -> None:
    holders = Holders()
    uid = os.stat("/proc/self").st_uid
    user = {"user": 65534} if uid == 0 else {}
    with subprocess.Popen(["sleep", "1000"], **user) as other:  # type: ignore[call-overload]
        mine = Peer(other.pid, 65534 if uid == 0 else uid, 0)
        assert holders.named(other.pid, mine).pid == other.pid
        with pytest.raises(UserError, match="whoever asks must descend from it"):
            holders.named(other.pid, Peer(os.getpid(), mine.uid, 0))
        with pytest.raises(UserError, match=f"process {other.pid} is not yours"):
            holders.named(other.pid, Peer(other.pid, mine.uid + 1, 0))
        assert holders.named(other.pid, Peer(os.getpid(), 0, 0)).pid == other.pid  # root may name any
        other.kill()
        other.wait()
        with pytest.raises(UserError, match="there is no process"):
            holders.named(other.pid, mine)
