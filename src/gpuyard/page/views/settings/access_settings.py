"""Access: tokens, quotas and shares."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from nicegui import ui

from gpuyard.page.api import Facts
from gpuyard.page.parts import button, command, confirm, empty, heading, span, tagged
from gpuyard.page.views.settings.controls import (
    Cell,
    Row,
    Rows,
    act,
    ask,
    bar_cell,
    choice_field,
    fields,
    form,
    number_field,
    row,
    text_field,
)
from gpuyard.page.visit import Permission, Visit, may

ROLES = {
    "viewer": "viewer: may look, and change nothing", "user": "user: has jobs of their own",
    "admin": "admin: may do everything",
}  # fmt: skip
DAYS = {7: "7 days", 30: "30 days", 90: "90 days", 365: "a year", 0: "until it is revoked"}
_VIA = {
    "session": "by the token that you logged in with", "socket": "by your account on this machine",
    "loopback": "by your account on this machine", "token": "by a token", "nobody": "nobody asked who you are",
}  # fmt: skip
_STATE_CLASSES = {"active": "gy-succeeded", "expired": "gy-held", "revoked": "gy-failed"}
_TOKEN_HEADS = ("Token", "For", "User", "Role", "State", "Made", "Good until", "Last used", "Open pages")
_EVERY = 10  # beats between updates
_BY_NAME = "This machine's name stands in place of {}."
_LOCAL = "The daemon listens on this machine only. Where no proxy leads to it, this brings it to another computer:"
_NOT_BY_TOKEN = "With a token no token can be made, unless it is an admin's. On the daemon's machine, this makes one:"


def who_am_i(name: str, role: str, via: str) -> str:
    if role == "anonymous":
        return "You are not known here: you may look. To do more, log in with a token."
    means = ROLES.get(role, role).partition(": ")[2]
    return f"You are {name}, known {_VIA.get(via, via)}. Your role is {role}: who has it {means}."


class TokensSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.makes, self.makes_any = (
            may(visit.viewer, permission) for permission in (Permission.MAKE_TOKEN, Permission.MAKE_ANY_TOKEN)
        )
        self.revokes = may(visit.viewer, Permission.REVOKE_TOKEN)
        self._tokens: list[Facts] = []

    async def build(self) -> None:
        viewer = self.visit.viewer
        with ui.element("div").classes("gy-card"):
            tagged("p", who_am_i(viewer.name, viewer.role, viewer.via)).classes("gy-set-lead")
        heading("Tokens")
        whose = "Everybody's tokens" if self.makes_any else "Your tokens"
        ui.label(f"{whose}: by these the queue is used from elsewhere. None can be shown again.").classes("gy-soft")
        self._over = ui.checkbox("Also those that are over", on_change=self._put)
        self._rows = Rows("Tokens", _TOKEN_HEADS, self._act if self.revokes else None)
        self._none = empty("There is no token. On the daemon's machine, this makes one:", "gpuyard token create")
        self._none.set_visibility(False)
        if self.makes:
            self._form()
        elif self.revokes:
            empty(_NOT_BY_TOKEN, "gpuyard token create")
        self.visit.live(self._load, _EVERY)

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

    async def _load(self) -> None:
        self._tokens = (await self.visit.api.get("/tokens"))["tokens"]
        self._put()

    def _put(self) -> None:
        shown = [token for token in self._tokens if self._over.value or token["state"] == "active"]
        self._rows.put([self._row(token) for token in shown])
        self._none.set_visibility(not shown)

    def _row(self, token: Facts) -> Row:
        when, active = self.visit.when, token["state"] == "active"
        return row(
            token["id"], {"text": token["id"], "code": True}, token["label"], token["user"], token["role"],
            {"text": token["state"], "chip": _STATE_CLASSES.get(token["state"], "gy-chip")}, when(token["created_at"]),
            when(token["expires_at"]) or "no end", when(token["last_used_at"]) or "never", str(token["sessions"]),
            acts=[act("revoke", "Revoke", danger=True)] if active and self.revokes else (), over=not active,
        )  # fmt: skip

    async def _make(self) -> None:
        request: dict[str, Any] = {"label": str(self._label.value or "").strip(), "role": self._role.value}
        if days := self._days.value:
            request["expires"] = days * 86400.0
        if self._user is not None and (user := str(self._user.value or "").strip()):
            request["user"] = user
        made: dict[str, Any] = {}

        async def make() -> None:
            made.update(await self.visit.api.post("/tokens", request))

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


async def _show_once(visit: Visit, made: Facts) -> None:
    """Show a new token and how to use it; it is not kept here either."""
    url = (await visit.feed.ask("/status", 30.0, until_event=False))["url"]
    with ui.dialog().props("persistent") as dialog, ui.card().classes("gy-card gy-set-ask"):
        heading("Your new token", 2)
        ui.label("Copy it now: it is not shown again.")
        command(made["token"])
        ui.label(token_text(made, visit.when(made["expires_at"])))
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
    """The command that forwards a loopback-only daemon to another computer; else empty."""
    place = urlsplit(url)
    host = place.hostname or ""
    if host != "::1" and not host.startswith("127."):
        return ""
    near = f"[{host}]" if ":" in host else host
    return f"ssh -N -L {place.port}:{near}:{place.port} {quote(machine)}"


def by_name(url: str) -> str:
    """A hint for daemons that listen at all addresses: the URL is not usable elsewhere."""
    host = urlsplit(url).hostname
    return _BY_NAME.format(host) if host in ("0.0.0.0", "::") else ""


def token_text(made: Facts, until: str) -> str:
    good = f"until {until}" if until else "until it is revoked"
    said = f"It is {made['user']}'s, with the role {made['role']}, good {good}."
    runs_as = made.get("runs_as")
    return said if runs_as in (None, made["user"]) else f"{said} Its jobs run as {runs_as}, as all do here."


_QUOTA_HEADS = ("Who", "Group", "GPUs now", "GPU-hours in 7 days", "Share", "Lately")
RuleFields = dict[str, Any]


class QuotasSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Permission.SET_RULES)
        self._users: dict[str, Facts] = {}

    async def build(self) -> None:
        self._says = ui.label("").classes("gy-soft")
        self._rows = Rows("Quotas, shares and use", _QUOTA_HEADS, self._act if self.free else None)
        self._none = empty(
            "Nobody has submitted anything yet, and nobody has a quota. An admin sets one like this:",
            "gpuyard quota set ann --gpus 4 --gpu-hours 200", "gpuyard share set @vision 2",
        )  # fmt: skip
        self._none.set_visibility(False)
        if self.free:
            with ui.element("div").classes("gy-buttons gy-set-left"):
                button("Set a quota or a share", lambda: self._change(""), kind="primary")
        self.visit.live(self.show)

    async def show(self) -> None:
        answer = await self.visit.feed.ask("/rules", 10.0)
        users = answer["users"]
        self._users = {one["name"]: one for one in users}
        self._says.set_text(numbers_text(answer))
        self._rows.put([rule_row(one, users, acts=_ACTS if self.free else ()) for one in users])
        self._none.set_visibility(not users)

    async def _act(self, name: str, act: str) -> None:
        await self._change(name)

    async def _change(self, name: str) -> None:
        known = self._users.get(name)
        title = f"What may {subject_text(name)} have?" if name else "Set a quota or a share"
        request = await ask(title, lambda: _fields(name, known), "Set it")
        if not request:
            return
        if not (who := request["name"]):
            ui.notify("Say whom it is for: a user, a group as @name, or * for everybody else.", type="negative")
            return
        await self.visit.do(self._put(who, request), f"That holds for {subject_text(who)} from now on.")

    async def _put(self, who: str, request: RuleFields) -> None:
        path, changed = quote(who, safe=""), changes(self._users.get(who), request)
        if quota := {key: changed[key] for key in ("gpus", "gpu_hours") if key in changed}:
            await self.visit.api.ask("PUT", f"/rules/quotas/{path}", quota)
        if "weight" in changed:
            await self.visit.api.ask("PUT", f"/rules/shares/{path}", {"weight": changed["weight"]})


_ACTS = (act("change", "Change"),)


def _fields(name: str, known: Facts | None) -> Callable[[], RuleFields]:
    known = known or {"quota_gpus": None, "quota_gpu_hours": None, "weight": 1.0}
    with fields():
        who = text_field("For whom", "a user, a group as @name, or * for everybody else") if not name else None
        gpus = number_field("GPUs at once", "empty: any number", known["quota_gpus"])
        hours = number_field("GPU-hours in any 7 days", "empty: any number", known["quota_gpu_hours"])
        weight = number_field("Share", "relative to the others' 1", known["weight"], 0.01)
    return lambda: {
        "name": name or str(who.value if who is not None else "").strip(),
        "gpus": int(gpus.value or 0),
        "gpu_hours": float(hours.value or 0),
        "weight": float(weight.value or 1),
    }


def changes(known: Facts | None, request: RuleFields) -> RuleFields:
    """What differs: a rule for everybody does not become a user's own by opening the dialog."""
    before = {
        "gpus": (known or {}).get("quota_gpus") or 0,
        "gpu_hours": (known or {}).get("quota_gpu_hours") or 0,
        "weight": (known or {}).get("weight", 1.0),
    }
    return {key: request[key] for key, value in before.items() if request[key] != value}


