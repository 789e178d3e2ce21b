"""The environment of a job, for its owner: fetched when asked for, and what looks like a secret only one by one."""

from __future__ import annotations

import re

from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page.parts import button, empty
from gpuyard.page.visit import Visit

_SECRET = re.compile(
    r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE|PRIVATE|SESSION|_DSN|_PAT$|WEBHOOK|SIGNATURE", re.IGNORECASE
)
_WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one that is not for everybody who stands behind the viewer."""
    return bool(value) and bool(_SECRET.search(name) or _WITH_PASSWORD.search(value))


def environment(visit: Visit, path: str) -> None:
    """The button that shows it, and the place where it is shown."""
    with ui.element("div").classes("gy-job-environment") as box:

        async def show() -> None:
            try:
                found = (await visit.api.get(f"{path}/environment"))["environment"]
            except GpuyardError as error:
                visit.tell(error)
                return
            box.clear()
            with box:
                _table(found)

        button("Show the environment", show, "visibility")


def _table(found: dict[str, str]) -> None:
    if not found:
        empty("It was submitted without any variable; it has those of a login.")
        return
    box = ui.element("div").classes("gy-job-scroll").props('tabindex=0 role=region aria-label="Environment"')
    with box, ui.element("table").classes("gy-job-table gy-job-variables"):
        with ui.element("thead"), ui.element("tr"):
            _cell("th", "Variable").props("scope=col")
            _cell("th", "Value").props("scope=col")
        with ui.element("tbody"):
            for name, value in sorted(found.items()):
                _row(name, value)


def _row(name: str, value: str) -> None:
    with ui.element("tr"):
        _cell("th", name).props("scope=row")
        with ui.element("td"):
            if not is_secret(name, value):
                ui.label(value)
                return
            with ui.element("span").classes("gy-job-secret"):
                shown = ui.label("looks like a secret, hidden")
                reveal = ui.button("Show").props("flat dense no-caps")
                reveal._props["aria-label"] = f"Show {name}"

                def show() -> None:
                    shown.set_text(value)
                    reveal.delete()

                reveal.on_click(show)


def _cell(tag: str, text: str) -> ui.element:
    with ui.element(tag) as found:
        ui.label(text)
    return found
