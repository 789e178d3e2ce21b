"""What every engine must do, as tests to inherit; a new engine only says how it is made."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gpuyard.engines.base import Abandoned, Ended, Engine, LaunchRefused, NeverBegan, Placement, Report, Running, Task

PATIENCE = 120.0
"""Seconds that anything may take on a busy machine before a test gives up."""
R = TypeVar("R", Running, Ended, NeverBegan)


class Watch:
    """Drives an engine as the daemon does: it sleeps until `fileno` or `due`, and calls `observe`."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.reports: list[Report] = []
        self._poll = select.poll()
        self._poll.register(engine.fileno(), select.POLLIN)

    def turn(self, seconds: float) -> None:
        """One round of the loop, no longer than this."""
        due = self.engine.due()
        wait = seconds if due is None else min(seconds, max(0.0, due - time.monotonic()))
        self._poll.poll(int(wait * 1000 + 0.999))
        self.reports += self.engine.observe()

    def until(self, kind: type[R], job: str, attempt: int = 1, seconds: float = PATIENCE) -> R:
        """Wait for a report of this kind."""
        deadline = time.monotonic() + seconds
        while True:
            for report in self.reports:
                if isinstance(report, kind) and (report.job, report.attempt) == (job, attempt):
                    return report
            assert time.monotonic() < deadline, f"no {kind.__name__} of {job} but {self.reports}"
            self.turn(deadline - time.monotonic())

    def idle(self, seconds: float) -> None:
        """Go on for a while, whatever happens."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.turn(left)

    def launch(self, job: str, *command: str, attempt: int = 1, gpus: tuple[int, ...] = (), limit: int = 2**30) -> None:
        """Launch a command, in the test's directory, with a small environment."""
        task = Task(job, command, str(self.directory), {"PATH": os.defpath}, limit)
        self.engine.launch(task, attempt, Placement(self.engine.nodes()[0].name, gpus))

    def shell(self, job: str, script: str, attempt: int = 1, limit: int = 2**30) -> None:
        """Launch a script of the shell."""
        self.launch(job, "/bin/sh", "-c", script, attempt=attempt, limit=limit)

    def log(self, job: str, attempt: int = 1) -> bytes:
        """All that can be read of its output."""
        offset, parts = 0, []
        while offset < self.engine.log_size(job, attempt):
            offset, data = self.engine.read_log(job, attempt, offset, 2**20)
            parts.append(data)
        return b"".join(parts)

    def wait_for(self, name: str, lines: int = 1) -> list[str]:
        """Wait until a job has written that many lines to a file in the test's directory."""
        path, deadline = self.directory / name, time.monotonic() + PATIENCE
        while not path.exists() or path.read_text().count("\n") < lines:
            assert time.monotonic() < deadline, f"{name} is not there"
            self.turn(0.01)
        return path.read_text().split()


