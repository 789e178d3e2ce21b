"""The settings: what decides, who may have what, who comes in, who is told. One section at a time, named by the URL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nicegui import ui

from gpuyard.page.parts import heading, link
from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings import audit, daemon, gpus, notifications, policy, rules, tokens
from gpuyard.page.visit import Viewer, Visit


class Section(NamedTuple):
    """A part of the settings."""

    name: str
    title: str
    build: Callable[[Visit], Awaitable[None]]
    deed: Deed | None = None
    """What one must be allowed to do to see it at all."""


SECTIONS = (
    Section("policy", "Policy", policy.build),
    Section("gpus", "GPUs and reservations", gpus.build),
    Section("shares", "Quotas and shares", rules.build),
    Section("notifications", "Notifications", notifications.build),
    Section("access", "Access and tokens", tokens.build),
    Section("audit", "Audit trail", audit.build, Deed.READ_AUDIT),
    Section("daemon", "This daemon", daemon.build),
)


async def build(visit: Visit) -> None:
    """Make the view."""
    request = visit.client.request
    sections = shown_to(visit.viewer)
    section = chosen(sections, request.query_params.get("section", "") if request is not None else "")
    with ui.element("div").classes("gy-set-settings"):
        with ui.element("nav").classes("gy-set-sections").props('aria-label="Settings"'):
            for one in sections:
                entry = link(f"/settings?section={one.name}", one.title).classes("gy-nav-link")
                if one is section:
                    entry.classes("gy-here").props('aria-current="page"')
        with ui.element("section").classes("gy-set-section").props("aria-labelledby=section"):
            heading(section.title).props("id=section")
            await section.build(visit)


def shown_to(viewer: Viewer) -> list[Section]:
    """The sections that somebody may see."""
    return [one for one in SECTIONS if one.deed is None or may(viewer, one.deed)]


def chosen(sections: list[Section], name: str) -> Section:
    """The section that a link names; the first for any other name."""
    return next((one for one in sections if one.name == name), sections[0])
