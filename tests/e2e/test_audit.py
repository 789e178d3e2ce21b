"""What is written down of who came in on TCP, and what never is."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from urllib.parse import urlsplit

import pytest
from tests.doors import JOB, Door, door_with


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
