"""Who may use which route: none can be added without saying so."""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute

from gpuyard.config import Settings
from gpuyard.core.model import Quota, Rules
from gpuyard.errors import UserError
from gpuyard.server.app import Server, make_app
from gpuyard.server.auth.permissions import Caller, Forbidden, Permission, Permissions
from gpuyard.server.routing import complete_routes

OWNER = {
    "cancel", "hold", "release", "log", "environment", "clone", "retry", "progress", "heartbeat", "ping", "grant",
    "return", "requeue",
}  # fmt: skip
OWN = {("PATCH", "/jobs/{job}"), ("POST", "/jobs/{job}/report")}
OPEN = {
    ("POST", "/jobs"), ("POST", "/jobs/batch"), ("POST", "/jobs/bulk"), ("POST", "/leases"), ("POST", "/tokens"),
    ("DELETE", "/tokens/{id}"),
    ("POST", "/session"), ("DELETE", "/session"), ("POST", "/auth"), ("POST", "/client/register"),
    ("POST", "/notifications/subscriptions"), ("DELETE", "/notifications/subscriptions/{subscription}"),
    ("POST", "/notifications/subscriptions/{subscription}/test"), ("POST", "/policy/preview"),
    ("POST", "/estimates"), ("DELETE", "/estimates/{signature}"),
}  # fmt: skip
"""What anybody may change: they add jobs of their own, tokens, sessions and places to be told; previews and guesses are
looks. Whose runs may be forgotten, and whose jobs change in bulk, the handler says."""
ADMIN = {
    ("PUT", "/policy"), ("POST", "/shutdown"), ("POST", "/gpus/drain"), ("POST", "/gpus/resume"),
    ("POST", "/reservations"), ("DELETE", "/reservations/{name}"), ("PUT", "/rules/quotas/{name}"),
    ("PUT", "/rules/shares/{name}"), ("GET", "/audit"),
}  # fmt: skip


async def _routes() -> list[APIRoute]:
    yard = cast(Any, SimpleNamespace(listeners=[], engine=None, commands=None, bulk=SimpleNamespace(), context=None))
    server = Server(yard, Settings(Path("/x"), Path("/x/s")), lambda: None)
    return complete_routes(make_app(server))


def test_every_route_says_who_may_use_it() -> None:
    routes = asyncio.run(_routes())
    assert len(routes) > 10
    for route in routes:
        assert route.methods
        [method] = route.methods
        path = route.path.removeprefix("/api/v1")
        may = Permission((route.openapi_extra or {})["x-may"])
        last = path.rpartition("/")[2]
        own = last in OWNER or (method, path) in OWN
        wanted = Permission.ADMIN if (method, path) in ADMIN else Permission.OWNER if own else Permission.EVERYBODY
        assert may is wanted, f"{method} {path}"
        assert (may is Permission.EVERYBODY) is (not route.dependencies), f"{method} {path} is not guarded"
        if method != "GET":  # whoever adds a change has to think about whom it concerns, and to say so here
            assert wanted is not Permission.EVERYBODY or (method, path) in OPEN, f"{method} {path}"


def test_rules() -> None:
    permissions = Permissions(Settings(Path("/x"), Path("/x/s"), admin_group="wheels"))
    ann, boss = Caller(1001, "ann", False), Caller(1002, "boss", True)
    permissions.check(Permission.EVERYBODY, ann, "look", lambda: "bob")
    permissions.check(Permission.OWNER, ann, "cancel job 1", lambda: "ann")
    for may in Permission:
        permissions.check(may, boss, "do it", lambda: "bob")
    with pytest.raises(Forbidden, match="only bob may cancel job 1, since the job is bob's; ask bob, or root"):
        permissions.check(Permission.OWNER, ann, "cancel job 1", lambda: "bob")
    with pytest.raises(Forbidden, match="is root's; ask root, or a member of the group wheels"):
        permissions.check(Permission.OWNER, ann, "cancel job 1", lambda: "root")
    with pytest.raises(Forbidden, match="only an admin may drain: ask root, or a member of the group wheels"):
        permissions.check(Permission.ADMIN, ann, "drain", lambda: "ann")


def test_files_of_policies_are_the_daemons_users_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.server.auth.permissions.shipped", lambda: ["week"])
    permissions = Permissions(Settings(Path("/x"), Path("/x/s")))
    me, boss = Caller(os.geteuid(), "me", True), Caller(os.geteuid() + 1, "boss", True)
    for policy in ("sjf", "learned:week", " learned:week@easy@pack"):
        permissions.check_policy(boss, policy)
    for policy in ("/x/mine.py:mine", "learned:/x/p.json", " learned:/x/p@easy", "learned:./week", "learned:"):
        permissions.check_policy(me, policy)
        for other in (boss, replace(me, via="token 1")):
            with pytest.raises(Forbidden, match="may set a policy from a file, and not by a token"):
                permissions.check_policy(other, policy)


def test_priorities_beyond_the_usual_are_for_admins_where_several_share(monkeypatch: pytest.MonkeyPatch) -> None:
    ann, boss = Caller(1001, "ann", False), Caller(1002, "boss", True)
    monkeypatch.setattr("gpuyard.config._is_root", lambda: True)
    usual = Permissions(Settings(Path("/x"), Path("/x/s")))
    for priority in (0.0, -5.0):
        usual.check_priority(ann, priority)
    usual.check_priority(boss, 1000.0)
    with pytest.raises(
        UserError, match=r"priority 1000 is more than users may ask for here, which is 0 .*ask an admin"
    ):
        usual.check_priority(ann, 1000.0)
    Permissions(Settings(Path("/x"), Path("/x/s"), max_priority=math.inf)).check_priority(ann, 1000.0)
    Permissions(Settings(Path("/x"), Path("/x/s"), single_user=True)).check_priority(ann, 1000.0)


def test_nobody_is_trusted_whom_the_kernel_does_not_name() -> None:
    permissions = Permissions(Settings(Path("/x"), Path("/x/s")))
    request = cast(Any, SimpleNamespace(state=SimpleNamespace()))
    with pytest.raises(Forbidden, match="it cannot be told who you are"):
        permissions.caller(request)


def test_the_group_that_counts_is_one_that_rules_name() -> None:
    ann = Caller(1001, "ann", False, ("staff", "students", "video"))
    assert ann.group(None) == ann.group(Rules()) == "staff,students,video"
    rules = Rules(quotas=(("@video", Quota(1)),), weights=(("@students", 2.0),))
    assert ann.group(rules) == "students,video,staff"
    assert Caller(1002, "bob", False).group(Rules()) == ""
    alone = Caller(1002, "bob", False, ("bob", "video"))
    assert alone.group(Rules()) == "video,bob", "a group of one's own shares with nobody, but its quota counts"
    assert Caller(1002, "bob", False, ("bob",)).group(Rules()) == ",bob"
    assert alone.group(Rules(weights=(("@bob", 2.0),))) == "bob,video"
