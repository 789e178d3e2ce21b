"""The door: who comes in by it goes nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import Site, served
from tests.yard import PATIENCE, opened


@pytest.fixture(scope="module")
def closed_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that wants a token of everybody."""
    with opened(tmp_path_factory.mktemp("door")) as yard:
        yield served(yard, "--token", "required")


@pytest.mark.parametrize("next", ["/%09/evil.example/", "//evil.example/", "/%5Cevil.example/", "javascript:alert(1)"])
def test_an_address_cannot_send_who_logs_in_elsewhere(page: Page, closed_house: Site, next: str) -> None:
    page.goto(f"{closed_house.url}/login?next={next}")
    page.get_by_label("Token").fill(closed_house.token())
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    assert page.url == f"{closed_house.url}/"


def test_whoever_is_logged_out_is_told_why(page: Page, closed_house: Site) -> None:
    made = closed_house.yard.client.make_token("ann", role="user")
    page.goto(f"{closed_house.url}/login?next=/queue")
    page.get_by_label("Token").fill(made["token"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Queue", level=1)).to_be_visible()
    closed_house.yard.client.revoke_token(made["id"])
    expect(page.get_by_role("heading", name="Log in", level=1)).to_be_visible(timeout=1000 * PATIENCE)
    expect(page.get_by_role("alert").first).to_contain_text(
        "You were logged out: your token was revoked or has expired"
    )


def test_whoever_logs_out_knows_why(page: Page, closed_house: Site) -> None:
    page.goto(f"{closed_house.url}/login?next=/queue")
    page.get_by_label("Token").fill(closed_house.token())
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in", level=1)).to_be_visible()
    page.goto(closed_house.url)
    expect(page.get_by_role("heading", name="Log in", level=1)).to_be_visible()
    expect(page.get_by_text("You were logged out")).to_have_count(0)


def test_the_door_says_nothing_that_an_address_makes_up(page: Page, closed_house: Site) -> None:
    page.goto(f"{closed_house.url}/login?reason=refused")
    expect(page.get_by_role("alert").first).to_contain_text("What you asked for last was not done.")
    page.goto(f"{closed_house.url}/login?reason=Call+555")
    expect(page.get_by_role("heading", name="Log in", level=1)).to_be_visible()
    assert "555" not in page.locator("#main").inner_text()


def test_an_action_after_the_token_was_revoked_is_refused_with_words(page: Page, closed_house: Site) -> None:
    made = closed_house.yard.client.make_token("ann", role="user")
    page.goto(f"{closed_house.url}/login?next=/submit")
    page.get_by_label("Token").fill(made["token"])
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("Command", exact=True).fill("sleep 1")
    closed_house.yard.client.revoke_token(made["id"])
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("What you asked for last was not done.")
