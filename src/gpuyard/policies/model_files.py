"""Files of trained models: written atomically, as JSON with a hash of its content. Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Gives a draft beside a file; once the block has written the draft, it replaces the file, on disk."""
    draft = draft or path.with_name(f".{path.name}.{os.getpid()}")
    yield draft
    _sync(draft)
    os.replace(draft, path)
    _sync(path.parent)  # the rename, too, must be on the disk


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it, or what was there before."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def content_hash(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_hashed(path: Path, facts: Mapping[str, Any], indent: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed = {**facts, "hash": content_hash(facts)}
    replace_file(path, (json.dumps(hashed, indent=indent, allow_nan=False) + "\n").encode())


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
