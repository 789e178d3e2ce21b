"""How fast the queue is.

A daemon on simulated GPUs in a temporary directory, driven through its API like by anybody. Beside it, where they are
installed, task-spooler (`tsp`, from Debian) and gflow (`gflowd`, `gbatch`; `runqd` on PyPI), doing the same.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from gpuyard.client.client import Client
from gpuyard.core.events import Exited, Opened, Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.spec.work import Work

GPUYARD = [sys.executable, "-m", "gpuyard"]
Results = dict[str, Any]


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket, kept open."""

    def __init__(self, path: Path) -> None:
        super().__init__("gpuyard")
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket in place of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)

    def call(self, method: str, target: str, body: Any = None) -> Any:
        """One request and its answer."""
        data = None if body is None else json.dumps(body)
        self.request(method, f"/api/v1{target}", data, {"Content-Type": "application/json"})
        answer = self.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {target}: {answer.status} {content.decode()}")
        return json.loads(content)


@contextmanager
def daemon(gpus: int, data_dir: Path | None = None) -> Iterator[tuple[subprocess.Popen[bytes], Path, float]]:
    """A daemon of its own: its process, its socket, and the seconds it took to answer."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        home = data_dir or Path(folder)
        began = time.perf_counter()
        process = subprocess.Popen(
            [*GPUYARD, "serve", "--page", "off", "--data-dir", str(home), "--simulate-gpus", f"{gpus}x16G"],
            stderr=subprocess.DEVNULL,
        )
        path = home / "gpuyard.sock"
        client = Client(path)
        while True:
            try:
                client.status()
                break
            except Exception:  # not up yet
                if process.poll() is not None or time.perf_counter() - began > 60:
                    raise SystemExit("the daemon did not start") from None
                time.sleep(0.005)
        ready = time.perf_counter() - began
        try:
            yield process, path, ready
        finally:
            process.terminate()
            process.wait(20)


def job(*command: str, **rest: Any) -> dict[str, Any]:
    """A request with an environment like a user's own."""
    return {"command": list(command), "directory": "/tmp", "environment": dict(os.environ), **rest}


def quantile(values: list[float], share: float) -> float:
    """The value that so large a share does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def start_latency(count: int) -> Results:
    """From sending the request to the first thing that the job's own process does."""
    with daemon(4) as (_, path, _), tempfile.TemporaryDirectory() as folder:
        connection, client = Connection(path), Client(path)
        found = []
        for _ in range(count):
            began = time.time()
            job_id = connection.call("POST", "/jobs", job("date", "+%s.%N"))["id"]
            client.job(job_id, wait=10)
            found.append(float(client.log(job_id).data) - began)
        command = []
        for _ in range(10):
            began = time.perf_counter()
            subprocess.run([*GPUYARD, "submit", "--socket", str(path), "--", "true"], check=True, capture_output=True,
                           cwd=folder)  # fmt: skip
            command.append(time.perf_counter() - began)
    return {
        "submit to start, p50 ms": 1000 * median(found),
        "submit to start, p99 ms": 1000 * quantile(found, 0.99),
        "command `gpuyard submit`, median ms": 1000 * median(command),
    }


def durable_submits(clients: int, each: int) -> Results:
    """Submits per second from several clients at once, each acknowledged after it is on disk."""
    with daemon(4) as (process, path, _):
        connection = Connection(path)
        connection.call("POST", "/jobs", job("sleep", "600", gpus=4))  # so that all others wait
        before = _spent(process.pid)
        seconds = _raw_submits(path, clients, clients * each)
        spent = _spent(process.pid) - before
        connection.call("POST", "/jobs/1/cancel", {"grace": 0})
    return {
        f"durable submits/s from {clients} clients": clients * each / seconds,
        "CPU of the daemon for each, ms": 1000 * spent / (clients * each),
    }


def _raw_submits(path: Path, clients: int, count: int) -> float:
    """Seconds for so many submits, each client sending its next one when it has its answer.

    One thread with bare sockets: it takes some 20 µs for each, so that the daemon is what is measured.
    """
    body = json.dumps(job("true")).encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: gpuyard\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    data = head.encode() + b"\r\n\r\n" + body
    began, left, poll = time.perf_counter(), count, select.epoll()
    sockets = {one.fileno(): one for one in (socket.socket(socket.AF_UNIX) for _ in range(min(clients, count)))}
    answers = dict.fromkeys(sockets, b"")
    for number, one in sockets.items():
        one.connect(str(path))
        one.sendall(data)
        poll.register(number, select.EPOLLIN)
    sent = len(sockets)
    while left:
        for number, _ in poll.poll():
            answers[number] += sockets[number].recv(2**16)
            if not answers[number].endswith(b"}"):  # the answer is one object of JSON, and has no other inside
                continue
            if not answers[number].startswith(b"HTTP/1.1 201 "):
                raise SystemExit(answers[number].decode())
            answers[number], left = b"", left - 1
            if sent < count:
                sockets[number].sendall(data)
                sent += 1
    seconds = time.perf_counter() - began
    for one in sockets.values():
        one.close()
    return seconds


