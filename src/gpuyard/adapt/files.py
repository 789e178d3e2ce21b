"""Reading files that may be compressed, and writing some so that nobody ever sees half of one."""

from __future__ import annotations

import gzip
import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that whoever reads it sees all of it, or what was there before."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def read_text(path: Path) -> str:
    """What is in a file; of one that ends with .gz, what is in it uncompressed."""
    if path.suffix != ".gz":
        return path.read_text()
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except (gzip.BadGzipFile, EOFError) as error:
        raise OSError(0, f"it is not whole, or not compressed by gzip ({error})") from None
