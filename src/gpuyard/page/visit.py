"""One open page: its viewer, time zone and permissions, and the parts that are updated on events."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from enum import Enum
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nicegui import Client, background_tasks, ui

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Api, Refused, Unavailable
from gpuyard.page.feed import Feed, Listener
from gpuyard.page.parts import capitalized


class Permission(Enum):
    SUBMIT = "submit a job"
    SET_POLICY = "set the policy"
    DRAIN = "drain and resume GPUs"
    RESERVE = "reserve GPUs"
    SET_RULES = "set quotas and shares"
    MAKE_TOKEN = "make a token"
    MAKE_ANY_TOKEN = "make a token for others, or an admin's"
    REVOKE_TOKEN = "revoke a token of one's own"
    REVOKE_ANY_TOKEN = "revoke others' tokens"
    READ_AUDIT = "read the audit trail"
    READ_DELIVERIES = "see what others are told, and what failed"
    SUBSCRIBE = "be told of one's jobs"


_OWN = frozenset((Permission.SUBMIT, Permission.REVOKE_TOKEN, Permission.SUBSCRIBE))
log = logging.getLogger("gpuyard.page")
Show = Callable[[], Awaitable[None]]
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
_ZONE = "Intl.DateTimeFormat().resolvedOptions().timeZone"


class Viewer:
    def __init__(self, session: Mapping[str, Any]) -> None:
        self.name: str = session["user"]
        self.role: str = session["role"]  # `admin`, `user`, `viewer` or `anonymous`
        self.via: str = session["via"]  # `session` after a login by token; else how the kernel identified the user

    @property
    def acts(self) -> bool:
        return self.role in ("admin", "user")

    @property
    def rules(self) -> bool:
        return self.role == "admin"

    def owns(self, user: str) -> bool:
        return self.rules or (self.acts and self.name == user)


def may(viewer: Viewer, permission: Permission) -> bool:
    if viewer.rules:
        return True
    if permission is Permission.MAKE_TOKEN:  # tokens cannot make tokens: a stolen one would never end
        return viewer.role == "user" and viewer.via in ("socket", "loopback")
    return viewer.acts and permission in _OWN


class Tab:
    """One open page, of either application: its time zone, and the parts that are updated."""

    def __init__(self, listeners: set[Listener], request_cookies: Mapping[str, str]) -> None:
        self._listeners = listeners
        self.zone: tzinfo | None = _zone(unquote(request_cookies.get("gpuyard_zone", "")))
        self.client: Client = ui.context.client
        self._shows: list[tuple[Show, int]] = []
        self._rounds = 0
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self.client.on_connect(self._connected)
        self.client.on_disconnect(self._leave)
        self.client.on_delete(self._leave)

    @property
    def query(self) -> Mapping[str, str]:
        return {} if self.client.request is None else self.client.request.query_params

    def live(self, show: Show, every: int = 1) -> None:
        """Call this once the page is open, and after every change (at most twice a second), or every `every`-th."""
        self._shows.append((show, every))

    def when(self, iso: str | float | None, *, seconds: bool = False) -> str:
        """An instant on the viewer's clock: `14:03` if today, else with the day."""
        if iso is None:
            return ""
        at = datetime.fromtimestamp(iso, UTC) if isinstance(iso, int | float) else datetime.fromisoformat(iso)
        here, now = at.astimezone(self.zone), datetime.now(self.zone)
        clock = here.strftime("%H:%M:%S" if seconds else "%H:%M")
        if here.date() == now.date():
            return clock
        day = f"{here.day} {here:%b}" + (f" {here.year}" if here.year != now.year else "")
        return f"{day}, {clock}"

    def beat(self) -> None:
        """Update all parts soon; an update in progress is finished first."""
        if self._task is not None and not self._task.done():
            self._again = True
            return
        self._task = background_tasks.create(self._show(), name="beat")

    async def _show(self) -> None:
        while True:
            self._again = False
            for show, every in self._shows:
                if self._rounds % every == 0:
                    await self._shown(show)
            self._rounds += 1
            if not self._again:
                return

    async def _shown(self, show: Show) -> None:
        if self.client.is_deleted:
            return
        try:
            with self.client:
                await show()
        except Exception:
            if not self.client.is_deleted:
                log.exception("a page could not be shown")

    async def _connected(self) -> None:
        self._listeners.add(self)
        if self.zone is None:  # before the first update, since some times are written only once
            with suppress(TimeoutError):  # the page is shown even if the browser does not answer
                self.zone = _zone(str(await ui.run_javascript(_ZONE, timeout=5.0))) or UTC
        self.beat()

    def _leave(self) -> None:
        self._listeners.discard(self)


class Visit(Tab):
    """An open page of a daemon's viewer; views are built with it."""

    def __init__(self, viewer: Viewer, api: Api, feed: Feed, request_cookies: Mapping[str, str]) -> None:
        super().__init__(feed.listeners, request_cookies)
        self.viewer, self.api, self.feed = viewer, api, feed

    async def do(self, work: Awaitable[Any], done: str = "") -> bool:
        """Await an action, notify the viewer of the outcome, and return whether it succeeded."""
        try:
            await work
        except GpuyardError as error:
            self.tell(error)
            return False
        if done:
            ui.notify(done, type="positive")
        self.beat()
        return True

    def tell(self, error: GpuyardError, *, asked: bool = True) -> None:
        """Notify the viewer of an error; `asked` if it concerns an action of theirs."""
        if isinstance(error, Refused) and error.status == 401:
            ui.navigate.to(f"/login?reason={'refused' if asked else 'ended'}")  # which shows the reason
            return
        ui.notify(capitalized(str(error)), type="negative", multi_line=True, close_button="OK", timeout=10_000)

    async def show_now(self, show: Show) -> None:
        try:
            await show()
        except Unavailable as error:
            self.tell(error)

    def words(self, text: str | None) -> str:
        """A text of the daemon with its times converted to the viewer's clock."""
        return _INSTANT.sub(lambda found: self.when(found[0]), text or "")

    async def _shown(self, show: Show) -> None:
        async def shown() -> None:
            try:
                await show()
            except Unavailable:
                return  # the banner says so
            except Refused as error:
                self.tell(error, asked=False)

        await super()._shown(shown)


def _zone(name: str) -> tzinfo | None:
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
