"""A recording as JSON and back: how one is kept in a file, beside what was made of it."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.errors import UserError
from gpuyard.files import write_atomically
from gpuyard.recordings.series import Floats, Mark, Recording, Series, Subject

VERSION = 1
_DEFAULTS = {field.name: field.default for field in fields(Subject)}


def to_json(recording: Recording) -> dict[str, Any]:
    """The recording as JSON; a gap is null, and times that several series share are stored once."""
    times: dict[bytes, int] = {}
    shared: list[list[float | None]] = []

    def place(at: Floats) -> int:
        key = at.tobytes()
        if key not in times:
            times[key] = len(shared)
            shared.append(_listed(at))
        return times[key]

    series = [_series(one, place(one.at)) for one in recording.series]
    return {
        "version": VERSION,
        "start": recording.start,
        "end": recording.end,
        "simulated": recording.simulated,
        "warnings": list(recording.warnings),
        "marks": [_mark(mark) for mark in recording.marks],
        "times": shared,
        "series": series,
    }


def from_json(told: Mapping[str, Any]) -> Recording:
    if told.get("version") != VERSION:
        raise UserError(
            f"this recording is of version {told.get('version')!r}, and this gpuyard reads version {VERSION}; use the "
            "gpuyard that wrote it"
        )
    times = [_array(at) for at in told["times"]]
    return Recording(
        float(told["start"]),
        float(told["end"]),
        [_read_series(one, times) for one in told["series"]],
        [_read_mark(one) for one in told["marks"]],
        list(told["warnings"]),
        bool(told["simulated"]),
    )


def write_recording(path: str | Path, recording: Recording) -> Path:
    """Write the recording atomically; compressed if the file's name ends in .gz."""
    target = Path(path)
    content = json.dumps(to_json(recording), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if target.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_atomically(target, content)
    return target


def read_recording(path: str | Path) -> Recording:
    source = Path(path)
    try:
        content = source.read_bytes()
        return from_json(json.loads(gzip.decompress(content) if source.suffix == ".gz" else content))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError) as error:
        raise UserError(f"{source} is no recording of gpuyard: {error}") from None


def _series(one: Series, at: int) -> dict[str, Any]:
    told = {"subject": _subject(one.subject), "metric": one.metric, "period": one.period, "at": at}
    told["mean"] = _listed(one.mean)
    if one.low is not None and one.high is not None:
        told |= {"low": _listed(one.low), "high": _listed(one.high)}
    return told


def _read_series(told: Mapping[str, Any], times: Sequence[Floats]) -> Series:
    at, mean = times[told["at"]], _array(told["mean"])
    low, high = (_array(told[key]) if key in told else None for key in ("low", "high"))
    if any(len(values) != len(at) for values in (mean, low, high) if values is not None):
        raise ValueError(f"a series of {told['metric']} has not as many values as times")
    return Series(Subject(**told["subject"]), str(told["metric"]), at, mean, low, high, float(told["period"]))


def _mark(mark: Mark) -> dict[str, Any]:
    subject = None if mark.subject is None else _subject(mark.subject)
    return {"at": mark.at, "label": mark.label, "until": mark.until, "subject": subject}


def _read_mark(told: Mapping[str, Any]) -> Mark:
    subject = None if told["subject"] is None else Subject(**told["subject"])
    return Mark(float(told["at"]), str(told["label"]), told["until"], subject)


def _subject(subject: Subject) -> dict[str, Any]:
    told = {name: getattr(subject, name) for name in _DEFAULTS}
    return {name: value for name, value in told.items() if name == "gpu" or value != _DEFAULTS[name]}


def _listed(values: Floats) -> list[float | None]:
    """Whole numbers without a point, which is most of them; null where there is none."""
    return [None if not math.isfinite(v) else int(v) if v.is_integer() else v for v in values.tolist()]


def _array(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
