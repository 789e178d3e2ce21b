"""Every page is looked at by axe-core, in light and dark, wide and narrow: nothing serious may be wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.conftest import Site, served
from tests.yard import opened

from gpuyard.client.connection import description

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-core is missing; pip install -e '.[dev]' brings it"
)
PLACES = {
    "/": "<b>waits</b>", "/queue": "<b>waits</b>", "/jobs/{running}": "hello", "/jobs/{failed}": "some output",
    "/submit": "gpuyard submit", "/history": "broken", "/sharing": "At most", "/simulate": "Policies",
    "/login": "Paste a token",
    "/settings?section=policy": "decides since", "/settings?section=gpus": "GPU 3",
    "/settings?section=shares": "no quota", "/settings?section=notifications": "What was sent",
    "/settings?section=access": "active", "/settings?section=audit": "POST /jobs",
    "/settings?section=daemon": "all is written down",
}  # fmt: skip
"""The pages, and what stands on each once it is filled: an empty one has no fault."""
GRAVE = ("serious", "critical")
OPTIONS = {"resultTypes": ["violations"], "iframes": False}
SETTLED = """() => new Promise((resolve) => {
  let timer = setTimeout(resolve, 1000);
  setTimeout(resolve, 1200);  // what is live never rests
  new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(resolve, 300); })
    .observe(document.body, { subtree: true, childList: true, characterData: true });
})"""
"""Comes back once nothing has changed for a while."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site of its own: on the shared one, tests that come in between would end the jobs."""
    with opened(tmp_path_factory.mktemp("looked-at")) as yard:
        yield served(yard)


@pytest.fixture(scope="module")
def jobs(house: Site) -> dict[str, str]:
    """Something to look at: jobs that run, wait and failed, with a log, tags, and names of all kinds."""
    yard = house.yard
    failed = yard.submit("--name", "broken", "--", "sh", "-c", "echo some output; exit 3")
    yard.wait(failed)
    rows = [description(["sleep", "0.1"], yard.cwd, gpu_memory=2**30) for _ in range(2)]
    for id in yard.client.submit_batch(rows, "<b>batch</b>")["ids"]:
        yard.wait(id)
    running = yard.submit("--gpus", "3", "--time", "1h", "--tag", "paper", "--", "sh", "-c", "echo hello; sleep 1000")
    yard.submit("--gpus", "4", "--name", "<b>waits</b>", "--", "sleep", "1000")
    yard.submit("--hold", "--", "true")
    yard.await_output(running, b"hello")
    house.token()
    return {"running": running, "failed": failed}


@pytest.fixture(scope="module", params=["light", "dark"])
def tab(request: pytest.FixtureRequest, browser: Browser, house: Site) -> Iterator[Page]:
    """One tab for all pages; the clock of what moves is stopped, so that nothing is looked at half-faded."""
    context = browser.new_context(color_scheme=request.param, reduced_motion="reduce")
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("place", PLACES)
def test_a_page_has_no_grave_fault(tab: Page, house: Site, jobs: dict[str, str], place: str) -> None:
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.goto(house.url + place.format(**jobs))
    expect(tab.locator("#main")).to_contain_text(PLACES[place])
    tab.evaluate(SETTLED)
    found = _faults(tab)
    tab.set_viewport_size({"width": 390, "height": 844})
    found += [fault for fault in _faults(tab) if fault not in found]
    wider = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert not found, "\n".join(found)
    assert wider == 0, "it is wider than a phone"


def test_the_check_finds_what_is_wrong(tab: Page) -> None:
    body = "<main><h1>x</h1><button></button><p style='color: #ccc; background: #fff'>pale</p></main>"
    tab.set_content(f"<html lang=en><title>x</title><body>{body}</body></html>")
    assert {fault.partition(" ")[0] for fault in _faults(tab)} == {"button-name", "color-contrast"}


def _faults(tab: Page) -> list[str]:
    told: dict[str, Any] = axe.Axe().run(tab, {"exclude": ["#popup"]}, OPTIONS).response  # comes and goes by fading
    return [
        f"{fault['id']} ({fault['impact']}): {node['target'][0]}: {node['html'][:150]} {_why(node)}"
        for fault in told["violations"]
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]


def _why(node: dict[str, Any]) -> str:
    return "; ".join(check["message"] for kind in ("any", "all", "none") for check in node[kind])
