"""Checkpoint files: written atomically, the last two are kept."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpuyard.client.retry import to_stderr
from gpuyard.errors import UserError

_MAGIC = b"gpuyard-checkpoint 1 "
_NAME = re.compile(r"checkpoint-(\d{8,})\.pt")
KEPT = 2


class Damaged(UserError):
    """This checkpoint cannot be read."""


def packed(state: dict[str, Any]) -> bytes:
    """A state as bytes that tell whether they are whole."""
    payload = io.BytesIO()
    torch.save(state, payload)
    body = payload.getvalue()
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpacked(data: bytes, name: str) -> dict[str, Any]:
    """The state again; tensors and plain values only, so that a file from elsewhere runs nothing."""
    head, _, body = data.partition(b"\n")
    if not head.startswith(_MAGIC) or head[len(_MAGIC) :] != hashlib.sha256(body).hexdigest().encode():
        raise Damaged(f"{name} is damaged or no checkpoint")
    state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return state


class Checkpoints:
    """A directory of them."""

    def __init__(self, directory: str | os.PathLike[str], *, say: Callable[[str], None] = to_stderr) -> None:
        self.directory = Path(directory)
        self._say = say
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"checkpoints cannot be kept in {directory}: {error.strerror}") from None

    def all(self) -> list[Path]:
        """Those that are there, the newest first."""
        found = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=_number, reverse=True)

    def write(self, state: dict[str, Any]) -> Path:
        """Put a state on the disk, and forget those before the last two."""
        return self.write_by(lambda path: path.write_bytes(packed(state)))

    def write_by(self, write: Callable[[Path], object]) -> Path:
        """The same, where somebody else writes the file."""
        before = self.all()
        path = self.directory / f"checkpoint-{_number(before[0]) + 1 if before else 1:08d}.pt"
        beside = path.with_suffix(".tmp")
        try:
            write(beside)
            _sync(beside)
            beside.replace(path)
            _sync(self.directory)  # the rename, too, must be on the disk
            for old in [*before[KEPT - 1 :], *self.directory.glob("checkpoint-*.tmp")]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"no checkpoint can be written in {self.directory}: {error.strerror}") from None
        return path

    def newest(self) -> Path | None:
        """The newest, if there is any."""
        return next(iter(self.all()), None)

    def read(self) -> dict[str, Any] | None:
        """The newest state that is whole; None if there is none at all."""
        found = self.all()
        for path in found:
            try:
                return unpacked(path.read_bytes(), str(path))
            except (Damaged, OSError) as error:
                self._say(f"warning: {error}; trying the checkpoint before it")
        if found:
            raise UserError(f"no checkpoint in {self.directory} can be read; remove them to begin anew")
        return None


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0
