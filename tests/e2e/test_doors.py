"""The daemon's TCP side: who comes in, by what, from where, and what is written down of it."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.asking import Reply, ask
from tests.yard import Yard, opened, until

JOB = {"command": ["true"], "directory": "/", "environment": {}}


class Door:
    """A yard's API on TCP."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.url = yard, yard.client.status()["url"]

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        return ask(self.url, method, path if not path.startswith("/v1") else f"/api{path}", body, **more)

    def token(self, user: str = "ann", role: str = "user", **more: Any) -> str:
        return str(self.yard.client.make_token(user, role=role, **more)["token"])

    def login(self, token: str, **more: Any) -> dict[str, str]:
        """Headers of a page that has logged in: cookie, token against forgery, and origin."""
        reply = self("POST", "/v1/session", {"token": token}, **more)
        assert reply.status == 201, reply
        cookie = SimpleCookie(reply.headers["set-cookie"])["gpuyard_session"].value
        return {"Cookie": f"gpuyard_session={cookie}", "X-CSRF-Token": reply.json["csrf"], "Origin": self.url}


def door_with(tmp_path_factory: pytest.TempPathFactory, *flags: str, **settings: str) -> Iterator[Door]:
    """A daemon of one user, whoever runs the tests."""
    with opened(tmp_path_factory.mktemp("doors")) as yard:
        yard.environment |= {"GPUYARD_SINGLE_USER": "true", **settings}
        yard.serve("--port", "0", *flags)
        yield Door(yard)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One that wants a token of everybody."""
    yield from door_with(tmp_path_factory, "--token", "required")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One that trusts the kernel on who asks, as is usual."""
    yield from door_with(tmp_path_factory)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One behind a proxy."""
    yield from door_with(tmp_path_factory, GPUYARD_ALLOWED_HOSTS="gpus.example.org,box:8443")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One that lets anybody look."""
    yield from door_with(tmp_path_factory, "--token", "none", GPUYARD_ALLOWED_HOSTS="gpus.example.org")


def test_nobody_comes_in_without_a_good_token(door: Door, proxied: Door) -> None:
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/nothing"), ("GET", "/openapi.json")):
        reply = door(method, path, JOB if method == "POST" else None)
        assert reply.status == 401, reply
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "gpuyard token create" in reply.detail
    good, here = proxied.token(), {"X-Forwarded-For": "192.0.2.1"}
    id = good.split("_")[1]
    for wrong in ("x", "gy_", f"gy_{id}_", f"gy_{id}_wrong", f"gy_zzzzzzzz_{good.split('_', 2)[2]}", f"{good}x"):
        reply = proxied("GET", "/v1/jobs", token=wrong, headers=here)
        assert reply.status == 401, wrong
        assert "there is no such token" in reply.detail
    assert proxied("GET", "/v1/jobs", token=good, headers=here).status == 200
    elsewhere = proxied("GET", "/v1/jobs", headers={"X-Auth-Token": good})
    assert elsewhere.status == 401, "that is for watchmen's paths alone"
    assert proxied("GET", f"/v1/jobs?token={good}").status == 401


def test_a_token_is_its_users(door: Door) -> None:
    ann, bob, boss = door.token("ann"), door.token("bob"), door.token("boss", "admin")
    made = door("POST", "/v1/jobs", {**JOB, "command": ["sleep", "100"]}, token=ann)
    assert made.status == 201
    job = made.json["id"]
    assert door("GET", f"/v1/jobs/{job}", token=bob).json["user"] == "ann"
    for method, path in (("POST", "cancel"), ("GET", "log"), ("GET", "environment")):
        reply = door(method, f"/v1/jobs/{job}/{path}", token=bob)
        assert reply.status == 403
        assert "ask ann" in reply.detail
    assert door("POST", "/v1/shutdown", token=ann).status == 403
    assert door("PUT", "/v1/policy", {"policy": "sjf"}, token=ann).status == 403
    assert door("PUT", "/v1/policy", {"policy": "sjf"}, token=boss).status == 200
    assert door("PUT", "/v1/policy", {"policy": "/tmp/mine.py:best"}, token=boss).status == 403, "a file from afar"
    assert door("POST", f"/v1/jobs/{job}/cancel", token=ann).status == 200


