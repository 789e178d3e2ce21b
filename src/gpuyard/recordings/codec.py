"""Columns of numbers as a few bytes: what was measured is small, and changes little from one second to the next.

Numbers become whole multiples of a quantum, of which the differences are kept, each in as few bytes as the largest of
a column needs, byte by byte of all of them (`zlib` finds more in that). Gaps (NaN) are a bit for each value, where
there are any. All columns are worked on at once: a minute has few values, and numpy takes its time for every call.

    head     format, number of values, number of columns
    zlib of  a code for each column; a byte of flags for each; the first value of each; gaps of those that have any;
             differences of all columns of one byte, of two (all first bytes, then all second ones), of four, of eight
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from gpuyard.recordings.series import METRICS, Floats

AT, COVERED = "at", "covered"
"""Seconds since a chunk's beginning; seconds of a span in which somebody looked."""
LOW, HIGH = ".min", ".max"
"""What the least and the most of a span are called, behind a metric's name; the mean has the bare name."""
_MEMORY = 65536.0  # bytes; drivers give out memory in larger pieces
_QUANTA = {
    AT: 0.001, COVERED: 0.1, "utilization": 1.0, "memory_used": _MEMORY, "memcopy": 1.0, "power": 0.1,
    "temperature": 1.0, "sm_clock": 1.0, "memory_clock": 1.0, "throttle": 1.0, "xid": 1.0, "process_memory": _MEMORY,
    "process_utilization": 1.0,
}  # fmt: skip
_FINER = 10.0  # times as fine as a single value is a mean
KEPT = tuple(name for name in METRICS if name != "memory_free")
"""The metrics that are kept; `memory_free` follows from `memory_used`."""
_CODES = (AT, COVERED, *(f"{name}{kind}" for name in KEPT for kind in ("", LOW, HIGH)))
_CODE_OF = {name: code for code, name in enumerate(_CODES)}
_QUANTUM_OF = {name: _QUANTA[name.partition(".")[0]] for name in _CODES}
_FORMAT = 1
_HEAD = struct.Struct("<BHB")
_WIDTH, _GAPS, _MEAN = 15, 16, 32  # flags; the lower four bits are bytes for each difference
_TYPES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_LARGEST = 2.0**61  # quanta
_LIMITS = np.array([0, 2**8 - 1, 2**16 - 1, 2**32 - 1], dtype=np.uint64)  # what 0, 1, 2 and 4 bytes hold
_BYTES = np.array([0, 1, 2, 4, 8], dtype=np.uint8)

Steps = NDArray[np.uint64]


def encode(columns: Mapping[str, Floats], *, means: bool = False) -> bytes:
    """Columns of the same length as bytes; `means`: bare names are means of spans, and worth finer steps."""
    names = list(columns)
    values = np.array([columns[name] for name in names])
    unknown = ~np.isfinite(values)
    gaps = unknown.any(axis=1)
    if gaps.any():
        values = _filled(values, unknown)
    mean = np.array([means and _is_mean(name) for name in names])
    whole = np.clip(np.rint(values / _quanta(names, mean)), -_LARGEST, _LARGEST).astype(np.int64)
    steps = np.diff(whole, axis=1)
    signed = ((steps << 1) ^ (steps >> 63)).view(np.uint64)  # small whatever the sign
    width = _BYTES[np.searchsorted(_LIMITS, signed.max(axis=1, initial=0))]
    flags = (width | (gaps * _GAPS) | (mean * _MEAN)).astype(np.uint8)
    parts = [bytes(_CODE_OF[name] for name in names), flags.tobytes(), whole[:, :1].astype("<i8").tobytes()]
    parts.append(np.packbits(unknown[gaps], axis=1).tobytes())
    parts += [_planes(signed[width == size], size) for size in _TYPES]
    return _HEAD.pack(_FORMAT, values.shape[1], len(names)) + zlib.compress(b"".join(parts), 6)


class Damaged(ValueError):
    """Bytes that are no columns, or of a version that is not known here."""


def decode(data: bytes, names: Collection[str] | None = None) -> dict[str, Floats]:
    """The columns of some names, or all, that are there. `Damaged` if these bytes are none of `encode`'s."""
    try:
        return _decoded(data, names)
    except (IndexError, ValueError, struct.error, zlib.error) as error:
        raise Damaged(f"what was recorded is damaged: {error}") from error


def _decoded(data: bytes, names: Collection[str] | None) -> dict[str, Floats]:
    kind, count, columns = _HEAD.unpack_from(data)
    if kind != _FORMAT:
        raise ValueError(f"a format {kind} of recordings that this version of gpuyard does not know")
    body = zlib.decompress(data[_HEAD.size :])
    there = [_CODES[code] for code in body[:columns]]
    flags = np.frombuffer(body, np.uint8, columns, columns)
    whole = np.empty((columns, count), dtype=np.int64)
    whole[:, :] = np.frombuffer(body, "<i8", columns, 2 * columns)[:, None] if count else 0
    place = (10 if count else 2) * columns
    gapped, size = (flags & _GAPS).nonzero()[0], (count + 7) // 8
    gaps = np.frombuffer(body, np.uint8, len(gapped) * size, place).reshape(len(gapped), size)
    place += gaps.size
    width, wanted = flags & _WIDTH, np.array([names is None or name in names for name in there])
    for bytes_each in _TYPES:
        rows = (width == bytes_each).nonzero()[0]
        if len(rows):
            planes = np.frombuffer(body, np.uint8, len(rows) * bytes_each * (count - 1), place)
            place += planes.size
            some = wanted[rows]
            whole[rows[some], 1:] += _steps(planes.reshape(len(rows), bytes_each, count - 1)[some])
    values = whole * _quanta(there, (flags & _MEAN) > 0)
    if len(gapped):
        missing = np.unpackbits(gaps, axis=1, count=count).astype(bool)
        values[gapped] = np.where(missing, np.nan, values[gapped])
    return {name: values[row] for row, name in enumerate(there) if wanted[row]}


def _is_mean(name: str) -> bool:
    return name in _QUANTA and name not in (AT, COVERED)


def _quanta(names: list[str], mean: NDArray[np.bool_]) -> Floats:
    found = np.array([_QUANTUM_OF[name] for name in names])
    return np.where(mean, found / _FINER, found)[:, None]


def _filled(values: Floats, unknown: NDArray[np.bool_]) -> Floats:
    """Gaps filled with what was before them: then nothing changes there."""
    places = np.where(unknown, 0, np.arange(values.shape[1]))
    filled = np.take_along_axis(values, np.maximum.accumulate(places, axis=1), axis=1)
    return np.where(np.isfinite(filled), filled, 0.0)


def _planes(steps: Steps, width: int) -> bytes:
    """Differences of some columns: of each the first byte of all of them, then the second, and so on."""
    if not steps.size:
        return b""
    each = np.ascontiguousarray(steps.astype(_TYPES[width]))
    return each.view(np.uint8).reshape(*steps.shape, width).transpose(0, 2, 1).tobytes()


def _steps(planes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """What values differ from the first by, out of such bytes."""
    columns, width, count = planes.shape
    each = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(_TYPES[width]).reshape(columns, count)
    signed = each.astype(np.int64)
    steps = ((signed >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(signed & 1)
    found: NDArray[np.int64] = np.cumsum(steps, axis=1)
    return found
