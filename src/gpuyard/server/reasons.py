"""Why a job waits, in words and in numbers, with times that people know."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from gpuyard.core.reasons import BeginTime, Reason, Reservation, Reserved, Resources
from gpuyard.server.times import clock, iso


def sentence(reason: Reason, times: bool = True) -> str:
    """A reason in words; whether the times that running jobs gave can be told."""
    if isinstance(reason, Resources):
        text = str(replace(reason, expected_at=None))
        if times and reason.expected_at is not None:
            text += f"; expected to fit at {clock(reason.expected_at)}"
        return text
    if isinstance(reason, Reserved):
        due = f", due at {clock(reason.until)}" if times else ", which has waited longer"
        return f"would fit, but could delay job {reason.behind}{due}"
    if isinstance(reason, BeginTime):
        return f"is not to start before {clock(reason.at)}"
    if isinstance(reason, Reservation):
        indices = ", ".join(map(str, reason.gpus))
        gpus = f"GPUs {indices} are" if len(reason.gpus) > 1 else f"GPU {indices} is"
        rest = ", and it has no time limit" if reason.unlimited else ""
        return f"would fit, but {gpus} reserved ({reason.name}) from {clock(reason.begin)} to {clock(reason.end)}{rest}"
    return str(reason)


def details(reason: Reason, times: bool) -> dict[str, Any]:
    """The numbers of a reason, as JSON has them."""
    found = asdict(reason)
    if isinstance(reason, Resources):
        found.pop("expected_at")
        found |= {"withdrawn": dict(reason.withdrawn), "memory": reason.memory or None}
    elif isinstance(reason, Reserved):
        found["until"] = iso(reason.until) if times else None
    elif isinstance(reason, BeginTime):
        found["at"] = iso(reason.at)
    elif isinstance(reason, Reservation):
        found |= {"begin": iso(reason.begin), "end": iso(reason.end)}
    return found


def expected_at(reason: Reason) -> float | None:
    """When the job is expected to start, where the reason says so."""
    if isinstance(reason, Resources):
        return reason.expected_at
    return reason.at if isinstance(reason, BeginTime) else None
