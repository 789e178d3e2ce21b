"""The history in a browser: tables, chart, times and the file."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.browser.conftest import Site
from tests.yard import until

EVIL = "<img src=x onerror=alert(1)>"
FORMULA = "=1+1"


def over(site: Site, name: str, tag: str = "", command: str = "true") -> str:
    id = site.yard.client.submit([command], name=name, tags=[tag] if tag else [])
    site.yard.wait(id)
    return id


def test_what_is_over_is_listed_found_and_exported(site: Site, page: Page) -> None:
    wanted, other = over(site, FORMULA, "project-x"), over(site, EVIL)
    page.goto(f"{site.url}/history")
    expect(page.locator(f'tr[data-key="{other}"]')).to_contain_text(EVIL)
    page.goto(f"{site.url}/history?tag=project-x")
    expect(page.locator(f'tr[data-key="{wanted}"]')).to_be_visible()
    expect(page.locator(f'tr[data-key="{other}"]')).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["name"], row["state"]) for row in rows] == [(wanted, f"'{FORMULA}", "succeeded")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*\+00:00", rows[0]["ended_at"])


def test_a_job_that_ends_comes_by_itself_and_is_counted(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/history?span=1h&state=failed")
    id = over(site, "breaks", "project-y", "false")
    line = page.locator(f'tr[data-key="{id}"]')
    expect(line).to_contain_text("Exit code 1")
    page.reload()
    users = page.get_by_role("table", name="GPU-hours by user")
    expect(users).to_contain_text(site.yard.client.job(id)["user"])
    expect(page.get_by_role("table", name="GPU-hours by project")).to_contain_text("project-y")
    expect(
        page.get_by_text(re.compile("^(Half of .* jobs waited (at most|less than)|The only job waited) "))
    ).to_be_visible()


def test_long_tags_fit_on_a_phone(site: Site, page: Page) -> None:
    over(site, "a", "a-project-whose-name-is-longer-than-a-phone-is-wide")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site.url}/history?span=1h")
    expect(page.get_by_role("table", name="GPU-hours by project")).to_contain_text("than-a-phone-is-wide")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in ("GPU-hours by project", "GPU-hours by user"):
        cell = page.get_by_role("table", name=name).locator("tbody td").first
        assert cell.evaluate("cell => cell.offsetWidth") >= 96  # room for words, not for a few letters
        assert cell.evaluate("cell => cell.closest('table').scrollWidth") <= 390 - 24


def test_the_chart_shows_who_was_on_which_gpu(site: Site, page: Page) -> None:
    id = over(site, EVIL)
    until(lambda: id in site.yard.client.usage()["columns"]["job"], "the job on its GPU")
    page.goto(f"{site.url}/history?span=1h")
    expect(page.get_by_text(re.compile(r"attempts? on 4 GPUs from .* to "))).to_be_visible()
    page.get_by_role("button", name="By user").click()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Show this span only").click()
    page.wait_for_url(re.compile(r"since=.*&until="))
    expect(page.get_by_role("textbox", name="From")).not_to_have_value("")
    page.get_by_text("As a table").click()
    expect(page.get_by_role("rowheader", name="3")).to_be_visible()


def test_the_wheel_scrolls_past_the_chart_and_zooms_with_ctrl(site: Site, page: Page) -> None:
    id = over(site, "seen")
    until(lambda: id in site.yard.client.usage()["columns"]["job"], "the job on its GPU")
    page.set_viewport_size({"width": 1440, "height": 500})
    page.goto(f"{site.url}/history?span=1h")
    expect(page.get_by_text(re.compile(r"attempts? on 4 GPUs from .* to "))).to_be_visible()
    page.locator(".gy-gantt canvas").hover()
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 120)
    page.wait_for_function("before => scrollY === before + 120", arg=before)
    page.locator(".gy-gantt canvas").hover()
    expect(page.get_by_role("button", name="Show this span only")).to_be_disabled()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -120)
    expect(page.get_by_role("button", name="Show this span only")).to_be_enabled()


def test_times_are_in_the_viewers_zone(site: Site, page: Page) -> None:
    over(site, "mine")
    page.goto(f"{site.url}/history?since=2026-01-15T07:00:00Z")
    expect(page.get_by_role("textbox", name="From")).to_have_value("2026-01-15T12:45")  # Kathmandu
    page.get_by_role("textbox", name="From").fill("2026-02-01T00:00")
    page.wait_for_url("**since=2026-01-31T18%3A15%3A00Z*")


def test_what_nothing_is_like_can_be_left_behind(site: Site, page: Page) -> None:
    over(site, "mine")
    page.goto(f"{site.url}/history?text=nothing-is-called-that")
    expect(page.get_by_text("No job that ended in this time is like that.")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.get_by_role("cell", name="mine").first).to_be_visible()
    page.wait_for_url("**/history")


def test_a_time_that_would_end_before_it_begins_is_refused_in_a_sentence(site: Site, page: Page) -> None:
    over(site, "seen")
    page.goto(f"{site.url}/history?since=2026-01-02T00:00:00Z")
    expect(page.get_by_label("From", exact=True)).to_have_value("2026-01-02T05:45")
    page.get_by_label("To", exact=True).fill("2026-01-01T05:45")
    expect(page.get_by_text("The time would end before it begins")).to_be_visible()
    expect(page.get_by_label("From", exact=True)).to_have_value("2026-01-02T05:45")
    expect(page.get_by_label("To", exact=True)).to_have_value("")
