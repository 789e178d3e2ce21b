"""A cluster in a real browser: nodes and pods that live, a thousand nodes, and a scheduler that goes away."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import pytest
from playwright import sync_api
from playwright.sync_api import Browser, Locator, Page, expect
from tests import clusters
from tests.clusters import HOSTILE, Scheduler
from tests.web import ask
from tests.websocket import Websocket
from tests.yard import until

LIVE = 3000  # milliseconds in which a change is seen, on a machine that has other work; usually it takes one second
DASHBOARD = [sys.executable, "-m", "gpuyard", "kubernetes", "dashboard"]


class Site(NamedTuple):
    """A scheduler that is made up, and the dashboard that asks it."""

    scheduler: Scheduler
    url: str


@pytest.fixture(scope="module")
def house() -> Iterator[Site]:
    """The dashboard, as the command starts it."""
    scheduler = Scheduler(clusters.small())
    flags = ["--scheduler", scheduler.url, "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*DASHBOARD, *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.match(r"the cluster is at (http://127\.0\.0\.1:\d+)/, until Ctrl-C", said)
        assert found, said
        yield Site(scheduler, found[1])
        process.terminate()
        assert "Traceback" not in process.stderr.read()
    scheduler.end()


@pytest.fixture
def site(house: Site) -> Site:
    """The same for all tests, with the small cluster."""
    house.scheduler.show(clusters.small())
    return house


def node(page: Page, name: str) -> Locator:
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=name, exact=True))


def look(page: Page, site: Site, path: str = "/", heading: str = "Cluster") -> None:
    page.goto(site.url + path)
    expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()


def is_too_wide(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_nodes_have_their_gpus_and_who_is_on_them(site: Site, page: Page) -> None:
    look(page, site)
    first = node(page, "gpu-a01")
    expect(first).to_contain_text("4 of 4 in use")
    shared = first.get_by_role("img", name="GPU 2, in use: 49.5 GiB of 80 GiB charged, 31 GiB used")
    expect(shared).to_be_visible()
    expect(first.get_by_role("link", name="resnet-share-b research")).to_have_attribute(
        "href", "/pods/research/resnet-share-b"
    )
    expect(first).to_contain_text("more used than charged")
    expect(node(page, "gpu-a03")).to_contain_text("foreign")
    expect(node(page, "gpu-b01")).to_contain_text("not ready, cordoned")
    expect(page.get_by_text("GPUs in use").locator("xpath=..")).to_contain_text("12 of 14")
    expect(page.get_by_role("list", name="The scheduler")).to_contain_text("policy wfp3@easy@pack")
    queue = page.locator("section").filter(has=page.get_by_role("heading", name="Next in the queue"))
    expect(queue.get_by_role("listitem")).to_have_count(4)
    expect(queue.get_by_role("listitem").first).to_contain_text("0/4 nodes available: 2 insufficient GPU memory")
    expect(queue.get_by_role("link", name=HOSTILE)).to_be_visible()  # as text; a script would fail the test


def test_what_changes_is_seen_at_once_and_only_that_is_sent(site: Site, page: Page) -> None:
    told: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: told.append(str(frame))))
    view = clusters.small()
    look(page, site)
    site.scheduler.show(replace(view, admission="requests"))
    expect(page.get_by_text("admission by requests")).to_be_visible(timeout=LIVE)
    told.clear()
    free = clusters.node("gpu-a03", *(clusters.gpu(index) for index in range(4)))
    site.scheduler.show(replace(view, nodes=(*view.nodes[:2], free, view.nodes[3]), prometheus="no answer since 14:03"))
    expect(node(page, "gpu-a03").get_by_text("free", exact=True)).to_have_count(5, timeout=LIVE)
    expect(page.get_by_text("Prometheus: no answer since 14:03")).to_be_visible()
    sent = "".join(told)
    assert "node gpu-a03" in sent
    assert "node gpu-a01" not in sent
    site.scheduler.show(replace(view, leader=""))
    expect(page.get_by_text("nobody is elected, so nothing is decided")).to_be_visible(timeout=LIVE)


def test_pods_are_found_by_state_name_and_namespace(site: Site, page: Page) -> None:
    look(page, site, "/pods", "Pods")
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(1 + 12)
    page.get_by_role("button", name="Waiting 4").click()
    expect(rows).to_have_count(1 + 4)
    expect(rows.nth(1)).to_contain_text("1. 0/4 nodes available")
    page.get_by_role("button", name="All 12").click()
    page.get_by_label("Namespace").fill("research")
    expect(rows).to_have_count(1 + 4)
    assert page.url == f"{site.url}/pods?namespace=research"
    page.get_by_label("Pod, gang or node").fill("allreduce")
    expect(rows).to_have_count(1 + 2)
    page.get_by_label("Pod, gang or node").fill("no such")
    expect(page.get_by_text("No pod is like that.")).to_be_visible()
    look(page, site, "/pods?state=foreign", "Pods")
    expect(rows.nth(1)).to_contain_text("Placed by default-scheduler")


def test_a_pod_is_told_in_words_until_it_is_gone(site: Site, page: Page) -> None:
    look(page, site, "/pods/team-a/resnet-share-a", "resnet-share-a")
    main = page.locator("#main")
    for words in (
        "on GPU 2 of gpu-a01",
        "24 GiB of a GPU's memory, which it shares",
        "what it needs was left there, if everybody comes to what their like used so far (history)",
        "9.5 GiB, 14.5 GiB less than it asks for",
        "kubectl describe pod -n team-a resnet-share-a",
    ):
        expect(main).to_contain_text(words)
    view = clusters.small()
    site.scheduler.show(replace(view, pods=view.pods[2:]))
    expect(main).to_contain_text("team-a/resnet-share-a has ended or was deleted", timeout=LIVE)
    assert ask(site.url, "GET", "/pods/team-a/resnet-share-a").status == 404
    look(page, site, "/pods/team-b/llama-pretrain-0", "llama-pretrain-0")
    expect(main).to_contain_text("number 2 in the queue")
    expect(main).to_contain_text("Needs 8 GPUs of one node; the gang llama has 1 of 2 members")


def test_a_scheduler_that_goes_away_is_waited_for(site: Site, page: Page) -> None:
    look(page, site)
    expect(node(page, "gpu-a01")).to_be_visible()
    port = site.scheduler.end()
    banner = page.get_by_role("status").filter(has_text="does not answer")
    expect(banner).to_contain_text("What you see is of", timeout=2 * LIVE)
    expect(node(page, "gpu-a01")).to_be_visible()
    view = clusters.small()
    again = Scheduler(replace(view, policy="fcfs@strict"), port)
    try:
        expect(banner).to_have_count(0, timeout=2 * LIVE)
        expect(page.get_by_text("policy fcfs@strict")).to_be_visible()
        again.body = b"<html>something else</html>"
        expect(page.get_by_text("is not gpuyard's scheduler")).to_be_visible(timeout=LIVE)
    finally:
        again.end()
    site.scheduler.__init__(view, port)  # type: ignore[misc]  # for the tests that follow
    expect(page.get_by_text("is not gpuyard's scheduler")).to_have_count(0, timeout=2 * LIVE)


def test_a_thousand_nodes_are_a_grid_with_pages(site: Site, page: Page) -> None:
    site.scheduler.show(clusters.large())
    look(page, site)
    boxes = page.get_by_role("link", name=re.compile(r"^gpu-node-\d{4}\s"))
    expect(boxes).to_have_count(250)
    expect(page.get_by_text("1–250 of 1,000 nodes")).to_be_visible()
    page.get_by_role("button", name="Last page").click()
    expect(page.get_by_text("751–1,000 of 1,000 nodes")).to_be_visible()
    expect(boxes.last).to_have_attribute("href", "/nodes/gpu-node-0999")
    page.get_by_label("Node or model").fill("gpu-node-004")
    expect(page.get_by_role("heading", name="gpu-node-0047")).to_be_visible()  # few enough for tiles
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_label("Node or model").fill("")
    expect(boxes).to_have_count(250)
    assert not is_too_wide(page)
    look(page, site, "/pods", "Pods")
    expect(page.get_by_text("1–50 of 2,000 pods")).to_be_visible()


def test_nobody_else_gets_in_and_nothing_can_be_changed(site: Site) -> None:
    ours = {"Host": site.url.removeprefix("http://")}
    assert ask(site.url, "GET", "/").status == 200
    assert ask(site.url, "GET", "/", headers={"Host": "evil.example"}).status == 421
    assert ask(site.url, "GET", "/", headers={"Origin": "http://evil.example"}).status == 403
    assert ask(site.url, "POST", "/", b"x").status == 405
    assert ask(site.url, "DELETE", "/pods/team-a/resnet-share-a").status == 405
    assert "frame-ancestors 'none'" in ask(site.url, "GET", "/").headers["Content-Security-Policy"]
    line = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with Websocket(site.url, line, {**ours, "Origin": "http://evil.example"}) as refused:
        assert refused.status == 403
    with Websocket(site.url, line, {**ours, "Origin": site.url}) as taken:
        assert taken.status == 101


def test_nobody_is_asked_while_nobody_looks(site: Site, page: Page) -> None:
    look(page, site)
    page.close()
    looks = [time.monotonic(), site.scheduler.asked]

    def rests() -> bool:
        now, asked = time.monotonic(), site.scheduler.asked
        if asked != looks[1]:
            looks[:] = [now, asked]
        return now - looks[0] > 1.5

    assert until(rests, "some time without a question")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_a_page_has_no_grave_fault(site: Site, browser: Browser, scheme: Literal["light", "dark"], width: int) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-core is missing; pip install -e '.[dev]' brings it")
    from tests.browser.test_accessibility import _faults

    size: sync_api.ViewportSize = {"width": width, "height": 900}
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce", viewport=size)
    tab, found = context.new_page(), list[str]()
    places = {"/": "Cluster", "/pods": "Pods", "/nodes/gpu-a01": "gpu-a01", "/pods/research/allreduce-1": "allreduce-1"}
    for path, heading in places.items():
        look(tab, site, path, heading)
        found += [f"{path}: {fault}" for fault in _faults(tab)]
        found += [f"{path} is wider than {width}"] * is_too_wide(tab)
    site.scheduler.show(clusters.large(30, 8, 60))
    look(tab, site)
    expect(tab.get_by_role("link", name=re.compile(r"^gpu-node-0029"))).to_be_visible()
    found += _faults(tab)
    context.close()
    assert not found, "\n".join(found)
