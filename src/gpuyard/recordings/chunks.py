"""Chunks of recordings: columns of numbers as a few bytes, and how samples become minutes and hours."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard.recordings.series import METRICS, Floats

AT, COVERED = "at", "covered"  # seconds since a chunk's beginning; seconds of a span with samples
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
    """Columns of the same length as bytes; `means`: bare names are means of spans, and stored in finer steps."""
    names = list(columns)
    values = np.array([columns[name] for name in names])
    unknown = ~np.isfinite(values)
    gaps = unknown.any(axis=1)
    if gaps.any():
        values = _filled(values, unknown)
    mean = np.array([means and name in _QUANTA and name not in (AT, COVERED) for name in names])
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
    """The columns of some names, or all, that exist. Raises `Damaged`."""
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


def _quanta(names: list[str], mean: NDArray[np.bool_]) -> Floats:
    found = np.array([_QUANTUM_OF[name] for name in names])
    return np.where(mean, found / _FINER, found)[:, None]


def _filled(values: Floats, unknown: NDArray[np.bool_]) -> Floats:
    """Gaps filled with the value before them, so that nothing changes there."""
    places = np.where(unknown, 0, np.arange(values.shape[1]))
    filled = np.take_along_axis(values, np.maximum.accumulate(places, axis=1), axis=1)
    return np.where(np.isfinite(filled), filled, 0.0)


def _planes(steps: Steps, width: int) -> bytes:
    if not steps.size:
        return b""
    each = np.ascontiguousarray(steps.astype(_TYPES[width]))
    return each.view(np.uint8).reshape(*steps.shape, width).transpose(0, 2, 1).tobytes()


def _steps(planes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The differences from the first value, out of such bytes."""
    columns, width, count = planes.shape
    each = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(_TYPES[width]).reshape(columns, count)
    signed = each.astype(np.int64)
    steps = ((signed >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(signed & 1)
    found: NDArray[np.int64] = np.cumsum(steps, axis=1)
    return found


Columns = Mapping[str, Floats]


class Level(NamedTuple):
    number: int
    name: str
    period: float  # seconds that a value stands for; of samples, about
    chunk: int  # seconds that are kept together

    def chunk_of(self, at: float) -> int:
        return int(at // self.chunk * self.chunk)


SAMPLES, MINUTES, HOURS = LEVELS = (
    Level(0, "samples", 1.0, 60),
    Level(1, "minutes", 60.0, 6 * 3600),
    Level(2, "hours", 3600.0, 7 * 86400),
)
QUIET = 10.0  # seconds from one sample to the next of a GPU that is idle, and stays as it is
APART = 2.5 * QUIET  # seconds without a sample that make a gap

_NO_MEANS = ("throttle", "xid")  # bits, and the number of an error: half of one means nothing


def held(at: Floats, end: float, apart: float = APART) -> Floats:
    """Seconds that each sample stands for: until the next; before a gap and at the end, as long as usual."""
    if not len(at):
        return np.zeros(0)
    steps = np.diff(at)
    known = steps[steps <= apart]
    usual = float(np.median(known)) if len(known) else 1.0
    spans = np.append(np.where(steps <= apart, steps, usual), min(usual, max(0.0, end - at[-1])))
    found: Floats = np.maximum(spans, 1e-3)
    return found


def condensed(columns: Columns, weights: Floats, bounds: NDArray[np.int64]) -> dict[str, Floats]:
    """Values that follow each other as one for each group, which begin at these places; each mean has its weights.

    Of values that are means already the least and the most are those of what they stand for.
    """
    found = {COVERED: np.add.reduceat(weights, bounds)}
    for name in metrics_in(columns):
        mean = columns[name]
        low, high = columns.get(name + LOW, mean), columns.get(name + HIGH, mean)
        unknown = np.isnan(mean)
        weight = np.where(unknown, 0.0, weights)
        total = np.add.reduceat(weight, bounds)
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = np.add.reduceat(np.where(unknown, 0.0, mean) * weight, bounds) / total
        # fmin and fmax leave gaps out, unless there is nothing else
        found[name + LOW] = np.fmin.reduceat(low, bounds)
        found[name + HIGH] = _joined(high, bounds) if name == "throttle" else np.fmax.reduceat(high, bounds)
        if name in _NO_MEANS:
            found[name] = found[name + HIGH]
    return found


def _joined(bits: Floats, bounds: NDArray[np.int64]) -> Floats:
    """All bits that were set in each group; NaN where nothing is known."""
    known = ~np.isnan(bits)
    whole = np.where(known, bits, 0.0).astype(np.int64)
    return np.where(np.logical_or.reduceat(known, bounds), np.bitwise_or.reduceat(whole, bounds), np.nan)


def metrics_in(columns: Iterable[str]) -> list[str]:
    return [name for name in columns if name not in (AT, COVERED) and not name.endswith((LOW, HIGH))]


def one_of(columns: Columns, weights: Floats) -> dict[str, float]:
    found = condensed(columns, weights, np.zeros(1, dtype=np.int64))
    return {name: float(values[0]) for name, values in found.items()}
