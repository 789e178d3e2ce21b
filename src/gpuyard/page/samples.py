"""The latest samples of each GPU, for the small curves on its tile."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

KEPT = 120
"""Samples of each GPU."""
METRICS = ("utilization", "memory_used", "temperature", "power")
Curves = dict[str, deque[float | None]]


class Samples:
    """What the daemon told last, GPU by GPU."""

    def __init__(self) -> None:
        self.at: deque[float] = deque(maxlen=KEPT)
        self._curves: dict[int, Curves] = {}

    @property
    def last(self) -> float | None:
        """When the latest is of, in seconds since the epoch; None before the first."""
        return self.at[-1] if self.at else None

    def add(self, told: Mapping[str, Any]) -> None:
        """Take what the API answered."""
        self.at.extend(told["at"])
        for gpu in told["gpus"]:
            curves = self._curves.setdefault(gpu["index"], {name: deque(maxlen=KEPT) for name in METRICS})
            for name in METRICS:
                curves[name].extend(gpu.get(name) or [None] * len(told["at"]))

    def of(self, gpu: int, metric: str) -> Sequence[float | None]:
        """The curve of one GPU."""
        curves = self._curves.get(gpu)
        return list(curves[metric]) if curves else []
