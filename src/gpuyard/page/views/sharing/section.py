"""A part of this page, to which an address can lead."""

from __future__ import annotations

from nicegui import ui
from nicegui.element import Element


def section(name: str) -> Element:
    """A part that `/sharing#NAME` leads to."""
    return ui.element("section").props(f"id={name}").classes("gy-share-part")


def note(text: str) -> ui.label:
    """A line on what is seen below."""
    return ui.label(text).classes("gy-list-note")
