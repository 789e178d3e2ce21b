"""What a comparison means, in sentences and in cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.units import format_duration

Row = Mapping[str, Any]
COLUMNS = (
    ("jct_mean", "JCT mean", "completion time: end - submit", "duration", "low"),
    ("jct_median", "JCT median", "half of the jobs are done in this time", "duration", "low"),
    ("jct_p99", "JCT p99", "99 % of the jobs are done in this time", "duration", "low"),
    ("wait_mean", "Wait mean", "completion time less run time", "duration", "low"),
    ("wait_median", "Wait median", "half of the jobs wait no longer", "duration", "low"),
    ("wait_p99", "Wait p99", "99 % of the jobs wait no longer", "duration", "low"),
    ("slowdown_mean", "Slowdown", "completion time in run times, which are taken to be 10 s at least", "number", "low"),
    ("makespan", "Makespan", "last end - first submit", "duration", "low"),
    ("utilization", "Utilization", "share of the GPU time, over the makespan, that jobs held", "percent", "high"),
    ("fairness", "Fairness", "Jain's index over users of their mean run / completion time: 1 is even", "index", "high"),
    ("energy_kwh", "kWh", "50 W for each GPU, and 250 W more while it works", "number", "low"),
    ("preemptions", "Preemptions", "how often a running job was stopped", "count", ""),
)  # fmt: skip
"""Metric, heading, what it means, how it is written, and which end is better."""
_NEAR = 1e-9


def cell(value: float | None, kind: str) -> str:
    """A metric as `gpuyard compare` prints it."""
    if value is None:
        return "-"
    if kind == "duration":
        return format_duration(value)
    if kind == "percent":
        return f"{100 * value:.1f} %"
    if kind == "index":
        return f"{value:.3f}"
    if kind == "count" or abs(value) >= 1e5:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def cells(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows for the table: what each cell shows, what it is sorted by, and whether it is the best of its column."""
    best = {key: _best([row.get(key) for row in rows], better) for key, _, _, _, better in COLUMNS}
    return [
        {
            "policy": row["policy"],
            "how": f"{row['discipline']}@{row['placement']}",
            "engine": row["engine"],
            "cells": [
                {"text": cell(row.get(key), kind), "value": row.get(key), "best": _is(row.get(key), best[key])}
                for key, _, _, kind, _ in COLUMNS
            ],
        }
        for row in rows
    ]


def _best(values: Sequence[float | None], better: str) -> float | None:
    """The best of a column; none where all are the same, or there is nothing to choose from."""
    known = [value for value in values if value is not None]
    if not better or len(known) < 2 or max(known) - min(known) <= _NEAR * max(map(abs, known)):
        return None
    return min(known) if better == "low" else max(known)


def _is(value: float | None, best: float | None) -> bool:
    return value is not None and best is not None and abs(value - best) <= _NEAR * abs(best)


def baseline(rows: Sequence[Row], now: Mapping[str, Any]) -> Row | None:
    """What others are held against: what decides in this yard now, or else first come, first served."""
    own = [row for row in rows if _is_now(row, now)]
    plain = [row for row in rows if row["policy"].split("@")[0] in ("fcfs", "fifo")]
    return next(iter([*own, *plain]), None)


def _is_now(row: Row, now: Mapping[str, Any]) -> bool:
    same = row["policy"].split("@")[0] == now["name"]
    return bool(same and (row["discipline"], row["placement"]) == (now["discipline"], now["placement"]))


def meaning(rows: Sequence[Row], now: Mapping[str, Any], source: str) -> str:
    """What came of it, in a sentence or two."""
    best, other = rows[0], baseline(rows, now)
    on = {"history": "On your history", "workload": "On this workload"}.get(source, "On this trace")
    if best["wait_mean"] is None:
        return f"{on}, no job could run: they ask for more than these GPUs."
    if other is None or other is best:
        which = ", which decides in this yard now," if _is_now(best, now) else ""
        if len(rows) == 1:
            return f"{on}, the mean completion time with {best['policy']}{which} is {_short(best)}."
        return f"{on}, {best['policy']}{which} has the shortest mean completion time of these: {_short(best)}."
    role = "which decides in this yard now" if _is_now(other, now) else "first come, first served"
    if best["jct_mean"] >= other["jct_mean"] * 0.995:
        return f"{on}, no policy of these is clearly better than {other['policy']}, {role}: {_short(other)}."
    wait, before = format_duration(best["wait_mean"]), format_duration(other["wait_mean"])
    verb = "would have cut" if source == "history" else "cuts"
    change = f"{verb} the mean wait from {before} to {wait}"
    if best["wait_mean"] >= other["wait_mean"]:
        jct = format_duration(other["jct_mean"]), format_duration(best["jct_mean"])
        change = f"{verb} the mean completion time from {jct[0]} to {jct[1]}"
    return f"{on}, {best['policy']} {change}, against {other['policy']}, {role}.{_but(best, other)}"


def _but(best: Row, other: Row) -> str:
    """What that costs, where it costs something."""
    worse = []
    if best["wait_p99"] > 1.1 * other["wait_p99"] + 1:
        worse.append(f"the longest waits grow (p99 {_pair(other, best, 'wait_p99')})")
    if best["fairness"] is not None and other["fairness"] is not None and best["fairness"] < other["fairness"] - 0.02:
        worse.append(f"users are served less evenly (fairness {other['fairness']:.3f} to {best['fairness']:.3f})")
    if best["preemptions"] and not other["preemptions"]:
        worse.append(f"running jobs are stopped {best['preemptions']:,} times")
    return f" But {'; '.join(worse)}." if worse else ""


def _pair(first: Row, second: Row, key: str) -> str:
    return f"{format_duration(first[key])} to {format_duration(second[key])}"


def _short(row: Row) -> str:
    return f"{format_duration(row['jct_mean'])}, of which {format_duration(row['wait_mean'])} is waiting"
