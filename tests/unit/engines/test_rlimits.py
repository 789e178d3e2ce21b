"""Limits of processes: read from the kernel, kept where they differ, and set within what we may."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator

import pytest

from gpuyard.engines.local import privileges
from gpuyard.engines.local.privileges import limits_of, prlimit


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    found = subprocess.Popen(["sleep", "1000"])
    yield found
    found.kill()
    found.wait()


def test_only_what_differs_is_kept(child: subprocess.Popen[bytes]) -> None:
    assert limits_of(child.pid, os.getuid()) == ()
    resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (50, 60))
    resource.prlimit(child.pid, resource.RLIMIT_CPU, (1000, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    found = limits_of(child.pid, os.getuid())
    assert found is not None
    assert set(found) == {"nofile=50:60", f"cpu=1000:{_text(resource.getrlimit(resource.RLIMIT_CPU)[1])}"}


def _text(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def test_who_is_gone_or_somebody_elses_has_none(child: subprocess.Popen[bytes]) -> None:
    assert limits_of(child.pid, os.getuid() + 1) is None
    child.kill()
    child.wait()
    assert limits_of(child.pid, os.getuid()) is None


def test_they_are_set() -> None:
    words = prlimit(["nofile=50:60"])
    if not words:
        pytest.skip("no prlimit here; apt-get install util-linux")
    said = subprocess.run([*words, "sh", "-c", "ulimit -n; ulimit -Hn"], capture_output=True, check=True)
    assert said.stdout.split() == [b"50", b"60"]
    assert prlimit([]) == []


def test_nobody_asks_for_more_than_they_may_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "_may_raise", lambda: False)
    monkeypatch.setattr(privileges, "_own", lambda: f"{'Max open files':<26}100 200 files\n".encode())
    monkeypatch.setattr("shutil.which", lambda name, path: f"/bin/{name}")
    wanted = ["nofile=300:unlimited", "cpu=5:unlimited"]
    assert prlimit(wanted) == ["/bin/prlimit", "--nofile=200:200", "--cpu=5:unlimited", "--"]
    assert prlimit(["nofile=50:150"]) == ["/bin/prlimit", "--nofile=50:150", "--"]
