"""A job that adapts, on the page: what it was lent, what it decided, and why."""

from __future__ import annotations

from playwright.sync_api import Page, expect
from tests.browser.conftest import Site
from tests.yard import until

EVIL = "<img src=x onerror=alert(1)>"


def test_a_decision_and_its_reason_are_shown(site: Site, page: Page) -> None:
    client = site.yard.client
    id = site.yard.submit("--adaptive", "--time", "1h", "--name", "grows", "--", "sleep", "600")
    until(lambda: client.job(id)["started_at"])
    client.report(id, gain_per_second=1.3e-4, step_seconds=0.12, parameters=10_602)
    [gpu] = until(lambda: client.job(id)["granted"])
    why, sizes = "expects +1.2 points", (10_602, 19_914)
    client.report(
        id, decision=f"grew at {EVIL}", reason=why, accepted=True, parameters_before=sizes[0], parameters=sizes[1]
    )
    page.goto(site.url)
    tile = page.get_by_role("listitem").filter(has_text=f"GPU {gpu}").first
    expect(tile.get_by_text(f"on loan to job {id}")).to_be_visible()
    expect(tile.get_by_text(f"grew at {EVIL}: expects +1.2 points")).to_be_visible()
    page.goto(f"{site.url}/jobs/{id}")
    part = page.locator(".gy-job-adapts")
    expect(part.get_by_role("heading", name="Adaptation")).to_be_visible()
    expect(part.get_by_text(f"It has GPU {gpu} on loan, until somebody needs it.")).to_be_visible()
    expect(part.get_by_text(f"Accepted: grew at {EVIL}")).to_be_visible()
    expect(part.get_by_text("Expects +1.2 points.")).to_be_visible()
    expect(part.get_by_text("10,602 to 19,914 parameters.")).to_be_visible()
    expect(part.get_by_text("it gains 0.78 points per minute")).to_be_visible()
    client.give_back_grant(id, reason="enough")
    expect(part.get_by_text("It gave it back: enough.")).to_be_visible()
    expect(page.locator("img")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
