"""Reservations as people write them: which GPUs, from when to when on the viewer's clock, and who is in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from gpuyard.arrays import ranges
from gpuyard.errors import UserError
from gpuyard.units import parse_indices


def parse_gpus(text: str, count: int) -> list[int]:
    """`0,2-4` as numbers; UserError says what is wrong."""
    found = sorted(parse_indices(text))
    if found[-1] >= count:
        raise UserError(f"there is no GPU {found[-1]}; this machine has GPUs 0 to {count - 1}")
    return found


def reserved(gpus: Sequence[int]) -> str:
    """`GPU 3 is reserved`, or `GPUs 0-1 are reserved`."""
    return f"GPUs {ranges(gpus)} are reserved" if len(gpus) > 1 else f"GPU {ranges(gpus)} is reserved"


def parse_local(text: str, zone: tzinfo) -> float:
    """What a field for a date and a time holds, in seconds since the epoch."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()
    except ValueError:
        raise UserError("say the day and the time") from None


def format_local(at: datetime, zone: tzinfo) -> str:
    """An instant, as such a field takes it."""
    return at.astimezone(zone).strftime("%Y-%m-%dT%H:%M")


def usual_span(now: datetime) -> tuple[datetime, datetime]:
    """What is offered first: four hours from the next full one."""
    begin = (now.astimezone(UTC) + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    return begin, begin + timedelta(hours=4)


def parse_users(text: str) -> list[str] | None:
    """Names, with commas or blanks between them; None if there are none."""
    return text.replace(",", " ").split() or None


def in_the_way(jobs: Sequence[Mapping[str, Any]], gpus: Sequence[int], begin: float) -> list[str]:
    """Running jobs that may still be on these GPUs at that time, and that nobody will stop."""
    found = []
    for job in jobs:
        started, limit = job["started_at"], job["time_limit"]
        ends = datetime.fromisoformat(started).timestamp() + limit if started and limit else float("inf")
        if set(gpus) & set(job["gpus"]) and ends > begin and not job["preemptible"]:
            found.append(str(job["id"]))
    return found
