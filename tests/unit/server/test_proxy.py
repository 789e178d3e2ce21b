"""The daemon's side of the page: requests and websockets go to its process and back, and who looks is known there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State
from tests import pagestandin
from tests.pagestandin import PIECE
from tests.web import Reply, ask
from tests.websocket import Websocket
from tests.yard import PATIENCE, until

from gpuyard.config import Settings
from gpuyard.errors import UserError
from gpuyard.server import serve
from gpuyard.server import sockets as listening
from gpuyard.server.app import HeadMiddleware
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.auth.middleware import Auth, AuthMiddleware
from gpuyard.server.auth.permissions import Caller, Permissions, SubmitterLimits
from gpuyard.server.proxy import http_proxy, supervisor, websocket_proxy
from gpuyard.server.proxy.http_proxy import HttpProxy
from gpuyard.server.proxy.supervisor import PageSupervisor
from gpuyard.server.proxy.websocket_proxy import WebSocketProxy
from gpuyard.server.sockets import Peer, PeerProtocol, RemoteSocket, listen, listen_on

COMMAND = (sys.executable, str(Path(pagestandin.__file__)))


async def _routes(scope: Any, receive: Any, send: Any) -> None:
    """What stands in for the API: it tells who asks."""
    caller = scope["state"]["caller"]
    told = {"name": caller.name, "way": caller.way, "admin": caller.admin, "role": caller.role.value}
    body = json.dumps(told).encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class House:
    """A server with a page, in a thread of its own."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.settings = Settings(folder, folder / "gpuyard.sock", single_user=True, **more)
        self.access = CredentialStore(folder / "access.db")
        self.permissions = Permissions(self.settings)
        self.auth = Auth(self.settings, self.permissions, self.access)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))

    def __enter__(self) -> House:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._end)
        self._thread.join(PATIENCE)
        self.access.close()
        assert not self._thread.is_alive()

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.page = PageSupervisor(self.settings, COMMAND)
        PeerProtocol.is_page = self.page.is_page
        app: Any = AuthMiddleware(HeadMiddleware(HttpProxy(_routes, self.page, self.auth)), self.auth)
        websockets = WebSocketProxy(self.page, self.auth)
        network = listen_on("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{network.getsockname()[1]}"
        here = listen(self.settings.socket, 0o600)
        self.servers = [serve._server(app, websockets=websockets) for _ in range(2)]
        self.page.open(self.url)
        self.page.start(lambda: all(server.started for server in self.servers))
        self._ready.set()
        await asyncio.gather(*(s.serve(sockets=[one]) for s, one in zip(self.servers, (network, here), strict=True)))
        await self.page.close()

    def _end(self) -> None:
        self.page.end()
        for server in self.servers:
            server.should_exit = True

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        return ask(self.url, method, path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def websocket(self, path: str = "/_nicegui_ws/socket.io/?a=b", **headers: str) -> Websocket:
        return Websocket(self.url, path, {"Origin": self.url, **headers})

    def by_socket(self, ticket: str) -> Reply:
        """What the API answers if the page's process asks with a ticket (or without)."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PeerProtocol, "is_page", staticmethod(lambda pid: True))
            return self.from_anybody(ticket)

    def from_anybody(self, ticket: str) -> Reply:
        """The same, if any other process of the same user does."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.settings.socket))
            shown = f"Authorization: Bearer {ticket}\r\n" if ticket else ""
            connection.sendall(f"POST /api/v1/x HTTP/1.1\r\nHost: x\r\n{shown}Connection: close\r\n\r\n".encode())
            said = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = said.partition(b"\r\n\r\n")
        return Reply(int(head.split()[1]), None, body)  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def _another_process() -> Iterator[None]:
    """Who asks is this very process, which would not be trusted to speak for its user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listening, "far_end", lambda _: RemoteSocket(os.geteuid(), 1))
        yield


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("house")) as found:
        until(lambda: found.page.answers, "an answer of the page")
        yield found


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One that wants tokens."""
    with House(tmp_path_factory.mktemp("closed"), tokens="required") as found:
        until(lambda: found.page.answers, "an answer of the page")
        yield found


def _login(house: House, role: str = "user") -> tuple[str, str]:
    """A session's id, and its cookie."""
    token, _ = house.access.make("ann", role)
    session, secret = house.access.open_session(token, f"uid {os.geteuid()}")
    return session.id, f"theme=dark; gpuyard_session={secret}; zone=UTC"


# -- requests -------------------------------------------------------------------------------------


def test_a_request_goes_there_and_back_without_what_is_not_for_the_page(house: House) -> None:
    reply = house.ask(
        "GET", "/jobs/a%2Fb?c=%20d", Cookie="gpuyard_session=secret; theme=dark", X_GPUYARD_Ticket="forged",
        Accept_Language="de", TE="trailers",
    )  # fmt: skip
    told = reply.json
    assert (told["path"], told["query"], told["headers"]["cookie"]) == ("/jobs/a/b", "c=%20d", "theme=dark")
    assert told["headers"]["x-gpuyard-ticket"].startswith("gt_")
    assert (told["headers"]["accept-language"], "te" in told["headers"]) == ("de", False)
    assert reply.headers["Cache-Control"] == "max-age=9"
    assert reply.headers.get_all("Set-Cookie") == ["theme=dark"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
    assert (told["nice"], told["pid"], reply.headers["keep-alive"]) == (5, house.page.pid, None)


def test_a_proxys_headers_are_not_passed_on(house: House) -> None:
    told = house.ask("GET", "/login", X_Forwarded_For="1.2.3.4", Forwarded="for=1.2.3.4", Via="x").json["headers"]
    assert not {"x-forwarded-for", "forwarded", "via", "x-gpuyard-ticket"} & told.keys()


def test_assets_need_nobody_to_be_known(house: House) -> None:
    assert "x-gpuyard-ticket" not in house.ask("GET", "/_nicegui/3/a.js").json["headers"]


def test_heads_and_other_statuses(house: House) -> None:
    reply = house.ask("HEAD", "/")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["Content-Length"]) > 100
    assert house.ask("GET", "/page/elsewhere").status == 303


def test_long_answers_pass_whole(house: House) -> None:
    reply = house.ask("GET", "/page/endless")
    assert len(reply.body) == 1024 * len(PIECE)
    assert hashlib.sha256(reply.body).digest() == hashlib.sha256(PIECE * 1024).digest()


def test_files_may_be_sent_by_the_page_alone(house: House) -> None:
    data = b"x" * (20 * 2**20)
    kind = {"Content_Type": "text/csv"}
    assert house.ask("POST", "/page/upload", data, Origin=house.url, **kind).json["body"] == len(data)
    assert house.ask("POST", "/_nicegui/client/a-b/upload/7", data, Origin=house.url, **kind).json["body"] == len(data)
    assert house.ask("POST", "/page/upload", b"x", **kind).status == 403, "no page says that it sent this"
    assert house.ask("POST", "/page/upload", b"x", Origin="http://evil.example", **kind).status == 403
    assert house.ask("POST", "/page/else", data, Origin=house.url, **kind).status == 413
    assert house.ask("POST", "/api/v1/x", b"x", Origin=house.url, **kind).status == 415


def test_other_sites_may_link_to_a_page_and_do_nothing_else(house: House) -> None:
    visit = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert house.ask("GET", "/jobs/1", **visit).status == 200
    assert house.ask("GET", "/jobs/1", **visit | {"Sec_Fetch_Dest": "iframe"}).status == 403
    assert house.ask("GET", "/", Host="evil.example").status == 421


def test_an_answer_that_breaks_off_is_not_taken_for_whole(house: House) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        house.ask("GET", "/page/cut")
    until(lambda: house.page.answers, "the page being back")


def test_one_that_ends_comes_back_and_requests_wait_for_it(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuyard")
    former = house.ask("GET", "/").json["pid"]  # by its own answer: the last test may have ended the one before
    starts = house.page.starts
    house.page._quick_ends = 0
    os.kill(former, signal.SIGKILL)
    told = house.ask("GET", "/queue").json
    assert told["pid"] == house.page.pid != former
    assert house.page.starts == starts + 1
    assert "was ended by signal 9 (SIGKILL); the queue is not affected, and it is started again now" in caplog.text
    until(lambda: "page: a word" in caplog.text, "its words in our log")


def test_what_ends_the_process_is_not_asked_for_again_and_again(house: House) -> None:
    house.page._quick_ends = 0
    starts = house.page.starts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_proxy, "_TRIES", 2)
        assert house.ask("GET", "/page/deadly").status == 503
    assert house.page.starts - starts <= 2
    house.page._quick_ends = 0
    until(lambda: house.page.answers, "the page being back")


def test_a_no_that_comes_before_all_of_the_question_is_heard(house: House) -> None:
    """However the two cross: the process hangs up while there is still something to be sent to it."""
    said = [house.ask("POST", "/page/hasty", PIECE * 16, Origin=house.url) for _ in range(20)]
    assert [(reply.status, reply.body) for reply in said] == [(403, b"no")] * 20


def test_whoever_leaves_is_not_asked_for_again(house: House) -> None:
    host, _, port = house.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(f"GET /page/slow HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        until(lambda: house.ask("GET", "/").json["asked"].get("/page/slow"), "the question there")
    time.sleep(3 * http_proxy._AGAIN)
    assert house.ask("GET", "/").json["asked"]["/page/slow"] == 1


def test_who_waits_too_long_is_told_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_proxy, "_VISITOR", 0.1)
    pid = house.page.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        reply = house.ask("GET", "/queue", Accept="text/html,*/*")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
    assert b'http-equiv="refresh"' in reply.body
    assert b"<script" not in reply.body
    assert house.page.pid == pid


def _pumps(house: House) -> list[websocket_proxy.BrowserConnection]:
    connections = [one for server in house.servers for one in list(server.server_state.connections)]
    return [one for one in connections if isinstance(one, websocket_proxy.BrowserConnection)]


# -- websockets -----------------------------------------------------------------------------------


def test_a_websocket_there_and_back(house: House) -> None:
    with house.websocket(Cookie="gpuyard_session=x; a=b", **{"X-GPUYARD-Ticket": "forged"}) as line:
        assert line.status == 101
        told = json.loads(line.read())
        assert told["x-gpuyard-ticket"].startswith("gt_")
        assert (told["cookie"], told["origin"]) == ("a=b", house.url)
        for text in ("hello", "x" * 60_000):
            line.send(text)
            assert line.read() == text.encode()
        assert sum(map(len, PeerProtocol._open.values())) >= 1


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/_nicegui_ws/socket.io/", {"Origin": "http://evil.example"}, 403),
        ("/_nicegui_ws/socket.io/", {"Origin": "null"}, 403),
        ("/_nicegui_ws/socket.io/", {"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ("/_nicegui_ws/socket.io/", {"Content-Length": "0"}, 400),
        ("/_nicegui_ws/x", {}, 404),
        ("/api/v1/jobs", {}, 404),
        ("/", {}, 404),
    ],
)
def test_a_websocket_is_refused(house: House, path: str, headers: dict[str, str], status: int) -> None:
    with house.websocket(path, **headers) as line:
        assert line.status == status
        line.stream.read()  # it hangs up


def test_without_an_origin_there_is_no_websocket(house: House) -> None:
    with Websocket(house.url, "/_nicegui_ws/socket.io/", {}) as line:
        assert line.status == 403


def test_a_websocket_ends_with_the_process_and_waits_for_the_next(house: House) -> None:
    house.page._quick_ends = 0
    with house.websocket() as line:
        line.read()
        assert house.page.pid is not None
        os.kill(house.page.pid, signal.SIGKILL)
        assert line.read() == b""
    with house.websocket() as line:
        assert line.status == 101


def test_connections_of_websockets_are_counted_until_they_end(house: House) -> None:
    def count() -> int:
        return len(PeerProtocol._open.get(os.geteuid(), ()))

    until(lambda: count() <= 1, "the end of others")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(house.websocket()) for _ in range(5)]
        assert all(line.read() for line in lines)
        assert count() >= 5
    until(lambda: count() == 0, "the end of all")
    assert not _pumps(house)


def test_who_takes_nothing_is_given_up_and_little_is_kept_for_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_proxy, "_STUCK", 0.5)
    with house.websocket() as line:
        line.read()
        line.send("flood")
        pumps = until(lambda: len(found := _pumps(house)) == 1 and found, "the end of others")
        most = 0
        end = time.monotonic() + PATIENCE
        while not pumps[0]._transport.is_closing() and time.monotonic() < end:
            most = max(most, pumps[0]._transport.get_write_buffer_size())
            time.sleep(0.01)
        assert pumps[0]._transport.is_closing()
        assert 0 < most < 2**20
    assert house.page.answers


