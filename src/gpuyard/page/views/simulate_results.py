"""Progress and results of a comparison: summary, table, curves and schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import nicegui.elements.echart  # noqa: F401  what the charts import in the browser
from nicegui import ui
from nicegui.element import Element

from gpuyard.page.parts import button, command, empty, heading, link
from gpuyard.page.simulations.runs import MAX_RUNNING, Comparisons, Run
from gpuyard.page.visit import Visit
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
"""Metric, heading, meaning, format, and which end is better."""
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
    """Table rows: text, sort value, and whether it is the best of its column."""
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
    """None if all are the same, or there is only one."""
    known = [value for value in values if value is not None]
    if not better or len(known) < 2 or max(known) - min(known) <= _NEAR * max(map(abs, known)):
        return None
    return min(known) if better == "low" else max(known)


def _is(value: float | None, best: float | None) -> bool:
    return value is not None and best is not None and abs(value - best) <= _NEAR * abs(best)


def baseline(rows: Sequence[Row], now: Mapping[str, Any]) -> Row | None:
    """The row to compare with: the policy in force, else first come, first served."""
    own = [row for row in rows if _is_now(row, now)]
    plain = [row for row in rows if row["policy"].split("@")[0] in ("fcfs", "fifo")]
    return next(iter([*own, *plain]), None)


def _is_now(row: Row, now: Mapping[str, Any]) -> bool:
    same = row["policy"].split("@")[0] == now["name"]
    return bool(same and (row["discipline"], row["placement"]) == (now["discipline"], now["placement"]))


def summary_text(rows: Sequence[Row], now: Mapping[str, Any], source: str) -> str:
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
    worse = []
    if best["wait_p99"] > 1.1 * other["wait_p99"] + 1:
        before, after = format_duration(other["wait_p99"]), format_duration(best["wait_p99"])
        worse.append(f"the longest waits grow (p99 {before} to {after})")
    if best["fairness"] is not None and other["fairness"] is not None and best["fairness"] < other["fairness"] - 0.02:
        worse.append(f"users are served less evenly (fairness {other['fairness']:.3f} to {best['fairness']:.3f})")
    if best["preemptions"] and not other["preemptions"]:
        worse.append(f"running jobs are stopped {best['preemptions']:,} times")
    return f" But {'; '.join(worse)}." if worse else ""


def _short(row: Row) -> str:
    return f"{format_duration(row['jct_mean'])}, of which {format_duration(row['wait_mean'])} is waiting"


class Ranking(Element, component="../assets/simulate_ranking.js"):
    """The table; emits `choose` with the policy whose schedule to show."""


class Curves(Element, component="../assets/simulate_curves.js"):
    """Distributions and curves over time."""


class Gantt(Element, component="../assets/simulate_gantt.js"):
    """One policy's schedule."""


