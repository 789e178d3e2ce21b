"""The frame around every view: header, navigation, the viewer's name, and the state of the connection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from nicegui import ui

from gpuyard.page.parts import heading, link, tagged
from gpuyard.page.visit import Viewer, Visit


class Place(NamedTuple):
    path: str
    name: str
    icon: str
    for_actors: bool = False  # hidden from viewers who may only look


PLACES = (
    Place("/", "Overview", "grid_view"),
    Place("/queue", "Queue", "list"),
    Place("/submit", "Submit", "add_circle_outline", for_actors=True),
    Place("/history", "History", "history"),
    Place("/sharing", "Sharing", "pie_chart_outline"),
    Place("/simulate", "Simulate", "insights"),
    Place("/settings", "Settings", "tune"),
)


@contextmanager
def frame(visit: Visit, path: str, title: str = "") -> Iterator[None]:
    one_main()
    head(path, visit.viewer)
    _banner(visit)
    with ui.element("main").classes("gy-main").props("id=main tabindex=-1"):
        if title:
            heading(title, 1)
        yield


def one_main() -> None:
    """Quasar wraps the page in a `main` of its own; hide it from screen readers, so that ours is the only one."""
    slot = ui.context.client.content.parent_slot
    if slot is not None:
        slot.parent.props("role=presentation")


def head(path: str, viewer: Viewer | None, places: Sequence[Place] | None = None) -> None:
    """The top bar, with these entries; by default those that the viewer may use."""
    if places is None:
        places = [place for place in PLACES if viewer is not None and (viewer.acts or not place.for_actors)]
    with ui.element("header").classes("gy-head"):
        tagged("a", "Skip to the content").props('href="#main"').classes("gy-skip")
        with ui.element("a").props('href="/" aria-label="gpuyard, overview"').classes("gy-brand"):
            ui.element("span").classes("gy-logo").props("aria-hidden=true")
            ui.label("gpuyard")
        if places:
            with ui.element("nav").classes("gy-nav").props('aria-label="Pages"'):
                for place in places:
                    _entry(place, path)
        with ui.element("div").classes("gy-who"):
            button = ui.button(icon="contrast").props('flat round dense aria-label="Light or dark"')
            button.on("click", js_handler="() => gyTheme()")
            if viewer is not None:
                _who(viewer)


def _banner(visit: Visit) -> None:
    banner = ui.element("div").classes("gy-banner").props("role=status")
    with banner:
        ui.label("The daemon does not answer; it may be restarting. Jobs go on meanwhile, and this page waits for it.")
    banner.set_visibility(False)
    since = ""

    async def show() -> None:
        nonlocal since
        banner.set_visibility(visit.feed.away)
        if visit.feed.away:
            return
        status = await visit.feed.ask("/status", 30.0, until_event=False)
        if status["since"] != since:
            since = status["since"]
            ui.run_javascript(f"gyLife({json.dumps(status['since'])})")

    visit.live(show)


def _entry(place: Place, path: str) -> None:
    entry = link(place.path).classes("gy-nav-link")
    if path == place.path:
        entry.classes("gy-here").props('aria-current="page"')
    with entry:
        ui.icon(place.icon).props("aria-hidden=true")
        ui.label(place.name)


def _who(viewer: Viewer) -> None:
    role = "" if viewer.role == "user" else viewer.role
    with ui.element("span").classes("gy-viewer"):
        ui.label(viewer.name)
        if role and role != viewer.name:
            ui.label(role).classes("gy-role")
    if viewer.via == "session":
        button = ui.button("Log out").props("flat dense no-caps")
        button.on("click", js_handler="() => gyLogOut()")
