"""Commands as processes: run with its signals, up and down, help and completion; the daemon is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.standin import Gpuyard, StandIn, job

from gpuyard.cli.app import Commands
from gpuyard.cli.lazy import Later

REPOSITORY = Path(__file__).resolve().parents[2]

FAKE_DAEMON = """
import sys, types

def serve(settings):
    import os, time
    if settings.policy == "broken":
        sys.exit("gpuyard: error: unknown policy 'broken'")
    from tests.standin import StandIn
    time.sleep(0.2)
    with StandIn(settings.socket) as server:
        server.pid = os.getpid()
        while server.path.exists():
            time.sleep(0.01)

sys.modules["gpuyard.daemon.serve"] = types.SimpleNamespace(serve=serve)
"""


def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpuyard", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_run_gives_the_output_and_the_exit_code(yard: StandIn, gpuyard: Gpuyard) -> None:
    def play(found: dict[str, Any]) -> None:
        found["state"] = "running"
        yard.logs["1"] = b"hello\n"
        threading.Timer(0.2, lambda: yard.logs.update({"1": b"hello\nworld\n"})).start()
        threading.Timer(0.4, lambda: found.update(state="failed", exit_code=7)).start()

    yard.on_submit = play
    assert gpuyard("run", "--gpus", "1", "--", "sh", "-c", "...") == (7, "hello\nworld\n", "")


def test_run_says_why_it_waits_and_how_it_ended(yard: StandIn, gpuyard: Gpuyard) -> None:
    def play(found: dict[str, Any]) -> None:
        found["reason"] = "needs 2 GPUs, 1 idle"
        threading.Timer(1.3, lambda: found.update(state="running", gpus=[0, 1], reason=None)).start()
        threading.Timer(1.6, lambda: found.update(state="timeout", reason="ran longer than 1s")).start()

    yard.on_submit = play
    done = gpuyard("run", "--", "true")
    assert done.code == 124
    assert done.err.splitlines() == [
        "job 1: queued (needs 2 GPUs, 1 idle)",
        "job 1: running on GPU 0, 1",
        "job 1: timeout (ran longer than 1s)",
    ]


def test_the_first_interrupt_asks_and_the_second_ends(yard: StandIn) -> None:
    def obey(found: dict[str, Any], body: dict[str, Any]) -> None:
        if body["grace"] is None:
            yard.logs["1"] += b"saving\n"
        else:
            found.update(state="cancelled")

    yard.on_submit = lambda found: found.update(state="running")
    yard.on_cancel = obey
    yard.logs["1"] = b"begin\n"
    process = start("run", "--", "true")
    until(lambda: yard.bodies("/jobs/1/log"))
    process.send_signal(signal.SIGINT)
    until(lambda: yard.bodies("/jobs/1/cancel"))
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (130, "begin\nsaving\n")
    assert yard.bodies("/jobs/1/cancel") == [{"grace": None}, {"grace": 0.0}]
    assert "job 1: asked to end; Ctrl-C again ends it at once" in err


def test_following_outlives_the_daemon(yard: StandIn, tmp_path: Path) -> None:
    yard.on_submit = lambda found: found.update(state="running")
    yard.logs["1"] = b"before\n"
    process = start("run", "--", "true")
    until(lambda: yard.bodies("/jobs/1/log"))
    yard.jobs["1"]["state"] = "held up"  # lets go of nobody
    time.sleep(0.3)
    yard.stop()
    yard.drop()
    time.sleep(0.3)
    with StandIn(tmp_path / "s") as again:
        again.jobs["1"] = job("1", "succeeded")
        again.logs["1"] = b"before\nafter\n"
        code, out, err = finish(process)
    assert (code, out) == (0, "before\nafter\n")
    assert "the daemon went away" in err


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Let `serve` be a stand-in; the options that name its place."""
    (tmp_path / "sitecustomize.py").write_text(FAKE_DAEMON)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY), str(REPOSITORY / "src")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("GPUYARD_CONFIG", str(tmp_path / "none.toml"))
    place = ("--data-dir", str(tmp_path / "yard"))
    yield place
    finish(start("down", *place))


