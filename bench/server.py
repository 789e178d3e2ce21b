"""How the API does under load: many follow events, many submit, many look, and the queue is long.

One daemon on simulated GPUs, reached over TCP. Its GPUs are always busy with short jobs, so that there is something to
plan. Three spans of the same length are measured with the same mean queue: nobody asks for anything; jobs are
submitted; jobs are submitted, everything is read, and many follow all events, half of whom hang up at random and come
again. Load and followers are processes of their own. A request counts from the instant that it was due at, not from
when there was a connection for it. Run it as `python -m bench.server`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpuyard.client.client import Client
from gpuyard.client.transport import Refused

GPUS = 16
ID = re.compile(rb"^id: (\d+)\nevent: ", re.MULTILINE)
BARS = {"p99": 100.0, "plan": 1.25}
Results = dict[str, Any]
Address = tuple[str, int]


@contextmanager
def daemon() -> Iterator[tuple[int, Client, Address]]:
    """A daemon that listens on TCP, too: its process, a client, and where that is."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        command = [sys.executable, "-m", "gpuyard", "serve", "--page", "off", "--data-dir", folder, "--port", "0"]
        process = subprocess.Popen([*command, "--simulate-gpus", f"{GPUS}x16G"], stderr=subprocess.DEVNULL)
        client = Client(Path(folder) / "gpuyard.sock")
        try:
            for _ in range(600):
                with suppress(Exception):  # not up yet
                    host, _, port = client.status()["url"].removeprefix("http://").rpartition(":")
                    break
                time.sleep(0.05)
            yield process.pid, client, (host, int(port))
        finally:
            process.terminate()
            process.wait(20)


def wanted(n: int) -> dict[str, Any]:
    """A job like those of many users: narrow and wide, short and long, more and less urgent."""
    wishes = {"gpus": 1 + n % 4, "estimate": 1.0 + n % 5000, "priority": n % 3}
    return {"command": ["sleep", "1"], "directory": "/tmp", "environment": {"PATH": os.environ["PATH"]}, **wishes}


# -- those who follow -----------------------------------------------------------------------------


