"""Routes of sessions: login and logout of the web page, and watchmen's `/auth`."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import Field

from gpuyard.api import access_types
from gpuyard.server.auth.authentication import (
    COOKIE,
    TooManyFailures,
    Unauthenticated,
    WrongToken,
    source_of,
)
from gpuyard.server.auth.credentials import Session, Token
from gpuyard.server.auth.middleware import Auth, csrf_of
from gpuyard.server.auth.permissions import Caller, Permissions, Role
from gpuyard.server.problems import refusal
from gpuyard.server.requests import Body
from gpuyard.server.responses import iso, reply
from gpuyard.server.routing import LATER, Answer, Route, ok

WHO: dict[str, Any] = {"user": "ann", "role": "user", "via": "session", "csrf": "5d2f...", "expires_at": LATER}


class Login(Body):
    """What a session is opened with."""

    token: Annotated[str, Field(max_length=200)]


class SessionRoutes:
    def __init__(self, auth: Auth, permissions: Permissions) -> None:
        self._auth, self._permissions = auth, permissions

    @Route(
        "POST /session", "logIn", "Log in", "Access",
        {201: Answer("A session, by a cookie.", access_types.WhoAmI, WHO)}, (422, 503),
        {"with a token": {"token": "gy_k3x9_..."}},
    )  # fmt: skip
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

    @Route("GET /session", "whoAmI", "Who am I?", "Access", ok("Who.", access_types.WhoAmI, WHO))
    async def who(self, request: Request) -> Response:
        """Who one is, and how that is known."""
        caller = self._permissions.caller(request)
        if not caller.via.startswith("session"):
            return reply(self._json(caller))
        secret: str = getattr(request.state, "secret", "")
        found = self._auth.credentials.session(secret, source_of(request.scope, self._auth.settings))
        return reply(self._json(caller, found[0] if found else None, secret))

    @Route("DELETE /session", "logOut", "Log out", "Access", {204: Answer("It is over.")}, (503,))
    async def close(self, request: Request) -> Response:
        """Log out."""
        kind, _, id = self._permissions.caller(request).via.partition(" ")
        if kind == "session":
            await asyncio.to_thread(self._auth.credentials.close_session, id)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, path="/", secure=self._is_secure(request), httponly=True, samesite="strict")
        return response

    @Route("POST /auth", root="")
    async def auth(self, request: Request) -> Response:
        """Log in as watchmen has it."""
        try:
            given = json.loads(await request.body() or b"null")
        except (ValueError, RecursionError):
            given = None
        text = given.get("token") if isinstance(given, dict) else None
        if text is None and isinstance(getattr(request.state, "caller", None), Caller):
            return _watchmen_reply("ok", "No authentication required")
        if not isinstance(text, str) or not text:
            return _watchmen_reply("err", "Token required", 400)
        try:
            token = self._checked(request, text)
        except Unauthenticated:
            return _watchmen_reply("err", "Invalid token", 401)
        except TooManyFailures as error:
            return refusal("/auth", 429, str(error), {"Retry-After": str(error.seconds)})
        _, secret = await self._opened(request, token)
        response = _watchmen_reply("ok", "Authentication successful")
        self._set_cookie(request, response, secret)
        return response

    def _checked(self, request: Request, text: str) -> Token:
        return self._auth.authenticator.checked(text, source_of(request.scope, self._auth.settings))

    async def _opened(self, request: Request, token: Token) -> tuple[Session, str]:
        """A session, and its secret; the token's user becomes the caller, also for the audit log."""
        self._auth.authenticator.holder(token, "")
        place = source_of(request.scope, self._auth.settings)
        session, secret = await asyncio.to_thread(self._auth.credentials.open_session, token, place)
        request.state.caller = self._auth.authenticator.holder(token, f"session {session.id}")
        return session, secret

    def _set_cookie(self, request: Request, response: Response, secret: str) -> None:
        """For this site only, and not for scripts. It has no end of its own: the daemon knows the session's."""
        secure = self._is_secure(request)
        response.set_cookie(COOKIE, secret, path="/", secure=secure, httponly=True, samesite="strict")

    def _is_secure(self, request: Request) -> bool:
        proxied = bool(self._auth.settings.allowed_hosts)
        return request.url.scheme == "https" or (proxied and request.headers.get("x-forwarded-proto") == "https")

    def _json(self, caller: Caller, session: Session | None = None, secret: str = "") -> dict[str, Any]:
        role = "anonymous" if caller.via == "nobody" else (Role.ADMIN if caller.admin else caller.role).value
        found = {"user": caller.name, "role": role, "via": caller.via.partition(" ")[0]}
        if session is None:
            return found
        return {**found, "csrf": csrf_of(secret), "expires_at": iso(session.expires)}


def _watchmen_reply(status: str, message: str, code: int = 200) -> Response:
    return reply({"status": status, "msg": message}, code)