def test_a_viewer_changes_nothing(door: Door) -> None:
    viewer = door.token("eve", "viewer")
    assert door("GET", "/v1/status", token=viewer).status == 200
    for method, path, body in (
        ("POST", "/v1/jobs", JOB), ("POST", "/v1/leases", {}), ("POST", "/v1/tokens", {}), ("PUT", "/v1/policy", {}),
        ("POST", "/client/register", {}),
    ):  # fmt: skip
        reply = door(method, path, body, token=viewer)
        assert (reply.status, "viewer" in reply.body.decode()) == (403, True), (method, path)


def test_tokens_end(door: Door) -> None:
    short = door.token(expires=0.5)
    until(lambda: door("GET", "/v1/status", token=short).status == 401, "the end of a token")
    assert "has expired" in door("GET", "/v1/status", token=short).detail
    lost = door.token(label="lost laptop")
    page = door.login(lost)
    assert door("GET", "/v1/session", headers=page).status == 200
    listed = {token["id"]: token for token in door.yard.json("token", "list", "--all")}
    assert listed[lost.split("_")[1]]["sessions"] == 1
    done = door.yard("token", "revoke", lost)
    assert (done.code, done.out) == (0, f"token {lost.split('_')[1]} of ann is revoked\n")
    assert "was revoked" in door("GET", "/v1/status", token=lost).detail
    assert door("GET", "/v1/session", headers=page).status == 401
    assert door("POST", "/v1/session", {"token": lost}).status == 401
    assert door("DELETE", "/v1/tokens/nosuch", token=door.token("boss", "admin")).status == 404


def test_who_waits_when_the_token_is_revoked_gets_nothing(door: Door) -> None:
    token = door.token()
    last = door("GET", "/v1/events?after=1000000", token=token).json["last"]
    found: list[Reply] = []
    thread = threading.Thread(
        target=lambda: found.append(door("GET", f"/v1/events?after={last}&user=nobody&wait=2", token=token))
    )
    thread.start()
    time.sleep(0.2)
    door.yard.client.revoke_token(token.split("_")[1])
    thread.join()
    assert [reply.status for reply in found] == [401]


def test_tokens_of_tokens(door: Door) -> None:
    user, boss = door.token("ann"), door.token("boss", "admin")
    for headers in ({"Authorization": f"Bearer {user}"}, door.login(user)):
        reply = door("POST", "/v1/tokens", {}, headers=headers)
        assert reply.status == 403
        assert "a token cannot make tokens" in reply.detail
    made = door("POST", "/v1/tokens", {"user": "carl", "role": "viewer", "expires": 60}, token=boss)
    assert made.status == 201
    assert (made.json["made_by"], made.json["runs_as"]) == ("boss", None)
    names = {token["user"] for token in door("GET", "/v1/tokens", token=user).json["tokens"]}
    assert names == {"ann"}
    theirs = made.json["id"]
    assert door("DELETE", f"/v1/tokens/{theirs}", token=user).status == 404, "of others nobody learns anything"
    for name in ("anonymous", "a b", "@group", "*", "-x", "", "a/b", "a" * 65, "a\nb"):
        assert door("POST", "/v1/tokens", {"user": name}, token=boss).status == 422, name
    assert door("POST", "/v1/tokens", {"role": "king"}, token=boss).status == 422
    assert door("POST", "/v1/tokens", {"expires": -1}, token=boss).status == 422


def test_the_command(door: Door) -> None:
    done = door.yard("token", "create", "zoe", "--expires", "90d", "--label", "laptop")
    token = done.out.strip()
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert "zoe's user token" in done.err
    assert "its jobs run as" in done.err
    assert door.url in done.err
    secret = token.split("_", 2)[2]
    assert len(secret) >= 43
    assert secret not in done.err
    listed = door.yard("token", "list", "--json")
    assert "laptop" in listed.out
    assert "laptop" in door.yard("token", "list", "--user", "zoe").out
    assert secret not in listed.out
    assert door.yard("token", "create", "--expires", "-3d").code == 2
    refused = door.yard("token", "revoke", "nosuch")
    assert (refused.code, "gpuyard token list" in refused.err) == (1, True)
    made = door.yard.json("token", "create", "yan", "--role", "viewer")
    assert made["token"].startswith(f"gy_{made['id']}_")


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


