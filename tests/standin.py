"""A daemon that is none: the API's paths on a Unix socket, with a little queue behind them that tests set up."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

OVER = ("succeeded", "failed", "cancelled", "timeout", "oom", "interrupted")
GPU = {"uuid": "SIM-0", "name": "Simulated 16G", "state": "free", "memory_total": 2**34, "memory_used": 0}


def job(id: str, state: str = "queued", **facts: Any) -> dict[str, Any]:
    """A job as the API tells of it."""
    return {
        "id": id,
        "name": None,
        "user": "ada",
        "state": state,
        "reason": None,
        "attempt": 1,
        "gpus": [],
        "exit_code": None,
        "submitted_at": "2026-11-03T12:00:00+00:00",
        "started_at": None,
        "ended_at": None,
        "gpu_count": 1,
        "priority": 0.0,
        "command": ["python", "train.py"],
        "directory": "/home/ada",
        "tags": [],
        "estimate": None,
        "time_limit": None,
        "gpu_memory": None,
        "message": None,
        **facts,
    }


class StandIn(ThreadingMixIn, UnixStreamServer):
    """Jobs, their output, and all requests that came."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self.path = path
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.on_cancel: Callable[[dict[str, Any], Any], None] = lambda job, body: job.update(state="cancelled")
        self.on_submit: Callable[[dict[str, Any]], None] = lambda job: None
        self.simulated = True
        self.pid = 2**22 + 1  # one that no process has

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Answer no more."""
        self.shutdown()
        self.server_close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def finish_request(self, request: Any, client_address: Any) -> None:
        _Handler(request, ("unix", 0), self)

    def bodies(self, target: str) -> list[Any]:
        """What was sent to a path."""
        return [body for _, path, body in self.asked if path == target]


def listen(directory: Path) -> socket.socket:
    """A socket that listens in a directory, however long its path is."""
    listening = socket.socket(socket.AF_UNIX)
    handle = os.open(directory, os.O_PATH)
    listening.bind(f"/proc/self/fd/{handle}/gpuyard.sock")
    os.close(handle)
    listening.listen()
    return listening


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        parts = urlsplit(self.path)
        target = parts.path.removeprefix("/api/v1")
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else query
        self.server.asked.append((method, target, body))
        if (method, target) in self.server.answers:
            self._json(*self.server.answers[method, target])
        elif target.startswith("/jobs/"):
            self._job(method, target.split("/")[2:], query, body)
        else:
            self._yard(method, target, query, body)

    def _job(self, method: str, parts: list[str], query: dict[str, str], body: Any) -> None:
        found = self.server.jobs.get(parts[0])
        if found is None:
            self._problem(404, f"there is no job {parts[0]}; gpuyard ps lists the jobs")
        elif len(parts) == 1:
            waits_for = ("running", *OVER) if query.get("for") == "start" else OVER
            self._wait(query, lambda: found["state"] in waits_for)
            self._json(200, found)
        elif parts[1] == "log":
            self._log(found, query)
        elif parts[1] == "explain":
            self._problem(500, "the test has no explanation")
        elif found["state"] in OVER:
            self._problem(409, f"job {parts[0]} is over already")
        else:
            act = {"hold": lambda: found.update(state="held"), "release": lambda: found.update(state="queued")}
            act.get(parts[1], lambda: self.server.on_cancel(found, body))()
            self._json(200, found)

    def _yard(self, method: str, target: str, query: dict[str, str], body: Any) -> None:
        server = self.server
        if (method, target) == ("POST", "/jobs"):
            id = str(len(server.jobs) + 1)
            wanted = {"command": body["command"], "name": body.get("name")}
            server.jobs[id] = job(id, "held" if body.get("hold") else "queued", **wanted)
            server.on_submit(server.jobs[id])
            self._json(201, {"id": id})
        elif target in ("/jobs", "/history"):
            over = target == "/history" or query.get("state") in OVER
            found = [j for j in server.jobs.values() if (j["state"] in OVER) == over or query.get("all")]
            found = [j for j in found if query.get("state") in (None, j["state"])]
            self._json(200, {"jobs": found[: int(query.get("limit", len(found)))]})
        elif target == "/gpus":
            more = {"utilization": 0, "temperature": None, "power": None, "jobs": [], "why": "no process"}
            self._json(200, {"simulated": server.simulated, "gpus": [{"index": n, **GPU, **more} for n in range(4)]})
        elif target == "/policy":
            self._json(200, {"policy": "priority@easy@pack", "since": "2026-11-03T12:00:00+00:00"})
        elif target == "/status":
            self._json(200, self._status())
        elif target == "/shutdown":
            self._json(202, {})
            threading.Thread(target=server.stop).start()
        else:
            self._problem(404, f"there is no {target}")

    def _status(self) -> dict[str, Any]:
        states = [j["state"] for j in self.server.jobs.values()]
        return {
            "version": "0.1.0",
            "pid": self.server.pid,
            "since": "2026-11-03T12:00:00+00:00",
            "data_dir": "/data",
            "socket": str(self.server.path),
            "simulated": self.server.simulated,
            "gpus": {"free": 3, "ours": 1},
            "policy": "priority@easy@pack",
            "jobs": {state: states.count(state) for state in dict.fromkeys(states)},
            "plan": {"last_ms": 0.25, "mean_ms": 0.3, "max_ms": 1.5},
            "store": {"state": "ok", "problem": None},
        }

    def _log(self, found: dict[str, Any], query: dict[str, str]) -> None:
        id, offset = found["id"], int(query["offset"])
        logs = self.server.logs
        self._wait(query, lambda: len(logs.get(id, b"")) > offset or found["state"] in OVER)
        state, whole = found["state"], logs.get(id, b"")
        start = max(len(whole) + offset, 0) if offset < 0 else offset
        data = whole[start : start + int(query["size"])]
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Next-Offset", str(start + len(data)))
        self.send_header("X-Log-Size", str(len(whole)))
        self.send_header("X-Job-State", state)
        self.send_header("X-Attempt", str(found["attempt"]))
        self.end_headers()
        self.wfile.write(data)

    def _wait(self, query: dict[str, str], condition: Callable[[], bool]) -> None:
        end = time.monotonic() + float(query.get("wait", 0))
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)

    def _problem(self, status: int, detail: str) -> None:
        self._json(status, {"title": "No", "status": status, "detail": detail})

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
