"""The door: a token, which the browser shows to the daemon itself; this process never sees it."""

from __future__ import annotations

from nicegui import ui

from gpuyard.page.frame import head, one_main
from gpuyard.page.parts import command, heading

_ENDED = "You were logged out: your token was revoked or has expired, or was not used here for 12 hours."
REASONS = {"ended": _ENDED, "refused": f"{_ENDED} What you asked for last was not done."}
"""Why somebody is sent to the door, by what the address says of it; nothing else that it says is shown."""
CAME_IN = "gpuyard_came_in"
"""The cookie, no secret, of a browser in which somebody logged in and not out; it goes with the browser."""


def login(reason: str = "") -> None:
    """Ask for a token; of whom it was asked before, say why again."""
    one_main()
    head("/login", None)
    with ui.element("main").classes("gy-main gy-door").props("id=main tabindex=-1"):
        heading("Log in", 1)
        if reason in REASONS:
            ui.label(REASONS[reason]).classes("gy-refusal").props("role=alert")
        ui.label("This daemon wants to know who looks. Paste a token; an admin of this machine makes one with")
        command("gpuyard token create NAME")
        with ui.element("form").classes("gy-login").props('id=login onsubmit="gyLogIn(event)"'):
            with ui.element("label").props("for=token"):
                ui.label("Token")
            ui.element("input").props(
                "id=token name=token type=password autocomplete=current-password required autofocus"
            )
            with ui.element("button").props("type=submit").classes("gy-submit"):
                ui.label("Log in")
        ui.element("p").props("id=refusal role=alert").classes("gy-refusal")
