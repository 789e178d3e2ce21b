"""What all applications of pages have in common: the look, how NiceGUI serves them, and what keeps it in check."""

from __future__ import annotations

from fastapi import FastAPI, Request
from nicegui import app as pages
from nicegui import ui
from nicegui.translations import translations

from gpuyard.page.crowd import Crowd
from gpuyard.page.files import Files
from gpuyard.page.lines import Lines, guard

PATIENCE = 20.0
"""Seconds that a view may take to be built, on a machine that has much else to do."""
_THEMES = {"dark": True, "light": False}


def furnish(app: FastAPI, lost: str, meanwhile: str, mistaken: str) -> None:
    """Let NiceGUI serve its pages in an application that has all of its own routes.

    What a browser says whose line is cut, of what goes on then, and what it says where a page failed.
    """
    files = Files()
    files.add_to(app)
    translations["en-US"] |= {"connection_lost": lost, "trying_to_reconnect": meanwhile}
    ui.add_head_html(files.head, shared=True)
    pages.config.quasar_config["loadingBar"]["skipHijack"] = True  # a page that is followed live would load for ever
    ui.run_with(
        app, title="gpuyard", language="en-US", dark=None, tailwind=False, show_welcome_message=False,
        binding_refresh_interval=None, reconnect_timeout=5.0, message_history_length=100,
    )  # fmt: skip
    pages.on_exception(lambda: ui.notify(mistaken, type="negative"))  # NiceGUI has written it to the log
    app.add_middleware(Crowd)
    app.add_middleware(Lines)
    guard()


def theme(request: Request) -> None:
    """Light or dark, as who asks chose it; else as their system has it."""
    ui.dark_mode(_THEMES.get(request.cookies.get("gpuyard_theme", "")))
