"""Whoever acts for a user, a job or the process that sends notifications, has no more rights than it was given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.doors import JOB, Door
from tests.yard import until

from gpuyard.engines.local.accounts import name_of

ASK = """
import socket, sys
with socket.socket(*((socket.AF_UNIX,) if "/" in sys.argv[1] else ())) as line:
    line.connect(sys.argv[1] if "/" in sys.argv[1] else ("127.0.0.1", int(sys.argv[1])))
    line.sendall(f"POST {sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
                 "Content-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{}".encode())
    print(line.makefile().readline())
"""


def _port(door: Door) -> str:
    return str(door.url.rpartition(":")[2])


def test_a_notification_is_not_sent_to_the_daemon_itself(home: Door) -> None:
    token = home.token(name_of(os.geteuid()))
    url = f"json://127.0.0.1:{_port(home)}/api/v1/shutdown"
    refused = home("POST", "/v1/notifications/subscriptions", {"url": url}, token=token)
    assert (refused.status, "this is an address of the daemon itself" in refused.detail) == (422, True), refused
    job = home("POST", "/v1/jobs", {**JOB, "notify": [url]}, token=token).json["id"]
    path = f"/v1/notifications?job={job}&failed=true"
    [one] = until(lambda: home("GET", path, token=token).json["notifications"], "a refusal to send")
    assert one["error"] == "this is an address of the daemon itself"
    assert home.yard.client.status()["pid"]


def test_a_job_may_no_more_than_the_token_that_submitted_it(home: Door, tmp_path: Path) -> None:
    program = tmp_path / "ask.py"
    program.write_text(ASK)
    script = f'for where in "$1" "$2"; do {sys.executable} -S {program} "$where" "$3"; done'

    def said(path: str, role: str) -> list[str]:
        command = ["sh", "-c", script, "sh", str(home.yard.data_dir / "gpuyard.sock"), _port(home), f"/api/v1{path}"]
        token = home.token(name_of(os.geteuid()), role=role)
        job = home.yard.wait(home("POST", "/v1/jobs", {**JOB, "command": command}, token=token).json["id"])
        return [line.split()[1] for line in home.yard.client.log(job["id"]).data.decode().splitlines() if line]

    assert said("/gpus/drain", "user") == ["403", "403"]
    assert said("/tokens", "user") == ["403", "403"]
    assert said("/gpus/resume", "admin") == ["200", "200"]
    home.yard.client.resume()