# -- tickets --------------------------------------------------------------------------------------


def _ticket(house: House, **headers: str) -> str:
    return str(house.ask("GET", "/", **headers).json["headers"].get("x-gpuyard-ticket", ""))


def test_a_ticket_is_of_whoever_looks_and_counts_for_the_page_alone(house: House) -> None:
    ticket = _ticket(house)
    told = house.by_socket(ticket).json
    assert told == {"name": house.permissions.known(os.geteuid(), "x").name, "way": "loopback, page", "admin": True,
                    "role": "admin"}  # fmt: skip
    assert house.from_anybody(ticket).status == 401
    assert house.ask("GET", "/api/v1/x", Authorization=f"Bearer {ticket}").status == 401
    forged = ticket[:-4] + ("AAAA" if ticket[-4:] != "AAAA" else "BBBB")
    body, _, signature = ticket.removeprefix("gt_").partition(".")
    for wrong in (forged, f"gt_{body}", f"gt_{body}x.{signature}", "gt_", "gt_.", "gt_\xe9.x", "gt_" + "x" * 9000):
        assert house.by_socket(wrong).status == 401, wrong
    assert house.by_socket("").status == 403, "the page may look, for nobody, and change nothing"


def test_an_unknown_viewer_has_no_ticket(closed: House) -> None:
    assert closed.ask("GET", "/login").status == 200
    assert _ticket(closed) == ""
    with closed.websocket() as line:
        assert "x-gpuyard-ticket" not in json.loads(line.read())