def test_up_and_down(daemon: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = finish(start("up", *daemon, "--simulate-gpus", "4x16G"))
    assert code == 0, err
    assert out.startswith("gpuyard is up: 4 simulated GPUs, policy priority@easy@pack, pid ")
    assert (tmp_path / "yard/daemon.log").stat().st_mode & 0o777 == 0o600
    pid = json.loads(finish(start("status", *daemon, "--json"))[1])["pid"]
    assert os.getsid(pid) != os.getsid(0)
    code, out, err = finish(start("up", *daemon, "--policy", "sjf"))
    assert (code, out.split(":")[0]) == (0, "gpuyard was up already")
    assert "the flags change nothing" in err
    finish(start("submit", *daemon, "--", "true"))
    assert finish(start("down", *daemon))[:2] == (0, "gpuyard is down; no job runs\n")
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    code, out, err = finish(start("down", *daemon))
    assert (code, out) == (0, "")
    assert "there is nothing to end" in err


def test_up_shows_why_a_daemon_died(daemon: tuple[str, ...]) -> None:
    code, out, err = finish(start("up", *daemon, "--policy", "broken"))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "gpuyard: error: unknown policy 'broken'",
        "gpuyard: error: the daemon ended as it started; its last words are above",
    ]


def test_down_says_how_many_jobs_go_on(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs = {"1": job("1", "running"), "2": job("2")}
    assert gpuyard("down") == (0, "gpuyard is down; 1 job goes on running\n", "")


def test_the_yard_may_be_named_before_or_after_the_command(
    yard: StandIn, gpuyard: Gpuyard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPUYARD_SOCKET")
    (tmp_path / "gpuyard.sock").symlink_to(yard.path)
    place = ("--data-dir", str(tmp_path))
    for arguments in (
        [*place, "ps", "--json"],
        ["ps", *place, "--json"],
        ["policy", *place, "show"],
        [*place, "policy", "show"],
        ["--data-dir", "/wrong", "ps", "--socket", str(yard.path)],
    ):
        assert gpuyard(*arguments).code == 0, arguments
    done = gpuyard("--data-dir", "/wrong", "ps")
    assert (done.code, done.err) == (
        1,
        "gpuyard: error: no daemon answers at /wrong/gpuyard.sock; start one with gpuyard up (or gpuyard serve)\n",
    )


def test_the_root_help_says_what_the_commands_say(gpuyard: Gpuyard) -> None:
    for entries in Commands.headings.values():
        for name, entry in entries.items():
            assert Later(name, entry).load().help == entry.help, name
    text = gpuyard("--help").out
    assert "queue for GPU jobs, and a simulator" in " ".join(text.split())
    assert [heading in text for heading in ("Jobs:", "The yard:", "The simulator:")] == [True] * 3


@pytest.mark.parametrize("arguments", [["--help"], ["submit", "--", "true"]])
def test_help_and_submit_import_neither_rich_nor_other_commands(yard: StandIn, arguments: list[str]) -> None:
    code = (
        "import sys; from gpuyard.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m in ('rich', 'numpy', 'http.client', 'gpuyard.cli.ps')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gpuyard ca", ["cancel"]),
        ("gpuyard cancel 1", ["17"]),
        ("gpuyard logs 1", ["17", "18"]),
        ("gpuyard cancel --socket /none 1", []),
    ],
)
def test_the_shell_completes_commands_and_jobs(yard: StandIn, words: str, found: list[str]) -> None:
    yard.jobs = {"17": job("17", "running", name="train"), "18": job("18", "succeeded"), "2": job("2")}
    more = {"_GPUYARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code, out, err = finish(start(env=os.environ | more))
    assert (code, out.split()) == (0, found), err