class Results:
    def __init__(self, visit: Visit, comparisons: Comparisons, now: dict[str, Any], known: dict[str, Any]) -> None:
        self.visit, self.comparisons, self.now, self.known = visit, comparisons, now, known
        self._run: Run | None = None
        self._shown: tuple[Any, ...] = ()

    def build(self) -> None:
        heading("Results")
        self._list = ui.element("div").classes("gy-sim-runs")
        self._place = ui.element("div").props("id=results")

    def look_at(self, run: Run) -> None:
        self._run = run

    async def show(self) -> None:
        runs = self.comparisons.queue.of(self.visit.viewer.name)
        if self._run is None or self._run not in runs:
            self._run = next(iter(runs), None)
        run = self._run
        state = tuple((other.id, other.state) for other in runs), run.id if run else ""
        if state != self._shown:
            self._shown = state
            self._list_runs(runs)
            self._place.clear()
            with self._place:
                self._begin(run)
        if run is not None and not run.is_over:
            self._bar.value = run.done / run.total if run.total else 0.0
            self._words.text = progress(run, self.comparisons.queue.ahead(run))

    def _list_runs(self, runs: list[Run]) -> None:
        self._list.clear()
        if len(runs) < 2:
            return
        with self._list:
            for run in runs:
                text = f"{self.visit.when(run.at)} {run.choices.title()}"
                pick = button(text, partial(self._pick, run))
                pick.props(f"dense aria-pressed={'true' if run is self._run else 'false'}")
                if run is self._run:
                    pick.props("unelevated color=primary", remove="outline")

    def _pick(self, run: Run) -> None:
        self._run = run
        self.visit.beat()

    def _begin(self, run: Run | None) -> None:
        if run is None:
            empty("Nothing has been simulated yet. Choose jobs and policies, and press Simulate.")
        elif not run.is_over:
            self._progress(run)
        elif run.state == "cancelled":
            empty(f"{run.choices.title()}: you cancelled it.")
        elif run.state == "failed":
            with ui.element("div").classes("gy-empty").props("role=alert"):
                ui.label(f"{run.choices.title()} could not be simulated.")
                ui.label(f"{run.error}.").classes("gy-sim-bad-note")
        else:
            self._done(run)

    def _progress(self, run: Run) -> None:
        with ui.element("div").classes("gy-card gy-sim-progress"):
            ui.label(run.choices.title())
            self._bar = ui.linear_progress(0.0, show_value=False).props('aria-label="How far it is" instant-feedback')
            self._words = ui.label("").props("role=status")
            button("Cancel", lambda: self.comparisons.queue.cancel(run), icon="close", kind="danger")

    def _done(self, run: Run) -> None:
        rows, base = run.table["results"], f"/page/simulations/{run.id}"
        ui.label(summary_text(rows, self.now, run.choices.source)).classes("gy-sim-meaning")
        self._advise(rows[0])
        ui.label(_about(run)).classes("gy-soft")
        for failed in run.table["errors"]:
            ui.label(f"{failed['policy']} is not in the table: {failed['error']}.").classes("gy-sim-bad-note")
        ranking = Ranking()
        ranking._props["rows"] = cells(rows)
        ranking._props["columns"] = [{"name": name, "about": about} for _, name, about, _, _ in COLUMNS]
        ranking._props["chosen"] = 0
        with ui.element("div").classes("gy-sim-downloads"):
            for ending in ("csv", "json"):
                link(f"{base}/comparison.{ending}", f"Download as {ending.upper()}").props("download")
        heading("Distributions")
        with ui.element("div").classes("gy-card"):
            Curves()._props["url"] = f"{base}/curves"
        self._schedules(run, ranking, base)
        heading("In a shell", 3)
        for line in run.choices.commands():
            command(line)

    def _schedules(self, run: Run, ranking: Ranking, base: str) -> None:
        heading("Schedule")
        names = {number: row["policy"] for number, row in enumerate(run.table["results"])}

        def choose(number: Any) -> None:
            if isinstance(number, int) and number in run.charts:
                chart._props["url"], ranking._props["chosen"] = f"{base}/{number}", number
                chart.update()
                ranking.update()
                if picked.value != number:
                    picked.set_value(number)

        with ui.element("div").classes("gy-card"):
            picked = ui.select(names, label="Policy", value=0, on_change=lambda e: choose(e.value))
            picked.props("outlined dense options-dense").classes("gy-sim-which")
            chart = Gantt()
            chart._props["url"] = f"{base}/0"
        ranking.on("choose", lambda event: choose(event.args))

    def _advise(self, best: dict[str, Any]) -> None:
        name = best["policy"].split("@")[0]
        name = self.known["aliases"].get(name, {"policy": name})["policy"].split("@")[0]
        same = (name, best["discipline"], best["placement"])
        if not self.visit.viewer.rules or same == (self.now["name"], self.now["discipline"], self.now["placement"]):
            return
        text = f"{same[0]}@{same[1]}@{same[2]}"
        link(f"/settings?section=policy&policy={quote(text, safe='')}", f"Look at {text} in the settings")


def progress(run: Run, ahead: int) -> str:
    if run.state == "waiting":
        return f"Waits for its turn: {MAX_RUNNING} are simulated at a time, and {ahead} came before."
    if not run.total:
        return run.words or ("Begins to simulate." if run.jobs is not None else "Reads the jobs.")
    done = f"{int(run.done)} of {run.total} policies are done, on {run.jobs or 0:,} jobs."
    return f"{done} {run.words}" if run.words else done


def _about(run: Run) -> str:
    found = run.table
    best = found["results"][0]
    jobs, gpus = (
        f"{found[name]:,} {one}{'s' * (found[name] != 1)}" for name, one in (("jobs", "job"), ("gpus", "GPU"))
    )
    where = f"{jobs} on {gpus} in {found['nodes']}"
    text = f"{run.choices.title()}: {where}, estimates {best['estimate']}."
    if best["rejected"]:
        example = f", such as {found['examples'][0][0]}: {found['examples'][0][1]}" if found["examples"] else ""
        text += f" {best['rejected']:,} jobs can never run there{example}."
    if found["dropped"]:
        text += f" Left out: {', '.join(f'{count:,} ({why})' for why, count in found['dropped'].items())}."
    return text
