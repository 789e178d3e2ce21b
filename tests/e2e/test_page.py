"""The page, in a real browser."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

import pytest
from playwright import sync_api
from tests.yard import Yard, until


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium; apt-get install chromium brings it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: sync_api.Browser) -> Iterator[sync_api.Page]:
    context = browser.new_context()
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    context.close()


def _row(page: sync_api.Page, table: str, job: str) -> sync_api.Locator:
    return page.locator(f"#{table} tbody tr", has=page.locator("td:first-child", has_text=job))


def test_who_is_known_sees_the_queue_move(own_yard: Yard, page: sync_api.Page) -> None:
    own_yard.serve("--port", "0")
    url = own_yard.client.status()["url"]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    expect = sync_api.expect
    expect(page.locator("#line")).to_have_text("live")
    expect(page.locator("#queue")).to_contain_text("gpuyard submit")  # an empty queue tells how to begin
    job = own_yard.submit("--name", "<img src=x onerror=document.title=1>", "sleep", "600")
    expect(_row(page, "queue", job)).to_contain_text("running")
    expect(_row(page, "queue", job)).to_contain_text("<img src=x")  # a text, and nothing else
    expect(page.locator(".tile.ours")).to_have_count(1)
    _row(page, "queue", job).get_by_role("button").click()
    expect(_row(page, "over", job)).to_contain_text("cancelled")
    assert page.title() == "gpuyard"
    assert {one.split("/")[2] for one in asked if not one.startswith("data:")} == {url.split("/")[2]}


def test_a_token_opens_the_page_and_it_survives_a_restart(own_yard: Yard, page: sync_api.Page) -> None:
    own_yard.serve("--port", "0", "--token", "required")
    url = own_yard.client.status()["url"]
    made = own_yard.client.make_token(role="admin")
    expect = sync_api.expect
    page.goto(url)
    page.fill("#token", "gy_wrong_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#refusal")).to_contain_text("token")
    page.fill("#token", made["token"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#line")).to_have_text("live")
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""

    job = own_yard.submit("sleep", "600")
    expect(_row(page, "queue", job)).to_contain_text("running")
    own_yard.end(signal.SIGKILL)
    expect(page.locator("#line")).to_have_attribute("data-state", "lost")
    own_yard.serve("--port", url.rpartition(":")[2], "--token", "required")
    expect(page.locator("#line")).to_have_text("live", timeout=30_000)
    _row(page, "queue", job).get_by_role("button").click()
    until(lambda: own_yard.client.job(job)["state"] == "cancelled", "the cancellation")
    expect(_row(page, "over", job)).to_contain_text("cancelled")

    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#door")).to_be_visible()
    page.reload()
    expect(page.locator("#door")).to_be_visible()


def test_a_viewer_has_no_buttons(own_yard: Yard, page: sync_api.Page) -> None:
    own_yard.serve("--port", "0", "--token", "required")
    made = own_yard.client.make_token(role="viewer")
    job = own_yard.submit("sleep", "600")
    page.goto(own_yard.client.status()["url"])
    page.fill("#token", made["token"])
    page.keyboard.press("Enter")
    sync_api.expect(_row(page, "queue", job)).to_contain_text("running")
    assert page.locator("#queue button").count() == 0
