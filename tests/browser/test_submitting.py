"""Submit, in a real browser: a job by the form, the line that does the same, and what is wrong told where it is."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from tests.browser.conftest import Serve, Site

NASTY = "<img src=x onerror=alert(1)>"


def opened(page: Page, site: Site, query: str = "") -> Page:
    page.goto(f"{site.url}/submit{query}")
    expect(page.get_by_text(re.compile("GPUs are free"))).to_be_visible()  # so it is connected
    return page


def test_a_job_is_submitted_by_the_form_as_the_line_says(page: Page, site: Site) -> None:
    opened(page, site)
    page.get_by_label("Command", exact=True).fill("sleep 'a while'")
    page.get_by_label("GPUs", exact=True).fill("2")
    page.get_by_role("textbox", name="Name", exact=True).fill(NASTY)
    page.get_by_text("Time", exact=True).click()
    page.get_by_label("Time limit").fill("4h")
    page.get_by_text("Directory, environment and files").click()
    page.get_by_label("Environment variables").fill("TOKEN=s3cret")
    expect(page.locator(".gy-new-line")).to_have_text(
        f"gpuyard submit --gpus 2 --time 4h --name '{NASTY}' --chdir '~' --env TOKEN=s3cret -- sleep 'a while'"
    )
    expect(page.get_by_text("It would start at once.")).to_be_visible()
    page.get_by_role("button", name="Submit, and another").click()
    queued = page.get_by_role("status").get_by_role("link")
    expect(queued).to_have_count(1)
    id = queued.inner_text().split()[1]
    page.get_by_label("Command", exact=True).press("Control+Enter")
    page.wait_for_url("**/jobs/*")
    one, other = site.yard.client.job(id), site.yard.client.job(page.url.rpartition("/")[2])
    assert one["id"] != other["id"]
    for job in (one, other):
        assert (job["command"], job["name"], job["gpu_count"]) == (["sleep", "a while"], NASTY, 2)
        assert job["time_limit"] == 4 * 3600
        assert site.yard.client.environment(job["id"])["TOKEN"] == "s3cret"
    assert page.evaluate("JSON.stringify({...localStorage})").count("s3cret") == 0


def test_what_is_wrong_is_told_at_its_field_and_a_shell_is_offered(page: Page, site: Site) -> None:
    opened(page, site)
    command = page.get_by_label("Command", exact=True)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("Say what to run")).to_be_visible()
    command.fill("python train.py 'x")
    expect(page.get_by_text("The quote that begins at 'x is not closed")).to_be_visible()
    command.fill("echo one | cat")
    expect(page.get_by_text("no shell reads it: | would mean nothing")).to_be_visible()
    page.get_by_role("button", name="Let a shell read it").click()
    expect(command).to_have_value("bash -c 'echo one | cat'")
    page.get_by_label("GPUs", exact=True).fill("9")
    expect(page.get_by_text("This machine has 4 GPUs; ask for fewer.")).to_be_visible()
    page.get_by_role("button", name="Fewer GPUs").click(click_count=8, delay=20)
    page.get_by_text("Order", exact=True).click()
    page.get_by_label("After other jobs").fill("afterok:987654")
    expect(page.get_by_text("There is no job 987654")).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_label("After other jobs")).to_be_focused()
    assert site.yard.client.jobs() == []


def test_a_refusal_of_the_daemon_lands_at_its_field(page: Page, site: Site) -> None:
    opened(page, site)
    page.get_by_label("Command", exact=True).fill("true")
    page.get_by_text("Tags and notifications").click()
    page.get_by_label("Who is told").fill("nobody-of-that-name")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator(".gy-new-field-of-notify .gy-new-error")).to_contain_text("nobody-of-that-name")
    expect(page.get_by_label("Who is told")).to_be_focused()


def test_a_draft_survives_a_reload_without_its_variables(page: Page, site: Site) -> None:
    opened(page, site)
    page.get_by_label("Command", exact=True).fill("python half")
    page.get_by_text("Directory, environment and files").click()
    page.get_by_label("Environment variables").fill("TOKEN=s3cret")
    page.reload()
    expect(page.get_by_label("Command", exact=True)).to_have_value("python half")
    page.get_by_text("Directory, environment and files").click()
    expect(page.get_by_label("Environment variables")).to_have_value("")
    page.get_by_role("button", name="Begin anew").click()
    expect(page.get_by_label("Command", exact=True)).to_have_value("")


def test_a_copy_keeps_the_environment_of_the_job_and_changes_the_rest(page: Page, site: Site) -> None:
    id = site.yard.submit("--gpus", "2", "--time", "90m", "--hold", "--env", "MINE=1", "--", "sleep", "60")
    page.goto(f"{site.url}/jobs/{id}")
    page.get_by_role("button", name="Clone", exact=True).click()
    expect(page.get_by_label("Command", exact=True)).to_have_value("sleep 60")
    expect(page.locator(".gy-new-line")).to_have_text(f"gpuyard clone {id}")
    page.get_by_label("GPUs", exact=True).fill("1")
    expect(page.locator(".gy-new-line")).to_have_text(f"gpuyard clone {id} --gpus 1")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/*")
    new = site.yard.client.job(page.url.rpartition("/")[2])
    assert (new["command"], new["gpu_count"], new["time_limit"]) == (["sleep", "60"], 1, 5400.0)
    assert site.yard.client.environment(new["id"])["MINE"] == "1"


def test_who_may_only_look_gets_a_sentence(page: Page, serve: Serve) -> None:
    site = serve("--token", "required")
    page.goto(f"{site.url}/login?next=/submit")
    page.get_by_label("Token").fill(site.token("vera", "viewer"))
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/submit")
    expect(page.get_by_text("You look as vera, who may see everything and start nothing")).to_be_visible()
    expect(page.get_by_label("Command", exact=True)).to_have_count(0)


def test_a_copy_of_an_array_is_told_to_be_one(page: Page, site: Site) -> None:
    id = site.yard.submit("--array", "0-2", "--hold", "--", "sleep", "60")
    opened(page, site, f"?clone={id}")
    expect(page.get_by_text(f"{id} is an array of 3 tasks, and its copy is one, too.")).to_be_visible()
