"""Sources of GPU series: the daemon's recordings, Prometheus, CSV files of nvidia-smi, and simulated GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gpuyard.errors import UserError, suggest
from gpuyard.recordings.series import METRICS, Recording, Subject, names_of

KINDS = ("recordings", "prometheus", "simulated")
HELP = "recordings (of the daemon), prometheus, prometheus:URL, simulated, simulated:4x16G, or a CSV of nvidia-smi"
_CSV = re.compile(r"(.+\.(?:csv|txt|log))(?::(.+))?", re.DOTALL | re.IGNORECASE)


class Source(Protocol):
    @property
    def name(self) -> str:
        """For errors and captions."""

    def read(
        self, metrics: Sequence[str], start: float, end: float,
        *, gpus: Sequence[str] = (), job: str = "", step: float | None = None,
    ) -> Recording:  # fmt: skip
        """The series of a span of time, in seconds since the epoch.

        `gpus` are indices or UUIDs, none: all; `job` asks for that job's own series and for the GPUs that it had;
        `step` is seconds from one value to the next, by default as fine as is sensible. Missing values are a gap and a
        warning; a `UserError` is for what can never be read.
        """


def checked_metrics(metrics: Sequence[str]) -> list[str]:
    """Names of metrics in our order; unknown ones are refused."""
    if strange := [name for name in metrics if name not in METRICS]:
        raise UserError(f"there is no metric '{strange[0]}'{suggest(strange[0], METRICS)}")
    return names_of(metrics)


def is_selected(subject: Subject, gpus: Sequence[str]) -> bool:
    """Whether a GPU is among those named by index or UUID; none: all."""
    return not gpus or str(subject.gpu) in gpus or (bool(subject.uuid) and subject.uuid in gpus)


def open_source(text: str, client_factory: Callable[[], Any], *, url: str = "") -> Source:
    """The source that a text names; `url` is of Prometheus, if the text has none.

    `client_factory` makes a `Client`, for recordings.
    """
    kind, _, rest = text.partition(":")
    if kind == "recordings" and not rest:
        from gpuyard.monitor.sources.recorded import Recorded

        return Recorded(client_factory().recording)
    if kind == "prometheus" or text.startswith(("http://", "https://")):
        from gpuyard.monitor.sources.prometheus import PrometheusSource

        return PrometheusSource((rest if kind == "prometheus" else text) or url)
    if kind == "simulated":
        from gpuyard.monitor.sources.simulated_gpus import SimulatedSource

        return SimulatedSource(rest)
    return _file(text)


def _file(text: str) -> Source:
    from gpuyard.monitor.sources.csv_files import SmiCsv

    match = _CSV.fullmatch(text)
    if match is None and not Path(text).is_file():
        raise UserError(f"'{text}' is no source{suggest(text, KINDS)}; there are {HELP}")
    path, fields = (Path(text), "") if match is None or Path(text).is_file() else (Path(match[1]), match[2] or "")
    return SmiCsv(path, [field.strip() for field in fields.split(",") if field.strip()])
