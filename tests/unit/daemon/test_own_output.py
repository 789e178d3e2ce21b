"""What a job printed to a file of its own: read if it is a plain file of its user's, and never waited for."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from gpuyard.daemon.jobs import oom
from gpuyard.daemon.jobs.oom import OwnFiles

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "out.txt"
    path.write_text("a long beginning, and the end")
    return path


@pytest.mark.parametrize("user", ["", ME])
def test_the_end_is_read(file: Path, user: str) -> None:
    assert OwnFiles().end_of(str(file), user, file.stat().st_mtime, 7) == b"the end"


def test_what_is_not_its_own_or_no_plain_file_is_left_alone(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing", ".", "a\0b"):
        assert OwnFiles().end_of(f"{tmp_path}/{name}", "", 0.0, 7) == b"", name
    assert OwnFiles().end_of("/dev/null", "", 0.0, 7) == b""
    other = "nobody" if os.geteuid() == 0 else "root"
    assert OwnFiles().end_of(str(file), other, 0.0, 7) == b""
    assert OwnFiles().end_of(str(file), "there is no such user", 0.0, 7) == b""


def test_what_was_there_before_it_began_does_not_count(file: Path) -> None:
    assert OwnFiles().end_of(str(file), "", file.stat().st_mtime + 1, 7) == b""


def test_a_file_system_that_does_not_answer_is_not_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "_PATIENCE", 0.05)
    monkeypatch.setattr(oom, "_read", lambda *_: time.sleep(1))
    reader = OwnFiles()
    assert [reader.end_of(str(file), "", 0.0, 7) for _ in range(2)] == [b"", b""]
    assert reader._reading is not None
    reader._reading.join()
