"""Files that are written in one step, JSON with a hash of its content, CSV, and fault points. Standard library only."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuyard.units import format_number

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)  # Windows has no such links


@contextmanager
def replacing(path: Path, *, durable: bool = True, mode: int = 0o666) -> Iterator[Path]:
    """Gives an empty draft beside a file; once the block has written the draft, it replaces the file.

    Nobody can foresee the draft's name, and it is a new file: whoever else may write to the folder cannot have us write
    through a link. If `durable`, all is on the disk in the end.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    os.close(os.open(draft, _NEW, mode))
    try:
        yield draft
        if durable:
            sync(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        sync(path.parent)  # the rename, too, must be on the disk


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it, or what was there before, also after a crash."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def write_atomically(path: Path, content: bytes) -> None:
    """The same for what can be made again: it need not survive a crash."""
    with replacing(path, durable=False) as draft:
        draft.write_bytes(content)


def content_hash(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_hashed(path: Path, facts: Mapping[str, Any], indent: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed = {**facts, "hash": content_hash(facts)}
    replace_file(path, (json.dumps(hashed, indent=indent, allow_nan=False) + "\n").encode())


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # also wide ones


def csv_text(header: Sequence[str], rows: Iterable[Iterable[Any]], end: str = "\n") -> str:
    """A table; None is an empty cell, and no text is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end)
    writer.writerows(map(without_formula, row) for row in ((header, *rows) if header else rows))
    return text.getvalue()


def without_formula(value: Any) -> Any:
    """A cell that spreadsheets do not take for a formula: a job's name can be one; numbers stay."""
    if not isinstance(value, str) or not value.startswith(_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def cell(value: Any, digits: int | None = None) -> str:
    """A value in a CSV file: whole floats without a point, the others rounded to `digits`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format_number(value if digits is None else round(value, digits))
    return str(value)


# Fault points for tests: every instant between two writes that a sudden end could separate.
#
# `GPUYARD_FAULT=NAME[:N]` kills the process with SIGKILL when it comes to that point for the N-th time (the first).
# `GPUYARD_FAULT_LOG=FILE` logs each point that is passed, so that a test can find out which points there are.
# Both are read once, when this module is imported; without them a point costs one comparison.


class Faults:
    def __init__(self, environment: Mapping[str, str]) -> None:
        fault = environment.get("GPUYARD_FAULT", "")
        name, _, count = fault.rpartition(":")
        self._name, self._count = (name, int(count)) if count.isdigit() else (fault, 1)
        self._log = environment.get("GPUYARD_FAULT_LOG", "")
        self._passed: Counter[str] = Counter()
        self.wanted = bool(self._name or self._log)

    def arrive(self, name: str) -> None:
        self._passed[name] += 1
        if self._log:
            with open(self._log, "a", encoding="utf-8") as log:
                log.write(f"{name}\n")
        if name == self._name and self._passed[name] == self._count:
            os.kill(os.getpid(), signal.SIGKILL)


_faults = Faults(os.environ)
_wanted = _faults.wanted


def point(name: str) -> None:
    if _wanted:
        _faults.arrive(name)