class Follower:
    """Notes the number of every event that comes, and may hang up and come again."""

    def __init__(self, address: Address, begin: int, restless: bool) -> None:
        self._address, self._restless = address, restless
        self.seen: list[int] = []
        self.last = begin
        self.times = 0

    async def run(self, over: asyncio.Event) -> None:
        """Follow until it is over."""
        while not over.is_set():
            self.times += 1
            patience = random.uniform(0.2, 2.0) if self._restless else None
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(patience):
                    await self._listen()

    async def _listen(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: {self._address[0]}\r\nAccept: text/event-stream\r\n"
        writer.write(f"{head}Last-Event-ID: {self.last}\r\n\r\n".encode())
        kept = b""
        try:
            while data := await reader.read(2**16):
                # Chunks of HTTP begin between events only, so what is between two events matters nobody here.
                whole, separator, kept = (kept + data).rpartition(b"\n\n")
                found = [int(number) for number in ID.findall(whole + separator)]
                if found:
                    self.seen += found
                    self.last = found[-1]
        finally:
            writer.transport.abort()


async def _follow(pipe: Connection, address: Address, count: int, begin: int) -> None:
    over = asyncio.Event()
    followers = [Follower(address, begin, restless=n % 2 == 1) for n in range(count)]
    tasks = [asyncio.create_task(follower.run(over)) for follower in followers]
    while len([f for f in followers if f.times]) < count:
        await asyncio.sleep(0.01)
    pipe.send("ready")
    end = await asyncio.to_thread(pipe.recv)
    patience = time.monotonic() + 30.0
    while any(f.last < end for f in followers) and time.monotonic() < patience:
        await asyncio.sleep(0.02)
    over.set()
    for task in tasks:
        task.cancel()
    exact = list(range(begin + 1, end + 1))
    good = sum(f.seen[: len(exact)] == exact for f in followers)
    pipe.send((good, len(exact), sum(f.times - 1 for f in followers)))


# -- those who ask --------------------------------------------------------------------------------


class Asker:
    """Sends requests when they are due, over as many connections as that takes."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.spans: defaultdict[str, list[float]] = defaultdict(list)
        self.failed: list[str] = []

    async def ask(self, kind: str, method: str, target: str, body: bytes, due: float) -> bytes:
        """One request; how long it took since it was due is noted."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._address[0]}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(re.findall(rb"content-length: (\d+)", answer)[0])
        content = await reader.readexactly(length)
        self.spans[kind].append(time.perf_counter() - due)
        if not answer.startswith(b"HTTP/1.1 2"):
            self.failed.append(f"{kind}: {content.decode()[:200]}")
        self._idle.append((reader, writer))
        return content


READS: dict[str, tuple[float, Callable[[], str]]] = {
    "GET job": (10.0, lambda: f"/api/v1/jobs/{random.randint(1, 4000)}"),
    "GET jobs?limit=100": (5.0, lambda: "/api/v1/jobs?limit=100"),
    "GET gpus": (5.0, lambda: "/api/v1/gpus"),
    "GET status": (5.0, lambda: "/api/v1/status"),
    "GET explain": (2.0, lambda: f"/api/v1/jobs/{random.randint(3000, 4000)}/explain"),
    "GET events": (2.0, lambda: f"/api/v1/events?after={random.randint(1, 4000)}&limit=100"),
    "GET stats": (0.5, lambda: "/api/v1/stats"),
    "GET metrics": (1.0, lambda: "/metrics"),
}
"""How many of each per second, and what they ask for."""


async def _load(pipe: Connection, address: Address, rate: float, seconds: float, reads: bool) -> None:
    asker = Asker(address)
    tasks: list[asyncio.Task[bytes]] = []
    begin = time.perf_counter()

    async def at_rate(kind: str, per_second: float, method: str, target: Callable[[], str]) -> None:
        for n in range(int(per_second * seconds)):
            due = begin + (n + random.random()) / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            body = json.dumps(wanted(n)).encode() if method == "POST" else b""
            tasks.append(asyncio.create_task(asker.ask(kind, method, target(), body, due)))

    kinds = [at_rate("POST jobs", rate, "POST", lambda: "/api/v1/jobs")]
    if reads:
        kinds += [at_rate(kind, each, "GET", target) for kind, (each, target) in READS.items()]
    await asyncio.gather(*kinds)
    await asyncio.gather(*tasks)
    pipe.send((dict(asker.spans), asker.failed))


def _run(work: Callable[..., Any], *arguments: Any) -> None:
    asyncio.run(work(*arguments))


@contextmanager
def beside(work: Callable[..., Any], *arguments: Any) -> Iterator[Connection]:
    """A process that does something meanwhile, and tells of it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(work, theirs, *arguments))
    process.start()
    theirs.close()  # so that its end is noticed
    try:
        yield ours
    finally:
        process.join(60)
        if process.is_alive():
            process.kill()


# -- what is measured -----------------------------------------------------------------------------


class Meter:
    """Reads the daemon's own numbers."""

    def __init__(self, address: Address, pid: int) -> None:
        self._address, self._pid = address, pid

    def now(self) -> dict[str, float]:
        """Planning, the queue, and the time that the process took, so far."""
        from urllib.request import urlopen

        with urlopen(f"http://{self._address[0]}:{self._address[1]}/metrics") as answer:
            text = answer.read().decode()
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return {
            "plans": _sample(text, "gpuyard_plans_total"),
            "cpu": _sample(text, "gpuyard_plan_cpu_seconds_total"),
            "queued": _sample(text, 'gpuyard_jobs{state="queued"}'),
            "starved": _starved(),
            "process": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        }


def _starved() -> float:
    """Seconds in which somebody on this machine waited for a CPU, so far: with much of that, times tell little."""
    try:
        return float(re.findall(r"total=(\d+)", Path("/proc/pressure/cpu").read_text())[0]) / 1e6
    except OSError:  # a kernel that does not tell
        return 0.0


def _sample(text: str, name: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[-1])


def quantile(values: list[float], share: float) -> float:
    """The value that so large a share does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Filled:
    """One daemon with a long queue, and what is found out of it."""

    wanted: Callable[[int], dict[str, Any]] = staticmethod(wanted)
    """The n-th job of the queue."""

    def __init__(self, pid: int, client: Client, address: Address, options: argparse.Namespace) -> None:
        self._client, self._address, self._options = client, address, options
        self._meter = Meter(address, pid)
        self.found: Results = {}

    def fill(self) -> None:
        """Have the queue as long as it is to be on average."""
        missing = int(self._options.jobs - self._meter.now()["queued"])
        for begin in range(0, missing, 500):
            self._client.submit_all([self.wanted(n) for n in range(begin, min(begin + 500, missing))])


class Bench(Filled):
    """What is done to it."""

    def shorten(self) -> None:
        """Make room for half of what will be submitted."""
        room = int(self._options.rate * self._options.seconds / 2)
        surplus = int(self._meter.now()["queued"]) - (self._options.jobs - room)
        ids = self._client.columns(state="queued")[1]["id"]
        for id in ids[len(ids) - surplus :] if surplus > 0 else []:
            with suppress(Refused):  # it may have had its turn meanwhile
                self._client.cancel(id)

    def span(self, name: str, work: Callable[[], Any]) -> float:
        """Planning while something is done: CPU time per pass, in milliseconds."""
        time.sleep(1.0)
        before = self._meter.now()
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        after = self._meter.now()
        passes = after["plans"] - before["plans"]
        mean = 1000 * (after["cpu"] - before["cpu"]) / max(1.0, passes)
        self.found[f"{name}: plan, CPU ms per pass"] = mean
        self.found[f"{name}: passes per second"] = passes / seconds
        self.found[f"{name}: queued on average"] = (before["queued"] + after["queued"]) / 2
        self.found[f"{name}: daemon, percent of a core"] = 100 * (after["process"] - before["process"]) / seconds
        self.found[f"{name}: somebody waited for a CPU, percent"] = (
            100 * (after["starved"] - before["starved"]) / seconds
        )
        return mean

    def load(self, reads: bool) -> None:
        """Submit, and read if asked to; what that took is noted if it is."""
        with beside(_load, self._address, self._options.rate, self._options.seconds, reads) as pipe:
            spans, failed = pipe.recv()
        if failed:
            raise SystemExit(f"{len(failed)} requests failed, as this one: {failed[0]}")
        if not reads:
            return
        for kind, values in spans.items():
            self.found[f"{kind}: p50 ms"] = 1000 * quantile(values, 0.5)
            self.found[f"{kind}: p99 ms"] = 1000 * quantile(values, 0.99)
        self.found["all requests: p99 ms"] = 1000 * quantile([v for values in spans.values() for v in values], 0.99)

    def loaded(self) -> None:
        """The same with many who follow; each must have had every event once."""
        begin = self._client.page(limit=1).last
        with beside(_follow, self._address, self._options.followers, begin) as pipe:
            pipe.recv()
            self.load(reads=True)
            pipe.send(self._client.page(limit=1).last)
            good, events, again = pipe.recv()
        self.found["events"] = events
        self.found["times that followers came again"] = again
        self.found["followers that had every event once"] = good

    def run(self) -> Results:
        """All of it."""
        self.fill()
        alone = self.span("alone", lambda: time.sleep(self._options.seconds))
        self.shorten()
        submits = self.span("submits", lambda: self.load(reads=False))
        self.shorten()
        loaded = self.span("loaded", self.loaded)
        self.found["plan, CPU per pass: loaded / submits alone"] = loaded / submits
        self.found["plan, CPU per pass: loaded / alone"] = loaded / alone
        return self.found


def verdicts(found: Results, followers: int) -> list[str]:
    """What is not as it should be."""
    slow = [f"{n} {v:.0f}" for n, v in found.items() if n.endswith("p99 ms") and v > BARS["p99"]]
    dear = [f"{n} {v:.2f}" for n, v in found.items() if n.startswith("plan, CPU per pass") and v > BARS["plan"]]
    missed = followers - found["followers that had every event once"]
    return slow + dear + ([f"{missed} followers missed events, or had some twice"] if missed else [])


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, for trying it out")
    parser.add_argument("--jobs", type=int, default=5000, help="queued jobs")
    parser.add_argument("--followers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=50.0, help="submits per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each span")
    options = parser.parse_args()
    if options.quick:
        options.seconds /= 4
    with daemon() as (pid, client, address):
        bench = Bench(pid, client, address, options)
        found = bench.run()
        for job in client.jobs(state="running"):
            with suppress(Refused):
                client.cancel(job["id"], grace=0)
    for name, value in found.items():
        print(f"{name:60s} {value:10,.2f}")
    for complaint in (complaints := verdicts(found, options.followers)):
        print(f"NOT MET: {complaint}", file=sys.stderr)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
