"""The door: who comes in by it goes nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import Site, served
from tests.yard import opened


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
