"""How the daemon does at `ulimit -n 256` with 200 running jobs, while somebody holds 2,000 connections.

A third of the connections say nothing, a third send half of a request's head, a third follow events. They are held by
another user (nobody, if this is run as root), on the Unix socket and on TCP; with --flood they are opened again at
once where they are closed.
Meanwhile requests of ours are timed: looks at the status, and submits. Run it as `python -m bench.crowd`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path

from gpuyard.client.client import Client
from gpuyard.errors import GpuyardError

NOBODY, BAR = 65534, 200.0  # milliseconds
SAID = (b"", b"GET /api/v1/status HTTP/1.1\r\nHost: loc", b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")


def hold(path: str, port: int, count: int, flood: bool, ready: Event) -> None:
    """Hold connections as another user; a flood opens those again that are closed."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    held: dict[int, socket.socket] = {}
    while True:
        for n in range(count):
            if n in held and not _is_closed(held[n]):
                continue
            with suppress(OSError):  # refused, or too many wait
                one = socket.socket(socket.AF_UNIX if n % 2 else socket.AF_INET)
                one.settimeout(1.0)
                one.connect(path if n % 2 else ("127.0.0.1", port))
                one.sendall(SAID[n % 3])
                one.setblocking(False)
                held[n] = one
        ready.set()
        while not flood:
            time.sleep(60)
        time.sleep(0.5)


def _is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def measure(client: Client, seconds: float) -> tuple[list[float], int]:
    times, refused, end = list[float](), 0, time.monotonic() + seconds
    n = 0
    while time.monotonic() < end:
        began = time.perf_counter()
        try:
            client.submit(["true"], hold=True) if n % 5 == 0 else client.status()
            times.append(1000 * (time.perf_counter() - began))
        except GpuyardError as error:
            refused += 1
            print(f"refused: {error}", file=sys.stderr)
        n += 1
        time.sleep(0.01)
    return sorted(times), refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flood", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-crowd-"))
    folder.chmod(0o755)
    words = [sys.executable, "-m", "gpuyard", "serve", "--page", "off", "--port", "0", "--data-dir", f"{folder}/data",
             "--socket", str(folder / "s.sock"), "--simulate-gpus", f"{given.jobs}x16G"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(["prlimit", f"--nofile={given.files}:{given.files}", *words], stderr=log)
    client, holder = Client(folder / "s.sock"), None
    try:
        while not (folder / "s.sock").exists() and daemon.poll() is None:
            time.sleep(0.05)
        for _ in range(given.jobs):
            client.submit(["sleep", "600"])
        while (status := client.status())["jobs"].get("running", 0) < given.jobs:
            time.sleep(0.2)
        alone, _ = measure(client, given.seconds / 2)
        ready, port = multiprocessing.Event(), int(status["url"].rpartition(":")[2])
        holder = multiprocessing.Process(
            target=hold, args=(str(folder / "s.sock"), port, given.connections, given.flood, ready)
        )
        holder.start()
        ready.wait(120)
        times, refused = measure(client, given.seconds)
        found = {
            "alone_p99_ms": alone[int(0.99 * len(alone))], "p50_ms": times[len(times) // 2],
            "p99_ms": times[int(0.99 * len(times))], "max_ms": times[-1], "requests": len(times), "refused": refused,
            "files_open": len(os.listdir(f"/proc/{daemon.pid}/fd")), "exit_code": daemon.poll(),
            "load_of_machine": os.getloadavg()[0], "running": client.status()["jobs"].get("running"),
            "tracebacks": (folder / "log").read_text().count("Traceback"),
        }  # fmt: skip
        print(json.dumps(found, indent=1))
        print("ok" if daemon.poll() is None and not refused and found["p99_ms"] <= BAR else "NOT within the bar")
    finally:
        if holder is not None:
            holder.kill()
        with suppress(GpuyardError):
            for job in client.jobs():
                client.cancel(job["id"], grace=0)
        time.sleep(2)
        daemon.terminate()
        daemon.wait(30)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
