"""Routes of tokens, of sessions (login and logout of the web page, and watchmen's `/auth`), and of the audit log."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field

from gpuyard.api import access_types
from gpuyard.engines.local.accounts import name_of, uid_of
from gpuyard.errors import UserError
from gpuyard.server.auth.audit import AuditEntry
from gpuyard.server.auth.authentication import (
    ANONYMOUS,
    COOKIE,
    TooManyFailures,
    Unauthenticated,
    WrongToken,
    source_of,
)
from gpuyard.server.auth.credentials import NoSuchToken, Session, Token
from gpuyard.server.auth.middleware import Auth, csrf_of
from gpuyard.server.auth.permissions import Caller, Forbidden, Permissions, Role
from gpuyard.server.problems import refusal
from gpuyard.server.request_fields import Since
from gpuyard.server.requests import Body
from gpuyard.server.responses import iso, reply
from gpuyard.server.routing import AT, LATER, Answer, Route, admin, created, links_to, ok

_NAME = re.compile(r"[^\W_-][\w.@\\+-]{0,63}|_[\w.@\\+-]{1,63}")
_MOST = 200  # tokens of one user that are not over
_LONGEST = 100 * 365 * 86400.0


TOKEN: dict[str, Any] = {
    "id": "k3x9", "user": "ann", "role": "user", "label": "laptop", "made_by": "ann", "state": "active", "sessions": 0,
    "created_at": AT, "expires_at": None, "last_used_at": LATER, "revoked_at": None,
}  # fmt: skip
NEW_TOKEN: dict[str, Any] = {**TOKEN, "last_used_at": None, "token": "gy_k3x9_...", "runs_as": "ann"}
TOKEN_WISHES: dict[str, Any] = {"for a laptop": {"label": "laptop", "expires": 7776000}, "to look": {"role": "viewer"}}
AUDIT: dict[str, Any] = {
    "entries": [
        {
            "id": 812, "at": AT, "user": "ann", "via": "token k3x9", "address": "192.0.2.7", "method": "POST",
            "path": "/api/v1/jobs/17/cancel", "status": 200, "job": "17", "times": 1,
        }
    ]
}  # fmt: skip


class TokenWish(Body):
    """A token as it is asked for."""

    user: Annotated[str | None, Field(max_length=64, description="Whose; who asks, if not said.")] = None
    role: Annotated[Role, Field(description="What it allows at most.")] = Role.USER
    expires: Annotated[
        float | None, Field(gt=0, le=_LONGEST, allow_inf_nan=False, description="Seconds from now; never, if not said.")
    ] = None
    label: Annotated[str, Field(max_length=200, description="What it is for.")] = ""


class TokenRoutes:
    def __init__(self, auth: Auth, permissions: Permissions) -> None:
        self._auth, self._permissions = auth, permissions

    @Route(
        "GET /tokens", "listTokens", "List tokens", "Access", ok("Tokens.", access_types.Tokens, {"tokens": [TOKEN]})
    )
    async def tokens(self, request: Request, user: str = "") -> Response:
        """Tokens, the newest first: one's own, or everybody's for admins. Their secrets are nowhere."""
        caller = self._permissions.caller(request)
        found = [
            self._json(token)
            for token in self._auth.credentials.tokens()
            if (caller.admin or _is_theirs(caller, token)) and user in ("", token.user)
        ]
        return reply({"tokens": found})

    @Route(
        "POST /tokens", "makeToken", "Make a token", "Access",
        created(access_types.Token, NEW_TOKEN, links_to(("revokeToken",), "id", "id")), (422, 503), TOKEN_WISHES,
    )  # fmt: skip
    async def make(self, request: Request, given: TokenWish) -> Response:
        """Make a token. This answer is the only place where it can be seen."""
        caller = self._permissions.caller(request)
        user = caller.name if given.user is None else given.user
        self._check(caller, user, given.role)
        uid = self._uid(user, given.role)
        credentials = self._auth.credentials
        if sum(token.user == user and token.state(time.time()) == "active" for token in credentials.tokens()) >= _MOST:
            raise UserError(f"{user} has {_MOST} tokens already; revoke some with gpuyard token revoke")
        expires = None if given.expires is None else time.time() + given.expires
        limits = self._auth.submitters.limits(request, caller) if uid is not None and user == caller.name else ()
        token, text = await asyncio.to_thread(
            credentials.make, user, given.role.value, uid=uid, label=given.label, made_by=caller.name,
            limits=" ".join(limits), expires=expires,
        )  # fmt: skip
        return reply({**self._json(token), "token": text, "runs_as": self._runs_as(token)}, 201)

    @Route(
        "DELETE /tokens/{id}", "revokeToken", "Revoke a token", "Access", ok("What it was.", access_types.Token, TOKEN),
        (404, 503),
    )  # fmt: skip
    async def revoke(self, request: Request, id: str) -> Response:
        """Let a token be good for nothing from now on, and what was opened with it neither."""
        caller, credentials = self._permissions.caller(request), self._auth.credentials
        token = credentials.token(id)
        if not caller.admin and not _is_theirs(caller, token):
            raise NoSuchToken
        return reply(self._json(await asyncio.to_thread(credentials.revoke, id)))

    @Route(
        "GET /audit", "listAudit", "Read the audit trail", "Access", ok("Entries.", access_types.Audit, AUDIT), (422,),
        may=admin("read the audit trail"),
    )  # fmt: skip
    async def audit(
        self,
        user: str = "",
        since: Since = None,
        limit: Annotated[int, Query(ge=1, le=100_000)] = 100,
        before: Annotated[
            int | None, Query(ge=1, le=2**63 - 1, description="Only entries with a smaller number.")
        ] = None,
    ) -> Response:
        """Who changed what, and who was refused, the latest first."""
        after = since.timestamp() if since else 0.0
        found = await asyncio.to_thread(self._auth.audit.find, user, after, limit, before)
        return reply({"entries": [entry_json(seq, entry) for seq, entry in found]})

    def _check(self, caller: Caller, user: str, role: Role) -> None:
        if caller.via not in ("socket", "loopback") and not caller.admin:
            raise Forbidden(
                "a token cannot make tokens, nor can a job that was submitted with one, unless it is an admin's; do it "
                "on the daemon's machine"
            )
        if not _NAME.fullmatch(user) or user == ANONYMOUS.name:
            raise UserError(f"'{user}' cannot be a user's name; write letters, digits, and _ . - in between")
        if not caller.admin and (user != caller.name or role is Role.ADMIN):
            what = f"{_an(role)} token" if user == caller.name else f"a token for {user}"
            raise Forbidden(f"only an admin may make {what}; you may make viewer and user tokens for yourself")
        runs_jobs = self._auth.settings.shared and role is not Role.VIEWER
        if runs_jobs and user != caller.name and caller.uid not in (0, os.geteuid()):
            root = name_of(os.geteuid())
            raise Forbidden(
                f"only {root} may make a token that runs jobs as {user}; make a viewer token, or let {user} make it"
            )

    def _uid(self, user: str, role: Role) -> int | None:
        """The uid of the token's owner, whom its jobs run as; None where all jobs run as the daemon's user."""
        if not self._auth.settings.shared:
            return None
        uid = uid_of(user)
        if role is Role.ADMIN and uid is not None and not self._permissions.known(uid, "socket").admin:
            raise UserError(
                f"{user} is not an admin here, so an admin token of {user} would be no more than a user token; make "
                f"a user token, or add {user} to the group {self._auth.settings.admin_group} first"
            )
        if uid is None and role is not Role.VIEWER:
            raise UserError(
                f"there is no account {user} on this machine, and jobs run as their owner; make one with "
                f"useradd {user}, or a token that may only look, with --role viewer"
            )
        return uid

    def _runs_as(self, token: Token) -> str | None:
        """The account that the token's jobs run as; None for viewers."""
        if token.role == Role.VIEWER.value:
            return None
        return token.user if self._auth.settings.shared else name_of(os.geteuid())

    def _json(self, token: Token) -> dict[str, Any]:
        return {
            "id": token.id, "user": token.user, "role": token.role, "label": token.label, "made_by": token.made_by,
            "state": token.state(time.time()), "sessions": len(self._auth.credentials.sessions_of(token.id)),
            "created_at": iso(token.created), "expires_at": iso(token.expires), "last_used_at": iso(token.used),
            "revoked_at": iso(token.revoked),
        }  # fmt: skip


def entry_json(seq: int, entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": seq, "at": iso(entry.at), "user": entry.user or None, "via": entry.via, "address": entry.address or None,
        "method": entry.method or None, "path": entry.path, "status": entry.status, "job": entry.job or None,
        "times": entry.times,
    }  # fmt: skip


def _is_theirs(caller: Caller, token: Token) -> bool:
    return token.user == caller.name and caller.via != "nobody"


def _an(role: Role) -> str:
    return f"{'an' if role is Role.ADMIN else 'a'} {role.value}"


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
