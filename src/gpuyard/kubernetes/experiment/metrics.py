"""What GPUs did as CSV files: one for each metric, `second,value`, and one with all of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuyard.errors import UserError, suggest
from gpuyard.monitor.lines import key_of, subjects
from gpuyard.monitor.promnames import BY_NAME
from gpuyard.recordings.series import METRICS, Recording, Series, Subject
from gpuyard.units import format_number

COMBINED = "combined.csv"
_MIB = 2.0**20


class Wanted(NamedTuple):
    """A metric under the name by which somebody asked for it."""

    name: str
    """Ours, or one of DCGM's, as `dcgm_fb_used`."""
    metric: str

    @property
    def unit(self) -> str:
        """What values are in: memory is in MiB, as DCGM has it."""
        unit = METRICS[self.metric].unit
        return "MiB" if unit == "bytes" else unit

    @property
    def factor(self) -> float:
        """What a value of a series is divided by."""
        return _MIB if METRICS[self.metric].unit == "bytes" else 1.0


def wanted(names: Sequence[str]) -> list[Wanted]:
    """Metrics by our names or those of DCGM, old and new; one that there is not is refused."""
    found = []
    for name in dict.fromkeys(names):
        if name in METRICS:
            found.append(Wanted(name, name))
        elif name in BY_NAME and BY_NAME[name].metric in METRICS:
            found.append(Wanted(name, BY_NAME[name].metric))
        else:
            known = (*METRICS, *(one for one in BY_NAME if one.lower().startswith("dcgm")))
            raise UserError(f"there is no metric '{name}'{suggest(name, known)} (there are {', '.join(METRICS)})")
    return found


def write_metrics(folder: Path, recording: Recording, names: Sequence[str]) -> list[Path]:
    """Write what is known of some metrics; a file for each GPU, if there are several. Seconds are since the start."""
    from gpuyard.sim.figures import write_atomically

    asked = wanted(names)
    gpus = subjects(recording)
    texts: dict[str, str] = {}
    for one in asked:
        for series in recording.of(one.metric):
            if series.subject.job or np.isnan(series.mean).all():
                continue
            ending = f"-{_place(series.subject)}" if len(gpus) > 1 else ""
            texts[f"{one.name}{ending}.csv"] = _single(series, one, recording.start)
    if texts:
        texts[COMBINED] = _combined(recording, asked)
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def _place(subject: Subject) -> str:
    return f"{subject.host}-{subject.gpu}" if subject.host else str(subject.gpu)


def _single(series: Series, asked: Wanted, start: float) -> str:
    known = ~np.isnan(series.mean)
    pairs = zip((series.at[known] - start).tolist(), (series.mean[known] / asked.factor).tolist(), strict=True)
    return _csv(["second", "value"], [[_number(at), _number(value)] for at, value in pairs])


def _combined(recording: Recording, asked: Sequence[Wanted]) -> str:
    """A line for each GPU and instant at which something of it is known."""
    heads = [f"{one.name} [{one.unit}]" if one.unit else one.name for one in asked]
    rows: dict[tuple[float, str], dict[str, float]] = {}
    named = {key_of(subject): _place(subject) for subject in subjects(recording)}
    for one in recording.series:
        if one.subject.job:
            continue
        for at, value in zip(one.at.tolist(), one.mean.tolist(), strict=True):
            if value == value:  # NaN is not
                rows.setdefault((at, named[key_of(one.subject)]), {})[one.metric] = value
    lines = [
        [_number(at - recording.start), gpu, *(_told(values, one) for one in asked)]
        for (at, gpu), values in sorted(rows.items())
        if any(one.metric in values for one in asked)
    ]
    return _csv(["second", "gpu", *heads], lines)


def _told(values: Mapping[str, float], asked: Wanted) -> str:
    return _number(values[asked.metric] / asked.factor) if asked.metric in values else ""


def _number(value: float) -> str:
    return format_number(round(value, 3))


def _csv(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return text.getvalue()
