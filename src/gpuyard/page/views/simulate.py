"""The simulate view: the same jobs under several policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from nicegui import app as pages
from nicegui import ui
from nicegui.element import Element

from gpuyard.errors import GpuyardError
from gpuyard.page.parts import button, code, command, doc_sentence, empty, heading
from gpuyard.page.simulations.choices import FORMATS, KINDS, SOURCES, SPANS, Choices, split_policies
from gpuyard.page.simulations.runs import Comparisons
from gpuyard.page.views.simulate_results import Results
from gpuyard.page.visit import Visit
from gpuyard.units import format_size

_FIRST = ("fcfs", "sjf", "srtf", "las", "fair", "multifactor", "priority", "rr", "best-fit", "least-loaded")
"""Policies that are shown before the others."""
_ESTIMATES = {
    "": "what users asked for, else the truth", "actual": "the truth (actual)", "requested": "what users asked for",
    "noisy:0.5": "the truth with some noise (noisy:0.5)", "noisy:1.5": "the truth with much noise (noisy:1.5)",
}  # fmt: skip


class UploadElement(Element, component="../assets/simulate_upload.js"):
    """Emits `uploaded`."""

    def __init__(self, known: str, on_upload: Callable[[str], None]) -> None:
        super().__init__()
        self._props["known"] = known
        self.on("uploaded", lambda event: on_upload(str(event.args.get("id", ""))))


class SimulateForm:
    def __init__(
        self,
        visit: Visit,
        comparisons: Comparisons,
        usual: Choices,
        chosen: Choices,
        known: dict[str, Any],
        now: dict[str, Any],
    ) -> None:
        self.visit, self.comparisons, self.usual, self.known, self.now = visit, comparisons, usual, known, now
        self.choices = self._still_there(chosen)
        self._parts: dict[str, Element] = {}
        self._inputs: dict[str, ui.input] = {}
        self._boxes: dict[str, ui.checkbox] = {}
        self._ready = False

    def _still_there(self, chosen: Choices) -> Choices:
        upload = self.comparisons.uploads.find(self.visit.viewer.name, chosen.upload)
        return replace(chosen, upload=upload.id if upload else "", name=upload.name if upload else "")

    def build(self, run: Callable[[], Awaitable[None]]) -> None:
        with ui.element("div").classes("gy-sim"):
            with ui.element("section").classes("gy-card"):
                heading("Jobs")
                self._sources()
            with ui.element("section").classes("gy-card"):
                heading("GPUs and rules")
                self._rules()
            with ui.element("section").classes("gy-card gy-sim-wide"):
                heading("Policies")
                self._policies()
            with ui.element("section").classes("gy-card gy-sim-wide"):
                ui.label("The same in a shell:").classes("gy-soft")
                self._commands = ui.element("div").classes("gy-sim-commands")
                with ui.element("div").classes("gy-sim-go"):
                    self._run = button("Simulate", run, icon="play_arrow", kind="primary")
                    self._wrong = ui.label("").classes("gy-sim-wrong").props("role=status")
        self._ready = True
        self._show()

    def _sources(self) -> None:
        radio = ui.radio(SOURCES, value=self.choices.source, on_change=lambda e: self._set("source", e.value))
        radio.props('inline aria-label="Which jobs"')
        with self._part("history"), ui.element("div").classes("gy-sim-fields"):
            self._select("days", "Submitted in", SPANS)
            mine = self.visit.viewer.name
            self._select("whose", "Whose", {"": "everybody's jobs", mine: f"mine ({mine})"})
        with self._part("workload"), ui.element("div").classes("gy-sim-fields"):
            self._select("kind", "Kind", KINDS)
            self._input("jobs", "Jobs")
            self._input("load", "Load (1: all GPUs busy)")
        with self._part("upload"):
            UploadElement(f"{self.choices.name} is ready." if self.choices.name else "", self._uploaded)
            ui.label(
                "SWF, Philly, Helios, Alibaba, sacct, our own CSV and more, compressed or not, up to 64 MB."
            ).classes("gy-soft")
        with self._part("file"):
            self._files()
        with self._part("format"), ui.element("div").classes("gy-sim-fields"):
            self._select("format", "Format", {"": "by what it looks like", **{name: name for name in FORMATS}})

    def _files(self) -> None:
        names = self.comparisons.folder.names()
        if not names:
            ui.label(
                "There is none. The daemon's owner offers traces to all by putting them, readable for all, into"
            ).classes("gy-soft")
            code("DATA_DIR/traces")
            return
        value = self.choices.file if self.choices.file in names else None
        ui.select(names, label="File", value=value, on_change=lambda e: self._set("file", e.value or "")).props(
            "outlined dense"
        )

    def _rules(self) -> None:
        with ui.element("div").classes("gy-sim-fields"):
            self._input("gpus", "GPUs: 8, or nodes 4x8")
            self._input("memory", "Memory of each GPU")
            disciplines = {"": "each policy's own", **{name: name for name in self.known["disciplines"]}}
            self._select("discipline", "Discipline", disciplines)
            placements = {"": "usual", **{name: name for name in self.known["placements"]}}
            self._select("placement", "Placement", placements)
            estimates = {
                **_ESTIMATES,
                **({} if self.choices.estimate in _ESTIMATES else {self.choices.estimate: self.choices.estimate}),
            }
            self._select("estimate", "Known of run times", estimates)
            self._input("seed", "Seed")
        self._about = ui.label("").classes("gy-soft")

    def _policies(self) -> None:
        docs = {policy["name"]: policy["doc"] for policy in self.known["policies"]}
        docs |= {name: told["doc"] for name, told in self.known["aliases"].items() if name != "fifo"}
        first = [name for name in docs if name in _FIRST or name in self.choices.policies]
        with ui.element("fieldset").classes("gy-sim-policies").props('aria-label="Policies to compare"'):
            for name in sorted(first, key=lambda name: _FIRST.index(name) if name in _FIRST else 99):
                self._policy(name, docs[name])
        others = [name for name in docs if name not in first]
        with ui.expansion(f"{len(others)} more").props("dense"), ui.element("fieldset").classes("gy-sim-policies"):
            for name in others:
                self._policy(name, docs[name])
        typed = " ".join(name for name in self.choices.policies if name not in docs)
        self._typed = ui.input(
            "With settings of your own: wfp3:power=2 sjf@easy@pack", value=typed, on_change=lambda _: self._chosen()
        ).props("outlined dense clearable")

    def _policy(self, name: str, doc: str) -> None:
        with ui.element("div").classes("gy-sim-policy"):
            self._boxes[name] = ui.checkbox(
                name, value=name in self.choices.policies, on_change=lambda _: self._chosen()
            )
            ui.label(doc_sentence(doc)).classes("gy-sim-about")
            if name == self.now["name"]:
                ui.label("decides in this yard now").classes("gy-sim-now")

    def _chosen(self) -> None:
        """Policies from boxes and text; earlier choices keep their order."""
        found = [name for name, box in self._boxes.items() if box.value]
        typed = split_policies(self._typed.value or "") if self._ready else ()
        self._set("policies", tuple(dict.fromkeys((*found, *typed))))

    def _uploaded(self, id: str) -> None:
        upload = self.comparisons.uploads.find(self.visit.viewer.name, id)
        if upload is not None:
            self.choices = replace(self.choices, upload=upload.id, name=upload.name)
            self._show()

    def _part(self, name: str) -> Element:
        self._parts[name] = ui.element("div")
        return self._parts[name]

    def _select(self, name: str, label: str, options: dict[str, str]) -> None:
        value = getattr(self.choices, name)
        field = ui.select(
            options, label=label, value=value if value in options else "", on_change=lambda e: self._set(name, e.value)
        )
        field.props("outlined dense options-dense")

    def _input(self, name: str, label: str) -> None:
        def problem(value: str) -> str | None:
            given: dict[str, Any] = {name: value or ""}
            return replace(self.choices, **given).problems(self.known).get(name)

        field = ui.input(
            label, value=getattr(self.choices, name), on_change=lambda e: self._set(name, e.value or ""),
            validation=problem,
        )  # fmt: skip
        self._inputs[name] = field.props("outlined dense")

    def _set(self, name: str, value: Any) -> None:
        self.choices = replace(self.choices, **{name: value})
        self._show()

    def _show(self) -> None:
        if not self._ready:
            return
        chosen = self.choices
        for name, part in self._parts.items():
            part.set_visibility(chosen.source in ("upload", "file") if name == "format" else chosen.source == name)
        self._inputs["load"].set_visibility(chosen.kind == "poisson")
        problems = chosen.problems(self.known)
        for field in self._inputs.values():
            field.validate()
        told = [self.known["disciplines"].get(chosen.discipline), self.known["placements"].get(chosen.placement)]
        names = (chosen.discipline, chosen.placement)
        self._about.text = " ".join(
            f"{name}: {doc_sentence(text)}" for name, text in zip(names, told, strict=True) if text
        )
        other = [problems[name] for name in ("upload", "file", "policies") if name in problems]
        self._wrong.text = other[0] if other else "Mend what is marked above." if problems else ""
        self._run.set_enabled(not problems)  # type: ignore[attr-defined]
        self._commands.clear()
        with self._commands:
            for line in [] if problems else chosen.commands():
                command(line)
        query = chosen.query(self.usual)
        ui.navigate.history.replace(f"/simulate?{query}" if query else "/simulate")


_POLICIES = ("fcfs", "sjf", "srtf", "las", "fair")
"""Compared by default with the one in force: by arrival, length, remaining time, attained service, user."""


async def build(visit: Visit) -> None:
    comparisons: Comparisons = pages.state.comparisons
    known = await visit.feed.ask("/policies", 600.0, until_event=False)
    now = await visit.feed.ask("/policy", 5.0)
    usual = usual_choices(now, await visit.feed.ask("/gpus", 30.0, until_event=False))
    chosen = Choices.of_query(visit.query, usual)
    intro = "Run the same jobs under several policies, and see who waits how long. Nothing changes in the queue."
    ui.label(intro).classes("gy-sim-intro")
    if not visit.viewer.acts:
        empty("Your role lets you look at the queue, and not simulate. In a shell it is open to everybody:")
        command("gpuyard compare TRACE --gpus 8")
        return
    form = SimulateForm(visit, comparisons, usual, chosen, known, now)
    results = Results(visit, comparisons, now, known)

    async def run() -> None:
        try:
            results.look_at(comparisons.start(visit.viewer.name, form.choices, visit.api))
        except GpuyardError as error:
            visit.tell(error)
        visit.beat()

    form.build(run)
    results.build()
    visit.live(results.show)


def usual_choices(now: dict[str, Any], gpus: dict[str, Any]) -> Choices:
    """Defaults: this daemon's history on its GPUs."""
    found = gpus["gpus"]
    memory = max((gpu["memory_total"] or 0 for gpu in found), default=0)
    own = () if ".py" in now["name"] else (now["name"],)
    return Choices(
        policies=tuple(dict.fromkeys((*own, *_POLICIES))),
        gpus=str(len(found) or 8),
        memory=format_size(memory) if memory >= 2**20 else "16G",
        discipline=now["discipline"],
        placement=now["placement"],
    )
