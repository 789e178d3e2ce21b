"""What another policy would change, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.page.views.settings.tables import Cell, Row, job_cell, row

MOST_NAMED = 8
"""Jobs that a sentence names."""


def sentences(told: Mapping[str, Any]) -> list[str]:
    """What `POST /policy/preview` answers, as one would say it."""
    starts, stops = told["starts"], told["stops"]
    waiting, moved = told["waiting"], told["moved"]
    found = [
        f"{_jobs(starts)} would start at once: {_named(starts)}." if starts else "Nothing would start at once.",
        f"{_jobs(stops)} would be stopped, and wait again: {_named(stops)}." if stops else "Nobody would be stopped.",
    ]
    if not waiting:
        found.append("No job waits, so there is no order to change.")
    elif not moved:
        found.append(f"The order of the {waiting:,} waiting jobs would stay as it is." if waiting > 1 else
                     "The one job that waits would stay where it is.")  # fmt: skip
    else:
        found.append(f"{moved:,} of {waiting:,} waiting jobs would change places.")
    note = told.get("note")
    return [*found, f"{note[:1].upper()}{note[1:].rstrip('.')}."] if note else found


def order_rows(told: Mapping[str, Any]) -> list[Row]:
    """The first of the queue in their new order, against the present one; nothing where they are the same."""
    if not told["moved"]:
        return []
    return [
        row(one["id"], str(one["place"]), _moved(one["place"], one.get("was")), job_cell(one["id"]), one["name"],
            one["user"])
        for one in told["order"]
    ]  # fmt: skip


def _moved(place: int, was: int | None) -> Cell:
    if was is None:
        return "new here"
    if place == was:
        return {"text": "as now", "soft": True}
    return {"text": f"↑ up from {was}" if place < was else f"↓ down from {was}", "chip": _LOOK[place < was]}


_LOOK = {True: "gy-succeeded", False: "gy-held"}


def _jobs(ids: Sequence[str]) -> str:
    return "1 job" if len(ids) == 1 else f"{len(ids):,} jobs"


def _named(ids: Sequence[str]) -> str:
    named = ", ".join(ids[:MOST_NAMED])
    return named if len(ids) <= MOST_NAMED else f"{named} and {len(ids) - MOST_NAMED:,} more"
