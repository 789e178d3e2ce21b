"""A made-up `nvidia-cuda-mps-control`: it writes down its calls, and keeps a process where a control daemon would be.

No GPU and no CUDA is involved, so what this cannot show is that a real client finds a real server.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuyard.engines.local.processes import everyone, mark_of

PROGRAM = "nvidia-cuda-mps-control"
_HERE = Path(__file__).parent


class Call(NamedTuple):
    """One call, with what the program was told, and the owners and modes of its two directories."""

    what: str
    uid: int
    visible: str
    pipe: str
    log: str
    directories: str


class FakeMps:
    """The program in a folder that is to stand on PATH."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        self.folder, self._calls = folder, folder / "calls"
        shutil.copy(_HERE / PROGRAM, folder)
        self._calls.touch()
        self._calls.chmod(0o666)

    @property
    def path(self) -> str:
        """A PATH with the program on it."""
        return f"{self.folder}:{os.environ['PATH']}"

    @property
    def calls(self) -> list[Call]:
        """What it was called for, in order."""
        rows = [line.split("|") for line in self._calls.read_text().splitlines()]
        return [Call(what, int(uid), *rest) for what, uid, *rest in rows]

    @property
    def names(self) -> list[str]:
        """The same, in short."""
        return [call.what for call in self.calls]

    def misbehave(self, mode: str) -> None:
        """Let something go wrong from now on: fail, hang, deaf or dead."""
        (self.folder / "mode").write_text(f"{mode}\n")


def living(place: Path) -> dict[int, str]:
    """The processes of control daemons below a directory, with the mark of each."""
    marks = {pid: mark_of(pid) or "" for pid in everyone()}
    return {pid: mark for pid, mark in marks.items() if mark.startswith(f"{place}/")}


def end_all(place: Path) -> None:
    """Leave nothing behind, whatever a test has come to."""
    for pid in living(place):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
