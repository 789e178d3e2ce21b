"""Sharing in a browser: a batch from its first row to its last, what is known of jobs then, and its end before that."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import Site

from gpuyard.client.connection import description

EVIL = "<img src=x onerror=alert(1)>"
WAIT = "until test -e go; do sleep 0.05; done"
GIB = 2**30


def batch(site: Site, directory: Path, script: str, rows: int, wave: int) -> str:
    """Rows that wait for a file, some of them in each wave."""
    jobs = [
        {
            **description(["sh", "-c", script], directory, gpu_memory=GIB, name=f"row-{number}"),
            "simulate_use": "constant:1G",
            "row": {"number": number, "wave": 1 + (number - 1) // wave},
        }
        for number in range(1, rows + 1)
    ]
    taken = site.yard.client.submit_batch(jobs, EVIL, waves=True)
    assert taken["batch"] is not None
    return taken["batch"]


def card(page: Page, id: str) -> Locator:
    return page.locator(f"#batch-{id}")


def test_a_batch_is_followed_to_its_end_and_what_its_jobs_need_is_known_then(
    site: Site, page: Page, tmp_path: Path
) -> None:
    id = batch(site, tmp_path, WAIT, 3, 2)
    page.goto(f"{site.url}/sharing")
    shown = card(page, id)
    expect(shown).to_contain_text(EVIL)
    expect(shown).to_contain_text("Wave 1 of 2")
    expect(shown.get_by_role("img", name="3 rows: 2 running, 1 waiting")).to_be_visible()
    expect(shown.get_by_role("link", name="row-2")).to_be_visible()
    expect(shown).to_contain_text(f"gpuyard batch follow {id}")
    (tmp_path / "go").touch()
    expect(shown.get_by_role("img", name="3 rows: 3 succeeded")).to_be_visible()
    expect(shown).to_contain_text("At most 2 rows at once.")
    expect(shown.get_by_role("button", name=f"Cancel batch {id}")).to_have_count(0)
    needs = page.get_by_role("table", name="What jobs need, by their kind")
    line = needs.get_by_role("row").filter(has_text="test -e go")
    expect(line).to_contain_text("p95 of 3 runs: 1,024 MiB")
    page.get_by_label("Command or user").fill("nothing-is-called-that")
    expect(page.get_by_text("Nothing that is known is like that.")).to_be_visible()


def test_a_batch_is_ended_after_a_question(site: Site, page: Page, tmp_path: Path) -> None:
    id = batch(site, tmp_path, "exec sleep 1000", 2, 1)
    page.goto(f"{site.url}/jobs/{id}")
    page.get_by_role("link", name=f"{id}, row 1, wave 1").click()
    page.wait_for_url("**/sharing#batches")
    card(page, id).get_by_role("button", name=f"Cancel batch {id}").click()
    page.get_by_role("button", name="Cancel it").click()
    expect(card(page, id).get_by_role("img", name="2 rows: 2 cancelled")).to_be_visible()
