"""The output folder of a monitoring:

`gpu_usage.csv`, the recording, a summary and plots. Existing files are not overwritten.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.errors import UserError
from gpuyard.files import write_atomically
from gpuyard.recordings.series import Recording, Subject

HEADER = "index, timestamp, name, utilization.gpu [%], utilization.memory [%], power.draw [W]"
"""As nvidia-smi writes it for index,timestamp,name,utilization.gpu,utilization.memory,power.draw."""
_COLUMNS = ("utilization", "memcopy", "power")
_UNKNOWN = "[N/A]"


class Row(NamedTuple):
    """One GPU at one instant, in seconds since the epoch; None and NaN: not known."""

    at: float
    gpu: int
    name: str
    utilization: float | None = None
    memcopy: float | None = None
    power: float | None = None

    def line(self) -> str:
        name = " ".join(self.name.replace(",", " ").split())
        busy, copying = (_told(value, "0f", "%") for value in (self.utilization, self.memcopy))
        return f"{self.gpu}, {_clock(self.at)}, {name}, {busy}, {copying}, {_told(self.power, '2f', 'W')}"


class UsageCsv:
    """A file that has every row as soon as it is added, even if the writer is killed."""

    def __init__(self, path: Path) -> None:
        """Begin a new file; an existing one is not overwritten."""
        self._file: TextIOWrapper = open(path, "x", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._file.write(f"{HEADER}\n")

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._file.write(f"{row.line()}\n")

    def close(self) -> None:
        self._file.close()


def write_usage_csv(path: str | os.PathLike[str], recording: Recording, *, held: float = 0.0) -> Path:
    """Write the values of whole GPUs, in the order of time.

    A value holds for `held` seconds where only other GPUs have a row: of an idle one, the daemon records less.
    """
    lines = (f"{row.line()}\n" for row in rows_of(recording, held))
    write_atomically(Path(path), "".join([f"{HEADER}\n", *lines]).encode())
    return Path(path)


def rows_of(recording: Recording, held: float = 0.0) -> list[Row]:
    """The rows of all GPUs, by time and then by GPU; a value holds for `held` seconds."""
    found: dict[tuple[float, str, int], dict[str, float]] = {}
    subjects: dict[tuple[str, int], Subject] = {}
    for one in recording.series:
        if one.subject.job or one.metric not in _COLUMNS:
            continue
        place = one.subject.host, one.subject.gpu
        subjects.setdefault(place, one.subject)
        for at, value in zip(one.at.tolist(), one.mean.tolist(), strict=True):
            found.setdefault((at, *place), {})[one.metric] = value
    rows: list[Row] = []
    last: dict[tuple[str, int], Row] = {}
    for at in sorted({at for at, _, _ in found}):
        for place in sorted(subjects):
            if told := found.get((at, *place)):
                last[place] = Row(at, place[1], subjects[place].name, *(told.get(name) for name in _COLUMNS))
                rows.append(last[place])
            elif held and place in last and at - last[place].at < held:
                rows.append(last[place]._replace(at=at))
    return rows


def _clock(at: float) -> str:
    """`2026/11/16 18:45:01.123`, on this machine's clock."""
    then = datetime.fromtimestamp(round(at, 3))
    return f"{then:%Y/%m/%d %H:%M:%S}.{then.microsecond // 1000:03d}"


def _told(value: float | None, digits: str, unit: str) -> str:
    return _UNKNOWN if value is None or math.isnan(value) else f"{value:.{digits}} {unit}"


USAGE, RECORDING, SUMMARY = "gpu_usage.csv", "recording.json", "summary.json"
_MOST = 1000


def usual_folder() -> Path:
    """`gpuyard-monitor-20261116-184501`, or the next such name that is free."""
    first = Path(time.strftime("gpuyard-monitor-%Y%m%d-%H%M%S"))
    names = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, _MOST)))
    return next((name for name in names if not name.exists()), first)


def refuse_used(out: Path, names: Sequence[str] = (USAGE, RECORDING, SUMMARY)) -> None:
    for name in names:
        if (out / name).exists():
            raise UserError(
                f"{out} has {name} in it, from an earlier run; name another folder by --out, or move it away"
            )


def prepare(out: Path, names: Sequence[str] = (USAGE, RECORDING, SUMMARY)) -> Path:
    refuse_used(out, names)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: this cannot be a folder: {error.strerror}") from error
    return out


def write_recorded(out: Path, recording: Recording, *, held: float = 0.0) -> list[Path]:
    """`recording.json`, and `gpu_usage.csv` if it is not there yet; `held` as `write_usage_csv` has it."""
    from gpuyard.recordings.textform import write_recording

    usage = out / USAGE
    if not usage.exists():
        write_usage_csv(usage, recording, held=held)
    return [usage, write_recording(out / RECORDING, recording)]


def write_drawn(out: Path, recording: Recording, name: str, metrics: Sequence[str]) -> list[Path]:
    from gpuyard.monitor.plots import write_plots

    known = [metric for metric in metrics if has_values(recording, metric)]
    if not known:
        return []
    return write_plots([(name, recording)], known, out, title=name)


def has_values(recording: Recording, metric: str) -> bool:
    return any(bool((one.mean == one.mean).any()) for one in recording.of(metric))  # NaN is not equal to itself


def write_summary(out: Path, summary: dict[str, Any]) -> Path:
    path = out / SUMMARY
    path.write_text(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return path
