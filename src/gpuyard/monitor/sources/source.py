"""The interface of every source of GPU series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuyard.errors import UserError, suggest
from gpuyard.recordings.series import METRICS, Recording, Subject, names_of


class Source(Protocol):
    """Knows what GPUs did in the past."""

    @property
    def name(self) -> str:
        """What people call it, as in an error or a caption."""
        ...

    def read(
        self,
        metrics: Sequence[str],
        start: float,
        end: float,
        *,
        gpus: Sequence[str] = (),
        job: str = "",
        step: float | None = None,
    ) -> Recording:
        """What is known of a span of time, in seconds since the epoch.

        `gpus` are indices or UUIDs, none of them is all; `job` asks for that job's own series and for the GPUs that it
        had; `step` is seconds from one value to the next, by default as fine as is sensible. What could not be had is a
        gap and a warning; a `UserError` is for what never can be.
        """
        ...


def checked_metrics(metrics: Sequence[str]) -> list[str]:
    """Names of metrics in our order; one that there is not is refused."""
    if strange := [name for name in metrics if name not in METRICS]:
        raise UserError(f"there is no metric '{strange[0]}'{suggest(strange[0], METRICS)}")
    return names_of(metrics)


def is_selected(subject: Subject, gpus: Sequence[str]) -> bool:
    """Whether a GPU is among those that were named by index or UUID; none is all."""
    return not gpus or str(subject.gpu) in gpus or (bool(subject.uuid) and subject.uuid in gpus)
