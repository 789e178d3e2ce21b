"""Where a trace is read from: a file or standard input, compressed or not, line by line."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gpuyard.errors import UserError

_HEAD = 1 << 16
_SURROGATE = re.compile("[\ud800-\udfff]")
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
Stream = io.BufferedIOBase
_ZSTD = b"\x28\xb5\x2f\xfd"
_UNPACKERS: dict[bytes, Callable[[Stream], Stream]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\xfd7zXZ\x00": cast(Callable[[Stream], Stream], lzma.LZMAFile),
    b"BZh": cast(Callable[[Stream], Stream], bz2.BZ2File),
}


class _Rejoined(io.RawIOBase):
    """A stream with the bytes put back that were read to detect its format: pipes cannot seek."""

    def __init__(self, head: bytes, rest: Stream) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = len(buffer)
        if self._head:
            chunk, self._head = self._head[:size], self._head[size:]
        else:
            chunk = self._rest.read(size)
        buffer[: len(chunk)] = chunk
        return len(chunk)


@dataclass(slots=True)
class Source:
    """An opened trace: its name for messages, its first 64 KiB, and its lines (to be read once)."""

    name: str
    head: str
    stream: Stream
    path: Path | None = None  # none: standard input
    option: str = ""  # what stands after the colon in `--format gavel:k80`

    def raw_lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines; bytes that are not UTF-8 stay in them as surrogates."""
        number = 0
        try:
            for number, line in enumerate(self._text(), 1):
                yield number, line
        except _BROKEN as error:
            where = f"{self.name}, after line {number}" if number else self.name
            raise UserError(f"{where}: {_broken(error)}") from None

    def lines(self) -> Iterator[tuple[int, str]]:
        for number, line in self.raw_lines():
            if not line.isascii() and _SURROGATE.search(line):
                raise self.error(number, "this is not UTF-8 text")
            yield number, line

    def chunks(self, size: int = 1 << 20) -> Iterator[str]:
        text = self._text()
        try:
            while chunk := text.read(size):
                if not chunk.isascii() and _SURROGATE.search(chunk):
                    raise UserError(f"{self.name} is not UTF-8 text")
                yield chunk
        except _BROKEN as error:
            raise UserError(f"{self.name}: {_broken(error)}") from None

    def _text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(cast(io.BufferedReader, self.stream), encoding="utf-8-sig", errors="surrogateescape")

    def error(self, line: int, problem: str) -> UserError:
        """`jobs.csv, line 7: <problem>`, without control characters of a cell."""
        return UserError(f"{self.name}, line {line}: {printable(problem)}")

    @property
    def readable_head(self) -> bool:
        return "\0" not in self.head and not _SURROGATE.search(self.head)


def first_line(head: str) -> str:
    """The first line that is neither blank nor a `#` comment, stripped; empty if there is none."""
    stripped = (line.strip() for line in re.split(r"[\r\n]+", head))
    return next((line for line in stripped if line and not line.startswith("#")), "")


def quoted(text: str) -> str:
    """A cell as a message can show it: short, and without control characters."""
    short = text if len(text) <= 40 else text[:37] + "..."
    return f"'{printable(short)}'"


def printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Open a trace file, or standard input for `-`; gzip, xz, bzip2 and zstd are unpacked on the way."""
    name = "standard input" if str(path) == "-" else str(path)
    with ExitStack() as stack:
        if str(path) == "-":
            raw = cast(Stream, sys.stdin.buffer)
        else:
            raw = stack.enter_context(open_binary(Path(path)))
        try:
            head, stream = _peeked(_unpacked(raw, name))
        except _BROKEN as error:
            raise UserError(f"{name}: {_broken(error)}") from None
        if not head:
            raise UserError(f"{name} is empty")
        # A character may be cut in two at the end of the head; an incremental decoder lets that pass.
        decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        yield Source(name, decoder.decode(head), stream, None if str(path) == "-" else Path(path))


def open_binary(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory, not a file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _peeked(stream: Stream, size: int = _HEAD) -> tuple[bytes, Stream]:
    head = stream.read(size)
    return head, io.BufferedReader(_Rejoined(head, stream), _HEAD)


def _unpacked(stream: Stream, name: str) -> Stream:
    magic, stream = _peeked(stream, 6)
    for start, unpack in _UNPACKERS.items():
        if magic.startswith(start):
            return unpack(stream)
    return _zstd(stream, name) if magic.startswith(_ZSTD) else stream


def _zstd(stream: Stream, name: str) -> Stream:
    """Zstandard came to Python's own library with 3.14; before that it is a package, which we do not require."""
    for module, opener in (("compression.zstd", "ZstdFile"), ("zstandard", "open")):
        try:
            return cast(Stream, getattr(importlib.import_module(module), opener)(stream, "rb"))
        except ImportError:
            continue
    raise UserError(
        f"{name} is compressed with zstd, which this Python cannot read: "
        "unpack it first (zstd -d), or install the package zstandard"
    )


def _broken(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the compressed file is cut off; get it anew"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"
