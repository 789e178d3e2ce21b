"""The queue in a browser: what is shown, what may be done, by button, by key and by dragging."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import Site
from tests.yard import until

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def busy(site: Site) -> Iterator[Site]:
    """All GPUs are taken, and who waits is ordered by priority alone."""
    before = site.yard.client.policy()
    site.yard.client.set_policy("priority:ageing=0")
    site.yard.client.submit(["sleep", "600"], gpus=4, name="everything")
    yield site
    site.yard.client.set_policy(before["name"])


def waiting(site: Site, name: str, priority: float = 0.0, tag: str = "") -> str:
    return site.yard.client.submit(["true"], name=name, priority=priority, tags=[tag] if tag else [])


def row(page: Page, id: str) -> Locator:
    return page.locator(f'tbody tr[data-key="{id}"]')


_IN_ORDER = """ids => {
  const keys = [...document.querySelectorAll("tbody tr")].map((row) => row.dataset.key);
  return keys.filter((key) => ids.includes(key)).join() === ids.join();
}"""


def expect_order(page: Page, *ids: str) -> None:
    """Wait until these stand below each other, whoever else is there."""
    page.wait_for_function(_IN_ORDER, arg=list(ids))


def test_an_empty_queue_teaches_the_first_command(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/queue")
    expect(page.get_by_text("No job runs or waits.")).to_be_visible()
    expect(page.get_by_text("gpuyard submit --gpus 1 -- python train.py")).to_be_visible()


def test_jobs_are_told_with_reasons_and_names_stay_text(busy: Site, page: Page) -> None:
    page.goto(f"{busy.url}/queue")
    id = waiting(busy, EVIL, tag=EVIL)
    expect(row(page, id)).to_contain_text(EVIL)
    expect(row(page, id)).to_contain_text(re.compile("Needs 1 GPU, 0 idle"))
    expect(page.get_by_role("button", name="Waiting 1")).to_be_visible()
    expect(page.get_by_role("table", name="Jobs that run, wait or are held")).to_be_visible()


def test_priority_changes_by_button_and_by_key_and_the_focus_stays(busy: Site, page: Page) -> None:
    first, second = waiting(busy, "first"), waiting(busy, "second")
    page.goto(f"{busy.url}/queue")
    expect_order(page, first, second)
    page.get_by_role("button", name=f"Raise the priority of job {second}").click()
    expect_order(page, second, first)
    row(page, first).focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect_order(page, first, second)
    until(lambda: busy.yard.client.job(first)["priority"] == 2, "both steps")
    expect(row(page, first)).to_be_focused()
    busy.yard.client.edit(second, priority=9)  # somebody else's doing: what is seen changes, the focus does not
    expect_order(page, second, first)
    expect(row(page, first)).to_be_focused()
    page.keyboard.press("-")
    until(lambda: busy.yard.client.job(first)["priority"] == 1, "a step down")


def test_hold_release_and_cancel_by_key(busy: Site, page: Page) -> None:
    id = waiting(busy, "mine")
    page.goto(f"{busy.url}/queue")
    row(page, id).focus()
    page.keyboard.press("h")
    expect(row(page, id)).to_contain_text("Held until it is released.")
    page.keyboard.press("h")
    expect(row(page, id)).to_contain_text("waiting")
    page.keyboard.press("Delete")
    expect(page.get_by_text(f"Cancel job {id} (mine)?")).to_be_visible()
    page.get_by_role("button", name="No, leave it").click()
    expect(page.get_by_text(f"Cancel job {id} (mine)?")).to_have_count(0)
    assert busy.yard.client.job(id)["state"] == "queued"
    page.get_by_role("button", name=f"Cancel job {id}").click()
    page.get_by_role("button", name="Cancel it").click()
    expect(row(page, id)).to_have_count(0)
    assert busy.yard.client.job(id)["state"] == "cancelled"


def test_several_are_held_and_cancelled_at_once(busy: Site, page: Page) -> None:
    ids = [waiting(busy, "one"), waiting(busy, "two"), waiting(busy, "three")]
    page.goto(f"{busy.url}/queue?state=queued")
    for id in ids[:2]:
        page.get_by_role("checkbox", name=f"Select job {id}").check()
    chosen = page.get_by_role("region", name="Selected jobs")
    expect(chosen).to_contain_text("2 selected")
    chosen.get_by_role("button", name="Hold").click()
    expect(row(page, ids[0])).to_have_count(0)  # it is not one that waits any more
    expect(page.get_by_role("button", name="Held 2")).to_be_visible()
    page.get_by_role("button", name="Held 2").click()
    expect_order(page, *ids[:2])
    expect(row(page, ids[2])).to_have_count(0)
    page.get_by_role("checkbox", name="Select all on this page").check()
    chosen.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel them").click()
    expect(page.get_by_text("No job of the queue is like that.")).to_be_visible()
    assert {job["id"] for job in busy.yard.client.jobs(state="queued")} == {ids[2]}


def test_a_dragged_job_comes_between_its_new_neighbours(busy: Site, page: Page) -> None:
    high, middle, low = waiting(busy, "high", 5), waiting(busy, "middle", 3), waiting(busy, "low", 1)
    page.goto(f"{busy.url}/queue")
    expect_order(page, high, middle, low)
    row(page, low).locator("[draggable]").drag_to(row(page, middle), target_position={"x": 300, "y": 3})
    expect_order(page, high, low, middle)
    assert busy.yard.client.job(low)["priority"] == 4
    row(page, low).focus()
    page.keyboard.press("Alt+ArrowDown")
    expect_order(page, high, middle, low)


def test_a_policy_that_ignores_priorities_is_told_of(busy: Site, page: Page) -> None:
    waiting(busy, "mine")
    page.goto(f"{busy.url}/queue")
    expect(page.locator("[draggable]")).to_have_count(1)
    busy.yard.client.set_policy("fcfs")
    expect(page.get_by_text("It does not look at priorities")).to_be_visible()
    expect(page.locator("[draggable]")).to_have_count(0)


def test_filters_are_in_the_address(busy: Site, page: Page) -> None:
    wanted, other = waiting(busy, "train a", tag="vision"), waiting(busy, "eval b", tag="nlp")
    page.goto(f"{busy.url}/queue")
    page.get_by_label("Search").fill("train")
    expect(row(page, other)).to_have_count(0)
    expect(row(page, wanted)).to_be_visible()
    page.wait_for_url("**/queue?text=train")
    page.goto(f"{busy.url}/queue?tag=nlp")
    expect(row(page, other)).to_be_visible()
    expect(row(page, wanted)).to_have_count(0)


def test_a_long_queue_has_pages_and_an_array_is_one_row(busy: Site, page: Page) -> None:
    array = busy.yard.client.submit(["true"], name="sweep", array="0-99", priority=1)
    described = {"command": ["true"], "directory": "/", "environment": {}, "hold": True}
    busy.yard.client.submit_all([described] * 60)
    page.goto(f"{busy.url}/queue")
    expect(page.get_by_text("1–50 of 161 jobs in 62 rows")).to_be_visible()
    expect(page.get_by_role("link", name=f"{array}_[0-99]")).to_have_attribute("href", f"/jobs/{array}")
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text("51–62 of 161 jobs in 62 rows")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(12)
    page.wait_for_url("**/queue?page=2")


def test_who_may_only_look_sees_no_button(busy: Site, page: Page) -> None:
    id = waiting(busy, "mine")
    token = busy.token("guest", role="viewer")
    answer = page.request.post(f"{busy.url}/api/v1/session", data={"token": token})
    assert answer.ok, answer.text()
    page.goto(f"{busy.url}/queue")
    expect(row(page, id)).to_be_visible()
    expect(row(page, id).get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("button", name="Mine")).to_have_count(0)


def test_on_a_phone_rows_are_cards_and_nothing_is_cut_off(busy: Site, page: Page) -> None:
    waiting(busy, "a name without any end " * 8)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{busy.url}/queue")
    expect(page.get_by_role("cell", name="waiting")).to_be_visible()
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0


def test_a_phone_tells_what_is_left_of_a_job_without_progress(site: Site, page: Page) -> None:
    id = site.yard.submit("--estimate", "1h", "--", "sleep", "600")
    late = site.yard.submit("--estimate", "1s", "--", "sleep", "600")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site.url}/queue")
    expect(row(page, id).get_by_text(re.compile("left$"))).to_be_visible()
    expect(row(page, late).get_by_text("longer than expected")).to_be_visible()