def alive(pid: int) -> bool:
    """Whether a process lives, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class EngineContract:
    """The contract. A subclass overrides `make_engine`: each call is a new life of the daemon on the same machine."""

    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> Callable[[], Engine]:
        """A function that makes an engine with two GPUs, called gpu-a and gpu-b."""
        raise NotImplementedError

    @pytest.fixture
    def watches(self, make_engine: Callable[[], Engine], tmp_path: Path) -> Iterator[Callable[[], Watch]]:
        """A function that makes an engine and drives it; in the end, what still runs is killed."""
        (tmp_path / "work").mkdir()
        made: list[Watch] = []

        def make() -> Watch:
            made.append(Watch(make_engine(), tmp_path / "work"))
            return made[-1]

        yield make
        known = {(seen.job, seen.attempt) for w in made for seen in w.reports if not isinstance(seen, Abandoned)}
        last = Watch(make_engine(), tmp_path)
        for job, attempt in known:
            if isinstance(last.engine.adopt(job, attempt), Running):
                last.engine.stop(job, attempt, 0)
                last.until(Ended, job, attempt)
        for watch in (*made, last):
            watch.engine.close()

    @pytest.fixture
    def watch(self, watches: Callable[[], Watch]) -> Watch:
        """One engine."""
        return watches()

    def test_it_reports_the_beginning_and_then_the_end(self, watch: Watch) -> None:
        before = time.time()
        watch.launch("1", "true")
        ended = watch.until(Ended, "1")
        running, last = watch.reports
        assert isinstance(running, Running)
        assert last == ended == Ended("1", 1, ended.at, 0, began=running.at)
        assert before - 1 <= running.at <= ended.at <= time.time() + 1
        assert running.handle

    def test_nothing_is_due_when_nothing_runs(self, watch: Watch) -> None:
        assert watch.engine.due() is None
        watch.launch("1", "true")
        watch.until(Ended, "1")
        assert watch.engine.due() is None
        assert watch.engine.observe() == []

    @pytest.mark.parametrize(
        ("script", "code"),
        [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exit 255", 255)],
    )
    def test_exit_codes(self, watch: Watch, script: str, code: int) -> None:
        watch.shell("1", script)
        assert watch.until(Ended, "1").code == code

    def test_the_job_knows_its_gpus_and_itself(self, watch: Watch) -> None:
        watch.launch("17_3", "env", attempt=2, gpus=(1, 0))
        assert watch.until(Ended, "17_3", 2).code == 0
        lines = set(watch.log("17_3", 2).decode().splitlines())
        assert lines >= {
            "CUDA_VISIBLE_DEVICES=gpu-b,gpu-a",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "GPUYARD_JOB_ID=17_3",
            "GPUYARD_ATTEMPT=2",
            "GPUYARD_GPUS=1,0",
            f"PATH={os.defpath}",
        }

    def test_without_gpus_it_sees_none(self, watch: Watch) -> None:
        watch.shell("1", 'echo "<$CUDA_VISIBLE_DEVICES>"')
        watch.until(Ended, "1")
        assert watch.log("1") == b"<>\n"

    def test_arguments_arrive_as_they_are(self, watch: Watch) -> None:
        arguments = ["", "a b", "$HOME `id` \\n", "--", "*", "\n", "'\"", "\udcff\udc80", "ü", "-n"]
        watch.launch("1", "printf", "<%s>", *arguments)
        watch.until(Ended, "1")
        assert watch.log("1") == b"".join(b"<%s>" % os.fsencode(text) for text in arguments)

    def test_it_runs_in_its_directory_and_reads_nothing(self, watch: Watch) -> None:
        watch.shell("1", "pwd; cat; echo end")
        assert watch.until(Ended, "1").code == 0
        assert watch.log("1").decode() == f"{watch.directory}\nend\n"

    def test_a_missing_command_is_named(self, watch: Watch) -> None:
        watch.launch("1", "no-such-command", "x")
        ended = watch.until(Ended, "1")
        assert ended.code == 127
        assert ended.message == "command not found: no-such-command"

    def test_a_missing_directory_is_refused(self, watch: Watch) -> None:
        place = Placement(watch.engine.nodes()[0].name, ())
        with pytest.raises(LaunchRefused, match="/no/such/place"):
            watch.engine.launch(Task("1", ("true",), "/no/such/place"), 1, place)
        watch.idle(0.05)
        assert watch.reports == []
        assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)

    def test_launching_twice_runs_once(self, watch: Watch) -> None:
        for _ in range(3):
            watch.shell("1", "echo run >>ran; sleep 0.2")
        watch.until(Ended, "1")
        watch.shell("1", "echo run >>ran")
        watch.reports.clear()
        assert watch.until(Ended, "1").code == 0
        assert (watch.directory / "ran").read_text() == "run\n"

    def test_attempts_are_told_apart(self, watch: Watch) -> None:
        watch.shell("1", "echo one; exit 1")
        watch.shell("1", "echo two; exit 2", attempt=2)
        assert watch.until(Ended, "1", 1).code == 1
        assert watch.until(Ended, "1", 2).code == 2
        assert (watch.log("1", 1), watch.log("1", 2)) == (b"one\n", b"two\n")

    def test_stop_asks_first(self, watch: Watch) -> None:
        watch.shell("1", "trap 'echo saved; exit 9' TERM; echo >up; while :; do sleep 0.02; done")
        watch.wait_for("up")
        watch.engine.stop("1", 1, 30)
        watch.engine.stop("1", 1, 30)
        assert watch.until(Ended, "1").code == 9
        assert b"saved\n" in watch.log("1")
        watch.engine.stop("1", 1, 0)
        watch.idle(0.05)
        assert len([report for report in watch.reports if isinstance(report, Ended)]) == 1

    def test_stop_kills_what_does_not_listen(self, watch: Watch) -> None:
        watch.shell("1", "trap 'echo heard' TERM; echo >up; while :; do sleep 0.02; done")
        watch.wait_for("up")
        watch.engine.stop("1", 1, 1.5)
        assert watch.until(Ended, "1").code == 137
        assert b"heard" in watch.log("1")  # it had time to end by itself

    def test_a_second_stop_may_be_less_patient(self, watch: Watch) -> None:
        watch.shell("1", "trap '' TERM; echo >up; while :; do sleep 0.02; done")
        watch.wait_for("up")
        watch.engine.stop("1", 1, 60)
        watch.idle(0.05)
        watch.engine.stop("1", 1, 0)
        assert watch.until(Ended, "1", seconds=30).code == 137  # half of the first one's patience

    def test_stop_by_another_signal(self, watch: Watch) -> None:
        child = "sh -c 'trap \"echo child; exit\" USR1; echo >child; while :; do sleep 0.02; done'"
        own = "trap 'echo saved >>said; exit 0' USR1; trap '' TERM"
        watch.shell("1", f"{own}; {child} & echo >up; while :; do sleep 0.02; done")
        watch.wait_for("up")
        watch.wait_for("child")
        for _ in range(3):
            watch.engine.stop("1", 1, 30, "USR1")
            watch.idle(0.02)
        ended = watch.until(Ended, "1")
        assert (ended.code, ended.asked) == (0, True)
        assert b"child\n" in watch.log("1")
        assert watch.wait_for("said") == ["saved"]

    def test_a_shell_that_ends_at_once_does_not_take_its_child_along(self, watch: Watch) -> None:
        child = "trap 'sleep 0.3; echo saved >said; exit' USR1; echo >up; while :; do sleep 0.02; done"
        watch.launch("1", "/bin/sh", "-c", '/bin/sh -c "$1"; exit 1', "sh", child)
        watch.wait_for("up")
        watch.engine.stop("1", 1, 30, "USR1")
        assert watch.until(Ended, "1").asked
        assert watch.wait_for("said") == ["saved"]

    def test_a_second_stop_may_be_by_another_signal(self, watch: Watch) -> None:
        script = (
            "trap 'echo usr >>said' USR1; trap 'echo term >>said; exit 3' TERM; echo >up; while :; do sleep 0.02; done"
        )
        watch.shell("1", script)
        watch.wait_for("up")
        watch.engine.stop("1", 1, 60, "USR1")
        watch.wait_for("said")
        watch.engine.stop("1", 1, 60, "USR1")
        watch.idle(0.05)
        watch.engine.stop("1", 1, 60)
        assert watch.until(Ended, "1").code == 3
        assert watch.wait_for("said") == ["usr", "term"]

    def test_what_is_only_asked_may_go_on(self, watch: Watch) -> None:
        watch.shell("1", "trap 'echo >told' USR1; echo >up; while [ ! -e end ]; do sleep 0.02; done; exit 4")
        watch.wait_for("up")
        watch.engine.stop("1", 1, math.inf, "USR1")
        watch.wait_for("told")
        watch.idle(0.05)
        (watch.directory / "end").touch()
        assert watch.until(Ended, "1").code == 4

    def test_what_has_ended_by_itself_was_not_asked(self, watch: Watch) -> None:
        watch.shell("1", "exit 0")
        watch.until(Running, "1")
        time.sleep(0.1)  # it is over, and nobody has looked
        watch.engine.stop("1", 1, 30)
        assert not watch.until(Ended, "1").asked
        watch.shell("2", "echo >up; sleep 60")
        watch.wait_for("up")
        watch.engine.stop("2", 1, 30)
        assert watch.until(Ended, "2").asked

    def test_a_new_life_knows_who_was_asked(self, watches: Callable[[], Watch]) -> None:
        first = watches()
        first.shell("1", "trap 'echo >gone; exit 0' USR1; echo >up; while :; do sleep 0.02; done")
        first.shell("2", "while [ ! -e end ]; do sleep 0.02; done; echo >gone2")
        first.wait_for("up")
        first.engine.stop("1", 1, 30, "USR1")
        first.wait_for("gone")
        (first.directory / "end").touch()
        first.wait_for("gone2")
        time.sleep(0.1)
        second = watches()
        for job, asked in (("1", True), ("2", False)):
            report = second.engine.adopt(job, 1)
            second.engine.stop(job, 1, 30)
            ended = report if isinstance(report, Ended) else second.until(Ended, job)
            assert (ended.code, ended.asked) == (0, asked)

    @pytest.mark.parametrize("grace", [0.0, 30.0])
    def test_stop_right_after_launch(self, watch: Watch, grace: float) -> None:
        for number in range(5):
            watch.launch(f"{number}", "sleep", "60")
            watch.engine.stop(f"{number}", 1, grace)
        for number in range(5):
            assert watch.until(Ended, f"{number}").code in (137, 143)

    def test_stopping_what_is_not_there_does_nothing(self, watch: Watch) -> None:
        watch.engine.stop("77", 1, 0)
        assert watch.engine.observe() == []

    def test_nothing_is_left_when_it_has_ended(self, watch: Watch) -> None:
        watch.shell("1", "sleep 60 & echo $! >pids; (sleep 60 & echo $! >>pids); exit 5")
        ended = watch.until(Ended, "1")
        assert ended.code == 5
        assert not [pid for pid in map(int, watch.wait_for("pids", 2)) if alive(pid)]

    def test_a_new_life_adopts_what_runs(self, watches: Callable[[], Watch]) -> None:
        first = watches()
        first.shell("1", "echo >up; sleep 0.3; exit 4")
        begun = first.until(Running, "1")
        first.wait_for("up")
        second = watches()
        assert second.engine.adopt("1", 1) == begun
        ended = second.until(Ended, "1")
        assert ended.code == 4
        assert ended.at >= begun.at

    def test_a_new_life_stops_what_runs(self, watches: Callable[[], Watch]) -> None:
        first = watches()
        first.shell("1", "trap '' TERM; echo >up; sleep 60")
        first.wait_for("up")
        first.engine.stop("1", 1, 60)
        first.idle(0.05)
        second = watches()
        assert isinstance(second.engine.adopt("1", 1), Running)
        second.engine.stop("1", 1, 0.1)
        assert second.until(Ended, "1", seconds=30).code == 137

    def test_a_new_life_learns_what_ended_meanwhile(self, watches: Callable[[], Watch]) -> None:
        first = watches()
        first.shell("1", "exit 6")
        first.until(Ended, "1")
        second = watches()
        report = second.engine.adopt("1", 1)
        ended = report if isinstance(report, Ended) else second.until(Ended, "1")
        assert ended == first.until(Ended, "1")

    def test_what_never_began_never_will(self, watches: Callable[[], Watch]) -> None:
        watch = watches()
        assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)
        assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)
        watch.shell("1", "echo >ran")
        watch.idle(0.3)
        assert not (watch.directory / "ran").exists()
        assert watches().engine.adopt("1", 1) == NeverBegan("1", 1)

    def test_closing_leaves_jobs_alone(self, watches: Callable[[], Watch]) -> None:
        first = watches()
        first.shell("1", "echo >up; sleep 0.3; echo >done")
        first.wait_for("up")
        first.engine.close()
        second = watches()
        assert isinstance(second.engine.adopt("1", 1), Running)
        assert second.until(Ended, "1").code == 0
        assert (second.directory / "done").exists()

    def test_output_is_read_by_offset(self, watch: Watch) -> None:
        watch.shell("1", "echo one; echo two >&2; echo three")
        watch.until(Ended, "1")
        engine = watch.engine
        assert engine.log_size("1", 1) == 14
        assert engine.read_log("1", 1, 0, 4) == (4, b"one\n")
        assert engine.read_log("1", 1, 4, 100) == (14, b"two\nthree\n")
        assert engine.read_log("1", 1, -6, 100) == (14, b"three\n")
        assert engine.read_log("1", 1, -600, 3) == (3, b"one")
        assert engine.read_log("1", 1, 14, 100) == (14, b"")
        assert engine.read_log("77", 1, 0, 100) == (0, b"")
        assert engine.log_size("77", 1) == 0

    def test_of_too_much_output_the_beginning_and_the_end_are_kept(self, watch: Watch) -> None:
        limit, lines = 100_000, 60_000
        watch.shell("1", f"seq -f 'line %08.0f' {lines}", limit=limit)
        watch.until(Ended, "1")
        text = watch.log("1")
        assert watch.engine.log_size("1", 1) == 14 * lines
        assert text.startswith(b"line 00000001\nline 00000002\n")
        assert text.endswith(b"line %08d\n" % lines)
        head, _, rest = text.partition(b"\n[gpuyard: ")
        missing, _, tail = rest.partition(b" bytes left out]\n")
        assert len(head) + int(missing) + len(tail) == 14 * lines
        assert len(text) <= limit + 100
        assert b"\0" not in text

    def test_processes_have_owners(self, watch: Watch) -> None:
        watch.shell("17_3", "echo $$ >pids; sleep 60 & echo $! >>pids; wait", attempt=4)
        watch.until(Running, "17_3", 4)
        for pid in map(int, watch.wait_for("pids", 2)):
            assert watch.engine.owner(pid) == ("17_3", 4)
        assert watch.engine.owner(os.getpid()) is None
        assert watch.engine.owner(1) is None
        assert watch.engine.owner(2**22 + 1) is None

    def test_many_at_once(self, watch: Watch) -> None:
        for number in range(40):
            watch.launch(str(number), "/bin/sh", "-c", f"exit {number}")
        for number in range(40):
            assert watch.until(Ended, str(number)).code == number
        assert len(watch.reports) == 80