def test_a_session_that_ends_ends_its_tickets_and_its_websockets(
    closed: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_proxy, "_CHECK", 0.05)
    session, cookie = _login(closed)
    ticket = _ticket(closed, Cookie=cookie)
    assert closed.by_socket(ticket).json["way"] == f"session {session}, page"
    with closed.websocket(Cookie=cookie) as line:
        assert json.loads(line.read())["cookie"] == "theme=dark; zone=UTC"
        closed.access.close_session(session)
        assert line.read() == b"\x03\xf0", "1008: a policy says no"
        assert line.read() == b""
    assert closed.by_socket(ticket).status == 401
    assert "log in again" in closed.by_socket(ticket).json["detail"]
    assert _ticket(closed, Cookie=cookie) == ""


def test_a_viewers_ticket_is_a_viewers(closed: House) -> None:
    _, cookie = _login(closed, "viewer")
    assert closed.by_socket(_ticket(closed, Cookie=cookie)).status == 403
    assert closed.ask("POST", "/_nicegui_ws/socket.io/", b"4:abc", Cookie=cookie, Origin=closed.url).status == 200
    assert closed.ask("POST", "/_nicegui_ws/socket.io/", b"4:abc", Origin=closed.url).status == 200, (
        "who logs in is nobody yet"
    )
    assert closed.ask("POST", "/_nicegui_ws/socket.io/", b"4" * 9000, Origin=closed.url).status == 413


