"""Sessions: how pages log in, ours and those for watchmen, and what a cookie is good for."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any

from tests.doors import JOB, Door
from tests.web import Reply


def test_a_page_logs_in_and_out(door: Door) -> None:
    token = door.token()
    wrong = door("POST", "/v1/session", {"token": "gy_a_b"})
    assert (wrong.status, wrong.headers["www-authenticate"]) == (401, "Bearer")
    assert door("POST", "/v1/session", {}).status == 422
    reply = door("POST", "/v1/session", {"token": token})
    assert (reply.json["user"], reply.json["role"], reply.json["via"]) == ("ann", "user", "session")
    cookie = SimpleCookie(reply.headers["set-cookie"])["gpuyard_session"]
    assert cookie["httponly"]
    assert (cookie["samesite"].lower(), cookie["path"], cookie["secure"]) == ("strict", "/", "")
    only_cookie = {"Cookie": f"other=1; gpuyard_session={cookie.value}"}
    who = door("GET", "/v1/session", headers=only_cookie)
    assert who.json["csrf"] == reply.json["csrf"]
    page = {**only_cookie, "X-CSRF-Token": reply.json["csrf"], "Origin": door.url}
    assert door("DELETE", "/v1/session", headers=page).status == 204
    assert door("GET", "/v1/session", headers=only_cookie).status == 401
    assert door("GET", "/v1/session", headers={"Cookie": "gpuyard_session=x"}).status == 401


def test_a_cookie_alone_changes_nothing(door: Door) -> None:
    page = door.login(door.token())
    assert door("POST", "/v1/jobs", JOB, headers=page).status == 201
    without_origin = {name: value for name, value in page.items() if name != "Origin"}
    fetched = {**without_origin, "Sec-Fetch-Site": "same-origin"}
    assert door("POST", "/v1/jobs", JOB, headers=fetched).status == 201
    for wrong, why in (
        ({name: value for name, value in page.items() if name != "X-CSRF-Token"}, "X-CSRF-Token"),
        ({**page, "X-CSRF-Token": "x"}, "X-CSRF-Token"),
        (without_origin, "Origin"),
        ({**page, "Origin": "http://evil.example"}, "evil.example"),
        ({**page, "Origin": "null"}, "null"),
        ({**page, "Sec-Fetch-Site": "cross-site"}, "another site"),
        ({**page, "Sec-Fetch-Site": "same-site"}, "another site"),
    ):
        reply = door("POST", "/v1/jobs", JOB, headers=wrong)
        assert (reply.status, why in reply.detail) == (403, True), reply


def test_a_bad_cookie_before_a_good_one_harms_nobody(door: Door) -> None:
    """Another server of the same host, or an earlier daemon, may have set one of the same name."""
    page = door.login(door.token())
    both = f"gpuyard_session=stale; other=1; gpuyard_session=; {page['Cookie']}; gpuyard_session=later"
    assert door("GET", "/v1/session", headers={"Cookie": both}).json["csrf"] == page["X-CSRF-Token"]
    assert door("POST", "/v1/jobs", JOB, headers={**page, "Cookie": both}).status == 201
    assert door("POST", "/v1/jobs", JOB, headers={**page, "Cookie": both, "X-CSRF-Token": "x"}).status == 403


def test_watchmens_way_in(door: Door) -> None:
    token = door.token()

    def said(reply: Reply) -> tuple[int, Any]:
        return reply.status, reply.json

    assert said(door("POST", "/auth", {})) == (400, {"status": "err", "msg": "Token required"})
    assert said(door("POST", "/auth", b"{")) == (400, {"status": "err", "msg": "Token required"})
    assert said(door("POST", "/auth", {"token": "x"})) == (401, {"status": "err", "msg": "Invalid token"})
    reply = door("POST", "/auth", {"token": token})
    assert said(reply) == (200, {"status": "ok", "msg": "Authentication successful"})
    cookie = reply.headers["set-cookie"].partition(";")[0]
    assert door("GET", "/v1/session", headers={"Cookie": cookie}).json["user"] == "ann"
    code, body = said(door("GET", "/show/nothing"))
    assert (code, body["status"]) == (401, "err")
    assert "token" in body["msg"]
    for how in ({"headers": {"X-Auth-Token": token}}, {"token": token}):
        assert said(door("GET", "/show/nothing", **how))[0] == 404
    assert said(door("GET", f"/show/nothing?token={token}"))[1]["status"] == "err"
    assert said(door("GET", "/show/nothing", headers={"X-Auth-Token": "x"}))[0] == 401


def test_another_page_reads_watchmens_api_with_a_token_alone(door: Door, home: Door) -> None:
    foreign = {"Origin": "https://dashboard.example"}
    token = door.token(role="viewer")
    asked = {**foreign, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-auth-token"}
    before = door("OPTIONS", "/api", headers=asked)
    assert (before.status, before.headers["access-control-allow-origin"]) == (204, "*")
    assert "X-Auth-Token" in before.headers["access-control-allow-headers"]
    reply = door("GET", f"/api?token={token}", headers=foreign)
    assert reply.status != 403
    assert reply.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in reply.headers
    page = door.login(token)
    for refused in (
        door("GET", "/api", headers={**foreign, "X-Auth-Token": "x"}), door("GET", "/api", headers={**page, **foreign}),
        home("GET", "/api", headers=foreign), door("OPTIONS", "/v1/jobs", headers=asked),
        door("GET", f"/show/gpus?token={token}", headers=foreign),
        door("GET", "/v1/jobs", token=token, headers=foreign),
    ):  # fmt: skip
        assert refused.status in (401, 403)
        assert "access-control-allow-origin" not in refused.headers
