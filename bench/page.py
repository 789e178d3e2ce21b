"""What it costs that many look at the page, and how quick it is then: the queue must not notice.

One daemon with its page on 64 simulated GPUs, which are always busy, and a long queue. The same requests are made in
spans of the same length: while nobody looks, before and after, and in between while many have the overview open by
websockets and one has it in a real browser. With all of these still there: how long the page takes to load, how soon a
GPU's change is seen, and how soon the end of a long log; then, without them, how soon the history of a month. Where
somebody waited for a CPU most of the time, as others are busy on the machine, times tell little. Run it as
`python -m bench.page`; it wants Debian's chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bench.month import MOST, month
from bench.server import Address, Filled, Results, _load, beside, quantile
from gpuyard.client.client import Client
from gpuyard.client.transport import Refused

GPUS = 64
LOG = 100 * 2**20
END = "this is the end of the log"
COOKIE = "gpuyard_zone=Europe%2FBerlin"
WARM = 20.0  # seconds: jobs that all began at once end at once, and planning is then another
ACK = 3.0  # seconds, as NiceGUI does it in a browser
OPTION = re.compile(r"'client_id': '([0-9a-f-]+)', 'next_message_id': (\d+)")
NUMBER = re.compile(r'"_id":(\d+)')


class Bar(NamedTuple):
    """What must not be exceeded."""

    name: str
    most: float


BARS = (
    Bar("plan, CPU per pass: watched / unwatched", 1.25),
    Bar("all requests while watched: p99 ms", 100.0),
    Bar("page process: MB", 500.0),
    Bar("first load: s", 2.0),
    Bar("a GPU's change is seen: s", 1.0),
    Bar("the end of a log of 100 MB is seen: s", 1.0),
    Bar("30 days of 8 GPUs, opened by their address: s", MOST),
    Bar("30 days of 8 GPUs, chosen on the page: s", MOST),
)


@contextmanager
def daemon() -> Iterator[tuple[int, Client, Address]]:
    """A daemon with its page: its process, a client, and where it is."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        command = [sys.executable, "-m", "gpuyard", "serve", "--data-dir", folder, "--port", "0", "--page", "on"]
        log = Path(folder) / "daemon.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, "--simulate-gpus", f"{GPUS}x16G"], stderr=stderr,
                env={**os.environ, "GPUYARD_SINGLE_USER": "true"},
            )  # fmt: skip
        client = Client(Path(folder) / "gpuyard.sock")
        try:
            yield process.pid, client, _served(client)
        except (EOFError, SystemExit):
            print(log.read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(20)


def _served(client: Client) -> Address:
    """Where the page is, once it is."""
    for _ in range(600):
        with suppress(Exception):  # not up yet
            url: str = client.status()["url"]
            with urlopen(Request(url + "/", headers={"Cookie": COOKIE})):
                host, _, port = url.removeprefix("http://").rpartition(":")
                return host, int(port)
        time.sleep(0.1)
    raise SystemExit("the page did not come up within a minute")


def wanted(n: int) -> dict[str, Any]:
    """A job like those of many users; some tell how far they are."""
    wishes = {"gpus": 1 + n % 4, "estimate": 5.0 + n % 5000, "priority": n % 3, "name": f"train-{n}"}
    command = ["sh", "-c", "for i in 1 2 3 4 5 6; do echo progress $i/6; sleep 1; done"] if n % 2 else ["sleep", "6"]
    return {"command": command, "directory": "/tmp", "environment": {"PATH": os.environ["PATH"]}, **wishes}


# -- those who look -------------------------------------------------------------------------------


class Viewer:
    """Has the overview open, and does with it what NiceGUI does in a browser, but shows nothing."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._last = 0
        self._client = ""
        self.bytes = self.messages = 0
        self.cut_off = 0

    async def run(self) -> None:
        """Look until cancelled; whoever is cut off loads the page again, as a browser does."""
        while True:
            with suppress(ConnectionClosed):
                await self._look()
            self.cut_off += 1

    async def _look(self) -> None:
        self._client, first = await asyncio.to_thread(self._opened)
        host, port = self._address
        asked = f"client_id={self._client}&next_message_id={first}&implicit_handshake=true&EIO=4&transport=websocket"
        own = f"tab_id={self._client}&document_id={self._client}"
        url = f"ws://{host}:{port}/_nicegui_ws/socket.io/?{asked}&{own}"
        headers = {"Cookie": COOKIE, "Origin": f"http://{host}:{port}"}
        async with connect(url, additional_headers=headers, compression=None, max_size=2**24) as socket:
            acks = asyncio.create_task(self._ack(socket))
            try:
                await self._listen(socket)
            finally:
                acks.cancel()

    def _opened(self) -> tuple[str, int]:
        host, port = self._address
        with urlopen(Request(f"http://{host}:{port}/", headers={"Cookie": COOKIE})) as answer:
            found = OPTION.search(answer.read().decode())
        if found is None:
            raise SystemExit("the page is not as this bench knows it")
        return found[1], int(found[2])

    async def _listen(self, socket: ClientConnection) -> None:
        async for told in socket:
            text = str(told)
            self.bytes += len(text)
            if text.startswith("0"):
                await socket.send("40")
            elif text == "2":
                await socket.send("3")
            elif text.startswith("42"):
                self.messages += 1
                if number := NUMBER.findall(text):
                    self._last = int(number[-1]) + 1

    async def _ack(self, socket: ClientConnection) -> None:
        while True:
            await asyncio.sleep(ACK)
            told = {"client_id": self._client, "next_message_id": self._last}
            await socket.send("42" + json.dumps(["ack", told]))


async def _view(pipe: Connection, address: Address, count: int) -> None:
    """Many viewers; tells what each was sent a second between two words."""
    viewers = [Viewer(address) for _ in range(count)]
    tasks = []
    for viewer in viewers:
        tasks.append(asyncio.create_task(viewer.run()))
        await asyncio.sleep(0.05)
    while not all(viewer.messages for viewer in viewers):
        if failed := [task for task in tasks if task.done()]:
            raise SystemExit(f"a viewer was turned away: {failed[0].exception()}")
        await asyncio.sleep(0.05)
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    before, began = sum(viewer.bytes for viewer in viewers), time.perf_counter()
    at_first = sum(viewer.cut_off for viewer in viewers)
    await asyncio.to_thread(pipe.recv)
    each = (sum(viewer.bytes for viewer in viewers) - before) / count / (time.perf_counter() - began)
    pipe.send((each, at_first, sum(viewer.cut_off for viewer in viewers) - at_first))
    await asyncio.to_thread(pipe.recv)
    for task in tasks:
        task.cancel()


# -- what a real browser sees ---------------------------------------------------------------------

SEEN = """([index, text]) => {
  const tile = [...document.querySelectorAll("h3")].find((h) => h.textContent === `GPU ${index}`).closest("li");
  window.seen = new Promise((resolve) => {
    const look = () => tile.textContent.toLowerCase().includes(text) && resolve(Date.now() / 1000);
    new MutationObserver(look).observe(tile, { subtree: true, childList: true, characterData: true });
    look();
    setTimeout(() => resolve(Infinity), 30000);
  });
}"""


class Eyes:
    """A real browser."""

    def __init__(self, browser: Browser, address: Address, client: Client) -> None:
        self._browser, self._client = browser, client
        self._url = f"http://{address[0]}:{address[1]}"

    def open(self) -> Page:
        """The overview, in a browser that has never been here."""
        page = self._tab()
        page.goto(self._url)
        return page

    def load(self) -> float:
        """Seconds until all tiles are there."""
        return self._until("/", lambda page: page.get_by_role("heading", name=f"GPU {GPUS - 1}", exact=True))

    def change(self, page: Page, index: int) -> float:
        """Seconds from the daemon's word that a GPU is drained until its tile says so."""
        page.evaluate(SEEN, [index, "drained"])
        self._client.drain([index])
        began = time.time()
        seen = float(page.evaluate("window.seen.then(String)").replace("Infinity", "inf"))
        self._client.resume([index])
        return seen - began

    def log(self, job: str) -> float:
        """Seconds until the end of a job's output is there."""
        return self._until(f"/jobs/{job}", lambda page: page.get_by_text(END).last)

    def _tab(self) -> Page:
        return self._browser.new_context(viewport={"width": 1440, "height": 900}).new_page()

    def _until(self, path: str, sight: Callable[[Page], Locator]) -> float:
        """Seconds until something is seen, from when an address is gone to by a browser that has never been here."""
        page = self._tab()
        began = time.perf_counter()
        page.goto(self._url + path)
        expect(sight(page)).to_be_visible(timeout=60_000)
        took = time.perf_counter() - began
        page.context.close()
        return took


# -- what is measured -----------------------------------------------------------------------------


class Bench(Filled):
    """Who looks at it."""

    wanted = staticmethod(wanted)

    def long_log(self) -> str:
        """A job that has written much."""
        _say("a long log")
        lines = f"yes 'epoch 3, step 1234, loss 0.0625, and more that nobody reads' | head -c {LOG}; echo; echo '{END}'"
        path = {"PATH": os.environ["PATH"]}
        job = self._client.submit(["sh", "-c", lines], directory="/tmp", environment=path, priority=1e6)
        self._client.wait(job, timeout=300)
        return job

    def span(self, name: str) -> float:
        """Planning under requests: CPU time per pass in milliseconds."""
        _say(f"{self._options.seconds:g} s of requests, {name}")
        self.fill()
        time.sleep(1.0)
        before, began = self._meter.now(), time.perf_counter()
        page = self._page_cpu()
        with beside(_load, self._address, self._options.rate, self._options.seconds, True) as pipe:
            spans, failed = pipe.recv()
        seconds, after = time.perf_counter() - began, self._meter.now()
        if failed:
            raise SystemExit(f"{len(failed)} requests failed, as this one: {failed[0]}")
        mean = 1000 * (after["cpu"] - before["cpu"]) / max(1.0, after["plans"] - before["plans"])
        times = [value for values in spans.values() for value in values]
        self.found |= {
            f"{name}: plan, CPU ms per pass": mean,
            f"{name}: passes per second": (after["plans"] - before["plans"]) / seconds,
            f"{name}: queued on average": (before["queued"] + after["queued"]) / 2,
            f"{name}: daemon, percent of a core": 100 * (after["process"] - before["process"]) / seconds,
            f"{name}: page process, percent of a core": 100 * (self._page_cpu() - page) / seconds,
            f"{name}: somebody waited for a CPU, percent": 100 * (after["starved"] - before["starved"]) / seconds,
            f"all requests while {name}: p50 ms": 1000 * quantile(times, 0.5),
            f"all requests while {name}: p99 ms": 1000 * quantile(times, 0.99),
        }
        return mean

    def watched(self, eyes: Eyes, job: str) -> float:
        """The same while many look, and how quick the page is for one more."""
        _say(f"{self._options.viewers} viewers come")
        with beside(_view, self._address, self._options.viewers) as pipe:
            pipe.recv()
            page = eyes.open()
            pipe.send("begin")
            mean = self.span("watched")
            pipe.send("end")
            each, at_first, later = pipe.recv()
            self.found["each viewer is sent: bytes per second"] = each
            self.found["viewers that were cut off while all came"] = at_first
            self.found["viewers that were cut off"] = later
            _say("loads, changes and logs in a browser")
            self.found["first load: s"] = median(eyes.load() for _ in range(3))
            changes = [eyes.change(page, index) for index in range(5, 60, 6)]
            self.found["a GPU's change is seen, median: s"] = median(changes)
            self.found["a GPU's change is seen: s"] = max(changes)
            self.found["the end of a log of 100 MB is seen: s"] = median(eyes.log(job) for _ in range(3))
            self.found["page process: MB"] = self._page_memory()
            pipe.send("go home")
        return mean

    def run(self, browser: Browser) -> Results:
        """All of it."""
        job = self.long_log()
        self.fill()
        _say("jobs come out of step")
        time.sleep(WARM)
        before = self.span("unwatched")
        watched = self.watched(Eyes(browser, self._address, self._client), job)
        after = self.span("unwatched again")
        self.found["plan, CPU per pass: unwatched again / unwatched"] = after / before
        self.found["plan, CPU per pass: watched / unwatched"] = 2 * watched / (before + after)
        return self.found

    def _page_pid(self) -> int:
        return int(self._client.status()["page"]["pid"])

    def _page_cpu(self) -> float:
        fields = Path(f"/proc/{self._page_pid()}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _page_memory(self) -> float:
        status = Path(f"/proc/{self._page_pid()}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1000


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def tell(found: Results) -> list[str]:
    """Print what was found, with the bars; those that are not met."""
    bars = {bar.name: bar.most for bar in BARS}
    missed = [name for name, most in bars.items() if found[name] > most]
    for name, value in found.items():
        bar = f"at most {bars[name]:g}" + (": NOT MET" if name in missed else "") if name in bars else ""
        print(f"{name:60s} {value:10,.2f}  {bar}".rstrip())
    if found["viewers that were cut off"]:
        missed.append("viewers that were cut off")
    return missed


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, for trying it out")
    parser.add_argument("--jobs", type=int, default=5000, help="queued jobs")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=5.0, help="submits per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each span")
    options = parser.parse_args()
    if options.quick:
        options.seconds /= 4
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("there is no chromium; apt-get install chromium brings it")
    with daemon() as (pid, client, address), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        found = Bench(pid, client, address, options).run(browser)
        for job in client.jobs(state="running"):
            with suppress(Refused):
                client.cancel(job["id"], grace=0)
        _say("the history of a month")
        opened, chosen = month(browser)
        found["30 days of 8 GPUs, opened by their address: s"] = opened
        found["30 days of 8 GPUs, chosen on the page: s"] = chosen
        browser.close()
    missed = tell(found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    for name in missed:
        print(f"NOT MET: {name}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