def test_a_revoked_token_ends_its_ticket(closed: House) -> None:
    token, text = closed.access.make("bob", "user")
    ticket = _ticket(closed, Authorization=f"Bearer {text}")
    assert closed.by_socket(ticket).json["name"] == "bob"
    closed.access.revoke(token.id)
    assert closed.by_socket(ticket).status == 401


def test_what_is_done_by_the_page_is_in_the_audit_log_as_such(closed: House) -> None:
    session, cookie = _login(closed)
    closed.by_socket(_ticket(closed, Cookie=cookie))
    [(_, entry), *_] = closed.auth.audit.find("ann")
    assert (entry.user, entry.via, entry.address) == ("ann", f"session {session}, page", "127.0.0.1")


# -- the process ----------------------------------------------------------------------------------


def test_one_that_never_lives_is_started_ever_more_rarely(tmp_path: Path) -> None:
    keeper = PageSupervisor(Settings(tmp_path, tmp_path / "s"), ())
    assert [keeper._delay(1.0) for _ in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert keeper._delay(100.0) == 0.0


def test_websockets_are_told_that_the_daemon_ends_which_does_not_wait_for_them(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        line = house.websocket()
        assert line.read()
        pid = house.page.pid
    with line:
        told = list(iter(line.read, b""))
        assert told, "it was told"
        assert {*told} <= {b"\x03\xe9", b"\x03\xf4"}, "1001, going away; or the page's own 1012, restarting; or both"
    assert pid is not None
    assert not Path(f"/proc/{pid}/exe").exists()


def test_limits_of_jobs_are_those_of_whoever_looks(tmp_path: Path) -> None:
    submitters = SubmitterLimits(Settings(tmp_path, tmp_path / "s"))
    submitters._shared = True
    request: Any = SimpleNamespace(state=State({"peer": Peer(os.getpid(), os.geteuid(), 0)}))
    assert submitters.of_viewer(request.state, "socket") == (), "as ours are"
    assert submitters.of_viewer(State({"far": RemoteSocket(os.geteuid(), 1)}), "loopback") is None
    viewer = Caller(1, "ann", False, via="loopback", by_page=True, limits=("nofile=9:9",))
    assert submitters.limits(request, viewer) == ("nofile=9:9",), "and not those of the page's process"
    with pytest.raises(UserError, match="reload the page"):
        submitters.limits(request, replace(viewer, limits=None))


def test_one_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_STUCK", 0.3)
    monkeypatch.setattr(supervisor, "_LOOK", 0.05)
    with House(tmp_path) as house:
        until(lambda: house.page.answers, "an answer of the page")
        former = house.page.pid
        assert former is not None
        os.kill(former, signal.SIGSTOP)
        until(lambda: house.page.answers and house.page.pid != former, "another process")
    assert not house.settings.page_socket.exists()
    assert house.page.facts()["state"] == "off"


def test_a_path_that_is_too_long_for_an_address_will_do(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with House(folder) as house:
        assert house.ask("GET", "/").status == 200


def test_what_the_page_says_does_not_act_on_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gpuyard"):
        supervisor.PageLog().write(b"page: /page/\x1b[31m\x00\xc2\x9b1m not found\r\n")
    assert caplog.messages == ["page: /page/ [31m  1m not found"]
