"""The simulate view: the same jobs under several policies, to see which would serve this yard best."""

from __future__ import annotations

from typing import Any

from nicegui import app as pages
from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page.parts import command, empty
from gpuyard.page.simulations.bench import Bench
from gpuyard.page.simulations.choices import Choices
from gpuyard.page.views.simulate.form import Form
from gpuyard.page.views.simulate.results import Results
from gpuyard.page.visit import Visit
from gpuyard.units import format_size

_POLICIES = ("fcfs", "sjf", "srtf", "las", "fair")
"""Beside the one that decides now: by arrival, by length, by what is left, by what they had, by user."""


async def build(visit: Visit) -> None:
    """Make the view."""
    bench: Bench = pages.state.bench
    known = await visit.feed.ask("/policies", 600.0, until_event=False)
    now = await visit.feed.ask("/policy", 5.0)
    usual = usual_choices(now, await visit.feed.ask("/gpus", 30.0, until_event=False))
    chosen = Choices.of_query(visit.client.request.query_params, usual)
    intro = "Run the same jobs under several policies, and see who waits how long. Nothing changes in the queue."
    ui.label(intro).classes("gy-sim-intro")
    if not visit.viewer.acts:
        empty("Your role lets you look at the queue, and not simulate. In a shell it is open to everybody:")
        command("gpuyard compare TRACE --gpus 8")
        return
    form = Form(visit, bench, usual, chosen, known, now)
    results = Results(visit, bench, now, known)

    async def run() -> None:
        try:
            results.look_at(bench.start(visit.viewer.name, form.choices, visit.api))
        except GpuyardError as error:
            visit.tell(error)
        visit.beat()

    form.build(run)
    results.build()
    visit.live(results.show)


def usual_choices(now: dict[str, Any], gpus: dict[str, Any]) -> Choices:
    """What is chosen unless somebody says otherwise: this yard, as it is."""
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
