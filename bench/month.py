"""How long a month takes to be seen: the history of 30 days of 8 GPUs, from the click until all of it is drawn.

The recordings are made up, and as many as a daemon would have written: the last days by the second, the rest by the
minute. Whoever looks has been on the page before, and has its scripts. Run it as `python -m bench.month`; `bench.page`
has it too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.request import urlopen

from playwright.sync_api import Browser, sync_playwright
from tests.longago import fill

from gpuyard.client.client import Client

GPUS, DAYS, FINE = 8, 30, 7
"""How many, for how many days, and of these by the second."""
MEMORY = 24 * 2**30
MOST = 1.0
"""Seconds that it may take."""
DRAWN = """() => new Promise((resolve) => {
  const look = () => {
    const strips = document.querySelector(".gy-strips canvas"), chart = document.querySelector(".gy-gantt canvas");
    const there = strips && chart && strips.offsetHeight > 200 && strips.width > 400;
    if (there) requestAnimationFrame(() => setTimeout(() => resolve(performance.now() / 1000)));
    else setTimeout(look, 5);
  };
  look();
})"""
"""Comes back, with the seconds since the navigation began, once the curves and the chart are drawn."""
CHOSEN = """() => new Promise((resolve) => {
  const told = ({ name }) => /recordings|usage/.test(name);
  const asked = () => performance.getEntriesByType("resource").filter(told).length;
  const before = asked(), began = performance.now();
  [...document.querySelectorAll("button")].find(({ textContent }) => textContent.trim() === "30 days").click();
  const look = () => {
    if (asked() < before + 2) setTimeout(look, 3);
    else requestAnimationFrame(() => setTimeout(() => resolve((performance.now() - began) / 1000)));
  };
  look();
})"""
"""The same of a page that is open already, where somebody chooses the month."""


@contextmanager
def page(folder: Path) -> Iterator[str]:
    """A daemon with its page, on recordings of a month: its address."""
    fill(folder, GPUS, DAYS, MEMORY, fine=FINE)
    command = [sys.executable, "-m", "gpuyard", "serve", "--data-dir", str(folder), "--port", "0", "--page", "on"]
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--simulate-gpus", f"{GPUS}x{MEMORY}"], stderr=log,
            env={**os.environ, "GPUYARD_SINGLE_USER": "true"},
        )  # fmt: skip
    try:
        yield _served(Client(folder / "gpuyard.sock"))
    finally:
        process.terminate()
        process.wait(20)


def _served(client: Client) -> str:
    for _ in range(600):
        with suppress(Exception):  # not up yet
            url = str(client.status()["url"])
            with urlopen(f"{url}/login"):
                return url
        time.sleep(0.1)
    raise SystemExit("the page did not come up within a minute")


class Seen(NamedTuple):
    """Seconds until a month is drawn."""

    opened: float
    """From the address to the page with all of it."""
    chosen: float
    """On a page that shows an hour."""


def month(browser: Browser, times: int = 5) -> Seen:
    """How long it takes; the median of some times."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder, page(Path(folder)) as url:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        tab = context.new_page()
        tab.goto(f"{url}/history")
        tab.wait_for_selector(".gy-gantt canvas")
        opened, chosen = list[float](), list[float]()
        for _ in range(times):
            tab.goto(f"{url}/history?span=30d", wait_until="commit")
            opened.append(float(tab.evaluate(DRAWN)))
            tab.goto(f"{url}/history?span=1h")
            tab.evaluate(DRAWN)
            chosen.append(float(tab.evaluate(CHOSEN)))
        context.close()
    return Seen(median(opened), median(chosen))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how often it is opened")
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("there is no chromium; apt-get install chromium brings it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        took = month(browser, options.times)
        browser.close()
    print(f"{DAYS} days of {GPUS} GPUs, opened by their address: {took.opened:.2f} s; at most {MOST:g}")
    print(f"{DAYS} days of {GPUS} GPUs, chosen on the page:     {took.chosen:.2f} s; at most {MOST:g}")
    sys.exit(0 if max(took) <= MOST else 1)


if __name__ == "__main__":
    main()
