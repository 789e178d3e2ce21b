"""The form as one element: what is typed comes from the browser, what is wrong with it goes there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.page.submission import Form
from gpuyard.page.views.submit.labels import GROUPS, MAIN

_LONGEST = 200_000
"""Characters of a form; more than that is no command that anybody typed."""


class SubmitForm(Element, component="form.js"):
    """The fields, the command line, and the buttons."""

    def __init__(self, user: str, start: Mapping[str, str | bool], copy: str = "", kept: bool = False) -> None:
        super().__init__()
        self._props |= {
            "main": [field.told() for field in MAIN],
            "groups": [group.told() for group in GROUPS],
            "user": user,
            "start": dict(start),
            "copy": copy,
            "kept": kept,
            "told": {},
            "outlook": "",
        }

    def on_typed(self, read: Callable[[Form], Awaitable[None]]) -> None:
        """Have a form read that somebody types in."""
        self.on("typed", lambda event: read(_form(event)))

    def on_send(self, send: Callable[[Form, str, bool], Awaitable[None]]) -> None:
        """Have a form sent: with its key, and whether another is to follow."""

        async def sent(event: GenericEventArguments) -> None:
            await send(_form(event), str(event.args.get("key", "")), event.args.get("another") is True)

        self.on("send", sent)

    def tell(self, told: dict[str, Any]) -> None:
        """Say how the form stands."""
        if told != self._props["told"]:
            self._props["told"] = told
            self.update()

    def say(self, outlook: str) -> None:
        """Say how the yard stands."""
        if outlook != self._props["outlook"]:
            self._props["outlook"] = outlook
            self.update()

    def refused(self, errors: Mapping[str, str]) -> None:
        """Say what the daemon would not take."""
        self.run_method("refused", dict(errors))

    def done(self, id: str, path: str, another: bool) -> None:
        """Say that it is queued."""
        self.run_method("done", id, path, another)


def _form(event: GenericEventArguments) -> Form:
    """Texts and ticks; whatever else a browser may send is left out."""
    given = event.args.get("form", {}) if isinstance(event.args, dict) else {}
    form = {str(name): value for name, value in given.items() if isinstance(value, str | bool)}
    return form if sum(len(value) for value in form.values() if isinstance(value, str)) <= _LONGEST else {}
