"""The page's process, next to a real daemon: it comes and goes, and the queue does not notice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine import alive
from tests.doors import Door
from tests.users import User, reachable_folder, require_root
from tests.web import ask
from tests.websocket import Websocket
from tests.yard import Yard, opened, until

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A daemon with a page, which wants a token of everybody."""
    with opened(tmp_path_factory.mktemp("page")) as yard:
        yard.environment |= {"GPUYARD_SINGLE_USER": "true"}
        yard.serve("--port", "0", "--page", "on", "--token", "required")
        yield Door(yard)


def page_of(yard: Yard) -> dict[str, Any]:
    found: dict[str, Any] = yard.client.status()["page"]
    return found


def running(yard: Yard) -> dict[str, Any]:
    """How the page does once it answers."""
    until(lambda: page_of(yard)["state"] == "running", "an answer of the page")
    return page_of(yard)


def test_its_end_is_nobodys_end_but_its_own_and_it_ends_with_the_daemon(own_yard: Yard) -> None:
    own_yard.environment["GPUYARD_SINGLE_USER"] = "true"
    own_yard.serve("--port", "0", "--page", "on")
    url = own_yard.client.status()["url"]
    assert ask(url, "GET", "/").status == 200, "who comes early waits"
    first = running(own_yard)
    assert (first["url"], first["starts"]) == (f"{url}/", 1)
    job = own_yard.submit("sleep", "600")
    before = until(lambda: (found := own_yard.client.job(job))["started_at"] and found, "the job")

    os.kill(first["pid"], signal.SIGKILL)
    assert ask(url, "GET", "/queue").status == 200, "who comes meanwhile waits, too"
    second = running(own_yard)
    assert second["pid"] != first["pid"]
    assert second["starts"] == 2
    seen = dict.fromkeys(("measured", "energy_wh", "gpu_hours"))  # it is looked at all the time
    assert {**own_yard.client.job(job), **seen} == {**before, **seen}
    assert own_yard.wait(own_yard.submit("true"))["state"] == "succeeded"
    log = (own_yard.data_dir / "daemon.log").read_text()
    assert "the page's process was ended by signal 9 (SIGKILL); the queue is not affected" in log
    assert f"page      {url}/, running, pid {second['pid']}, 1 restart" in own_yard("status").out

    own_yard.end(signal.SIGKILL)
    until(lambda: not alive(second["pid"]), "the end of the page's process")
    own_yard.serve("--port", url.rpartition(":")[2], "--page", "on")
    third = running(own_yard)
    assert own_yard.client.job(job)["state"] == "running"
    own_yard.end()
    assert not alive(third["pid"])
    assert [path.name for path in own_yard.data_dir.glob("*.sock")] == ["gpuyard.sock"]  # the next daemon has it again


def test_there_is_none_where_nobody_wants_one(own_yard: Yard) -> None:
    own_yard.serve("--port", "0", "--page", "off")
    assert page_of(own_yard) == {"url": None, "pid": None, "starts": 0, "state": "off"}
    assert "page      none" in own_yard("status").out
    reply = ask(own_yard.client.status()["url"], "GET", "/queue")
    assert (reply.status, "this daemon has no page" in reply.detail) == (404, True)
    own_yard.end()
    own_yard.serve("--page", "on")
    assert page_of(own_yard)["state"] == "off", "there is no TCP"


def test_who_is_not_known_sees_the_door_alone(watched: Door) -> None:
    running(watched.yard)
    reply = watched("GET", "/")
    assert (reply.status, reply.headers["Location"]) == (303, "/login")
    forged = watched("GET", "/", headers={"X-GPUYARD-Ticket": "gt_eyJ2aWEi.c2ln"})
    assert forged.status == 303
    page = watched.login(watched.token("ann"))
    reply = watched("GET", "/", headers={"Cookie": page["Cookie"]})
    assert (reply.status, b"ann" in reply.body) == (200, True)
    assert reply.headers["Cache-Control"] == "no-store"
    assert watched("DELETE", "/v1/session", headers=page).status == 204
    assert watched("GET", "/", headers={"Cookie": page["Cookie"]}).status == 303


def test_websockets(watched: Door) -> None:
    running(watched.yard)
    page = watched.login(watched.token("ann"))
    with Websocket(watched.url, SOCKET, {"Origin": watched.url, "Cookie": page["Cookie"]}) as line:
        assert (line.status, line.read()[:7]) == (101, b'0{"sid"')
    with Websocket(watched.url, SOCKET, {"Origin": "http://evil.example"}) as line:
        assert line.status == 403
    assert watched("GET", SOCKET.replace("websocket", "polling"), headers={"Origin": watched.url}).body[:2] == b"0{"


def id_of(html: bytes) -> str:
    """What NiceGUI calls a page."""
    found = re.search(rb"client_id.{0,4}:.{0,4}([0-9a-f-]{36})", html)
    assert found
    return found[1].decode()


def opens(door: Door, html: bytes, cookie: str = "") -> bool:
    """Whether a page that was asked for can be opened, as its browser does."""
    more = f"&client_id={id_of(html)}&tab_id=t&document_id=d&implicit_handshake=true"
    with Websocket(door.url, SOCKET + more, {"Origin": door.url, "Cookie": cookie}) as line:
        line.read()
        line.send("40")
        return line.read().startswith(b"40")