FOREIGN = (
    "evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost:1", "10.0.0.1:{port}", "127.0.0.1.evil.example",
    "localhost@evil.example", "", "[::1", "a b",
)  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_is_not_ours(home: Door, host: str) -> None:
    """As it comes from a page whose name was made to point here."""
    port = urlsplit(home.url).port
    reply = home("GET", "/v1/jobs", headers={"Host": host.format(port=port)})
    assert reply.status == 421
    assert "allowed_hosts" in reply.detail


def test_names_that_are_ours(home: Door) -> None:
    port = urlsplit(home.url).port
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", "127.0.0.1", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert home("GET", "/v1/jobs", headers={"Host": host}).status == 200, host
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("GET", "/api/v1/jobs", skip_host=True)
    connection.putheader("Host", f"localhost:{port}")
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)
    connection.close()


def test_pages_of_others_cannot_use_whom_the_kernel_names(home: Door) -> None:
    assert home("GET", "/v1/session").json["via"] == "loopback"
    assert home("POST", "/v1/jobs", JOB, headers={"Origin": home.url, "Sec-Fetch-Site": "same-origin"}).status == 201
    for headers in (
        {"Origin": "http://evil.example"}, {"Origin": home.url.replace("http:", "https:")}, {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):  # fmt: skip
        for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/jobs")):
            reply = home(method, path, JOB if method == "POST" else None, headers=headers)
            assert reply.status == 403, headers
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert home("GET", "/", headers=visit).status != 403
    assert home("GET", "/v1/jobs", headers=visit).status == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        for path in ("/v1/jobs", "/v1/leases", "/v1/session", "/v1/tokens", "/auth"):
            reply = home("POST", path, JOB, headers={"Content-Type": kind})
            assert reply.status == 415, (path, kind)
    assert home("POST", "/v1/jobs", JOB, headers={"Content-Type": "Application/JSON; charset=utf-8"}).status == 201
    assert home("GET", "/v1/jobs", token="gy_a_b").status == 401, "a wrong token is not made up for"


def test_strangers_write_nothing_into_the_log(door: Door) -> None:
    place = urlsplit(door.url)
    upgrade = f"GET / HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for sent, status in ((b"what is this?\r\n\r\n", b"400"), (upgrade.encode(), b"200")):
        with socket.create_connection((place.hostname, place.port), 60) as connection:
            connection.sendall(sent)
            assert connection.recv(100).split()[1] == status
    said = (door.yard.data_dir / "daemon.log").read_text()
    assert "the API is at" in said
    assert "WARNING" not in said


def test_strangers_send_little(door: Door) -> None:
    for path in ("/v1/session", "/auth"):
        assert door("POST", path, {"token": "x" * 10_000}).status == 413
        assert door("POST", path, b"[" * 8000).status in (400, 422)


def test_what_all_answers_say_to_browsers(door: Door) -> None:
    for reply in (door("GET", "/v1/jobs"), door("GET", "/v1/jobs", token=door.token()), door("GET", "/show/x")):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "server" not in reply.headers
    assert "script-src 'self'" in door("GET", "/").headers["content-security-policy"]


def test_a_proxy_is_nobody(home: Door, proxied: Door) -> None:
    for name, value in (("X-Forwarded-For", "1.2.3.4"), ("Forwarded", "for=1.2.3.4"), ("Via", "1.1 proxy"),
                        ("X-Forwarded-Proto", "https"), ("X-Real-IP", "1.2.3.4")):  # fmt: skip
        assert home("GET", "/v1/jobs", headers={name: value}).status == 401, name
    assert proxied("GET", "/v1/jobs").status == 401, "with allowed_hosts nobody is named by the kernel"
    token = proxied.token()
    for host in ("gpus.example.org", "GPUS.example.org:443", "box:8443"):
        assert proxied("GET", "/v1/jobs", token=token, headers={"Host": host}).status == 200, host
    for host in ("other.example.org", "box:8444", "box", "gpus.example.org:1"):
        assert proxied("GET", "/v1/jobs", token=token, headers={"Host": host}).status == 421, host
    through = {"Host": "gpus.example.org", "X-Forwarded-For": "198.51.100.1, 203.0.113.9", "X-Forwarded-Proto": "https"}
    reply = proxied("POST", "/v1/session", {"token": token}, headers=through)
    cookie = SimpleCookie(reply.headers["set-cookie"])["gpuyard_session"]
    assert cookie["secure"]
    page = {**through, "Cookie": f"gpuyard_session={cookie.value}", "X-CSRF-Token": reply.json["csrf"]}
    assert proxied("POST", "/v1/jobs", JOB, headers={**page, "Origin": "https://gpus.example.org"}).status == 201
    assert proxied("POST", "/v1/jobs", JOB, headers={**page, "Origin": "https://evil.example"}).status == 403
    moved = {**page, "Origin": "https://gpus.example.org", "X-Forwarded-For": "198.51.100.1"}
    assert proxied("POST", "/v1/jobs", JOB, headers=moved).status == 401, "a cookie that somebody else got hold of"
    addresses = {entry["address"] for entry in proxied.yard.client.audit(user="ann")}
    assert "203.0.113.9" in addresses
    assert "198.51.100.1" not in addresses


def test_who_is_wrong_again_and_again_has_to_wait(proxied: Door) -> None:
    token = proxied.token()
    there, elsewhere = {"X-Forwarded-For": "192.0.2.7"}, {"X-Forwarded-For": "192.0.2.8"}
    for n in range(10):
        if n % 2:
            assert proxied("GET", "/v1/jobs", token="gy_a_b", headers=there).status == 401
        else:
            assert proxied("POST", "/v1/session", {"token": "gy_a_b"}, headers=there).status == 401
    for method, path, more in (
        ("GET", "/v1/jobs", {"token": "gy_a_b"}), ("POST", "/v1/session", {"body": {"token": "gy_a_b"}}),
    ):  # fmt: skip
        reply = proxied(method, path, headers=there, **more)
        assert reply.status == 429
        assert 1 <= int(reply.headers["retry-after"]) <= 31
        assert "wait" in reply.detail
    assert proxied("POST", "/auth", {"token": "gy_a_b"}, headers=there).status == 429
    assert proxied("GET", "/v1/jobs", token=token, headers=there).status == 200
    assert proxied("GET", "/v1/jobs", token="gy_a_b", headers=elsewhere).status == 401


def test_without_tokens_one_may_look_and_wait(wide: Door) -> None:
    assert wide("GET", "/v1/session").json == {"user": "anonymous", "role": "anonymous", "via": "nobody"}
    assert wide("GET", "/v1/jobs").status == 200
    own = wide.yard.client.submit(["sleep", "100"])
    for method, path, body in (
        ("POST", "/v1/jobs", JOB), ("POST", "/v1/jobs/batch", {"jobs": [JOB]}), ("POST", f"/v1/jobs/{own}/cancel", {}),
        ("PATCH", f"/v1/jobs/{own}", {"priority": 1}), ("POST", "/v1/tokens", {}), ("PUT", "/v1/policy", {}),
        ("POST", "/v1/shutdown", {}),
    ):  # fmt: skip
        reply = wide(method, path, body)
        assert (reply.status, "gpuyard token create" in reply.detail) == (401, True), (method, path)
    for path in ("log", "environment"):
        assert wide("GET", f"/v1/jobs/{own}/{path}").status == 403
    assert wide("GET", "/v1/audit").status == 403
    assert wide("GET", "/v1/tokens").json == {"tokens": []}
    assert wide("POST", "/v1/leases", {}).status not in (401, 403)
    assert wide("POST", "/client/nothing", {}).status == 404
    assert wide("POST", "/auth", {}).json == {"status": "ok", "msg": "No authentication required"}
    assert wide("GET", "/v1/jobs", token="gy_a_b").status == 401
    assert wide("POST", "/v1/jobs", JOB, token=wide.token()).status == 201
    assert "BEWARE" in (wide.yard.data_dir / "daemon.log").read_text()
    [sentence] = wide.yard.client.status()["warnings"]
    assert "without a token" in sentence
    assert sentence in wide.yard("status").out
    assert sentence in wide.yard("up").err
    told = {finding["check"]: finding for finding in json.loads(wide.yard("doctor", "--json").out)}
    assert told["network"]["state"] == "warn"
    assert "without a token" in told["network"]["found"]


def test_what_is_written_down(door: Door) -> None:
    ann, bob, boss = door.token("ann"), door.token("bob"), door.token("boss", "admin")
    begin = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    job = door("POST", "/v1/jobs?secret=in-a-query", JOB, token=ann).json["id"]
    several = door("POST", "/v1/jobs/batch", {"jobs": [JOB, JOB, JOB]}, token=ann).json["ids"]
    door("POST", f"/v1/jobs/{job}/hold", token=bob)
    door("GET", "/v1/jobs", token=ann)
    door("POST", "/v1/jobs", {"command": 7}, token=ann)
    for _ in range(5):
        door("GET", f"/v1/{boss}")
    page = door.login(bob)
    door("DELETE", "/v1/session", headers=page)
    assert door("GET", "/v1/audit", token=ann).status == 403
    entries = door("GET", "/v1/audit?limit=1000", token=boss).json["entries"][::-1]
    seen = [(one["user"], one["via"].split()[0], one["method"], one["path"], one["status"], one["job"])
            for one in entries if one["at"] >= begin]  # fmt: skip
    wanted = [
        ("ann", "token", "POST", "/api/v1/jobs", 201, job),
        ("ann", "token", "POST", "/api/v1/jobs/batch", 201, f"{several[0]}-{several[-1]}"),
        ("bob", "token", "POST", f"/api/v1/jobs/{job}/hold", 403, job),
        ("bob", "session", "POST", "/api/v1/session", 201, None),
        ("bob", "session", "DELETE", "/api/v1/session", 204, None),
    ]
    assert [entry for entry in wanted if entry in seen] == wanted, seen
    assert not [entry for entry in seen if entry[2:4] == ("GET", "/api/v1/jobs") and entry[4] == 200]
    hidden = [one for one in entries if one["path"] == f"/api/v1/gy_{boss.split('_')[1]}_..."]
    assert sum(one["times"] for one in hidden) == 5, "and no token in a path"
    assert all(one["address"] == "127.0.0.1" for one in hidden)
    mine = door.yard.submit("--", "true")
    [last] = door.yard.json("audit", "--limit", "1")
    assert (last["via"], last["job"], last["address"]) == ("socket", mine, None)
    assert door.yard.json("audit", "--user", "bob", "--since", "1h")[0]["user"] == "bob"
    table = door.yard("audit", "--user", "bob")
    assert "DELETE /api/v1/session" in table.out


def test_no_secret_is_kept_anywhere(door: Door) -> None:
    token = door.token("ann", label="look for me")
    secret = token.split("_", 2)[2].encode()
    page = door.login(token)
    cookie = page["Cookie"].partition("=")[2].encode()
    door("POST", "/v1/jobs", JOB, token=token)
    door("GET", f"/show/x?token={token}")
    door("GET", f"/v1/jobs/{token}", token=token)
    door("POST", "/v1/jobs", b"{" + secret, token=token)
    door("POST", f"/{token}", {"token": token}, token=f"{token}x")
    with socket.create_connection(("127.0.0.1", urlsplit(door.url).port), timeout=60) as raw:
        raw.sendall(f"GET \x7f HTTP/9\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert b" 400 " in raw.recv(4096)
    entries = door.yard.client.audit(limit=1000)  # all is written now
    assert secret.decode() not in json.dumps(entries)
    found = [path for path in door.yard.data_dir.rglob("*") if path.is_file()]
    assert {"access.db", "daemon.log"} <= {path.name for path in found}
    for path in found:
        data = path.read_bytes()
        assert secret not in data, path
        assert cookie not in data, path
    for path in door.yard.data_dir.glob("access.db*"):
        assert path.stat().st_mode & 0o777 == 0o600, path
    with sqlite3.connect(door.yard.data_dir / "access.db") as database:
        assert all(
            len(row[0]) == 32 for row in database.execute("SELECT hash FROM tokens UNION SELECT hash FROM sessions")
        )
    database.close()


def test_tokens_sessions_and_the_trail_outlive_the_daemon(tmp_path_factory: pytest.TempPathFactory) -> None:
    for door in door_with(tmp_path_factory, "--token", "required"):
        token, gone = door.token(), door.token()
        page = door.login(token)
        door.yard.client.revoke_token(gone.split("_")[1])
        door.yard.end()
        door.yard.serve("--port", "0", "--token", "required")
        door.url = door.yard.client.status()["url"]
        assert door("GET", "/v1/jobs", token=token).status == 200
        assert door("GET", "/v1/jobs", token=gone).status == 401
        assert door("POST", "/v1/jobs", JOB, headers={**page, "Origin": door.url}).status == 201
        assert any(entry["path"].startswith("/api/v1/tokens/") for entry in door.yard.client.audit())
