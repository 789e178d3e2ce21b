"""Make the pictures of the page that the README shows: a daemon with simulated GPUs, a queue that lives, a browser.

usage: python docs/screenshots.py [FOLDER]   (docs/images if none is given; it takes two minutes, and wants chromium)
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from gpuyard.cli.simulator.demo import Coming, Living, demo_daemon, stream

WIDTH, HEIGHT = 1440, 900
LARGEST = 250 * 1024
"""Bytes of a picture; it is in the repository for ever."""
VIEWER = "ann"
PAST, PRESENT = 45.0, 40.0
"""Seconds of jobs that hurry, so that there is a history, and of jobs as they are."""
SHOWN = Coming(
    VIEWER, "resnet50", ("--lr", "0.1", "--epochs", "60", "--pace", "4"),
    {"name": "resnet50-baseline", "tags": ["vision"], "gpus": 2, "priority": 20.0, "time_limit": 1800.0},
)  # fmt: skip
COMPARISON = "source=workload&jobs=400&policies=fcfs&policies=sjf&policies=srtf&policies=multifactor"


def main() -> None:
    """Take them all."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "images")
    folder.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium")
    if program is None:
        sys.exit("there is no chromium; apt-get install chromium brings it")
    with demo_daemon(tokens="required") as (client, place):
        living = Living.begin(client, place, seed=1)
        token = client.make_token(VIEWER, label="screenshots")["token"]
        shown = _let_live(living)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            take_all(browser, str(client.status()["url"]), token, shown, folder)
            browser.close()


class Shown(NamedTuple):
    """What there is to be seen."""

    job: str
    since: str
    """When the history begins."""


def _let_live(living: Living) -> Shown:
    """First a past in a hurry, then the present."""
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    usual = living.coming
    living.coming = (_hurried(new) for new in usual if "hold" not in new.wishes)
    _fill_for(living, PAST)
    shown = living.submit(SHOWN)
    living.coming = stream(seed=2)
    _fill_for(living, PRESENT)
    return Shown(shown, since)


def _hurried(new: Coming) -> Coming:
    arguments = list(new.arguments)
    if "--pace" in arguments:
        arguments[arguments.index("--pace") + 1] = "0.4"
    return new._replace(arguments=tuple(arguments), then="")


def _fill_for(living: Living, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        living.fill()
        time.sleep(0.5)


def take_all(browser: Browser, url: str, token: str, shown: Shown, folder: Path) -> None:
    """The overview, a job, the history and a comparison."""
    with _tab(browser, url, token, dark=True) as tab:
        tab.goto(f"{url}/jobs/{shown.job}")
        tab.get_by_text("epoch").first.wait_for()
        _take(tab, folder / "job.png")
    with _tab(browser, url, token) as tab:
        tab.goto(url)
        tab.get_by_text("Next in the queue").wait_for()
        _take(tab, folder / "overview.png")
        tab.goto(f"{url}/history?since={shown.since}")
        tab.get_by_text("attempts on 8 GPUs").first.wait_for()
        _take(tab, folder / "history.png")
        tab.goto(f"{url}/simulate?{COMPARISON}")
        tab.get_by_role("button", name="Simulate").click()
        tab.get_by_role("link", name="Download as JSON").wait_for(timeout=120_000)
        tab.get_by_role("heading", name="Results").evaluate("found => scrollTo(0, found.offsetTop - 70)")
        _take(tab, folder / "simulate.png")


@contextmanager
def _tab(browser: Browser, url: str, token: str, *, dark: bool = False) -> Iterator[Page]:
    """A tab in which somebody is logged in."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if dark else "light", timezone_id="UTC"
    )
    answer = context.request.post(f"{url}/api/v1/session", data={"token": token})
    assert answer.ok, answer.text()
    yield context.new_page()
    context.close()


def _take(tab: Page, file: Path) -> None:
    tab.wait_for_timeout(3000)  # for curves to be drawn, and what moves to stand
    tab.screenshot(path=file)
    size = file.stat().st_size
    print(f"{file}: {size // 1024} KiB" + (" — too large" if size > LARGEST else ""))


if __name__ == "__main__":
    main()
