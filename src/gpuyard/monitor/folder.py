"""The folder that a monitoring leaves: a CSV, the recording, a summary and plots. What is there is not overwritten."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuyard.errors import UserError
from gpuyard.recordings.series import Recording

USAGE, RECORDING, SUMMARY = "gpu_usage.csv", "recording.json", "summary.json"
_MOST = 1000


def usual_folder(now: float | None = None) -> Path:
    """`gpuyard-monitor-20261116-184501`, or the next such name that is free."""
    first = Path(time.strftime("gpuyard-monitor-%Y%m%d-%H%M%S", time.localtime(now)))
    names = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, _MOST)))
    return next((name for name in names if not name.exists()), first)


def refuse_used(out: Path, names: Sequence[str] = (USAGE, RECORDING, SUMMARY)) -> None:
    """Refuse a folder in which an earlier run left one of these files."""
    for name in names:
        if (out / name).exists():
            raise UserError(
                f"{out} has {name} in it, from an earlier run; name another folder by --out, or move it away"
            )


def prepare(out: Path, names: Sequence[str] = (USAGE, RECORDING, SUMMARY)) -> Path:
    """The folder, there and without these files; what an earlier run left is not touched."""
    refuse_used(out, names)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: this cannot be a folder: {error.strerror}") from error
    return out


def write_recorded(out: Path, recording: Recording, *, held: float = 0.0) -> list[Path]:
    """`recording.json`, and `gpu_usage.csv` if it is not there yet; `held` as `write_usage_csv` has it."""
    from gpuyard.monitor.csvout import write_usage_csv
    from gpuyard.recordings.textform import write_recording

    usage = out / USAGE
    if not usage.exists():
        write_usage_csv(usage, recording, held=held)
    return [usage, write_recording(out / RECORDING, recording)]


def write_drawn(out: Path, recording: Recording, name: str, metrics: Sequence[str]) -> list[Path]:
    """Plots of those metrics that the recording tells something of."""
    from gpuyard.monitor.plots import write_plots

    known = [metric for metric in metrics if has_values(recording, metric)]
    if not known:
        return []
    return write_plots([(name, recording)], known, out, title=name)


def has_values(recording: Recording, metric: str) -> bool:
    """Whether anything is known of a metric."""
    return any(bool((one.mean == one.mean).any()) for one in recording.of(metric))  # NaN is not equal to itself


def write_summary(out: Path, summary: dict[str, Any]) -> Path:
    """`summary.json`."""
    path = out / SUMMARY
    path.write_text(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return path
