"""`gpuyard run` is as if the command ran here: input, output, errors, Ctrl-C, and a terminal where ours is one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.users import Desk as UserDesk
from tests.yard import PATIENCE, Yard, finish, until

from gpuyard.client import attachment
from gpuyard.client.attachment import ERR, OUT, Desk

STUBBORN = "trap 'echo int' INT; trap 'echo term' TERM; echo on; while :; do sleep 0.05; done"


def begun(yard: Yard, *words: str, first: str = "on\n") -> subprocess.Popen[str]:
    running = yard.popen("run", *words)
    assert running.stdout is not None
    assert running.stdout.readline() == first
    return running


def test_input_is_passed_on_and_errors_stay_errors(yard: Yard) -> None:
    (yard.cwd / "given").write_text("a line\nand one without an end")
    script = "cat; echo wrong >&2; test ! -t 0 && test ! -t 1; exit 3"
    with (yard.cwd / "given").open() as given:
        done = subprocess.run(
            [sys.executable, "-m", "gpuyard", "run", "--", "sh", "-c", script], stdin=given, cwd=yard.cwd,
            env=yard.environment, capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "a line\nand one without an end", "wrong\n")
    [job] = yard.client.history(limit=1)
    assert yard.client.log(job["id"]).data == b"a line\nand one without an endwrong\n"  # the log has both
    assert (job["name"], job["command"][0]) == ("cat", "sh")  # nothing of ours is told to be the job


def test_a_program_that_does_not_exist_is_told(yard: Yard) -> None:
    done = yard("run", "--", "nosuchprogram")
    assert (done.code, done.out) == (2, "")
    assert "there is no program nosuchprogram on the PATH" in done.err


def test_ctrl_c_is_an_interrupt_then_term_then_leaves_the_job(yard: Yard) -> None:
    running = begun(yard, "--grace", "1h", "--", "sh", "-c", STUBBORN)
    assert running.stdout is not None
    [job] = yard.client.jobs()
    for said in ("int\n", "term\n"):
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == said
    running.send_signal(signal.SIGINT)
    done = finish(running)
    assert done.code == 130
    told = f"gpuyard logs -f {job['id']} follows it, gpuyard cancel --grace 0 {job['id']} ends it at once"
    assert f"job {job['id']} is killed when its grace period is over: {told}" in done.err
    assert yard.client.job(job["id"])["state"] == "running"


def test_a_job_that_ends_by_ctrl_c_has_ended_by_itself(yard: Yard) -> None:
    running = begun(yard, "--", "sh", "-c", "trap 'echo bye; exit 7' INT; echo on; while :; do sleep 0.05; done")
    running.send_signal(signal.SIGINT)
    done = finish(running)
    assert (done.code, done.out, done.err) == (7, "bye\n", "")


def test_the_signal_to_stop_by_may_be_an_interrupt(yard: Yard) -> None:
    """`--signal INT` counts for who is cancelled as well; one that is a notice, as USR1, does not."""
    script = (
        "trap 'echo int; exit' INT; trap 'echo term; exit' TERM; trap : USR1; echo on; while :; do sleep 0.05; done"
    )
    for given, said in (("INT", b"on\nint\n"), ("USR1", b"on\nterm\n")):
        job = yard.submit("--signal", given, "--", "sh", "-c", script)
        yard.await_output(job, b"on\n")
        yard.client.cancel(job)
        yard.wait(job)
        assert yard.client.log(job).data.replace(b"Terminated\n", b"") == said


def test_who_does_not_read_blocks_no_job(yard: Yard) -> None:
    """The job ends though who ran it is stopped; then all of its output is shown, the rest from the log."""
    size = 12 * 2**20
    running = begun(yard, "--", "sh", "-c", f"echo on; while [ ! -e go ]; do sleep 0.05; done; yes | head -c {size}")
    [job] = yard.client.jobs()
    running.send_signal(signal.SIGSTOP)
    (yard.cwd / "go").touch()
    assert yard.wait(job["id"])["state"] == "succeeded"
    running.send_signal(signal.SIGCONT)
    done = finish(running)
    assert (done.code, done.out == "y\n" * (size // 2)) == (0, True)


def test_the_death_of_who_waits_ends_no_job(yard: Yard) -> None:
    running = begun(yard, "--", "sh", "-c", "echo on; while [ ! -e go ]; do sleep 0.05; done; echo more; echo e >&2")
    [job] = yard.client.jobs()
    running.kill()
    finish(running)
    (yard.cwd / "go").touch()
    assert yard.wait(job["id"])["state"] == "succeeded"
    assert yard.client.log(job["id"]).data == b"on\nmore\ne\n"
    again = yard.client.retry(job["id"])  # nobody waits for it: it runs as any other
    assert yard.wait(again)["state"] == "succeeded"
    assert yard.client.log(again).data == b"on\nmore\ne\n"


def test_the_next_attempt_is_shown_from_its_beginning(yard: Yard) -> None:
    running = begun(yard, "--", "sh", "-c", "echo on; [ $GPUYARD_ATTEMPT = 1 ] && sleep 1000; echo second")
    [job] = yard.client.jobs()
    assert yard("requeue", job["id"]).code == 0
    done = finish(running)
    assert (done.code, done.out) == (0, "on\nsecond\n")


class Screen:
    """A terminal with `gpuyard run` in it, or with a shell that has it as $RUN."""

    def __init__(self, yard: Yard, *words: str, shell: bool = False) -> None:
        run = [sys.executable, "-m", "gpuyard", "run"]
        self.master, slave = pty.openpty()
        self.resize(33, 101)
        self.seen = b""
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"] if shell else [*run, *words],
            stdin=slave, stdout=slave, stderr=slave, cwd=yard.cwd, start_new_session=True,
            env={**yard.environment, "TERM": "xterm-256color", "RUN": " ".join(run), "PS1": "@ "},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.slave = slave

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def shows(self, text: bytes, *, after: bytes = b"", pause: float = 0.0) -> None:
        """Wait until it does; what came before is forgotten. With `after`, this is typed first."""
        if after:
            self.seen = b""
            self.type(after)
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen = (self.seen + os.read(self.master, 2**16))[-(2**16) :]
                time.sleep(pause)


@contextlib.contextmanager
def screen(yard: Yard, *words: str, shell: bool = False) -> Iterator[Screen]:
    found = Screen(yard, *words, shell=shell)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(PATIENCE)
        os.close(found.master)
        os.close(found.slave)


def test_a_terminal_is_one_for_the_job(yard: Yard) -> None:
    script = (
        "test -t 0 && test -t 1 && test -t 2 && echo tty; echo $TERM; stty size; trap 'stty size' WINCH; "
        "trap 'echo int' INT; read -r word; echo got $word; while [ ! -e go ]; do sleep 0.05; done; exit 6"
    )
    with screen(yard, "--", "sh", "-c", script) as terminal:
        before = termios.tcgetattr(terminal.slave)
        terminal.shows(b"tty\r\nxterm-256color\r\n33 101\r\n")
        terminal.type(b"hello\r")
        terminal.shows(b"got hello")
        terminal.resize(40, 90)
        terminal.shows(b"40 90")
        terminal.type(b"\x03")
        terminal.shows(b"int")
        (yard.cwd / "go").touch()
        until(lambda: terminal.process.poll() is not None)
        assert terminal.process.returncode == 6
        assert termios.tcgetattr(terminal.slave)[:4] == before[:4]


def test_ctrl_c_again_and_again_in_a_terminal_leaves_the_job(yard: Yard) -> None:
    with screen(yard, "--grace", "1h", "--", "sh", "-c", STUBBORN) as terminal:
        terminal.shows(b"on\r\n")
        terminal.type(b"\x03")
        terminal.shows(b"int")
        terminal.type(b"x\x03\x03")  # with another key between, it is a first one again
        terminal.shows(b"asked to end; Ctrl-C again leaves it")
        terminal.type(b"\x03")
        until(lambda: terminal.process.poll() is not None)
        assert terminal.process.returncode == 130
        [job] = yard.client.jobs()
        assert job["state"] == "running"


def test_who_types_may_go_on_typing_after_more_output_than_a_terminal_takes(yard: Yard) -> None:
    script = f"yes | head -c {2**23}; echo end; read -r word; echo got $word"
    with screen(yard, "--", "sh", "-c", script) as terminal:
        terminal.shows(b"end\r\n", pause=0.0002)
        terminal.shows(b"got hello", after=b"hello\r")
        until(lambda: terminal.process.poll() is not None)
    [job] = yard.client.history(limit=1)
    assert yard.client.job(job["id"])["state"] == "succeeded"


def test_each_of_input_output_and_errors_is_a_terminal_where_ours_is(yard: Yard) -> None:
    script = "for fd in 0 1 2; do test -t $fd && echo $fd >>which; done; stty size <&2; echo done >>which"
    for redirected, found in (("</dev/null", "1\n2\n"), ("|cat", "2\n"), ("2>errors", "0\n1\n")):
        (yard.cwd / "which").unlink(missing_ok=True)
        with screen(yard, shell=True) as terminal:
            terminal.shows(b"@ ")
            terminal.shows(b"=0\r", after=f"$RUN -- sh -c '{script}' {redirected}; echo =$? \r".encode())
            assert (b"33 101" in terminal.seen) == ("2\n" in found)
        assert (yard.cwd / "which").read_text() == f"{found}done\n"


def test_ctrl_c_and_ctrl_z_are_keys_where_programs_take_them(yard: Yard) -> None:
    reader = "import os, tty; tty.setraw(0); key = b'on'\nwhile key != b'q': print(key); key = os.read(0, 1)\nexit(5)"
    with screen(yard, "--", sys.executable, "-uc", reader) as terminal:
        terminal.shows(b"on")
        for key in (b"\x03", b"\x03", b"\x03", b"\x03", b"\x1a"):
            terminal.shows(repr(key).encode(), after=key)
        terminal.type(b"q")
        until(lambda: terminal.process.poll() is not None)
        assert terminal.process.returncode == 5
    with screen(yard, "--", "bash", "--norc", "--noprofile", "-i") as terminal:
        terminal.shows(b"@ ")
        terminal.shows(b"sleeps", after=b"sh -c 'echo sle\"\"eps; exec sleep 1000'\r")
        terminal.shows(b"]+  Stopped", after=b"\x1a")  # by its own shell
        assert terminal.process.poll() is None


def test_it_is_stopped_goes_on_in_the_background_and_comes_back(yard: Yard) -> None:
    script = "trap 'echo drawn' WINCH; echo on; while ! read -r word; do :; done; echo got $word"
    with screen(yard, shell=True) as terminal:
        terminal.shows(b"@ ")
        terminal.shows(b"on\r\n", after=f'$RUN -- bash -c "{script.replace("$", chr(92) + "$")}"\r'.encode())
        terminal.shows(b"Stopped", after=b"\x1a")
        terminal.shows(b"@ ", after=b"bg\r")
        terminal.shows(b"Running", after=b"jobs\r")
        terminal.shows(b"drawn", after=b"fg\r")
        terminal.shows(b"got hello", after=b"hello\r")


def test_keys_are_left_to_a_pager(yard: Yard) -> None:
    reader = "import tty; tty.setcbreak(2); print('key', open('/dev/tty', 'rb', 0).read(1)); input()"
    (yard.cwd / "pager.py").write_text(reader)
    with screen(yard, shell=True) as terminal:
        terminal.shows(b"@ ")
        pager = f"{sys.executable} pager.py"
        terminal.type(
            f"$RUN -- sh -c 'while [ ! -e go ]; do sleep 0.05; done; echo end' | {pager}; echo =$?\r".encode()
        )
        until(lambda: yard.client.jobs() and yard.client.jobs()[0]["state"] == "running")
        for _ in range(3):
            terminal.type(b"k")
        terminal.shows(b"key b'k'")
        (yard.cwd / "go").touch()
        terminal.shows(b"=0")


def test_who_writes_for_nobody_learns_of_it(yard: Yard) -> None:
    given = {"cwd": yard.cwd, "env": yard.environment, "text": True, "timeout": PATIENCE}
    run = f"{sys.executable} -m gpuyard run"
    for reader in ("head -1", "(sleep 1; head -1)"):  # when much more is written than is read
        line = f"{run} -- sh -c 'yes; echo $? >&2; exit 4' | {reader}; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, **given)  # type: ignore[call-overload]
        assert (done.stdout, done.stderr) == ("y\n4\n", "141\n")
    line = f"{run} -- echo hi >/dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, **given)  # type: ignore[call-overload]
    assert done.returncode == 1
    assert "cannot write the output (No space left on device)" in done.stderr


def test_standard_streams_may_be_closed_and_folders_missing(yard: Yard) -> None:
    given = {
        "cwd": yard.cwd,
        "timeout": PATIENCE,
        "env": {**yard.environment, "TMPDIR": "/no", "XDG_RUNTIME_DIR": "x" * 120},
    }
    run = f"{sys.executable} -m gpuyard"
    for line in ("run -- sh -c 'cat; echo x; echo e >&2' <&- >&- 2>&-", "ps >&-", "history >&- 2>&-"):
        assert subprocess.run(["bash", "-c", f"{run} {line}"], check=False, **given).returncode == 0  # type: ignore[call-overload]
    [job] = yard.client.history(limit=1)
    assert yard.client.log(job["id"]).data == b"x\ne\n"


def test_a_job_of_another_user_finds_that_users_terminal_only(a: UserDesk, b: UserDesk, place: Path) -> None:
    script = place / "attachment.py"  # where users can read it, as they can what they run themselves
    script.write_bytes(Path(attachment.__file__).read_bytes())
    script.chmod(0o644)

    def words(desk: Desk) -> list[str]:
        return ["/usr/bin/python3", "-I", "-S", str(script), desk.words[-1]]

    def shown(user: UserDesk) -> list[str]:
        desk, found = Desk(), list[tuple[bytes, bytes]]()
        given: dict[str, Any] = {"environment": user.user.environment(), "attach": words(desk)}
        user.yard.client.submit(["sh", "-c", "id -u; echo wrong >&2"], **given)
        desk.attend(lambda: True, lambda kind, data: found.append((kind, data)))
        desk.close()
        return [b"".join(data for kind, data in found if kind == which).decode() for which in (OUT, ERR)]

    assert a.user.do(lambda: shown(a)) == [f"{a.user.uid}\n", "wrong\n"]
    mine = Desk()  # root's, where a user's job is not let in
    try:
        job = b.submit("sh", "-c", "echo alone", attach=words(mine))
        assert b.yard.wait(job)["state"] == "succeeded"
        assert b.yard.client.log(job).data == b"alone\n"
    finally:
        mine.close()
