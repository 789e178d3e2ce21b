"""Notifications: targets, events, tests, and deliveries."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.errors import UserError
from gpuyard.page.api import Facts, Refused
from gpuyard.page.parts import button, confirm, empty, heading, sentence
from gpuyard.page.views.settings.controls import (
    Row,
    Rows,
    act,
    fields,
    form,
    job_cell,
    mark,
    row,
    text_field,
    tick_boxes,
)
from gpuyard.page.visit import Permission, Visit, may
from gpuyard.units import format_duration, parse_duration

_MOST = 50
_EVERY = 6  # beats between updates
_STATES = {"waiting": ("waits", ""), "delivered": ("sent", "gy-succeeded"), "given-up": ("given up", "gy-failed")}


class DeliveryLog:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    def build(self) -> None:
        heading("What was sent")
        with ui.element("div").classes("gy-buttons gy-set-left"):
            self._failed = ui.checkbox("Only what failed", on_change=self._load)
            self._all = ui.checkbox("Everybody's", on_change=self._load)
            self._all.set_visibility(may(self.visit.viewer, Permission.READ_DELIVERIES))
        self._rows = Rows("What was sent", ("When", "Job", "Of what", "To", "How it went", "Why"))
        self._none = ui.label("Nothing was sent in the last days.").classes("gy-soft")
        self.visit.live(self._load, _EVERY)

    async def _load(self) -> None:
        asked = {"limit": _MOST, "failed": bool(self._failed.value), "all": bool(self._all.value)}
        answer = (await self.visit.api.get("/notifications", **asked))["notifications"]
        self._rows.put([self._row(one) for one in answer])
        self._none.set_visibility(not answer)

    def _row(self, one: Facts) -> Row:
        text, look = _STATES.get(one["state"], (one["state"], ""))
        to = one["subscription"] or one["target"] or f"{one['user']}'s"
        again = f"; again at {self.visit.when(one['next_at'])}" if one["next_at"] and one["error"] else ""
        return row(
            f"{one['id']}", self.visit.when(one["at"]), job_cell(one["job"]), one["event"], to,
            {"text": text, "chip": look or "gy-chip"}, f"{one['error'] or ''}{again}",
        )  # fmt: skip


EVENTS = (
    ("start", "it starts"), ("finish", "it ends well"), ("failure", "it fails"), ("timeout", "it runs out of time"),
    ("long-wait", "it waits long"), ("tasks", "of an array: each task"),
)  # fmt: skip
_USUAL = ("finish", "failure", "timeout")
_EXAMPLES = "URLs are apprise's: mailtos://user:password@host, slack://TOKENS, json://host/hook, and a hundred more."
_ACTS = (act("test", "Test"), act("remove", "Remove", danger=True))
_TESTING = (act("test", "Testing", busy=True), act("remove", "Remove", danger=True))
_ROUTE = "/notifications/subscriptions"


class NotificationsSection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Permission.SUBSCRIBE)
        self._subscriptions: list[Facts] = []
        self._testing: set[str] = set()

    async def build(self) -> None:
        try:
            answer = await self.visit.api.get(_ROUTE)
        except Refused as error:
            ui.label(sentence(str(error))).classes("gy-empty")
            return
        ui.label("Where you are told of your jobs. What is secret in an address is not shown again.").classes("gy-soft")
        self._rows = Rows("Your subscriptions", ("Name", "To", "When"), self._act if self.free else None)
        self._none = empty("You are told of nothing yet. Add an address below, or like this:", "gpuyard notify add URL")
        self._result = ui.element("div").classes("gy-set-result").props("role=status")
        if self.free:
            self._form(bool(answer["mail"]))
        self._put(answer["subscriptions"])
        DeliveryLog(self.visit).build()

    def _form(self, mail: bool) -> None:
        with form("Be told of your jobs"):
            ui.label(_EXAMPLES).classes("gy-soft")
            with fields():
                self._url = text_field("Address", "an e-mail address or a URL" if mail else "a URL")
                self._name = text_field("Name", "after its kind, if empty")
                self._wait = text_field("A long wait is", "as in 90m; 1h, if empty")
            self._ticks = tick_boxes("Tell me of a job when", EVENTS, _USUAL)
            with ui.expansion("Words of your own").classes("gy-set-words").props("dense"):
                hint = "fields such as {name}, {state}, {what}, {log} are filled in; as usual, if empty"
                self._title, self._body = text_field("Title", hint), text_field("Text", hint)
            with ui.element("div").classes("gy-buttons gy-set-left"):
                button("Add", self._add, kind="primary")

    def _put(self, answer: list[Facts]) -> None:
        self._subscriptions = answer
        self._rows.put([self._row(one) for one in answer])
        self._none.set_visibility(not answer)

    def _row(self, one: Facts) -> Row:
        acts = (_TESTING if one["id"] in self._testing else _ACTS) if self.free else ()
        return row(one["id"], one["name"], {"text": one["target"], "code": True}, events_text(one), acts=acts)

    async def _load(self) -> None:
        self._put((await self.visit.api.get(_ROUTE))["subscriptions"])

    async def _act(self, key: str, name: str) -> None:
        one = next(one for one in self._subscriptions if one["id"] == key)
        await (self._test(one) if name == "test" else self._remove(one))

    async def _test(self, one: Facts) -> None:
        self._testing.add(one["id"])
        self._put(self._subscriptions)
        self._say(f"Something is being sent to {one['name']}; that may take a minute.")
        try:
            answer = await self.visit.api.post(f"{_ROUTE}/{quote(one['id'], safe='')}/test")
            self._say(*delivery_test_text(one["name"], answer))
        except Refused as error:
            self._say(f"{one['name']} could not be tried: {error}.", False)
        finally:
            self._testing.discard(one["id"])
            self._put(self._subscriptions)

    def _say(self, text: str, good: bool | None = None) -> None:
        self._result.clear()
        self._result.classes(replace="gy-set-result" + {None: "", True: " gy-set-good", False: " gy-set-bad"}[good])
        with self._result:
            ui.label(text)

    async def _remove(self, one: Facts) -> None:
        if await confirm(f"Be told no more at {one['name']} ({one['target']})?", "Remove it"):
            path = f"{_ROUTE}/{quote(one['id'], safe='')}"
            if await self.visit.do(self.visit.api.ask("DELETE", path, {}), f"{one['name']} is told no more."):
                await self.visit.do(self._load())

    async def _add(self) -> None:
        try:
            request = self._request()
        except UserError as error:
            self.visit.tell(error)
            return
        if not request["url"]:
            mark(self._url, "say where to")
            return
        mark(self._url, None)
        try:
            made = await self.visit.api.post(_ROUTE, request)
        except Refused as error:
            self._say(f"That was not taken: {error}.", False)
            return
        self._url.value = self._name.value = ""
        self._say(f"{made['target']} is told of your jobs from now on, as {made['name']}. Try it with Test.", True)
        await self.visit.do(self._load())

    def _request(self) -> dict[str, Any]:
        wait = str(self._wait.value or "").strip()
        texts = {"url": self._url, "name": self._name, "title": self._title, "body": self._body}
        found: dict[str, Any] = {name: str(field.value or "").strip() for name, field in texts.items()}
        found["events"] = [name for name, tick in self._ticks.items() if tick.value]
        return found | ({"long_wait": parse_duration(wait)} if wait else {})


def events_text(one: Facts) -> str:
    words = dict(EVENTS)
    said = [
        f"{words[name]} (over {format_duration(one['long_wait'])})" if name == "long-wait" else words.get(name, name)
        for name in one["events"]
    ]
    return ", ".join(said)


def delivery_test_text(name: str, answer: Facts) -> tuple[str, bool]:
    if answer["error"]:
        return f"{name} could not be reached: {str(answer['error']).rstrip('.')}.", False
    return f"{name} was told ({answer['target']}). Look whether it arrived.", True
