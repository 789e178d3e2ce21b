"""By which name the daemon is asked on TCP, from which page, through which proxy, and by strangers."""

from __future__ import annotations

import http.client
import json
import os
import socket
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

import pytest
from tests.doors import JOB, Door

from gpuyard.client.transport import Request, UnixTransport, send
from gpuyard.engines.local.accounts import name_of

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


def test_a_proxys_process_holds_no_lease_of_others(door: Door) -> None:
    """It lives on when they are gone; and if it is root's, they could name any process of the machine."""
    way = UnixTransport(door.yard.client.socket)
    for more, user in (({"X-Forwarded-For": "192.0.2.1"}, name_of(os.geteuid())), ({}, "ann")):
        sent = {"Authorization": f"Bearer {door.token(user)}", **more}
        for wish in ({}, {"holder": os.getppid()}):
            reply = send(way, Request("POST", "/api/v1/leases", json.dumps(wish).encode(), sent))
            assert reply.status == 422, reply
            assert b"your process cannot be seen from here" in reply.body


def test_strangers_write_nothing_into_the_log(door: Door) -> None:
    place = urlsplit(door.url)
    upgrade = f"GET / HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for sent, status in ((b"what is this?\r\n\r\n", b"400"), (upgrade.encode(), b"403")):
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
