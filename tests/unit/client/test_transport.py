"""HTTP as the client speaks it: what it makes of answers in pieces, cut ones, proxies and certificates."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.bareserver import answering
from tests.certificates import certificate

from gpuyard.client.client import Client
from gpuyard.client.transport import HungUp, Invalid, NoDaemon, Refused
from gpuyard.errors import GpuyardError, UserError

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"Content-Length: 2\r\n\r\n{}"


def ask(answer: bytes, **settings: str) -> object:
    with answering(answer) as server:
        return Client(host=f"http://127.0.0.1:{server.port}", timeout=5, **settings).status()  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GPUYARD_HOST", "GPUYARD_TOKEN", "GPUYARD_CA"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b'Content-Length: 8\r\n\r\n{"a": 1}and more',
        OK + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n3;x=y\r\n 1}\r\n0\r\nTrailer: x\r\n\r\n',
        OK + b'\r\n{"a": 1}',
        b'HTTP/1.0 200 OK\nContent-Type: application/json\n\n{"a": 1}',
    ],
)
def test_an_answer_is_read_however_it_is_sent(answer: bytes) -> None:
    assert ask(answer) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Length: 9\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    ],
)
def test_an_answer_that_is_cut_is_none(answer: bytes) -> None:
    with pytest.raises(HungUp, match=r"the daemon at http://127\.0\.0\.1:\d+ hung up"):
        ask(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        OK + b"Content-Length: many\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"X: y\r\n" * 200 + b"\r\n",
    ],
)
def test_what_is_no_daemon_is_told(answer: bytes) -> None:
    with pytest.raises(GpuyardError, match=r"is not gpuyard's daemon; check the address after --host") as caught:
        ask(answer)
    assert not isinstance(caught.value, NoDaemon)  # so it is not waited for


@pytest.mark.parametrize("status", [200, 403, 404, 405, 501])
def test_another_server_is_told(status: int) -> None:
    answer = f"HTTP/1.0 {status} X\r\nContent-Type: text/html\r\n\r\n<!DOCTYPE HTML>".encode()
    with pytest.raises(
        GpuyardError, match=r"^what answers at http://127\.0\.0\.1:\d+ is not gpuyard; check the host, the port and"
    ) as caught:
        ask(answer)
    assert not isinstance(caught.value, NoDaemon | Refused)


def test_a_proxy_without_its_daemon_is_no_daemon() -> None:
    for status in (502, 503, 504):
        with pytest.raises(NoDaemon, match="there is a proxy at"):
            ask(f"HTTP/1.1 {status} X\r\nContent-Length: 6\r\n\r\n<html>".encode())
    problem = b'{"detail": "the disk is full"}'
    with pytest.raises(Refused, match="the disk is full"):
        ask(b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n%b" % (len(problem), problem))


def test_a_token_goes_nowhere_else() -> None:
    moved = b"HTTP/1.1 308 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"
    with answering(moved) as server:
        with pytest.raises(GpuyardError, match="sends to http://elsewhere/; give the address there, if you trust it"):
            Client(host=f"127.0.0.1:{server.port}", token="s3cret", timeout=5).status()
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "head", "token", "told"),
    [
        (401, "", None, r"wants to know who you are: gpuyard login http://127\.0\.0\.1:\d+ stores a token"),
        (401, "", "s3cret", r"does not take this token: it is over \(gpuyard login http://127\.0\.0\.1:\d+ stores"),
        (403, "", "s3cret", "^it is over$"),
        (421, "", "s3cret", "^it is over$"),
        (429, "Retry-After: 7\r\n", "s3cret", r"it is over \(try again in 7 s\)"),
    ],
)
def test_a_refusal_says_what_to_do_and_never_the_token(status: int, head: str, token: str | None, told: str) -> None:
    body = b'{"detail": "it is over"}'
    answer = f"HTTP/1.1 {status} X\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with answering(answer) as server:
        client = Client(host=f"127.0.0.1:{server.port}", token=token, timeout=5)
        with pytest.raises(Refused, match=told) as caught:
            client.status()
        assert caught.value.status == status
        assert "s3cret" not in repr(client) + str(caught.value) + repr(caught.value)
        assert (b"Authorization: Bearer s3cret\r\n" in server.asked[0]) is (token is not None)


@pytest.mark.parametrize("token", ["two words", "line\r\nX-Evil: 1", "tökén"])
def test_a_token_that_would_break_a_header_is_refused_untold(token: str) -> None:
    with pytest.raises(UserError, match="a token must be letters, digits and marks") as caught:
        Client(host="127.0.0.1:1", token=token)
    assert token not in str(caught.value)
    with pytest.raises(UserError, match="a key must be"):
        Client(host="127.0.0.1:1").submit(["true"], key="a\nb")


def test_a_daemon_below_a_path_is_asked_there() -> None:
    with answering(JSON) as server:
        Client(host=f"http://127.0.0.1:{server.port}/lab/gpus/", timeout=5).status()
        head = server.asked[0].decode()
    assert head.startswith("GET /lab/gpus/api/v1/status HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in head


def test_a_token_in_clear_is_warned_of() -> None:
    said: list[str] = []
    Client(host="http://box:1", token="s3cret", say=said.append)
    assert len(said) == 1
    assert "whoever is between here and http://box:1 can read your token" in said[0]
    Client(host="http://localhost:1", token="s3cret", say=said.append)
    Client(host="https://box:1", token="s3cret", say=said.append)
    Client(host="http://box:1", say=said.append)
    assert len(said) == 1


def test_nobody_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said: list[str] = []
    client = Client(host=f"127.0.0.1:{port}", say=said.append)
    for call in (client.status, lambda: client.wait("1"), lambda: client.submit(["true"]), client.acquire):
        with pytest.raises(NoDaemon, match=r"no daemon answers at http://127\.0\.0\.1:\d+; gpuyard status, run there"):
            call()
    with pytest.raises(NoDaemon):
        next(client.follow_events(0))
    assert not said
    with pytest.raises(NoDaemon, match=r"there is no machine called nowhere\.invalid"):
        Client(host="https://nowhere.invalid:1", timeout=5).status()


def test_a_host_and_a_socket_are_not_both_meant() -> None:
    with pytest.raises(UserError, match="say only where it is"):
        Client("/some/socket", host="box:1")


def test_certificates_are_checked(tmp_path: Path) -> None:
    own = certificate(tmp_path / "own")
    with answering(JSON, tls=own) as server:
        url = f"https://localhost:{server.port}"
        with pytest.raises(
            GpuyardError, match=rf"nobody whom this machine knows; .*gpuyard login {url} --ca-file FILE"
        ):
            Client(host=url, timeout=5).status()
        assert Client(host=url, ca=own.file, timeout=5).status() == {}
        assert Client(host=f"https://127.0.0.1:{server.port}", ca=own.file, timeout=5).status() == {}
        with pytest.raises(UserError, match="holds no certificate"):
            Client(host=url, ca=own.key, timeout=5).status()
        with pytest.raises(UserError, match="there is no file"):
            Client(host=url, ca=tmp_path / "none", timeout=5).status()
    other = certificate(tmp_path / "other", "DNS:other.example")
    with answering(JSON, tls=other) as server:
        for name in ("localhost", "127.0.0.1"):
            with pytest.raises(GpuyardError, match=f"a certificate for another name than {name}; reach it by its own"):
                Client(host=f"https://{name}:{server.port}", ca=other.file, timeout=5).status()
    late = certificate(tmp_path / "late", expired=True)
    with (
        answering(JSON, tls=late) as server,
        pytest.raises(GpuyardError, match="has expired; its admin has to renew it"),
    ):
        Client(host=f"https://localhost:{server.port}", ca=late.file, timeout=5).status()
    with answering(b"220 mail\r\n") as server, pytest.raises(GpuyardError, match=r"does not speak TLS .*write http://"):
        Client(host=f"https://localhost:{server.port}", timeout=5).status()


def test_who_speaks_tls_alone_is_not_asked_in_clear_again(tmp_path: Path) -> None:
    said: list[str] = []
    with answering(JSON, tls=certificate(tmp_path / "own")) as server:
        client = Client(host=f"http://localhost:{server.port}", timeout=5, say=said.append)
        for ask in (client.status, lambda: client.submit(["true"]), lambda: next(client.follow_events(0))):
            with pytest.raises(
                GpuyardError, match=rf"^http://localhost:\d+ speaks TLS; write https://localhost:{server.port}$"
            ) as caught:
                ask()
            assert not isinstance(caught.value, NoDaemon)
    assert not said, "nobody is waited for"


def test_an_invalid_request_stays_a_users_mistake() -> None:
    with pytest.raises(Invalid):
        ask(b"HTTP/1.1 422 X\r\nContent-Length: 2\r\n\r\n{}")