def _in_threads(count: int, work: Callable[[], None]) -> float:
    threads = [threading.Thread(target=work) for _ in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def short_jobs(count: int) -> Results:
    """Jobs of a millisecond per second, from the first submit to the last exit."""
    with daemon(4) as (_, path, _):
        began = time.perf_counter()
        body = job("sleep", "0.001")

        def load() -> None:
            connection = Connection(path)
            for _ in range(count // 8):
                connection.call("POST", "/jobs", body)

        _in_threads(8, load)
        connection = Connection(path)
        while connection.call("GET", "/status")["jobs"].get("succeeded", 0) < count // 8 * 8:
            time.sleep(0.01)
        rate = count // 8 * 8 / (time.perf_counter() - began)
    return {"jobs of 1 ms to completion per second": rate}


def long_queue(count: int) -> Results:
    """Planning and listing with a long queue on 64 GPUs."""
    with daemon(64) as (_, path, _):
        connection = Connection(path)
        blockers = [connection.call("POST", "/jobs", job("sleep", "600", gpus=4))["id"] for _ in range(16)]

        def load() -> None:
            own = Connection(path)
            for n in range(count // 8):
                own.call("POST", "/jobs", job("sleep", "0.2", gpus=1 + n % 4, estimate=1 + n, priority=n % 3))

        _in_threads(8, load)
        listing = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([*GPUYARD, "ps", "--socket", str(path)], check=True, stdout=subprocess.DEVNULL)
            listing.append(time.perf_counter() - began)
        for blocker in blockers:
            connection.call("POST", f"/jobs/{blocker}/cancel", {"grace": 0})
        time.sleep(8.0)  # a thousand plans or so, each after a start or an end
        plan = connection.call("GET", "/status")["plan"]
    return {
        f"plan with {count} queued, mean ms": plan["mean_ms"],
        f"plan with {count} queued, max ms": plan["max_ms"],
        f"command `gpuyard ps` with {count} queued, median ms": 1000 * median(listing),
    }


def bulk(count: int) -> Results:
    """An array submitted, edited, held, released and cancelled by its name, while another client submits."""
    with daemon(1) as (process, path, _):
        connection, found = Connection(path), Results()
        connection.call("POST", "/jobs", job("sleep", "600"))  # so that all others wait
        part = f"0-{count // 10 - 1}"
        connection.call("POST", "/jobs", job("true", name="part", array=part))
        steps: list[tuple[str, int, str, dict[str, Any]]] = [
            ("submitted", count, "/jobs", job("true", name="sweep", array=f"0-{count - 1}")),
            ("edited", count // 10, "/jobs/bulk", {"action": "edit", "name": "part", "changes": {"priority": 1}}),
            ("held", count, "/jobs/bulk", {"action": "hold", "name": "sweep"}),
            ("released", count, "/jobs/bulk", {"action": "release", "name": "sweep"}),
            ("cancelled by name", count, "/jobs/bulk", {"action": "cancel", "name": "sweep"}),
        ]
        for what, size, target, body in steps:
            seconds, waits = _beside_others(path, partial(connection.call, "POST", target, body))
            found[f"{size:,} tasks {what}, s"] = seconds
            found[f"{size:,} tasks {what}, a second"] = size / seconds
            found[f"another's submit while {size:,} tasks are {what}, worst ms"] = 1000 * max(waits, default=0.0)
        status = Path(f"/proc/{process.pid}/status").read_text()
        found["peak memory, MB"] = int(status.split("VmHWM:")[1].split()[0]) / 1024
        connection.call("POST", "/jobs/1/cancel", {"grace": 0})
    return found


def _beside_others(path: Path, act: Callable[[], Any]) -> tuple[float, list[float]]:
    """Seconds that a request takes, and those that the submits of another client take meanwhile."""
    waits: list[float] = []
    over, ready = threading.Event(), threading.Event()

    def submit() -> None:
        own = Connection(path)
        while not over.is_set():
            began = time.perf_counter()
            own.call("POST", "/jobs", job("true", name="other", hold=True))
            if ready.is_set():
                waits.append(time.perf_counter() - began)
            time.sleep(0.02)
            ready.set()

    other = threading.Thread(target=submit)
    other.start()
    ready.wait()
    began = time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    over.set()
    other.join()
    return seconds, waits


def long_history(count: int) -> Results:
    """How soon a daemon answers that has so many jobs behind it, and how much a daemon without work takes."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        _write_history(Path(folder), count)
        with daemon(4, Path(folder)) as (process, _, ready):
            idle = _idle(process.pid, 10.0)
    return {f"ready with {count} jobs of history, s": ready, **idle}


def _write_history(folder: Path, count: int) -> None:
    store = Store(folder / "gpuyard.db")
    store.append([Record(Opened(1.0, Cluster((4,)), tuple(f"SIMULATED-{n}" for n in range(4))))])
    details = {"work": Work(("python", "train.py"), "/tmp", name="train").to_json()}
    for begin in range(0, count, 1000):
        records = []
        for n in range(begin, min(begin + 1000, count)):
            name, at = str(n + 1), 2.0 + n
            records += [
                Record(Submitted(at, name, Request(estimate=60.0, user="ann", preemptible=False)), details),
                Record(Placed(at, name, 1, (n % 4,))),
                Record(Started(at, name, 1), {"handle": "1"}),
                Record(Exited(at + 0.5, name, 1)),
            ]
        store.append(records)
        if begin + 5000 >= count > begin + 4000:  # as a daemon would have, not long ago
            state = store.load()
            assert state is not None
            store.keep(state)
    store.close()


def _spent(pid: int) -> float:
    """Seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle(pid: int, seconds: float) -> Results:
    """Share of a core, and memory, of a process that has nothing to do."""

    time.sleep(1.0)
    before = _spent(pid)
    time.sleep(seconds)
    share = (_spent(pid) - before) / seconds
    size = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return {"idle, percent of a core": 100 * share, "idle, MB": int(size.split()[1]) / 1024}


def others(count: int) -> Results:
    """From the command that submits to the job's own process, in gpuyard and in other queues that are installed."""
    found: Results = {}
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        home = Path(folder)
        with daemon(4) as (_, path, _):
            command = [*GPUYARD, "submit", "--socket", str(path), "--"]
            found["gpuyard: command to start, median ms"] = _command_to_start(command, dict(os.environ), home, count)
        if shutil.which("tsp"):
            env = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder}
            found["task-spooler: command to start, median ms"] = _command_to_start(["tsp"], env, home, count)
            subprocess.run(["tsp", "-K"], env=env, check=False)
        if shutil.which("gflowd"):
            places = {f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("CONFIG", "DATA", "STATE")}
            env = {**os.environ, **places, "HOME": folder, "XDG_RUNTIME_DIR": folder, "TMUX_TMPDIR": folder}
            server = subprocess.Popen(["gflowd"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(2.0)
            found["gflow: command to start, median ms"] = _command_to_start(["gbatch"], env, home, count)
            server.terminate()
            server.wait(10)
            subprocess.run(["tmux", "kill-server"], env=env, check=False, stderr=subprocess.DEVNULL)
    return found


def _command_to_start(command: list[str], env: dict[str, str], folder: Path, count: int) -> float | None:
    """Median milliseconds until the job wrote the time; None if one did not within ten seconds."""
    times = []
    for n in range(count):
        stamp = folder / f"stamp-{command[0].rpartition('/')[2]}-{n}"
        script = folder / "job.sh"
        script.write_text(f"#!/bin/sh\ndate +%s.%N >{stamp}\n")
        script.chmod(0o700)
        began = time.time()
        subprocess.run([*command, str(script)], env=env, check=True, stdout=subprocess.DEVNULL)
        while not (stamp.exists() and stamp.read_text().endswith("\n")):
            if time.time() - began > 10:
                return None
            time.sleep(0.005)
        times.append(1000 * (float(stamp.read_text()) - began))
    return median(times)


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for trying it out")
    parser.add_argument("--only", help="the one measurement to make: bulk, for example")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    found: Results = {}
    for measure, size in (
        (start_latency, 300), (lambda n: durable_submits(32, n), 150), (short_jobs, 1600), (long_queue, 10_000),
        (bulk, 100_000), (long_history, 100_000), (others, 10),
    ):  # fmt: skip
        if options.only not in (None, measure.__name__):
            continue
        for name, value in measure(max(1, size // scale)).items():
            found[name] = value
            print(f"{name:60s} {'none started' if value is None else f'{value:10,.2f}'}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
