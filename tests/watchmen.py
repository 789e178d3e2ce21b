"""Clients of watchmen as people have them: the package from PyPI, unmodified, each in a process of its own."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fake_nvml import FakeNvml
from tests.web import ask
from tests.yard import PATIENCE, Yard, until

GIB = 2**30
SCRIPT = """
import json, sys
from watchmen import WatchClient
id, gpus, port, mode, number, token = json.loads(sys.argv[1])
client = WatchClient(id, gpus, "127.0.0.1", port, mode=mode, req_gpu_num=number, token=token)
try:
    print(json.dumps(client.wait()), flush=True)
except RuntimeError as error:
    sys.exit(f"RuntimeError: {error}")
sys.stdin.readline()
"""
"""What a training script does: wait, and then go on with the GPUs."""


def me(id: str) -> str:
    """What a client of ours calls itself."""
    return f"{getpass.getuser()}@{id}"


class Box:
    """A machine with GPUs that a test makes up, a daemon on it that listens on TCP, and clients."""

    def __init__(self, folder: Path, nvml: FakeNvml, gpus: int) -> None:
        pytest.importorskip("watchmen", reason="no gpu-watchmen; pip install gpu-watchmen")
        for index in range(gpus):
            nvml.add(name="NVIDIA A100", uuid=f"GPU-{index}", mem_total=16 * GIB)
        (folder / "data").mkdir()
        (folder / "here").mkdir()
        self.folder, self.nvml = folder, nvml
        self.yard = Yard(folder / "data", folder / "here")
        self.yard.use(nvml)
        self.port = 0
        self.token = "none"
        """Who needs a token."""
        self.clients: list[Client] = []

    def serve(self, port: int = 0) -> None:
        """Start the daemon, and wait until it answers."""
        self.yard.serve("--port", str(port), "--token", self.token)
        self.port = int(urlsplit(str(self.yard.client.status()["url"])).port or 0)

    def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any]:
        """A request of watchmen's; the status, and what was answered."""
        sent = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        method = method or ("GET" if body is None else "POST")
        answer = ask(f"http://127.0.0.1:{self.port}", method, path, sent, headers=named)
        return answer.status, answer.json if answer.body else None

    def client(
        self, id: str, gpus: list[int], mode: str = "queue", number: int = 0, token: str | None = None
    ) -> Client:
        """Start a client; returns when it is registered."""
        made = Client(self, id, gpus, mode, number, token)
        self.clients.append(made)
        until(lambda: made.registered, f"{id} being registered")
        return made

    def work(self) -> dict[str, Any]:
        """Clients that wait, or have GPUs, by what we call them."""
        return self._listed("/show/work")

    def finished(self) -> dict[str, Any]:
        """Clients that finished."""
        return self._listed("/show/finished")

    def _listed(self, path: str) -> dict[str, Any]:
        status, answer = self.ask(path)
        assert (status, answer["status"]) == (200, "ok")
        return {client["id"].partition("@")[2]: client for client in answer["msg"]}

    def close(self) -> None:
        """Leave nothing."""
        for client in self.clients:
            with client.process:  # closes its pipes
                client.kill()
        if self.yard.is_up():
            self.yard.clear()
            self.yard.end()


class Client:
    """One client."""

    def __init__(self, box: Box, id: str, gpus: list[int], mode: str, number: int, token: str | None) -> None:
        self.box, self.id = box, id
        folder = box.folder / f"client-{id}"  # it leaves its token in the directory that it runs in
        folder.mkdir()
        arguments = json.dumps([id, gpus, box.port, mode, number, token])
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, arguments], cwd=folder, env={**box.yard.environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def registered(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(self.error())
        job = [job for job in self.box.yard.client.jobs() if job["name"] == me(self.id)]
        return bool(job)

    def gpus(self) -> list[int]:
        """What `wait()` returned."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.error()
        found: list[int] = json.loads(line)
        return found

    def error(self) -> str:
        """What it says when it has ended."""
        assert self.process.stderr is not None
        self.process.wait(PATIENCE)
        return self.process.stderr.read()

    def end(self) -> None:
        """Let it come to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0

    def kill(self) -> None:
        """End it as nobody can prevent."""
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def boxed(folder: Path, nvml: FakeNvml, gpus: int) -> Iterator[Box]:
    """A box, of which nothing is left."""
    box = Box(folder, nvml, gpus)
    try:
        yield box
    finally:
        box.close()
