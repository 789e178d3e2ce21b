"""The settings, one section at a time, named by the URL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nicegui import ui

from gpuyard.page.parts import heading, link
from gpuyard.page.views.settings import (
    access_settings,
    daemon_settings,
    gpu_settings,
    notification_settings,
    policy_settings,
)
from gpuyard.page.visit import Permission, Viewer, Visit, may


class SettingsSection(NamedTuple):
    name: str
    title: str
    build: Callable[[Visit], Awaitable[None]]
    deed: Permission | None = None
    """Permission that is needed to see it."""


SECTIONS = (
    SettingsSection("policy", "Policy", policy_settings.build),
    SettingsSection("gpus", "GPUs and reservations", gpu_settings.build),
    SettingsSection("shares", "Quotas and shares", access_settings.build_quotas),
    SettingsSection("notifications", "Notifications", notification_settings.build),
    SettingsSection("access", "Access and tokens", access_settings.build_tokens),
    SettingsSection("audit", "Audit trail", daemon_settings.build_audit, Permission.READ_AUDIT),
    SettingsSection("daemon", "This daemon", daemon_settings.build),
)


async def build(visit: Visit) -> None:
    request = visit.client.request
    sections = sections_for(visit.viewer)
    section = section_named(sections, request.query_params.get("section", "") if request is not None else "")
    with ui.element("div").classes("gy-set-settings"):
        with ui.element("nav").classes("gy-set-sections").props('aria-label="Settings"'):
            for one in sections:
                entry = link(f"/settings?section={one.name}", one.title).classes("gy-nav-link")
                if one is section:
                    entry.classes("gy-here").props('aria-current="page"')
        with ui.element("section").classes("gy-set-section").props("aria-labelledby=section"):
            heading(section.title).props("id=section")
            await section.build(visit)


def sections_for(viewer: Viewer) -> list[SettingsSection]:
    return [one for one in SECTIONS if one.deed is None or may(viewer, one.deed)]


def section_named(sections: list[SettingsSection], name: str) -> SettingsSection:
    """The section that a link names, else the first."""
    return next((one for one in sections if one.name == name), sections[0])