def test_who_asks_for_pages_and_opens_none_fills_no_memory(watched: Door) -> None:
    running(watched.yard)
    cookie = watched.login(watched.token("ann"))["Cookie"]
    page = watched("GET", "/simulate", headers={"Cookie": cookie}).body
    doors = [watched("GET", "/login").body for _ in range(61)]
    assert not opens(watched, doors[0])
    assert opens(watched, doors[-1])
    assert opens(watched, page, cookie), "it takes nothing from those who are known"


def test_a_page_is_opened_by_whoever_asked_for_it(watched: Door) -> None:
    running(watched.yard)
    ann, bob = (watched.login(watched.token(name)) for name in ("ann", "bob"))
    page = watched("GET", "/simulate", headers={"Cookie": ann["Cookie"]}).body
    assert not opens(watched, page), "nobody"
    assert not opens(watched, page, bob["Cookie"])
    assert opens(watched, page, ann["Cookie"])
    assert watched("DELETE", "/v1/session", headers=ann).status == 204
    assert not opens(watched, page, ann["Cookie"]), "who was logged out"


def test_nobody_speaks_for_the_page_of_another(watched: Door) -> None:
    running(watched.yard)
    cookie = watched.login(watched.token("ann"))["Cookie"]
    page = id_of(watched("GET", "/simulate", headers={"Cookie": cookie}).body)
    own = f"{SOCKET}&client_id={page}&tab_id=t&document_id=d&implicit_handshake=true"
    for path, headers, words in ((SOCKET, {}, "of a stranger"), (own, {"Cookie": cookie}, "of her own")):
        with Websocket(watched.url, path, {"Origin": watched.url, **headers}) as line:
            line.read()
            line.send("40")
            assert line.read().startswith(b"40")
            line.send(f'42["log",{{"client_id":"{page}","level":"error","message":"words {words}"}}]')
            line.send('420["handshake",{"client_id":"none"}]')
            while (heard := line.read()) and not heard.startswith(b"430"):
                pass
            assert heard, "the answer to what came after the words"
    log = watched.yard.data_dir / "daemon.log"
    until(lambda: "words of her own" in log.read_text(), "her words")
    assert "words of a stranger" not in log.read_text()


def test_a_line_without_a_websocket_is_gone_on_with_by_who_began_it(watched: Door) -> None:
    running(watched.yard)
    ann = watched.login(watched.token("ann"))
    path = SOCKET.replace("websocket", "polling")
    begun = watched("GET", path, headers={"Cookie": ann["Cookie"]}).body
    path += f"&sid={json.loads(begun[1:])['sid']}"
    assert watched("POST", path, b"40", headers={"Origin": watched.url}).status == 403
    assert watched("GET", path).status == 403
    with Websocket(watched.url, path.replace("polling", "websocket"), {"Origin": watched.url}) as line:
        assert line.status == 403
    assert watched("POST", path, b"40", headers={"Origin": watched.url, "Cookie": ann["Cookie"]}).status == 200


def test_the_page_itself_may_look_and_nothing_else(watched: Door) -> None:
    """Whatever comes over a page's process: without a ticket of somebody it is nobody."""
    pid = running(watched.yard)["pid"]
    assert os.getpgid(pid) == pid
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n", "it goes before the daemon does"
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"GPUYARD_TOKEN" not in environment
    assert b"GPUYARD_RUN=daemon-" in environment, "it is not taken for the remains of a job"


def test_by_tls(own_yard: Yard, tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with; apt-get install openssl")
    key, cert = tmp_path / "a.key", tmp_path / "a.crt"
    made = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {key} -out {cert} "
        "-days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(made.split(), check=True, capture_output=True)
    own_yard.environment["GPUYARD_SINGLE_USER"] = "true"
    own_yard.serve("--port", "0", "--page", "on", "--tls-cert", str(cert), "--tls-key", str(key))
    url = own_yard.client.status()["url"]
    trusting = ssl.create_default_context(cafile=str(cert))
    assert ask(url, "GET", "/", tls=trusting).status == 200
    with Websocket(url, SOCKET, {"Origin": url}, trusting) as line:
        assert (line.status, line.read()[:7]) == (101, b'0{"sid"')
    with Websocket(url, SOCKET, {"Origin": url.replace("https", "http")}, trusting) as line:
        assert line.status == 403


def test_on_a_machine_that_many_share_each_is_who_they_are(ann: User, bob: User) -> None:
    require_root()
    with reachable_folder() as folder, opened(folder) as yard:
        yard.serve("--port", "0", "--page", "on")
        url = yard.client.status()["url"]
        pid = running(yard)["pid"]
        for user in (ann, bob):
            seen = user.do(lambda: ask(url, "GET", "/").body.decode())
            assert user.name in seen
        uid = os.stat(f"/proc/{pid}").st_uid
        log = (yard.data_dir / "daemon.log").read_text()
        assert uid == 65534 or "the page's process stays root's, since nobody may not read" in log
