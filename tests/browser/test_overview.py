"""The overview in a real browser: tiles that live, the queue's head, what has ended."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import Serve, Site
from tests.fake_nvml import FakeNvml
from tests.yard import PATIENCE, Yard

GIB = 2**30
HOSTILE = "<img src=x onerror=alert(1)>"


def tile(page: Page, index: int) -> Locator:
    exactly = page.get_by_role("heading", name=f"GPU {index}", exact=True)
    return page.get_by_role("listitem").filter(has=exactly)


def section(page: Page, title: str) -> Locator:
    return page.locator("section").filter(has=page.get_by_role("heading", name=title))


def look(page: Page, site: Site) -> None:
    """Open the overview; a page whose process has only just been started tries again by itself until it is there."""
    page.goto(site.url)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=1000 * PATIENCE)


def is_too_wide(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_an_estimate_tells_how_long_a_job_will_be_there(site: Site, page: Page) -> None:
    job = site.yard.submit("--from", "1", "--name", "silent", "--estimate", "1h", "--", "sleep", "600")
    look(page, site)
    expect(tile(page, 1)).to_contain_text(re.compile(r"about 59m \d\ds left"))
    page.goto(f"{site.url}/queue")
    expect(page.get_by_role("row").filter(has_text="silent")).to_contain_text(re.compile(r"about 59m \d\ds left"))
    page.goto(f"{site.url}/jobs/{job}")
    expect(page.get_by_text("expected to end about")).to_be_visible()


def test_a_job_comes_to_its_tile_and_leaves_it(site: Site, page: Page) -> None:
    look(page, site)
    expect(tile(page, 2)).to_contain_text("free")
    expect(tile(page, 2)).to_contain_text("simulated")
    expect(page.get_by_text("No job waits")).to_be_visible()
    job = site.yard.submit("--from", "2", "--name", HOSTILE, "--", "sh", "-c", "echo progress 3/4; sleep 60")
    mine = tile(page, 2)
    expect(mine).to_contain_text("busy")
    link = mine.get_by_role("link", name=HOSTILE)
    expect(link).to_have_attribute("href", f"/jobs/{job}")
    expect(mine).to_contain_text(re.compile(r"for [1-9]\d?s"))  # which goes on by itself
    expect(mine.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "75")
    expect(mine).to_contain_text(re.compile(r"Load\s*\d+\s*%"))
    expect(mine.locator("polyline").first).to_be_attached()
    expect(tile(page, 1)).to_contain_text("free")
    site.yard.client.cancel(job, grace=0)
    expect(mine).to_contain_text("free")
    link = page.locator(f"a[href='/jobs/{job}']")
    expect(section(page, "Lately finished").get_by_role("listitem").filter(has=link)).to_contain_text("cancelled")


def test_jobs_that_share_a_gpu_have_their_parts_of_its_memory(site: Site, page: Page) -> None:
    for name, memory in (("small", "2G"), ("large", "6G")):
        site.yard.submit("--gpu-memory", memory, "--from", "0", "--name", name, "--", "sleep", "60")
    look(page, site)
    bar = tile(page, 0).get_by_role("img", name=re.compile("Memory: .* of 16 GiB in use"))
    expect(bar).to_have_attribute("aria-label", re.compile("small of .* has .*; large of .* has "))
    expect(bar).to_have_text("AB")
    expect(tile(page, 0).get_by_role("link")).to_have_text(["small", "large"])


def test_who_comes_next_is_told_and_why_not_yet(site: Site, page: Page) -> None:
    site.yard.submit("--gpus", "4", "--estimate", "1h", "--", "sleep", "60")
    site.yard.submit("--gpus", "4", "--name", "second", "--", "sleep", "60")
    for _ in range(12):
        site.yard.submit("--gpus", "4", "--", "true")
    look(page, site)
    head = section(page, "Next in the queue")
    expect(head.get_by_role("listitem")).to_have_count(10)
    first = head.get_by_role("listitem").first
    expect(first).to_contain_text("second")
    expect(first).to_contain_text(re.compile(r"Needs 4 GPUs.*expected to fit at (\w+ \w+, )?\d\d:\d\d$"))
    expect(head.get_by_role("link", name="3 more in the queue")).to_have_attribute("href", "/queue")
    expect(page.get_by_text("GPUs in use").locator("xpath=..")).to_contain_text("4 of 4")
    expect(page.get_by_text("GPU-hours today")).to_be_visible()


def sample_times(sent: str) -> list[str]:
    """When the samples were taken that the page was sent."""
    return [time for times in re.findall(r"samples\W+at\W+\[([\d.,]+)\]", sent) for time in times.split(",")]


def test_only_what_changed_is_sent(site: Site, page: Page) -> None:
    told: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: told.append(str(frame))))
    look(page, site)
    expect(tile(page, 3)).to_contain_text("free")
    expect(tile(page, 3).locator("polyline").first).to_be_attached()
    told.clear()
    site.yard.submit("--from", "3", "--", "sleep", "60")
    expect(tile(page, 3)).to_contain_text("busy")
    assert re.findall(r"gpu (\d)", "".join(told)) == ["3"]
    while len(times := sample_times("".join(told))) < 3:
        page.wait_for_timeout(100)
    assert len(times) == len(set(times))  # each sample is sent once


def test_many_gpus_fit_on_a_phone(serve: Serve, page: Page) -> None:
    site = serve("--simulate-gpus", "64x16G")
    page.set_viewport_size({"width": 390, "height": 800})
    look(page, site)
    expect(page.get_by_role("heading", name=re.compile(r"^GPU \d+$"))).to_have_count(64)
    assert not is_too_wide(page)


def test_every_page_is_named_on_top_however_wide_the_window_is(site: Site, page: Page) -> None:
    look(page, site)
    for width in (1280, 1100, 1024, 995, 900, 750, 600, 390, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.locator(".gy-nav").evaluate("pages => pages.scrollWidth <= pages.clientWidth"), width
        assert not is_too_wide(page), width


@pytest.fixture
def real(fake_nvml: FakeNvml, tmp_path: Path) -> Iterator[Callable[[], Site]]:
    """Opens a site on GPUs that a made-up driver tells of."""
    yard = Yard(tmp_path, tmp_path)
    yard.use(fake_nvml)
    yard.environment |= {"GPUYARD_PAGE": "on", "GPUYARD_SINGLE_USER": "true", "GPUYARD_PORT": "0"}

    def opened() -> Site:
        yard.serve()
        return Site(yard, yard.client.status()["url"])

    yield opened
    yard.end(signal.SIGTERM)


def test_what_is_wrong_with_a_gpu_is_unmistakable(fake_nvml: FakeNvml, real: Callable[[], Site], page: Page) -> None:
    for n in range(3):
        fake_nvml.add(name="NVIDIA A100", uuid=f"GPU-aaaa0000-0000-0000-0000-00000000000{n}", mem_total=16 * GIB)
    site = real()
    look(page, site)
    expect(tile(page, 0)).to_contain_text("free")
    expect(page.get_by_text("simulated")).to_have_count(0)
    site.yard("drain", "gpu", "2", "--reason", HOSTILE)
    expect(tile(page, 2)).to_contain_text("drained")
    expect(tile(page, 2)).to_contain_text(re.compile(rf"Drained: {re.escape(HOSTILE)} \(\w+\)\. Nothing is started"))
    with subprocess.Popen(["sleep", "300"]) as stranger:
        fake_nvml.set(0, mem_used=9 * GIB, util=97, procs={stranger.pid: 9 * GIB})
        expect(tile(page, 0)).to_contain_text("foreign")
        expect(tile(page, 0)).to_contain_text(f"foreign process {stranger.pid}")
        expect(tile(page, 0)).to_contain_text("sleep")
        expect(tile(page, 0)).to_contain_text("9 GiB of 16 GiB")
        stranger.kill()
    fake_nvml.set(1, lost=1)
    expect(tile(page, 1)).to_contain_text("GPU is lost. Nothing is started on it.")
    expect(page.get_by_text("1 lost")).to_be_visible()
    fake_nvml.set(1, lost=0)
    expect(tile(page, 1)).to_contain_text("free")
