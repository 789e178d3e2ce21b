"""A real daemon with its page, and a real browser to look at it with. Nothing may be asked for from elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from playwright import sync_api
from tests.web import ask
from tests.yard import Yard, opened, until

sync_api.expect.set_options(timeout=20_000)


class Site(NamedTuple):
    """A yard, and the address of its page."""

    yard: Yard
    url: str

    def token(self, user: str = "ann", role: str = "user") -> str:
        """A token for the door."""
        return str(self.yard.client.make_token(user, role=role)["token"])


Serve = Callable[..., Site]


@pytest.fixture(scope="module")  # while it is open, no other test of this process could run a loop of its own
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
    """A tab. Its test fails if anything was asked for elsewhere, if a user's text ran as a script, or if ours broke."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, timezone_id="Asia/Kathmandu")
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(f"a script failed: {error}"))

    def dismiss(dialog: sync_api.Dialog) -> None:
        wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    tab.on("dialog", dismiss)
    asked: set[str] = set()
    tab.on("request", lambda request: asked.add(request.url))
    tab.on("websocket", lambda socket: asked.add(socket.url))
    yield tab
    context.close()
    places = {url.split("/")[2].partition(":")[0] for url in asked if not url.startswith(("data:", "blob:"))}
    assert places <= {"127.0.0.1"}, places
    assert not wrong, wrong


@pytest.fixture(scope="session")
def open_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site that most tests share."""
    with opened(tmp_path_factory.mktemp("site")) as yard:
        yield served(yard)


@pytest.fixture
def site(open_house: Site) -> Iterator[Site]:
    """The shared site, without any job of an earlier test; who looks is known by the kernel."""
    yield open_house
    open_house.yard.clear()


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Opens a site of a test's own, with flags of `gpuyard serve`."""
    with opened(tmp_path_factory.mktemp("own-site")) as yard:
        yield lambda *flags: served(yard, *flags)


def served(yard: Yard, *flags: str) -> Site:
    """Start the daemon with its page."""
    yard.environment |= {"GPUYARD_PAGE": "on", "GPUYARD_SINGLE_USER": "true"}
    port = () if "--port" in flags else ("--port", "0")
    yard.serve(*port, *flags)
    url = yard.client.status()["url"]
    until(lambda: ask(url, "GET", "/login").status == 200, "the page")  # until then there is one that says so
    return Site(yard, url)
