"""How a job adapts: what it was granted, what it decided, and why. What is drawn is told by pure functions first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nicegui import ui

from gpuyard.page.parts import heading, span
from gpuyard.page.visit import Visit

Facts = Mapping[str, Any]
When = Callable[[float | None], str]
_LISTED = 50
"""Grants and decisions that are listed, the latest; the command line has them all."""


def facts(found: Facts, when: When) -> Iterator[tuple[str, str]]:
    """Budget, deadline and what it told last."""
    yield "Budget", span(found["budget"]) or "as long as it likes"
    yield "To be done by", when(found["deadline"]) if found["deadline"] else ""
    yield "On loan", ", ".join(f"GPU {gpu}" for gpu in found["granted"])
    report = found["report"] or {}
    if report.get("gain_per_second") is not None:
        yield "One more GPU brings", f"{points(report['gain_per_second'])} points per minute"
    if report.get("step_seconds"):
        yield "A step takes", _short(report["step_seconds"])
    if report.get("parameters") is not None:
        yield "Parameters", f"{report['parameters']:,}"


def points(gain: float) -> str:
    """Accuracy per second, as hundredths per minute."""
    return f"{gain * 6000:.3g}"


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else span(seconds)


def loan(lent: Facts, when: When) -> tuple[str, str, str]:
    """What it was lent and for how long, why, and how that ended."""
    began, ended = when(lent["since"]), lent["until"]
    times = f"from {began} to {when(ended)} ({span(ended - lent['since'])})" if ended else f"since {began}"
    if not ended and lent.get("told"):
        times += f", told to leave at {when(lent['told'])}"
    return f"GPU {lent['gpu']} {times}", _sentence(f"Given since {lent['why']}"), _ended(lent)


def _ended(lent: Facts) -> str:
    said = lent.get("ended") or ""
    return _sentence(f"Taken back: {said}" if lent.get("told") else said) if said else ""


def decision(decided: Facts) -> tuple[str, str, str]:
    """What it decided, why, and what that changed."""
    before, after, ratio = decided["parameters_before"], decided["parameters"], decided["cost_ratio"]
    changed = []
    if after is not None:
        changed.append(f"{after:,} parameters" if before is None else f"{before:,} to {after:,} parameters")
    if ratio is not None:
        changed.append(f"steps take {ratio:.3g} times as long")
    if decided["predicted_gain"] is not None:
        changed.append(f"{100 * decided['predicted_gain']:+.3g} points expected")
    answer = {True: "Accepted", False: "Declined", None: "Decided"}[decided["accepted"]]
    return f"{answer}: {decided['decision']}", _sentence(decided["reason"]), _sentence(", ".join(changed))


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def section(found: Facts, visit: Visit) -> None:
    """All of it."""

    def when(at: float | None) -> str:
        return visit.when(at, seconds=True) if at else ""

    heading("Adaptation")
    if found["standing"]:
        ui.label(_sentence(f"It {found['standing']}"))
    with ui.element("dl").classes("gy-job-facts"):
        for label, value in facts(found, when):
            if value:
                with ui.element("dt"):
                    ui.label(label)
                with ui.element("dd"):
                    ui.label(value)
    _list("What it decided", [(when(one["at"]), *decision(one)) for one in found["decisions"]])
    _list("GPUs that it was lent", [("", *loan(one, when)) for one in found["grants"]])
    changes = [(when(one["at"]), f"{_span(one['before'])} to {_span(one['after'])}", "", "") for one in found["times"]]
    _list("Its time was changed", changes)


def _span(seconds: float | None) -> str:
    return span(seconds) if seconds else "no limit"


def _list(title: str, entries: list[tuple[str, str, str, str]]) -> None:
    if not entries:
        return
    with ui.element("h3").classes("gy-h3"):
        ui.label(title)
    if len(entries) > _LISTED:
        ui.label(f"{len(entries) - _LISTED:,} earlier ones are left out.").classes("gy-soft")
    with ui.element("ol").classes("gy-job-adapted"):
        for at, what, why, more in entries[-_LISTED:]:
            with ui.element("li"):
                if at:
                    ui.label(at).classes("gy-soft")
                ui.label(what).classes("gy-job-adapted-what")
                for text in (why, more):
                    if text:
                        ui.label(text)
