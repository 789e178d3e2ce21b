"""How far a comparison is, and what came of it: in a sentence, a table, curves and a schedule."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

import nicegui.elements.echart  # noqa: F401  what the charts import in the browser
from nicegui import ui
from nicegui.element import Element

from gpuyard.page.parts import button, command, empty, heading, link
from gpuyard.page.simulations.bench import Bench
from gpuyard.page.simulations.runs import AT_ONCE, Run
from gpuyard.page.simulations.words import COLUMNS, cells, meaning
from gpuyard.page.visit import Visit


class Ranking(Element, component="../../assets/simulate_ranking.js"):
    """The table; `choose` tells whose schedule is wanted."""


class Curves(Element, component="../../assets/simulate_curves.js"):
    """Distributions and curves over time."""


class Gantt(Element, component="../../assets/simulate_gantt.js"):
    """One policy's schedule."""


class Results:
    """The lower half of the view."""

    def __init__(self, visit: Visit, bench: Bench, now: dict[str, Any], known: dict[str, Any]) -> None:
        self.visit, self.bench, self.now, self.known = visit, bench, now, known
        self._run: Run | None = None
        self._shown: tuple[Any, ...] = ()

    def build(self) -> None:
        """Make the place for it."""
        heading("Results")
        self._list = ui.element("div").classes("gy-sim-runs")
        self._place = ui.element("div").props("id=results")

    def look_at(self, run: Run) -> None:
        """Show this one."""
        self._run = run

    async def show(self) -> None:
        """Show how far it is; what is there already stays."""
        runs = self.bench.line.of(self.visit.viewer.name)
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
            self._tell_progress(run)

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
            button("Cancel", lambda: self.bench.line.cancel(run), icon="close", kind="danger")

    def _tell_progress(self, run: Run) -> None:
        self._bar.value = run.done / run.total if run.total else 0.0
        self._words.text = progress(run, self.bench.line.ahead(run))

    def _done(self, run: Run) -> None:
        rows, base = run.table["results"], f"/page/simulations/{run.id}"
        ui.label(meaning(rows, self.now, run.choices.source)).classes("gy-sim-meaning")
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
        """A way to the settings, for who may change them."""
        name = best["policy"].split("@")[0]
        name = self.known["aliases"].get(name, {"policy": name})["policy"].split("@")[0]
        same = (name, best["discipline"], best["placement"])
        if not self.visit.viewer.rules or same == (self.now["name"], self.now["discipline"], self.now["placement"]):
            return
        text = f"{same[0]}@{same[1]}@{same[2]}"
        link(f"/settings?section=policy&policy={quote(text, safe='')}", f"Look at {text} in the settings")


def progress(run: Run, ahead: int) -> str:
    """How far it is, in words."""
    if run.state == "waiting":
        return f"Waits for its turn: {AT_ONCE} are simulated at a time, and {ahead} came before."
    if not run.total:
        return run.words or ("Begins to simulate." if run.jobs is not None else "Reads the jobs.")
    done = f"{int(run.done)} of {run.total} policies are done, on {run.jobs or 0:,} jobs."
    return f"{done} {run.words}" if run.words else done


def _about(run: Run) -> str:
    """What was simulated, and what was left out."""
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
