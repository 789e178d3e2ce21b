"""Sources of GPU series: the daemon's recordings, Prometheus, CSV files of nvidia-smi, and simulated GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuyard.errors import UserError, suggest
from gpuyard.monitor.sources.source import Source

KINDS = ("recordings", "prometheus", "simulated")
HELP = "recordings (of the daemon), prometheus, prometheus:URL, simulated, simulated:4x16G, or a CSV of nvidia-smi"
"""What can be said, for people."""
_CSV = re.compile(r"(.+\.(?:csv|txt|log))(?::(.+))?", re.DOTALL | re.IGNORECASE)


def open_source(text: str, client_factory: Callable[[], Any], *, url: str = "") -> Source:
    """The source that a text names; `url` is of Prometheus, where the text has none.

    `client_factory` gives a `Client`, for recordings.
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
