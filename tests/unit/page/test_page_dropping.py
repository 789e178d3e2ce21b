"""The page's process becomes nobody where the daemon is root's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.users import require_root

from gpuyard.page import process


def _after_dropping() -> dict[str, Any]:
    """Who a process is then; in a fork, since there is no way back."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            process.drop_root()
            told = {"uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups()}
            os.write(writing, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.root
def test_root_becomes_nobody_if_nobody_can_read_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_root()
    as_before = {"uids": [0, 0, 0], "gids": list(os.getresgid())}
    monkeypatch.setattr(process, "_needed", lambda: ["/etc/passwd"])
    assert _after_dropping() | {"groups": []} == as_before | {"groups": []}, "nobody said that it should"
    monkeypatch.setenv("GPUYARD_PAGE_USER", "nobody")
    assert _after_dropping() == {"uids": [65534] * 3, "gids": [65534] * 3, "groups": []}
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "file").touch()
    monkeypatch.setattr(process, "_needed", lambda: ["/etc/passwd", str(closed / "file")])
    assert _after_dropping()["uids"] == [0, 0, 0]


def test_what_it_needs_is_there() -> None:
    assert all(Path(file).is_file() for file in process._needed())
