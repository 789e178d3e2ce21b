"""Who comes in: who one is, and the tokens by which people use the queue from elsewhere."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from nicegui import ui

from gpuyard.page.parts import button, command, confirm, empty, heading
from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings.forms import choice_field, fields, form, text_field
from gpuyard.page.views.settings.tables import Row, Rows, act, row
from gpuyard.page.visit import Visit

ROLES = {
    "viewer": "viewer: may look, and change nothing", "user": "user: has jobs of their own",
    "admin": "admin: may do everything",
}  # fmt: skip
DAYS = {7: "7 days", 30: "30 days", 90: "90 days", 365: "a year", 0: "until it is revoked"}
_VIA = {
    "session": "by the token that you logged in with", "socket": "by your account on this machine",
    "loopback": "by your account on this machine", "token": "by a token", "nobody": "nobody asked who you are",
}  # fmt: skip
_LOOKS = {"active": "gy-succeeded", "expired": "gy-held", "revoked": "gy-failed"}
_HEADS = ("Token", "For", "User", "Role", "State", "Made", "Good until", "Last used", "Open pages")
_EVERY = 10  # beats between looks
_BY_NAME = "This machine's name stands in place of {}."
_LOCAL = "The daemon listens on this machine only. Where no proxy leads to it, this brings it to another computer:"
_NOT_BY_TOKEN = "With a token no token can be made, unless it is an admin's. On the daemon's machine, this makes one:"


async def build(visit: Visit) -> None:
    """Make the section."""
    _who(visit)
    _Tokens(visit).build()


def _who(visit: Visit) -> None:
    viewer = visit.viewer
    with ui.element("div").classes("gy-card"), ui.element("p").classes("gy-set-lead"):
        ui.label(who_am_i(viewer.name, viewer.role, viewer.via))


def who_am_i(name: str, role: str, via: str) -> str:
    """Who looks, as a sentence."""
    if role == "anonymous":
        return "You are not known here: you may look. To do more, log in with a token."
    means = ROLES.get(role, role).partition(": ")[2]
    return f"You are {name}, known {_VIA.get(via, via)}. Your role is {role}: who has it {means}."


class _Tokens:
    """The tokens as one viewer sees them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.makes, self.makes_any = (may(visit.viewer, deed) for deed in (Deed.MAKE_TOKEN, Deed.MAKE_ANY_TOKEN))
        self.revokes = may(visit.viewer, Deed.REVOKE_TOKEN)
        self._beats = 0
        self._tokens: list[Mapping[str, Any]] = []

    def build(self) -> None:
        """Make the elements."""
        heading("Tokens")
        whose = "Everybody's tokens" if self.makes_any else "Your tokens"
        ui.label(f"{whose}: by these the queue is used from elsewhere. None can be shown again.").classes("gy-soft")
        self._over = ui.checkbox("Also those that are over", on_change=self._put)
        self._rows = Rows("Tokens", _HEADS, self._act if self.revokes else None)
        self._none = empty("There is no token. On the daemon's machine, this makes one:", "gpuyard token create")
        self._none.set_visibility(False)
        if self.makes:
            self._form()
        elif self.revokes:
            empty(_NOT_BY_TOKEN, "gpuyard token create")
        self.visit.live(self.show)

    def _form(self) -> None:
        roles = {name: text for name, text in ROLES.items() if self.makes_any or name != "admin"}
        with form("Make a token"):
            with fields():
                self._label = text_field("What for", "as in laptop")
                self._role = choice_field("Role", roles, "user")
                self._days = choice_field("Good for", DAYS, 90)
                self._user = text_field("User", "you, if empty") if self.makes_any else None
            with ui.element("div").classes("gy-buttons gy-set-left"):
                button("Make a token", self._make, kind="primary")

    async def show(self) -> None:
        """Show them anew, now and then."""
        self._beats += 1
        if self._beats % _EVERY == 1:
            await self._load()

    async def _load(self) -> None:
        self._tokens = (await self.visit.api.get("/tokens"))["tokens"]
        self._put()

    def _put(self) -> None:
        shown = [token for token in self._tokens if self._over.value or token["state"] == "active"]
        self._rows.put([self._row(token) for token in shown])
        self._none.set_visibility(not shown)

    def _row(self, token: Mapping[str, Any]) -> Row:
        when, active = self.visit.when, token["state"] == "active"
        return row(
            token["id"], {"text": token["id"], "code": True}, token["label"], token["user"], token["role"],
            {"text": token["state"], "chip": _LOOKS.get(token["state"], "gy-chip")}, when(token["created_at"]),
            when(token["expires_at"]) or "no end", when(token["last_used_at"]) or "never", str(token["sessions"]),
            acts=[act("revoke", "Revoke", danger=True)] if active and self.revokes else (), over=not active,
        )  # fmt: skip

    async def _make(self) -> None:
        wish: dict[str, Any] = {"label": str(self._label.value or "").strip(), "role": self._role.value}
        if days := self._days.value:
            wish["expires"] = days * 86400.0
        if self._user is not None and (user := str(self._user.value or "").strip()):
            wish["user"] = user
        made: dict[str, Any] = {}

        async def make() -> None:
            made.update(await self.visit.api.post("/tokens", wish))

        if await self.visit.do(make()):
            self._label.value = ""
            await self.visit.do(self._load())
            await _show_once(self.visit, made)

    async def _act(self, id: str, name: str) -> None:
        token = next(token for token in self._tokens if token["id"] == id)
        what = f"{id} of {token['user']}" + (f" ({token['label']})" if token["label"] else "")
        if await confirm(f"Revoke the token {what}? Pages that were opened with it end, too.", "Revoke it"):
            path = f"/tokens/{quote(id, safe='')}"
            if await self.visit.do(self.visit.api.ask("DELETE", path, {}), f"Token {id} is good for nothing now."):
                await self.visit.do(self._load())


