"""A file of nothing but numbers: one value in each line, or `second,value` as a monitoring script writes it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from gpuyard.errors import UserError
from gpuyard.recordings.series import Floats, Series, Subject


def read_plain(path: Path, metric: str) -> Series | None:
    """The series of a file; None if it is another kind of file."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = [_numbers(line) for line in lines]
    if rows and rows[0] is None:
        rows = rows[1:]  # what the columns are called
    widths = {len(row) if row is not None else 0 for row in rows}
    if len(widths) != 1 or not widths <= {1, 2}:
        return None
    table = np.array(rows, dtype=np.float64)
    return _series(table, metric, str(path))


def _numbers(line: str) -> list[float] | None:
    """The numbers of a line; None if it has anything else, and NaN for what is left out."""
    found = []
    for part in line.replace(";", ",").replace("\t", ",").split(","):
        try:
            found.append(float(part) if part.strip() else math.nan)
        except ValueError:
            return None
    return found


def _series(table: Floats, metric: str, name: str) -> Series:
    at = np.arange(len(table), dtype=np.float64) if table.shape[1] == 1 else table[:, 0]
    if not np.isfinite(at).all() or (np.diff(at) <= 0).any():
        raise UserError(f"{name}: the times in its first column do not rise; sort it by them")
    period = float(np.median(np.diff(at))) if len(at) > 1 else 1.0
    return Series(Subject(0, name=name), metric, at, table[:, -1], period=period)
