"""One afternoon with the page, from the door to a restart of the daemon, as one person lives it."""

from __future__ import annotations

import re
import signal

from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import Serve
from tests.yard import until

HOSTILE = "<img src=x onerror=alert(1)>"


def tile(page: Page, index: int) -> Locator:
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=f"GPU {index}", exact=True))


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)).to_have_attribute(
        "aria-current", "page"
    )


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_an_afternoon(serve: Serve, page: Page) -> None:
    site = serve("--token", "required")
    yard = site.yard
    page.goto(site.url)
    log_in(page, "gy_not_one")
    expect(page.get_by_role("alert")).to_contain_text("token")
    log_in(page, site.token(role="admin"))
    expect(page.get_by_text("No job waits")).to_be_visible()

    go(page, "Submit")
    command = "sh -c 'for i in $(seq 600); do echo step $i; sleep 0.2; done'"
    page.get_by_role("textbox", name="Command").fill(command)
    page.get_by_role("textbox", name="Name").fill(HOSTILE)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_text("step 9", exact=True)).to_be_visible()  # which comes while one looks

    go(page, "Overview")
    busy = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=HOSTILE))
    expect(busy.first).to_contain_text("busy")

    for name in ("first", "second", "unwanted"):
        yard.submit("--gpus", "4", "--name", name, "--", "sleep", "60")
    go(page, "Queue")
    ids = {job["name"]: job["id"] for job in yard.client.jobs()}
    page.get_by_role("button", name=f"Raise the priority of job {ids['second']}").click()
    until(lambda: yard.client.job(ids["second"])["priority"] > 0, "the priority")
    page.get_by_role("button", name=f"Cancel job {ids['unwanted']}").click()
    page.get_by_role("button", name="Cancel it").click()
    until(lambda: yard.client.job(ids["unwanted"])["state"] == "cancelled", "the cancellation")

    go(page, "Settings")
    page.get_by_role("radio", name="sjf").check()
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text(re.compile("^sjf@easy@pack decides since"))).to_be_visible()
    assert yard.client.policy()["name"] == "sjf"

    yard.end(signal.SIGKILL)
    expect(page.locator("#popup")).to_be_visible()
    expect(page.locator("#popup")).to_contain_text("The daemon does not answer; it may be restarting.")
    yard.serve("--port", site.url.rpartition(":")[2], "--token", "required")
    expect(page.get_by_text("The daemon was restarted at")).to_be_visible(timeout=60_000)
    go(page, "Overview")
    expect(busy.first).to_contain_text("busy")  # the job went on

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(f"{site.url}/queue")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
