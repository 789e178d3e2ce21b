"""What is known of jobs, and of jobs beside each other, as rows of tables and in words. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuyard.page.parts import job_path, size, span
from gpuyard.page.table import Column, Row

Facts = Mapping[str, Any]
NEEDS = (
    Column("Command", "code"), Column("User"), Column("Runs", right=True), Column("Memory", "stand"),
    Column("Run time"), Column("How right that was", "stand", grow=True), Column("Last run", "time", right=True),
)  # fmt: skip
ORDERS = {
    "": "Last run",
    "memory": "Most memory",
    "time": "Longest run time",
    "off": "Furthest off",
    "runs": "Most runs",
}
"""How what is known can be ordered."""
PAIRS = (
    Column("Jobs like", "link"), Column("Beside jobs like", "link"), Column("What that does", "stand", grow=True),
    Column("How it was seen", grow=True), Column("Placement considerate"), Column("Last seen", "time", right=True),
)  # fmt: skip
_SEEN = {"progress": "by its own progress", "utilization": "by its load", "run time": "by how long it ran"}
_VERDICTS = {"apart": "never together", "avoided": "only if there is no other room", "together": "may share"}


def found(estimates: Sequence[Facts], text: str, order: str) -> list[Facts]:
    """Those that a text is in, in an order; they come with the latest first."""
    wanted = text.casefold()
    some = [one for one in estimates if wanted in f"{one['command']}\n{one['name']}\n{one['user']}".casefold()]
    keys = {
        "memory": lambda one: one["memory"] or 0, "time": lambda one: one["seconds"] or 0,
        "runs": lambda one: one["runs"], "off": _furthest,
    }  # fmt: skip
    return sorted(some, key=keys[order], reverse=True) if order in keys else some


def _furthest(one: Facts) -> float:
    return max((abs(error["worst"]) for error in (one["memory_error"], one["time_error"]) if error), default=-1.0)


def need_rows(estimates: Sequence[Facts]) -> list[Row]:
    """What is known of jobs, one kind a row."""
    return [
        Row(
            one["signature"],
            f"jobs like {one['name'] or one['signature']}",
            (
                one["command"], one["user"], f"{one['runs']:,}", {"fraction": None, "text": _memory(one)}, _time(one),
                {"fraction": None, "text": how_right(one["memory_error"], one["time_error"])}, _at(one["last_at"]),
            ),
        )
        for one in estimates
    ]  # fmt: skip


def _memory(one: Facts) -> str:
    if one["memory"] is None:
        return "not known yet"
    evidence = f" ({one['evidence']})" if one["evidence"] else ""
    return f"{size(one['memory'])}{evidence}".replace(" %", "\N{NO-BREAK SPACE}%")


def _time(one: Facts) -> str:
    if one["seconds"] is None:
        return ""
    return f"about {span(one['seconds'])}" + (" an epoch" if one["per_epoch"] else "")


def how_right(memory: Facts | None, time: Facts | None) -> str:
    """How far predictions were off, for somebody who wonders whether to trust them."""
    told = [f"{what} {_off(error)}" for what, error in (("Memory", memory), ("Run time", time)) if error]
    return " ".join(told) if told else "No prediction was put to the test yet."


def _off(error: Facts) -> str:
    """`is off by 2 % usually, by 5 % too little at worst (14 runs).`"""
    count, worst = error["count"], error["worst"]
    runs = f"{count:,} run{'s' * (count != 1)}"
    if abs(worst) < 0.005:
        return f"was right ({runs})."
    way = "too much" if worst > 0 else "too little"
    if count == 1:
        return f"was {_percent(worst)} {way} the one time."
    usual = "right" if error["median"] < 0.005 else f"{_percent(error['median'])} off"
    return f"was usually {usual}, at worst {_percent(worst)} {way} ({runs})."


def _percent(part: float) -> str:
    share = abs(100 * part)
    return f"{share:,.0f}\N{NO-BREAK SPACE}%" if share >= 1 else "under 1\N{NO-BREAK SPACE}%"


def pair_rows(pairs: Sequence[Facts]) -> list[Row]:
    """What jobs of one kind suffer beside those of another, the worst first."""
    return [
        Row(
            f"{pair['sufferer']['signature']} {pair['beside']['signature']}",
            f"{_called(pair['sufferer'])} beside {_called(pair['beside'])}",
            (
                _kind(pair["sufferer"]), _kind(pair["beside"]), {"fraction": None, "text": slowed(pair["slowdown"])},
                f"{_SEEN.get(pair['evidence'], pair['evidence'])}, for {span(pair['seconds'])}",
                _VERDICTS.get(pair["verdict"], pair["verdict"]), _at(pair["at"]),
            ),
        )
        for pair in pairs
    ]  # fmt: skip


def slowed(slowdown: float) -> str:
    """A slowdown, for somebody who has never heard of one."""
    if slowdown < 1.01:
        return "Runs as fast as alone."
    return f"Runs at {100 / slowdown:.0f} % of its speed: takes {slowdown:.2g} times as long as alone."


def _kind(kind: Facts) -> dict[str, str]:
    job = kind["job"]
    return {"text": _called(kind), "href": job_path(job) if job else "", "title": f"job {job}" if job else ""}


def _called(kind: Facts) -> str:
    """What people know jobs of a kind by."""
    return str(kind["name"] or (f"job {kind['job']}" if kind["job"] else kind["signature"][:8]))


def _at(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
