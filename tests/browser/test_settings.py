"""Settings in a browser: what each role sees there, and what admins do there."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import Site, served
from tests.yard import opened

from gpuyard.engines.local.accounts import name_of

ME = name_of(os.geteuid())
HOSTILE = "<img src=x onerror=alert(1)>"
READY = {"policy": "decides since", "gpus": "GPU 3", "shares": ME, "notifications": "What was sent", "access": "active"}
"""What stands in a section once it is filled."""
BUTTONS: dict[str, dict[str, set[str]]] = {
    "viewer": {"policy": set(), "notifications": set(), "access": set()},
    "user": {"gpus": set(), "shares": set(), "notifications": {"Add"}, "access": {"Revoke"}},
    "admin": {
        "gpus": {"Drain", "Drain all", "Reserve"}, "shares": {"Set a quota or a share", "Change"},
        "notifications": {"Add"}, "access": {"Revoke", "Make a token"},
    },
}  # fmt: skip
"""What can be pressed in a section."""


@pytest.mark.parametrize("role", BUTTONS)
def test_each_role_sees_the_buttons_that_it_may_press(page: Page, site: Site, role: str) -> None:
    site.yard.wait(site.yard.submit("--", "true"))
    _log_in(page, site, site.token(ME, role))
    for section, buttons in BUTTONS[role].items():
        _open(page, site, section)
        expect(page.locator("#main")).to_contain_text(READY[section])
        for name in buttons:
            expect(page.get_by_role("button", name=re.compile(f"^{name}")).first).to_be_visible()
        found = {text.strip() for text in page.locator("#main button:visible").all_inner_texts()}
        assert found - {"content_copy"} == buttons, section
    listed = page.get_by_role("navigation", name="Settings").get_by_role("link", name="Audit trail")
    expect(listed).to_have_count(1 if role == "admin" else 0)


def test_whoever_is_not_known_sees_all_that_they_may_and_no_button(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with opened(tmp_path_factory.mktemp("anybody")) as yard:
        yard.environment["GPUYARD_ALLOWED_HOSTS"] = "gpus.example.org"  # so that the kernel is not asked who looks
        _look_unknown(page, served(yard, "--token", "none"))


def _look_unknown(page: Page, site: Site) -> None:
    for section, said in (
        ("policy", "decides since"), ("gpus", "GPU 3"), ("access", "not known"),
        ("notifications", "Only who has an account"),
    ):  # fmt: skip
        _open(page, site, section)
        expect(page.locator("#main")).to_contain_text(said)
        assert set(page.locator("#main button:visible").all_inner_texts()) <= {"content_copy"}, section


def test_a_policy_is_looked_at_before_it_is_used(page: Page, site: Site) -> None:
    for time in ("9m", "8m"):
        site.yard.submit("--gpus", "4", "--time", time, "--", "sleep", "100")
    last = site.yard.submit("--gpus", "4", "--time", "1m", "--name", HOSTILE, "--", "sleep", "100")
    _open(page, site, "policy")
    expect(page.get_by_text(re.compile("decides since"))).to_be_visible()
    page.get_by_role("radio", name=re.compile("^sjf")).check()
    expect(page.locator("#main")).to_contain_text("2 of 2 waiting jobs would change places.")
    order = page.get_by_role("table", name="The first of the queue")
    expect(order.get_by_role("row").nth(1)).to_contain_text(f"up from 2{last}{HOSTILE}")
    page.get_by_role("radio", name="wfp3").check()
    page.get_by_label("power").fill("much")
    expect(page.locator("#main")).to_contain_text("power takes a number, not 'much'")
    expect(page.get_by_role("button", name="Use it")).to_be_hidden()
    page.get_by_label("power").fill("2")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text(re.compile(r"^wfp3:power=2@easy@pack decides since"))).to_be_visible()
    assert site.yard.client.policy()["policy"] == "wfp3:power=2@easy@pack"
    site.yard("policy", "set", "multifactor@easy@pack")
    expect(page.get_by_text(re.compile(r"^multifactor@easy@pack decides since"))).to_be_visible()


def test_a_policy_that_needs_another_discipline_says_so_and_gives_it_back(page: Page, site: Site) -> None:
    _open(page, site, "policy")
    expect(page.get_by_text(re.compile("^multifactor@easy@pack decides since"))).to_be_visible()
    page.get_by_role("radio", name=re.compile("^srtf")).check()
    expect(page.get_by_text("gpuyard policy set srtf@skip@pack")).to_be_visible()
    expect(page.get_by_text(re.compile("^srtf may stop jobs.* as easy does"))).to_be_visible()
    expect(page.get_by_role("radio", name=re.compile("^easy "))).to_be_disabled()
    page.get_by_role("radio", name=re.compile("^fcfs")).check()
    expect(page.get_by_text("gpuyard policy set fcfs@easy@pack")).to_be_visible()
    expect(page.get_by_role("radio", name=re.compile("^easy "))).to_be_checked()
    expect(page.get_by_text(re.compile("may stop jobs, and cannot"))).to_be_hidden()


def test_gpus_are_drained_and_reserved_with_warnings(page: Page, site: Site) -> None:
    job = site.yard.submit("--gpus", "4", "--", "sleep", "100")
    _open(page, site, "gpus")
    page.get_by_role("button", name="Drain: GPU 3").click()
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("row", name="GPU 3")).to_contain_text(f"{HOSTILE} ({ME})")
    page.get_by_role("button", name="Resume: GPU 3").click()
    expect(page.get_by_role("button", name="Drain: GPU 3")).to_be_visible()
    here = datetime.now(ZoneInfo("Asia/Kathmandu")).replace(second=0, microsecond=0) + timedelta(days=1)
    page.get_by_label("From").fill(here.strftime("%Y-%m-%dT%H:%M"))
    page.get_by_label("To", exact=True).fill((here + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M"))
    page.get_by_label("GPUs", exact=True).fill("0-1")
    page.get_by_label("Name").fill("demo")
    expect(page.get_by_text("These jobs may still be on those GPUs")).to_be_visible()
    expect(page.locator("#main").get_by_role("link", name=job, exact=True).last).to_be_visible()
    page.get_by_role("button", name="Reserve").click()
    expect(page.get_by_role("row", name="demo")).to_contain_text("0-1")
    made = site.yard.client.reservations()[0]
    assert datetime.fromisoformat(made["begin_at"]).astimezone(UTC) == here.astimezone(UTC)
    page.get_by_role("button", name="Give up: demo").click()
    page.get_by_role("button", name="Give it up").click()
    expect(page.get_by_text("Nothing is reserved.")).to_be_visible()


def test_quotas_are_set(page: Page, site: Site) -> None:
    _open(page, site, "shares")
    page.get_by_role("button", name="Set a quota or a share").click()
    page.get_by_label("For whom").fill("@vision")
    page.get_by_label("GPUs at once").fill("3")
    page.get_by_role("button", name="Set it").click()
    expect(page.get_by_role("row", name="@vision")).to_contain_text("0 of 3")
    page.get_by_role("button", name="Change: @vision").click()
    page.get_by_label("GPUs at once").fill("")
    page.get_by_role("button", name="Set it").click()
    expect(page.get_by_role("row", name="@vision")).to_have_count(0)


def test_a_token_is_shown_once_and_revoked(page: Page, site: Site) -> None:
    _open(page, site, "access")
    page.get_by_label("What for").fill(HOSTILE)
    page.get_by_role("button", name="Make a token").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"gpuyard login {site.url}")
    expect(dialog).to_contain_text("ssh -N -L ")
    token = dialog.locator("code").first.inner_text()
    assert token.startswith("gy_")
    dialog.get_by_role("button", name="I have it").click()
    expect(dialog).to_be_hidden()
    assert token not in page.content()
    id = token.split("_")[1]
    expect(page.get_by_role("row", name=id)).to_contain_text(HOSTILE)
    page.get_by_role("button", name=f"Revoke: {id}").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_role("row", name=id)).to_have_count(0)
    page.get_by_role("checkbox", name="Also those that are over").click()
    expect(page.get_by_role("row", name=id)).to_contain_text("revoked")
    _open(page, site, "audit")
    expect(page.get_by_role("row", name=f"DELETE /tokens/{id}")).to_contain_text("done")


def test_a_subscription_is_added_tried_and_removed(page: Page, site: Site) -> None:
    _open(page, site, "notifications")
    page.get_by_label("Address").fill("nonsense")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#main")).to_contain_text("That was not taken: this is not where a notification can go")
    page.get_by_label("Address").fill("json://ann:secret-word@127.0.0.1:9/hook")
    page.get_by_label("Name").fill("hook")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#main")).to_contain_text("is told of your jobs from now on, as hook")
    assert "secret-word" not in page.content()
    page.get_by_role("button", name="Test: hook").click()
    expect(page.get_by_text(re.compile(r"^hook could not be reached: .*refused"))).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Remove: hook").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.get_by_text("You are told of nothing yet.")).to_be_visible()


def test_sections_are_reached_by_keyboard(page: Page, site: Site) -> None:
    _open(page, site, "policy")
    entry = page.get_by_role("navigation", name="Settings").get_by_role("link", name="Quotas and shares")
    entry.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Quotas and shares")).to_be_visible()


def _open(page: Page, site: Site, section: str) -> None:
    page.goto(f"{site.url}/settings?section={section}")
    expect(page.get_by_role("heading", level=2).first).to_be_visible()


def _log_in(page: Page, site: Site, token: str) -> None:
    page.goto(f"{site.url}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{site.url}/")


def test_times_are_of_the_viewers_clock_from_the_first_page_that_a_browser_sees(page: Page, site: Site) -> None:
    since = datetime.fromisoformat(site.yard.client.policy()["since"]).astimezone(ZoneInfo("Asia/Kathmandu"))
    page.goto(f"{site.url}/settings")
    expect(page.get_by_text(re.compile(rf"decides since (.*, )?{since:%H:%M}\."))).to_be_visible()


def test_all_pages_can_be_reached_at_the_width_of_a_phone(page: Page, site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site.url}/settings")
    for link in page.get_by_role("navigation", name="Pages").get_by_role("link").all():
        expect(link).to_be_in_viewport(ratio=1)


def test_a_phone_shows_the_policy_in_force_without_scrolling_in_a_box(page: Page, site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    _open(page, site, "policy")
    lists = page.locator(".gy-set-choices-list")
    expect(lists).to_have_count(3)
    assert lists.evaluate_all("lists => lists.every((list) => list.scrollHeight === list.clientHeight)")


def test_the_keyboards_focus_is_seen_on_buttons(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/settings")
    toggle = page.locator(".gy-who .q-btn").first
    page.keyboard.press("Tab")
    toggle.focus()
    expect(toggle).to_have_css("outline-style", "solid")
    expect(toggle).to_have_css("outline-width", "2px")


def test_names_in_the_preview_of_a_policy_stay_on_one_line(page: Page, site: Site) -> None:
    site.yard.submit("--gpus", "4", "--estimate", "1h", "--", "sleep", "600")
    for hours in (3, 2, 1):
        site.yard.submit(
            "--name", "a-rather-long-name-of-a-job", "--gpus", "4", "--estimate", f"{hours}h", "--", "true"
        )
    _open(page, site, "policy")
    page.get_by_role("radio", name="sjf").click()
    name = page.get_by_role("region", name="Your choice").get_by_title("a-rather-long-name-of-a-job").first
    expect(name).to_be_visible()
    assert name.evaluate("name => name.closest('tr').offsetHeight") < 50
