"""Energy of jobs: the power of their GPUs, look by look, added up.

A GPU that several jobs share is split by how busy each keeps it, as long as that is known of all of them and any is
busy at all; else evenly. What a GPU draws while nobody keeps it busy counts to those who have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHOLE = 60.0
"""Seconds between looks that are counted by what was seen at both ends; a longer gap counts for nothing."""


def split(power: Mapping[int, float | None], busy: Mapping[int, Mapping[str, float | None]]) -> dict[str, float | None]:
    """Watts of each job, by those of each GPU, and by percent of it that each job there keeps busy.

    None where the power of one of its GPUs is not told.
    """
    found: dict[str, float | None] = {}
    for gpu, jobs in busy.items():
        watts = power.get(gpu)
        for job, share in _shares(jobs).items():
            before = found.get(job, 0.0)
            found[job] = None if watts is None or before is None else before + watts * share
    return found


def _shares(busy: Mapping[str, float | None]) -> dict[str, float]:
    known = {job: percent for job, percent in busy.items() if percent is not None}
    total = sum(known.values())
    if len(known) < len(busy) or total <= 0:
        return dict.fromkeys(busy, 1 / max(1, len(busy)))
    return {job: percent / total for job, percent in known.items()}


def part(work: Mapping[str, Any], memory: float) -> float:
    """What part of each of its GPUs a job counts for: all, or its share of the memory, by that of the largest GPU."""
    share = None if work.get("alone") else work.get("gpu_memory")
    return min(1.0, share / memory) if share and memory else 1.0


def totals(before: Mapping[str, Any], measured: Mapping[str, Any], seconds: float, gpus: int) -> dict[str, Any]:
    """What all attempts of a job took together, in watt-hours and GPU-seconds, one more of which is over."""
    known = [wh for wh in (before.get("total_wh"), measured.get("energy_wh")) if wh is not None]
    spent = before.get("total_gpu_seconds", 0.0) + measured.get("gpu_seconds", seconds * gpus)
    return {"total_wh": round(sum(known), 6) if known else None, "total_gpu_seconds": round(spent, 3)}


def spent(total: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[float | None, float]:
    """Watt-hours and GPU-hours of a job: of all attempts that are over, and of the one that runs."""
    known = [wh for wh in (total.get("total_wh"), now.get("energy_wh")) if wh is not None]
    seconds = total.get("total_gpu_seconds", 0.0) + now.get("gpu_seconds", 0.0)
    return (round(sum(known), 6) if known else None), round(seconds / 3600, 6)
