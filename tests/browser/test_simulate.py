"""Comparisons of policies on the page, in a real browser."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, expect
from tests.browser.conftest import Site
from tests.yard import until

_PATIENCE = 900_000  # a kernel that was never used is compiled first, which takes minutes beside other work
_SLOW = "source=workload&jobs=60000&policies=rr&policies=las&discipline=skip"


def simulated(page: Page, url: str, title: str) -> dict[str, Any]:
    """Have the page simulate what an address says; the numbers that it offers to be downloaded."""
    page.goto(url)
    page.get_by_role("button", name="Simulate").click()
    expect(page.locator("#results")).to_contain_text(title)
    return numbers(page)


def numbers(page: Page) -> dict[str, Any]:
    """What can be downloaded, without how long it took."""
    found = page.get_by_role("link", name="Download as JSON")
    expect(found).to_be_visible(timeout=_PATIENCE)
    told: dict[str, Any] = page.request.get(str(found.evaluate("link => link.href"))).json()
    return {**told, "results": [timeless(row) for row in told["results"]]}


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "jobs_per_second"}


def test_a_comparison_has_the_numbers_of_the_command_that_is_shown(page: Page, site: Site, tmp_path: Path) -> None:
    query = "source=workload&jobs=40&policies=sjf&policies=srtf&policies=fcfs"
    told = simulated(page, f"{site.url}/simulate?{query}", "40 jobs made up")
    made, compared = (shlex.split(line)[1:] for line in told["commands"])
    trace = str(tmp_path / "jobs.csv")
    assert site.yard(*[trace if word == "jobs.csv" else word for word in made]).code == 0
    expected = site.yard.json(*[trace if word == "jobs.csv" else word for word in compared])
    assert told["results"] == [timeless(row) for row in expected["results"]]
    expect(page.get_by_text("On this workload, ")).to_be_visible()
    ranking = page.get_by_role("region", name="Ranking of the policies")
    expect(ranking.get_by_role("row")).to_have_count(4)
    ranking.get_by_role("button", name="fcfs").click()
    expect(page.get_by_text("The schedule of fcfs: 40 jobs.").first).to_be_visible()
    page.reload()
    assert numbers(page)["results"] == told["results"]
    page.get_by_role("link", name="Look at srtf@skip@pack in the settings").click()
    expect(page.get_by_text("gpuyard policy set srtf@skip@pack")).to_be_visible()


def test_wheel_and_finger_scroll_past_the_schedule(page: Page, site: Site) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})  # charts look for it when they are made
    simulated(page, f"{site.url}/simulate?source=workload&jobs=40&policies=sjf&policies=fcfs", "40 jobs made up")
    page.set_viewport_size({"width": 390, "height": 600})
    expect(page.get_by_text("The schedule of").first).to_be_visible()
    chart = page.get_by_role("img", name="The schedule of").locator("canvas")
    chart.hover()
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -60)
    page.wait_for_function("before => scrollY === before - 60", arg=before)
    box = chart.bounding_box()
    assert box is not None
    swipe(session, box["x"] + box["width"] / 2, box["y"] + 40, 120)
    page.wait_for_function("before => scrollY < before - 120", arg=before)


def swipe(session: CDPSession, x: float, y: float, down: int) -> None:
    """Draw a finger over the page."""
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 11):
        point = {"x": x, "y": y + down * step / 10}
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_a_file_that_is_no_trace_gets_a_sentence_and_its_name_stays_text(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/simulate?source=upload")
    expect(page.get_by_text("Choose a file first.")).to_be_visible()
    name = "<img src=x onerror=alert(1)>.swf"
    page.get_by_label("Trace file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": b"hello\n"})
    expect(page.get_by_text(f"{name}, 6 bytes, is ready.")).to_be_visible()
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert").get_by_text(f"{name} does not look like a trace")).to_be_visible()


def test_the_history_is_simulated_and_a_long_run_is_cancelled(page: Page, site: Site) -> None:
    for id in [site.yard.submit("--", "true"), site.yard.submit("--gpus", "2", "--", "true")]:
        site.yard.wait(id)
    told = simulated(page, f"{site.url}/simulate?days=1&policies=fcfs&policies=sjf", "History, everybody's jobs")
    assert told["results"][0]["completed"] >= 2
    expect(page.get_by_text("On your history, ")).to_be_visible()
    page.goto(f"{site.url}/simulate?{_SLOW}")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_text("0 of 2 policies are done, on 60,000 jobs.")).to_be_visible(timeout=_PATIENCE)
    assert simulating(site)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("you cancelled it.")).to_be_visible()
    until(lambda: not simulating(site), "the process is gone")


def simulating(site: Site) -> bool:
    """Whether a child of the page's process runs."""
    pid = site.yard.client.status()["page"]["pid"]
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_fields_say_what_is_wrong_with_them(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/simulate")
    gpus = page.get_by_label("GPUs: 8, or nodes 4x8")
    gpus.fill("many")
    expect(page.get_by_text("A number, as in 8, or nodes, as in 4x8 or 4x8,2x4.")).to_be_visible()
    expect(page.get_by_role("button", name="Simulate")).to_be_disabled()
    gpus.fill("2x4")
    expect(page.get_by_text("--nodes 2x4").first).to_be_visible()
    page.wait_for_url("**gpus=2x4**")
