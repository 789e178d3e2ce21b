"""What GPUs did, as the overview, a job's page and the history show it: curves, numbers, a file, and no less."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from playwright.sync_api import Locator, Page, Route, expect
from tests.browser.conftest import Site, served
from tests.longago import fill
from tests.yard import opened, until

EVIL = "<img src=x onerror=alert(1)>"
GIB = 2**30
INKED = """(canvas) => {
  const accent = getComputedStyle(document.body).getPropertyValue("--gy-accent").match(/[0-9a-f]{2}/g);
  const wanted = accent.map((two) => parseInt(two, 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    const off = wanted.reduce((sum, part, n) => sum + Math.abs(data[i + n] - part), 0);
    if (data[i + 3] > 200 && off < 40) found += 1;
  }
  return found;
}"""
"""How many points of a canvas have the colour of curves."""


def inked(chart: Locator) -> int:
    return int(chart.evaluate(INKED))


def chart(page: Page, name: str) -> Locator:
    return page.get_by_role("img", name=re.compile(f"^{name} over time"))


def choice(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def saved(page: Page) -> list[dict[str, str]]:
    """What the file has."""
    with page.expect_download() as download:
        choice(page, "CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_overview_shows_what_was_recorded_and_the_address_says_which(site: Site, page: Page) -> None:
    site.yard.submit("--from", "1", "--name", EVIL, "--", "sleep", "600")
    until(lambda: site.yard.client.recording(gpus=[1], metrics=["power"])["gpus"], "a recording")
    page.goto(f"{site.url}/")
    choice(page, "GPU 1").click()
    choice(page, "1 h").click()
    choice(page, "Memory").click()
    choice(page, "Power").click()
    page.wait_for_url("**/?range=1h&show=utilization,power&gpu=1")
    page.reload()
    expect(choice(page, "1 h")).to_have_attribute("aria-pressed", "true")
    expect(choice(page, "Memory")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_text("These GPUs are simulated: what they do is made up.")).to_be_visible()
    until(lambda: inked(chart(page, "Power")) > 20, "a curve")
    page.get_by_text("In numbers").click()
    expect(page.get_by_role("row", name=re.compile(r"^1 .* W on average, "))).to_be_visible()
    rows = saved(page)
    assert {row["gpu"] for row in rows} == {"1"}
    assert all(0 <= float(row["power_watts"]) < 1000 for row in rows)


def test_what_happened_is_told_to_the_keyboard_and_under_the_pointer(site: Site, page: Page) -> None:
    id = site.yard.submit("--from", "2", "--name", EVIL, "--", "sleep", "600")
    until(lambda: id in {mark["job"] for mark in site.yard.client.recording(gpus=[2])["marks"]}, "a mark of its start")
    page.goto(f"{site.url}/?gpu=2&show=utilization")
    found = chart(page, "Utilization")
    found.scroll_into_view_if_needed()
    until(lambda: inked(found) > 20, "a curve")
    told = page.get_by_text(f"GPU 2: job {id} ({EVIL}) begins")
    page.get_by_role("group", name="Arrow keys tell what was when").focus()
    for _ in range(100):  # it began lately, and is at the right
        page.keyboard.press("ArrowLeft")
        if told.is_visible():
            break
    expect(told).to_be_visible()
    box = found.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 18, box["y"] + 40)  # now: this yard has just begun to record
    expect(page.get_by_text(re.compile(r"^GPU 2: \d+ %"))).to_be_visible()


def test_what_cannot_be_told_is_told_in_a_sentence(site: Site, page: Page) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=500, body=json.dumps({"detail": "the disk is broken"}), content_type="application/json")

    page.route("**/api/v1/recordings?*", refuse)
    page.goto(f"{site.url}/history?span=1h")
    expect(page.get_by_text("What the GPUs did cannot be told: the disk is broken.")).to_be_visible()
    page.unroute("**/api/v1/recordings?*")
    choice(page, "Power").click()
    expect(page.get_by_text("cannot be told")).to_have_count(0)


def test_a_jobs_page_has_its_own_use_against_its_promise(site: Site, page: Page) -> None:
    wishes = ("--gpu-memory", "4G", "--simulate-use", "2G;util=40", "--from", "3")
    id = site.yard.submit(*wishes, "--", "sleep", "600")
    until(lambda: any(len(one["at"]) > 2 for one in site.yard.client.recording(id)["jobs"]), "a recording of the job")
    page.goto(f"{site.url}/jobs/{id}")
    expect(page.get_by_text("the job itself").first).to_be_visible()
    page.get_by_text("In numbers").click()
    row = page.get_by_role("row", name=re.compile("^3 "))
    expect(row).to_contain_text(re.compile(r"the job itself: 2 GiB on average"))
    site.yard.client.cancel(id, grace=0)
    site.yard.wait(id)
    expect(page.get_by_role("term").get_by_text("Energy")).to_be_visible()
    expect(page.get_by_role("definition").get_by_text("2 GiB of 4 GiB", exact=True)).to_be_visible()
    until(lambda: inked(chart(page, "Memory")) > 20, "a curve of what is over")
    assert {row["job"] for row in saved(page)} == {"", id}


def test_a_month_is_seen_above_the_same_axis_as_its_jobs(page: Page, tmp_path: Path) -> None:
    with opened(tmp_path) as yard:
        fill(yard.data_dir, gpus=4, days=30, memory=16 * GIB)
        site = served(yard)
        page.goto(f"{site.url}/history?span=30d")
        expect(page.get_by_text("A line is the mean of each span")).to_be_visible()
        until(lambda: inked(chart(page, "Utilization")) > 1000, "curves of a month")
        choice(page, "Power").click()
        page.wait_for_url("**/history?span=30d&show=power")
        with page.expect_request(lambda request: "/recordings?" in request.url) as asked:
            page.get_by_role("button", name="Zoom in").click()
        assert "metrics=power" in asked.value.url
        choice(page, "7 days").click()
        page.wait_for_url("**/history?span=7d&show=power")
        until(lambda: inked(chart(page, "Power")) > 1000, "curves of a week")
