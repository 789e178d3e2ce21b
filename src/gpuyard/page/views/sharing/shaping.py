"""What the API tells of batches, as their cards show it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuyard.client import OVER
from gpuyard.page.parts import STATES, size, span

Facts = Mapping[str, Any]
OPEN, CLOSED = 10, 5
"""Batches that are shown: of those that are on, and of those that are over."""
_RUNNING = 6  # rows that are named
_ORDER = (
    "succeeded", "running", "queued", "held", "failed", "oom", "timeout", "interrupted", "cancelled", "refused",
)  # fmt: skip


def chosen(heads: Sequence[Facts]) -> list[Facts]:
    """Which of the batches are shown: those that are on, then the latest of the others."""
    on = [head for head in heads if head["state"] == "open"]
    over = [head for head in heads if head["state"] != "open"]
    return on[:OPEN] + over[:CLOSED]


def card(head: Facts, standing: Facts | None, report: Facts | None, now: float) -> dict[str, Any]:
    """A batch: how it stands if it is on, or what it achieved."""
    counts = [
        {"state": state, "count": count, "word": STATES.get(state, state)}
        for state, count in _counts(head)
        if count
    ]  # fmt: skip
    running = standing["running"] if standing else []
    return {
        "id": head["batch"], "name": head["name"], "user": head["user"], "open": head["state"] == "open",
        "rows": head["rows"], "counts": counts, "told": told(head), "wave": _wave(standing), "left": left(head, now),
        "submitted": _seconds(head["submitted_at"]), "ended": _seconds(head["ended_at"]),
        "running": [_row(job) for job in running[:_RUNNING]], "more": max(0, len(running) - _RUNNING),
        "achieved": list(achieved(report)) if report else [],
    }  # fmt: skip


def told(head: Facts) -> str:
    """How many rows stand how: what the bar shows, in words."""
    counted = ", ".join(f"{count:,} {STATES.get(state, state)}" for state, count in _counts(head) if count)
    return f"{head['rows']:,} row{'s' * (head['rows'] != 1)}: {counted}"


def _counts(head: Facts) -> Iterator[tuple[str, int]]:
    states = {**head["states"], "refused": head["refused"]}
    yield from ((state, states.get(state, 0)) for state in _ORDER)


def _wave(standing: Facts | None) -> str:
    if standing is None or standing["waves"] < 2 or standing["wave"] is None:
        return ""
    return f"Wave {standing['wave']:,} of {standing['waves']:,}"


def left(head: Facts, now: float) -> str:
    """How long a batch will still take, if it goes on as it did; empty if nothing tells."""
    over = sum(count for state, count in head["states"].items() if state in OVER)
    open_ones = sum(head["states"].values()) - over
    if not over or not open_ones:
        return ""
    seconds = (now - (_seconds(head["submitted_at"]) or now)) / over * open_ones
    return f"about {span(_rough(seconds))} left" if seconds >= 1 else ""


def _rough(seconds: float) -> float:
    """As much of it as is known, so that it does not change all the time."""
    grain = 60.0 if seconds >= 600 else 10.0 if seconds >= 60 else 1.0
    return max(1.0, round(seconds / grain) * grain)


def _row(job: Facts) -> dict[str, Any]:
    row, progress = job["row"], job["progress"]
    peak = (job["measured"] or {}).get("peak")
    promised = f" of {size(job['gpu_memory'])}" if job["gpu_memory"] else ""
    return {
        "id": job["id"], "name": job["name"] or f"job {job['id']}", "row": row["number"] if row else None,
        "gpus": ", ".join(map(str, job["gpus"])), "memory": f"{size(peak)}{promised}" if peak else "",
        "share": None if progress is None else round(progress["fraction"], 2), "why": job["reason"] or "",
    }  # fmt: skip


def achieved(report: Facts) -> Iterator[str]:
    """What a batch that is over achieved, beside running its rows one after another."""
    if not report["makespan"]:
        return
    took, alone = span(report["makespan"]), span(report["sequential"])
    speedup = report["speedup"] or 0.0
    if speedup >= 1.05:
        yield f"{speedup:.1f} times as fast as one row after another: {took} instead of {alone}."
    else:
        yield f"Took {took}; one row after another takes {alone}."
    saved, used = report["gpu_hours_saved"], hours(report["gpu_hours"])
    if saved > 0:
        yield f"{hours(saved)} GPU-hours saved: {used} used, {hours(report['gpu_hours_sequential'])} one by one."
    else:
        yield f"{used} GPU-hours used, none saved."
    most, ooms = report["most_at_once"], report["ooms"]
    ran_out = f"; ran out of memory {ooms:,} time{'s' * (ooms != 1)}" if ooms else ""
    yield f"At most {most:,} row{'s' * (most != 1)} at once{ran_out}."


def hours(number: float) -> str:
    """GPU-hours, as people read them."""
    if 0 < number < 0.001:
        return "under 0.001"
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2g}"


def _seconds(iso: str | None) -> float | None:
    return None if iso is None else round(datetime.fromisoformat(iso).timestamp(), 1)
