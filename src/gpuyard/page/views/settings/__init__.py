"""The settings, one section at a time, named by the URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from nicegui import ui

from gpuyard.page.parts import heading, link
from gpuyard.page.views.settings.access_settings import QuotasSection, TokensSection
from gpuyard.page.views.settings.daemon_settings import AuditSection, DaemonSection
from gpuyard.page.views.settings.gpu_settings import GpusSection, ReservationsSection
from gpuyard.page.views.settings.notification_settings import NotificationsSection
from gpuyard.page.views.settings.policy_settings import PolicySection
from gpuyard.page.visit import Permission, Viewer, Visit, may


class _Part(Protocol):
    async def build(self) -> None: ...


class SettingsSection(NamedTuple):
    name: str
    title: str
    parts: tuple[Callable[[Visit], _Part], ...]
    permission: Permission | None = None  # needed to see it


SECTIONS = (
    SettingsSection("policy", "Policy", (PolicySection,)),
    SettingsSection("gpus", "GPUs and reservations", (GpusSection, ReservationsSection)),
    SettingsSection("shares", "Quotas and shares", (QuotasSection,)),
    SettingsSection("notifications", "Notifications", (NotificationsSection,)),
    SettingsSection("access", "Access and tokens", (TokensSection,)),
    SettingsSection("audit", "Audit trail", (AuditSection,), Permission.READ_AUDIT),
    SettingsSection("daemon", "This daemon", (DaemonSection,)),
)


async def build(visit: Visit) -> None:
    sections = sections_for(visit.viewer)
    section = section_named(sections, visit.query.get("section", ""))
    with ui.element("div").classes("gy-set-settings"):
        with ui.element("nav").classes("gy-set-sections").props('aria-label="Settings"'):
            for one in sections:
                entry = link(f"/settings?section={one.name}", one.title).classes("gy-nav-link")
                if one is section:
                    entry.classes("gy-here").props('aria-current="page"')
        with ui.element("section").classes("gy-set-section").props("aria-labelledby=section"):
            heading(section.title).props("id=section")
            for part in section.parts:
                await part(visit).build()


def sections_for(viewer: Viewer) -> list[SettingsSection]:
    return [one for one in SECTIONS if one.permission is None or may(viewer, one.permission)]


def section_named(sections: list[SettingsSection], name: str) -> SettingsSection:
    """The section that a link names, else the first."""
    return next((one for one in sections if one.name == name), sections[0])