def subject_text(name: str) -> str:
    if name == "*":
        return "everybody else"
    return f"the group {name[1:]}" if name.startswith("@") else name


def numbers_text(answer: Facts) -> str:
    half = answer["half_life"]
    fades = f"count half after {span(half)}" if half else "never fade"
    stops = "Preemptible jobs are stopped" if answer["preempts"] else "No job is stopped"
    return f"Lately is what fair shares go by: GPU-hours, which {fades}. {stops} for others."


def rule_row(one: Facts, everybody: list[Facts], acts: Any = ()) -> Row:
    most_gpus, most_hours, week = one["quota_gpus"], one["quota_gpu_hours"], one["week_gpu_hours"]
    gpus = f"{one['gpus']} of {most_gpus}" if most_gpus else f"{one['gpus']}, no quota"
    hours = f"{week:,.1f} of {most_hours:,.0f}" if most_hours else f"{week:,.1f}, no quota"
    return row(
        one["name"], one["name"] if one["name"] != "*" else "* (everybody else)", one["group"] or "",
        bar_cell(one["gpus"], most_gpus, gpus), bar_cell(week, most_hours, hours),
        f"{one['weight']:g}", usage_text(one, everybody), acts=acts,
    )  # fmt: skip


def usage_text(one: Facts, everybody: list[Facts]) -> Cell:
    used = [other for other in everybody if other["faded_gpu_hours"] > 0]
    hours = one["faded_gpu_hours"]
    if one not in used:
        return f"{hours:,.1f} h"
    part = hours / sum(other["faded_gpu_hours"] for other in used)
    due = one["weight"] / sum(other["weight"] for other in used)
    return {"text": f"{hours:,.1f} h: {100 * part:.0f} %, where {100 * due:.0f} % is fair", "bar": round(part, 3)}
