"""What is over, and who used how much, as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from gpuyard.page.parts import STATES, amount, job_path, watt_hours
from gpuyard.page.table import Column, Row
from gpuyard.page.views.queue.listing import gpus_of

JOBS = (
    Column("ID", "link"), Column("Name", "link", grow=True), Column("State", "chip"), Column("User"), Column("GPUs"),
    Column("Waited", "span", right=True), Column("Ran", "span", right=True), Column("Ended", "time", right=True),
    Column("How it ended", "stand", grow=True),
)  # fmt: skip
_MOST = 20


def rows_of(jobs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Jobs of the history."""
    return [_row(job) for job in jobs]


def _row(job: Mapping[str, Any]) -> Row:
    submitted, started, ended = (_at(job[f"{what}_at"]) for what in ("submitted", "started", "ended"))
    reason = str(job["reason"] or "")
    cells = (
        {"text": job["id"], "href": job_path(job["id"]), "title": ""},
        {"text": job["name"] or "–", "href": job_path(job["id"]), "title": "", "tags": job["tags"]},
        {"state": job["state"], "text": STATES.get(job["state"], job["state"])},
        job["user"],
        gpus_of(job["gpus"], job["gpu_count"], job["gpu_memory"]),
        None if started is None or submitted is None else max(0.0, started - submitted),
        None if started is None or ended is None else max(0.0, ended - started),
        ended,
        {"fraction": None, "text": reason[:1].upper() + reason[1:]},
    )
    return Row(job["id"], f"job {job['id']}", cells)


def _at(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def use_columns(name: str) -> tuple[Column, ...]:
    """The columns of a table of who used how much; of energy only users' is known."""
    energy = (Column("Energy", right=True),) if name == "User" else ()
    return (
        Column(name, "link"), Column("GPU-hours", "stand", grow=True), *energy, Column("Ended", right=True),
        Column("Submitted", right=True),
    )  # fmt: skip


def use_rows(name: str, entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Users, or tags, with what they had; those with most first."""
    most = max((entry["gpu_hours"] for entry in entries), default=0.0) or 1.0
    found = []
    for entry in sorted(entries, key=lambda entry: -entry["gpu_hours"])[:_MOST]:
        hours = entry["gpu_hours"]
        who = {"text": entry[name], "href": f"/history?{urlencode({name: entry[name]})}", "title": entry[name]}
        bar = {"fraction": hours / most, "text": amount(hours)}
        energy = (_energy(entry),) if name == "user" else ()
        cells = (who, bar, *energy, f"{entry['ended']:,}", f"{entry['submitted']:,}")
        found.append(Row(entry[name], entry[name], cells))
    return found


def _energy(entry: Mapping[str, Any]) -> str:
    known = entry["energy_wh"]
    return "–" if known is None else watt_hours(known)


def left_out(entries: Sequence[Any]) -> str:
    """How many are not in such a table."""
    return f"and {len(entries) - _MOST:,} more with less" if len(entries) > _MOST else ""


def summary(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that matter, and what each is."""
    told = [(f"{stats['ended']:,}", "jobs ended")]
    for state, many in sorted(stats["outcomes"].items(), key=lambda item: -item[1]):
        told.append((f"{many:,}", STATES.get(state, state)))
    told.append((amount(stats["gpu_hours"]), "GPU-hours"))
    if energies := [user["energy_wh"] for user in stats["users"] if user["energy_wh"] is not None]:
        told.append((watt_hours(sum(energies)), "of energy"))
    if stats["utilization"] is not None:
        share = 100 * stats["utilization"]
        told.append(("< 1 %" if 0 < share < 0.5 else f"{share:.0f} %", "of the GPUs in use"))
    return told
