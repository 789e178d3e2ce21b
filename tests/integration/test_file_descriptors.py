"""The daemon with few file descriptors: jobs run, requests are answered, and what passes is not its end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.yard import PATIENCE, Yard, finish, opened, until

from gpuyard.engines.base import EngineError
from gpuyard.engines.local import accounts, wrapper
from gpuyard.engines.local.processes import Watch, look

FEW = 100


def test_processes_beyond_the_share_of_pidfds_are_looked_at() -> None:
    watch = Watch(most=1)
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    found = [look(child.pid) for child in children]
    held = [watch.add(one.pid, one.started) for one in found if one is not None]
    assert [one is not None and one.pidfd is not None for one in held] == [True, False, False]
    assert found[0] is not None
    assert watch.add(found[0].pid, found[0].started + 1) is None, "another process has its number"
    assert watch.ended() == []
    for child in children:
        child.kill()
    seen = until(lambda: len(ended := watch.ended()) == 3 and ended, "the end of all")
    assert set(seen) == set(held)
    for one in seen:
        watch.release(one)
    for child in children:
        child.wait()
    watch.close()


def test_a_child_without_a_pidfd_is_reaped_once_and_by_its_own_code() -> None:
    watch = Watch(most=0)
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    held = watch.add(child)
    assert held is not None
    assert until(watch.ended, "its end") == [held]
    assert (held.status(), held.status(), held.status(reaped=True), held.status()) == (7, 7, 7, None)
    watch.release(held)
    assert watch.due() is None
    watch.close()


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.dup(0) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(spare), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in spare:
            os.close(file)


def test_without_file_descriptors_nobody_is_unknown_and_no_claim_is_missing(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("x")
    with no_files_left():
        with pytest.raises(EngineError, match="Too many open files"):
            wrapper.read_claim(tmp_path)
        with pytest.raises(EngineError, match="users cannot be looked up now"):
            accounts.account_of("nosuchuserhere")
    assert accounts.name_of(2**31) == str(2**31)


def test_a_daemon_with_few_files_runs_more_jobs_than_it_has_files_and_answers(tmp_path: Path) -> None:
    with opened(tmp_path) as yard, contextlib.ExitStack() as stack:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        yard.started_by = ("prlimit", f"--nofile={FEW}:")  # the soft limit: it is raised at the start
        yard.serve("--simulate-gpus", f"{FEW}x16G")
        pid = yard.client.status()["pid"]
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == limits[1], "raised to the hard limit"
        assert _printed(yard, "ulimit -Sn") == f"{limits[0]}\n", "jobs have their submitter's"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW, limits[1]))
        jobs = [yard.submit("--array", f"1-{FEW}", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.2; done")]
        until(lambda: yard.client.status()["jobs"].get("running") == FEW, "all jobs running")
        for _ in range(3 * FEW):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(PATIENCE)
            one.connect(str(yard.client.socket))
        assert len(os.listdir(f"/proc/{pid}/fd")) < FEW
        (yard.cwd / "go").touch()
        assert yard.wait(jobs[0])["state"] == "succeeded"
        assert "Traceback" not in (yard.data_dir / "daemon.log").read_text()


def _printed(yard: Yard, script: str) -> str:
    job = yard.submit("--", "sh", "-c", script)
    yard.wait(job)
    return yard.client.log(job).data.decode()


@pytest.mark.parametrize(("kind", "what"), [(resource.RLIMIT_NOFILE, "40 files"), (resource.RLIMIT_AS, "200 MiB")])
def test_next_to_nothing_is_refused_with_a_sentence(kind: int, what: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gpuyard", "serve", "--data-dir", str(tmp_path), "--simulate-gpus", "1x1G"]
    size = 40 if kind == resource.RLIMIT_NOFILE else 200 * 2**20
    done = finish(
        subprocess.Popen(
            ["prlimit", f"--{'nofile' if size == 40 else 'as'}={size}:{size}", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
    )  # fmt: skip
    assert done.code == 2
    assert done.err.startswith(f"gpuyard: error: only {what}")
    assert "Traceback" not in done.err


def test_a_daemon_with_little_address_space_has_room_for_its_threads(tmp_path: Path) -> None:
    with opened(tmp_path) as yard:
        yard.started_by = ("prlimit", f"--as={400 * 2**20}")
        yard.serve()
        assert _printed(yard, "echo well") == "well\n"
        assert "Traceback" not in (yard.data_dir / "daemon.log").read_text()


def test_what_passes_ends_no_command_with_the_code_for_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuyard import cli

    def fail(line: list[str]) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