async def _show_once(visit: Visit, made: Mapping[str, Any]) -> None:
    """Show a new token, and how it is used. It is not kept here either."""
    url = (await visit.feed.ask("/status", 30.0, until_event=False))["url"]
    with ui.dialog().props("persistent") as dialog, ui.card().classes("gy-card gy-set-ask"):
        heading("Your new token", 2)
        ui.label("Copy it now: it is not shown again.")
        command(made["token"])
        ui.label(about(made, visit.when(made["expires_at"])))
        if url:
            if way := tunnel(url, platform.node()):
                ui.label(_LOCAL)
                command(way)
            ui.label("On another computer, this asks for it, and keeps it:")
            command(f"gpuyard login {url}")
            ui.label(f"In a browser there, open {url}/login and paste it. {by_name(url)}")
        else:
            ui.label("The daemon does not listen on TCP, so it is of no use yet; see gpuyard serve --port.")
        with ui.element("div").classes("gy-buttons"):
            ui.button("I have it", on_click=dialog.close).props("unelevated no-caps color=primary")
    dialog._props["aria-label"] = "Your new token"
    await dialog
    dialog.delete()


def tunnel(url: str, machine: str) -> str:
    """What brings a daemon to another computer that listens on this one only; empty if it listens elsewhere."""
    place = urlsplit(url)
    host = place.hostname or ""
    if host != "::1" and not host.startswith("127."):
        return ""
    near = f"[{host}]" if ":" in host else host
    return f"ssh -N -L {place.port}:{near}:{place.port} {quote(machine)}"


def by_name(url: str) -> str:
    """That a daemon which listens at all addresses is not reached by the one that it tells."""
    host = urlsplit(url).hostname
    return _BY_NAME.format(host) if host in ("0.0.0.0", "::") else ""


def about(made: Mapping[str, Any], until: str) -> str:
    """What a new token is good for."""
    good = f"until {until}" if until else "until it is revoked"
    said = f"It is {made['user']}'s, with the role {made['role']}, good {good}."
    runs_as = made.get("runs_as")
    return said if runs_as in (None, made["user"]) else f"{said} Its jobs run as {runs_as}, as all do here."
