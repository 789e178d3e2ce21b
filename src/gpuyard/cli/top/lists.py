"""The tables: GPUs, and jobs that run, wait or have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuyard.cli.gpus import marks
from gpuyard.cli.table import columns as columns_of
from gpuyard.cli.table import indices, share, span, visible
from gpuyard.cli.top.cells import Cell, Column, Line, table
from gpuyard.cli.top.layout import lay_out
from gpuyard.cli.top.model import Model, Row
from gpuyard.units import format_size

if TYPE_CHECKING:
    from gpuyard.client import Gpu

STATES = {
    "free": "good", "ours": "busy", "foreign": "bad", "unknown": "bad", "succeeded": "good", "failed": "bad",
    "cancelled": "faint", "timeout": "bad", "oom": "bad", "interrupted": "bad", "held": "faint",
}  # fmt: skip
"""In which style a state is written."""
_UNKNOWN = Row("", "…", "", "", "", (), 0, None, 0.0, None, None, 0.0, None)
"""Stands for a row that is still to come."""


def gpu_table(model: Model, gpus: Sequence[Gpu], bars: str) -> tuple[str, list[Line]]:
    """The GPUs, and who is on them."""
    running = model.part("everyone").rows
    names = {row.id: row.name for row in running}
    columns = [
        Column("GPU", [Cell(str(gpu["index"])) for gpu in gpus], 3, 9, right=True),
        Column("NAME", [Cell(gpu["name"]) for gpu in gpus], 8, 3, most=24),
        Column("STATE", [Cell(gpu["state"], STATES.get(gpu["state"], "")) for gpu in gpus], 7, 8),
        Column("MEMORY", [_memory(gpu, running) for gpu in gpus], 7, 6, bar=10),
        Column("UTIL", [_utilization(gpu) for gpu in gpus], 4, 5, right=True),
        Column("JOBS", [_tenants(gpu, names) for gpu in gpus], 14, 7, most=200, grows=True),
    ]
    return table(columns, model.width - 2, bars)


def _memory(gpu: Gpu, running: Sequence[Row]) -> Cell:
    """What is used; of a GPU that is only simulated, what its jobs asked for."""
    total, used = gpu["memory_total"], gpu["memory_used"]
    if not total:
        return Cell("-")
    if used is None or gpu.get("simulated"):
        used = sum(row.gpu_memory or total for row in running if gpu["index"] in row.gpus)
    return Cell(f"{format_size(used)}/{format_size(total)}", "bar", used / total)


def _utilization(gpu: Gpu) -> Cell:
    value = gpu["utilization"]
    return Cell("-" if value is None or gpu.get("simulated") else f"{value:.0f}%")


def _tenants(gpu: Gpu, names: dict[str, str]) -> Cell:
    marked = marks(gpu)
    if not gpu["jobs"] and gpu["state"] not in ("free", "ours"):
        return Cell(marked, "bad")
    tenants = [f"{id} {names[id]}" if names.get(id, "-") != "-" else id for id in gpu["jobs"]]
    told = ", ".join(tenants)
    if marked:
        return Cell(f"{told} ({marked})" if told else marked, "warn")
    return Cell(told or "-", "" if tenants else "faint")


def job_table(model: Model, name: str, rows: Sequence[Row | None], title: str, bars: str) -> tuple[str, list[Line]]:
    """The rows of a list that are seen."""
    known = [row or _UNKNOWN for row in rows]
    make = {"running": _running, "waiting": _waiting, "ended": _ended}[name]
    ids, names, users = _widths(model)
    columns = [
        Column("ID", [Cell(row.id) for row in known], 4, 9, right=True, beside=ids),
        Column(title, [Cell(row.name) for row in known], 12, 8, most=min(max(model.width // 4, 16), 40), beside=names),
        Column("USER", [Cell(row.user) for row in known], 8, 2, most=12, beside=users),
        *make(known, model.now),
    ]
    return table(columns, model.width - 2, bars)


def _widths(model: Model) -> tuple[int, int, int]:
    """How wide ids, names and users are in all lists that are seen."""
    shown = lay_out(model).lists
    seen = [model.part(name).get(model.places[name].top + n) for name, rows in shown.items() for n in range(rows)]
    texts = [(row.id, row.name, row.user) for row in seen if row is not None]
    texts.append(("", f"WAITING {model.part('waiting').total:,}", ""))
    ids, names, users = (max(columns_of(visible(text)) for text in column) for column in zip(*texts, strict=True))
    return ids, names, users


def _running(rows: Sequence[Row], now: float) -> list[Column]:
    far = [row.progress for row in rows]
    left = [None if p is None else p["remaining"] for p in far]
    return [
        Column("GPU", [Cell(indices(row.gpus)) for row in rows], 3, 5, most=12),
        Column("RAN", [Cell(span(row.started, now)) for row in rows], 7, 6, right=True),
        Column("LEFT", [Cell("-" if s is None else span(0.0, s)) for s in left], 7, 4, right=True),
        Column("PROGRESS", list(map(_progress, rows)), 14, 7, bar=20, grows=True),
    ]


def _progress(row: Row) -> Cell:
    if row.reason:
        return Cell(row.reason, "warn")
    if row.progress is None:
        return Cell("-", "faint")
    return Cell(f"{100 * row.progress['fraction']:.0f}%", "bar", row.progress["fraction"])


def _waiting(rows: Sequence[Row], now: float) -> list[Column]:
    why = [Cell("held" if row.state == "held" else row.reason, STATES.get(row.state, "")) for row in rows]
    return [
        Column("GPUS", [Cell(share(row.gpu_count, row.gpu_memory)) for row in rows], 4, 4, most=9),
        Column("PRIO", [Cell(f"{row.priority:.12g}") for row in rows], 4, 3, right=True),
        Column("WAITED", [Cell(span(row.since, now)) for row in rows], 7, 5, right=True),
        Column("WHY IT WAITS", why, 12, 7, most=120, grows=True),
    ]


def _ended(rows: Sequence[Row], now: float) -> list[Column]:
    return [
        Column("STATE", [Cell(row.state, STATES.get(row.state, "")) for row in rows], 9, 7),
        Column("RAN", [Cell(span(row.started, row.ended or now)) for row in rows], 7, 4, right=True),
        Column("AGO", [Cell(span(row.ended, now)) for row in rows], 7, 5, right=True),
        Column("HOW IT ENDED", [Cell(row.reason) for row in rows], 12, 6, most=120, grows=True),
    ]
