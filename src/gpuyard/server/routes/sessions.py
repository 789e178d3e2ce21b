"""Routes of sessions: login and logout of the web page, and watchmen's `/auth`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.server.auth.authentication import (
    COOKIE,
    TooManyFailures,
    Unauthenticated,
    WrongToken,
    session_secret,
    source_of,
)
from gpuyard.server.auth.credentials import Session, Token
from gpuyard.server.auth.middleware import Auth, csrf_of
from gpuyard.server.auth.permissions import Caller, Permission, Permissions, Role
from gpuyard.server.problems import refusal
from gpuyard.server.responses import iso, reply


class Login(BaseModel):
    """What a session is opened with."""

    model_config = ConfigDict(extra="forbid")

    token: Annotated[str, Field(max_length=200)]


class SessionRoutes:
    """Handlers; `add_to` makes them known."""

    def __init__(self, doors: Auth, permissions: Permissions) -> None:
        self._doors, self._permissions = doors, permissions

    def add_to(self, app: FastAPI, add: Callable[..., None]) -> None:
        """Make the routes known."""
        add("/session", self.open, "POST", Permission.EVERYBODY, status_code=201)
        add("/session", self.who, "GET", Permission.EVERYBODY)
        add("/session", self.close, "DELETE", Permission.EVERYBODY)
        everybody = {"x-may": Permission.EVERYBODY.value}
        app.add_api_route("/auth", self.auth, methods=["POST"], include_in_schema=False, openapi_extra=everybody)

    async def open(self, request: Request, given: Login) -> Response:
        """Log in with a token: the answer's cookie stands for it, for 12 hours after it was last used."""
        try:
            token = self._checked(request, given.token)
        except Unauthenticated as error:
            raise WrongToken from error
        session, secret = await self._opened(request, token)
        caller = request.state.caller
        response = reply(self._json(caller, session, secret), 201)
        self._set_cookie(request, response, secret)
        return response

    async def who(self, request: Request) -> Response:
        """Who one is, and how that is known."""
        caller = self._permissions.caller(request)
        secret = session_secret(dict(request.scope["headers"]))
        if not caller.via.startswith("session"):
            return reply(self._json(caller))
        found = self._doors.access.session(secret, source_of(request.scope, self._doors.settings))
        return reply(self._json(caller, found[0] if found else None, secret))

    async def close(self, request: Request) -> Response:
        """Log out."""
        kind, _, id = self._permissions.caller(request).via.partition(" ")
        if kind == "session":
            await asyncio.to_thread(self._doors.access.close_session, id)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, path="/", secure=self._is_secure(request), httponly=True, samesite="strict")
        return response

    async def auth(self, request: Request) -> Response:
        """Log in as watchmen has it."""
        try:
            given = json.loads(await request.body() or b"null")
        except (ValueError, RecursionError):
            given = None
        text = given.get("token") if isinstance(given, dict) else None
        if text is None and isinstance(getattr(request.state, "caller", None), Caller):
            return _told("ok", "No authentication required")
        if not isinstance(text, str) or not text:
            return _told("err", "Token required", 400)
        try:
            token = self._checked(request, text)
        except Unauthenticated:
            return _told("err", "Invalid token", 401)
        except TooManyFailures as error:
            return refusal("/auth", 429, str(error), {"Retry-After": str(error.seconds)})
        _, secret = await self._opened(request, token)
        response = _told("ok", "Authentication successful")
        self._set_cookie(request, response, secret)
        return response

    def _checked(self, request: Request, text: str) -> Token:
        return self._doors.admission.checked(text, source_of(request.scope, self._doors.settings))

    async def _opened(self, request: Request, token: Token) -> tuple[Session, str]:
        """A session, and its secret; whoever opens it is known from now on, also to the audit trail."""
        self._doors.admission.holder(token, "")
        place = source_of(request.scope, self._doors.settings)
        session, secret = await asyncio.to_thread(self._doors.access.open_session, token, place)
        request.state.caller = self._doors.admission.holder(token, f"session {session.id}")
        return session, secret

    def _set_cookie(self, request: Request, response: Response, secret: str) -> None:
        """No script can read it, no page of another site can make a browser send it; how long it counts, we know."""
        secure = self._is_secure(request)
        response.set_cookie(COOKIE, secret, path="/", secure=secure, httponly=True, samesite="strict")

    def _is_secure(self, request: Request) -> bool:
        """Whether the browser speaks TLS, with us or with a proxy of ours."""
        proxied = bool(self._doors.settings.allowed_hosts)
        return request.url.scheme == "https" or (proxied and request.headers.get("x-forwarded-proto") == "https")

    def _json(self, caller: Caller, session: Session | None = None, secret: str = "") -> dict[str, Any]:
        role = "anonymous" if caller.via == "nobody" else (Role.ADMIN if caller.admin else caller.role).value
        found = {"user": caller.name, "role": role, "via": caller.via.partition(" ")[0]}
        if session is None:
            return found
        return {**found, "csrf": csrf_of(secret), "expires_at": iso(session.expires)}


def _told(status: str, message: str, code: int = 200) -> Response:
    return reply({"status": status, "msg": message}, code)
