"""Gavel's traces (and Shockwave's): training steps, turned into run times by measured throughputs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.gather import Gathered, value
from gpuyard.sim.traces.source import Source, first_line, quoted

DEFAULT_TYPE = "v100"
_WIDTHS = (10, 11)
"""Columns of a line; Shockwave has one more, the mode, before the weight."""
_LARGEST = 1 << 28
_COLUMNS = ("submit", "run", "gpus", "weight", "deadline")
_CALLED = {"submit": "arrival time", "run": "total_steps / throughput", "gpus": "scale_factor", "weight": "weight"}
Throughputs = dict[tuple[str, int], float]


def recognises(head: str) -> bool:
    """Ten or eleven columns parted by tabs, with a number in the sixth and the last."""
    row = first_line(head).split("\t")
    return len(row) in _WIDTHS and row[5].strip().isdecimal() and row[6].strip().isdecimal()


def read(source: Source) -> Trace:
    """Jobs in file order, numbered from 1; each runs alone on GPUs of one type, for as long as its steps take."""
    kind = source.option or DEFAULT_TYPE
    speeds = _throughputs(source, kind)
    jobs = Gathered(source, "gavel", _COLUMNS, ("job_type", "mode"), _CALLED)
    number = 0
    for line, text in source.lines():
        row = [cell.strip() for cell in text.rstrip("\r\n").split("\t")]
        if row == [""]:
            continue
        number += 1
        if len(row) not in _WIDTHS:
            raise source.error(line, f"a line has 10 or 11 columns parted by tabs, this one has {len(row)}")
        try:
            _add(jobs, line, number, row, speeds, kind)
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace()


def _add(jobs: Gathered, line: int, number: int, row: list[str], speeds: Throughputs, kind: str) -> None:
    steps, gpus = value(row[5], "total_steps"), value(row[6], "scale_factor")
    weight, slo, arrival = value(row[-3], "weight"), value(row[-2], "SLO"), value(row[-1], "arrival time")
    if gpus < 1 or not gpus.is_integer():
        raise UserError(f"scale_factor must be a whole number of GPUs, not {row[6]}")
    if (row[0], 1) not in speeds:
        raise UserError(f"no throughput is known of {quoted(row[0])} on {kind}")
    speed = speeds.get((row[0], int(gpus)), 0.0)
    if speed <= 0:  # it did not fit into the memory of such GPUs, or nobody measured it
        jobs.drop(f"no throughput on {kind}")
        return
    run = steps / speed
    # An SLO is a multiple of the run time; -1 says that there is none.
    deadline = arrival + slo * run if slo > 0 else math.inf
    mode = row[7] if len(row) == max(_WIDTHS) else ""
    jobs.add(line, str(number), (arrival, run, gpus, weight, deadline), (row[0], mode))


def _throughputs(source: Source, kind: str) -> Throughputs:
    """Steps per second of each job type and scale on one GPU type, from the JSON file beside the trace."""
    if source.path is None:
        raise UserError("a Gavel trace needs the throughputs beside it, so it cannot come from standard input")
    folder = source.path.resolve().parent
    found = [path for path in sorted(folder.glob("*.json")) if _looks_measured(path)]
    if not found:
        raise UserError(
            f"{source.name} counts training steps; put Gavel's throughputs beside it, "
            "such as physical_cluster_throughputs.json, to turn them into run times"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{source.name}: several files beside it hold throughputs, keep one there: {names}")
    measured = _loaded(found[0])
    if kind not in measured:
        raise UserError(
            f"{found[0].name} has no GPU type '{kind}'{suggest(kind, measured)}; "
            f"write --format gavel:TYPE, with TYPE one of {', '.join(measured)}"
        )
    return _alone(found[0], measured[kind])


def _looks_measured(path: Path) -> bool:
    """Whether a JSON file starts like {"v100": {"('ResNet-18 (batch size 16)', 1)": ...."""
    try:
        with path.open("rb") as stream:
            return b"\"('" in stream.read(4096) and path.stat().st_size <= _LARGEST
    except OSError:
        return False


def _loaded(path: Path) -> dict[str, Any]:
    try:
        measured = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        raise UserError(f"{path} cannot be read as JSON") from None
    if not isinstance(measured, dict):
        raise UserError(f"{path} must be a JSON object: GPU type, then job type, then throughputs")
    return measured


def _alone(path: Path, jobs: Any) -> Throughputs:
    """The throughputs of jobs that share their GPUs with nobody: those under `null`."""
    speeds: Throughputs = {}
    for key, partners in jobs.items() if isinstance(jobs, dict) else ():
        name, comma, scale = key.removeprefix("('").removesuffix(")").rpartition("', ")
        speed = partners.get("null") if isinstance(partners, dict) else None
        if comma and scale.isdecimal() and isinstance(speed, int | float) and math.isfinite(speed):
            speeds[name, int(scale)] = float(speed)
    if not speeds:
        raise UserError(f"{path} holds no throughputs of jobs that run alone ('null')")
    return speeds
