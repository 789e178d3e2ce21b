"""One job on the page: how it stands, its log, what can be done to it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import Site

EVIL = "<img src=x onerror=alert(1)>"


def opened(page: Page, site: Site, id: str) -> Locator:
    """Look at a job; its log."""
    page.goto(f"{site.url}/jobs/{id}")
    return page.get_by_role("region", name=f"What job {id} printed")


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def test_a_job_is_told_in_full(site: Site, page: Page) -> None:
    id = site.yard.submit("--name", EVIL, "--tag", EVIL, "--time", "1h", "--", "sh", "-c", f'echo "{EVIL}"; exit 3')
    site.yard.wait(id)
    log = opened(page, site, id)
    expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)
    expect(page.get_by_text("Failed: exit code 3.")).to_be_visible()
    expect(log.get_by_text(EVIL)).to_be_visible()
    expect(page.get_by_text(f"sh -c 'echo \"{EVIL}\"; exit 3'")).to_be_visible()
    expect(page.get_by_text("Attempt 1 failed, exit code 3")).to_be_visible()
    expect(page.get_by_role("definition").get_by_text(EVIL)).to_be_visible()
    expect(page.locator("img")).to_have_count(0)
    button(page, "Show the environment").click()
    expect(page.get_by_role("rowheader", name="PATH", exact=True)).to_be_visible()
    button(page, "Retry").click()
    page.wait_for_url(lambda url: not url.endswith(f"/jobs/{id}"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)


def test_a_job_that_there_is_not_is_told_so(site: Site, page: Page) -> None:
    answer = page.goto(f"{site.url}/jobs/4711")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_text("There is no job 4711 here")).to_be_visible()


def test_a_waiting_job_is_explained_changed_and_given_up(site: Site, page: Page) -> None:
    first = site.yard.submit("--gpus", "4", "--name", "first", "--", "sleep", "600")
    id = site.yard.submit("--gpus", "2", "--", "sleep", "1")
    page.goto(f"{site.url}/jobs/{id}")
    expect(page.get_by_text("It needs 2 GPUs, 0 idle.")).to_be_visible()
    expect(page.get_by_role("link", name=f"job {first}")).to_be_visible()
    expect(page.get_by_text("It has not started, so it has not printed anything yet.")).to_be_visible()
    button(page, "Hold").click()
    expect(button(page, "Release")).to_be_visible()
    button(page, "Edit").click()
    page.get_by_label("Priority").fill("7")
    button(page, "Save").click()
    expect(page.get_by_text(f"Changed job {id}.")).to_be_visible()
    assert site.yard.client.job(id)["priority"] == 7
    button(page, "Cancel").click()
    button(page, "Cancel it").click()
    expect(button(page, "Retry")).to_be_visible()
    assert site.yard.client.job(id)["state"] == "cancelled"


def test_output_is_followed_until_one_scrolls_up(site: Site, page: Page) -> None:
    (site.yard.cwd / "go").unlink(missing_ok=True)
    script = (
        'seq 1 300; printf "\\033[31mred\\033[0m 10%%\\r\\033[31mred\\033[0m 90%%"; '
        "while [ ! -e go ]; do sleep 0.05; done; rm go; echo; seq 301 600; echo the end"
    )
    id = site.yard.submit("--", "sh", "-c", script)
    log = opened(page, site, id)
    expect(log.get_by_text("90%")).to_be_visible()
    expect(log.get_by_text("10%")).to_have_count(0)
    expect(log.get_by_text("red")).to_have_css("color", "rgb(179, 32, 26)")
    follow = button(page, "Follow")
    expect(follow).to_have_attribute("aria-pressed", "true")
    log.hover()
    page.mouse.wheel(0, -2000)
    expect(follow).to_have_attribute("aria-pressed", "false")
    (site.yard.cwd / "go").touch()
    site.yard.wait(id)
    expect(log.get_by_text("the end")).to_have_count(0)
    button(page, "Jump to the end").click()
    expect(log.get_by_text("the end")).to_be_visible()
    expect(page.get_by_text("Succeeded: exit code 0.")).to_be_visible()


def test_a_long_log_opens_at_its_end_and_is_searched_as_a_whole(site: Site, page: Page) -> None:
    id = site.yard.submit("--", "seq", "-f", "line %.0f of a long log", "1", "300000")
    site.yard.wait(id)
    log = opened(page, site, id)
    expect(log.get_by_text("line 300000 of")).to_be_visible()
    assert page.locator(".gy-log-row").count() < 200
    log.focus()
    log.press("PageUp")
    expect(log.get_by_text("line 300000 of")).not_to_be_in_viewport()
    log.press("Home")
    expect(log.get_by_text("line 1 of")).to_be_visible()
    log.press("End")
    expect(log.get_by_text("line 300000 of")).to_be_visible()
    before = log.evaluate("log => log.scrollHeight")
    log.evaluate("log => { log.scrollTop = 0 }")
    page.wait_for_function(
        "([log, before]) => log.scrollHeight > before && log.scrollTop > 0", arg=[log.element_handle(), before]
    )
    log.press("/")
    page.get_by_label("Search the output").fill("LINE 4711 ")
    expect(page.get_by_text("1 of 1 line", exact=True)).to_be_visible()
    expect(log.locator(".gy-log-here")).to_have_text("line 4711 of a long log")
    button(page, "Tell capital letters from small ones").click()
    expect(page.get_by_text("no line has it")).to_be_visible()


def test_each_attempt_has_its_own_log_and_long_lines_are_wrapped(site: Site, page: Page) -> None:
    script = 'echo attempt $GPUYARD_ATTEMPT; head -c 300000 /dev/zero | tr "\\0" y; echo; exit $((2 - GPUYARD_ATTEMPT))'
    id = site.yard.submit("--retries", "1", "--retry-delay", "0", "--", "sh", "-c", script)
    site.yard.wait(id)
    log = opened(page, site, id)
    expect(log.get_by_text("yyyyy").first).to_be_visible()
    log.focus()
    log.press("Home")
    expect(log.get_by_text("attempt 2", exact=True)).to_be_visible()
    button(page, "Wrap").click()
    log.press("End")
    expect(log.get_by_text("more; Wrap shows them").first).to_be_attached()
    page.get_by_label("Attempt").select_option("1")
    log.press("Home")
    expect(log.get_by_text("attempt 1", exact=True)).to_be_visible()
    expect(page.get_by_text("Attempt 1 on GPU 0: failed with exit code 1; retry 1 of 1")).to_be_visible()


def test_nested_progress_bars_stay_in_their_rows(site: Site, page: Page) -> None:
    script = (
        "import sys\nfor epoch in range(30):\n sys.stdout.write(f'\\r epoch {epoch}/30')\n"
        " for n in range(900): sys.stdout.write(f'\\n\\r  batch {n:03}/900\\x1b[A')\n"
        "print('\\n\\ndone')"
    )
    id = site.yard.submit("--", "python3", "-c", script)
    site.yard.wait(id)
    log = opened(page, site, id)
    expect(log.get_by_text("done")).to_be_visible()
    rows = log.locator(".gy-log-row:not(.gy-log-probe)")
    assert rows.count() < 20  # two for each piece that was loaded
    assert rows.all_inner_texts()[-3:] == [" epoch 29/30", "  batch 899/900", "done"]
    log.focus()
    log.press("/")
    page.get_by_label("Search the output").fill("epoch 29")
    expect(log.locator(".gy-log-here .gy-log-mark")).to_be_visible()


def test_a_match_in_a_long_line_is_scrolled_to(site: Site, page: Page) -> None:
    script = (
        "for n in range(200): print('x' * 20_000 + f'NEEDLE{n:03}')\n"
        "print('y' * 1_500_000 + 'NEEDLE-deep' + 'y' * 1_500_000)\nprint('last')"
    )
    id = site.yard.submit("--", "python3", "-c", script)
    site.yard.wait(id)
    log = opened(page, site, id)
    expect(log.get_by_text("last", exact=True)).to_be_visible()
    log.focus()
    log.press("/")
    for wanted in ("NEEDLE150", "NEEDLE-deep"):
        page.get_by_label("Search the output").fill(wanted)
        expect(page.get_by_text("1 of 1 line", exact=True)).to_be_visible()
        for _ in range(2):  # wrapped, and not
            expect_seen(log)
            button(page, "Wrap").click()
        expect_seen(log)
    tall = "log => log.clientHeight"
    before = log.evaluate(tall)
    button(page, "Wrap").click()
    assert log.evaluate(tall) > before - 30  # there may be another scroll bar, but no box of two rows


def expect_seen(log: Locator) -> None:
    """Something that was searched for is marked, and in sight within the log."""
    expect(log.locator(".gy-log-here .gy-log-mark").first).to_be_in_viewport(ratio=1)


def test_who_does_not_own_a_job_gets_no_buttons_and_no_output(site: Site, page: Page) -> None:
    id = site.yard.submit("--", "sh", "-c", "echo secret words; sleep 600")
    site.yard.await_output(id, b"secret")
    page.goto(f"{site.url}/login")
    page.evaluate("token => gySession('POST', { token })", site.token("ann"))
    page.goto(f"{site.url}/jobs/{id}")
    expect(page.get_by_text("Only root and admins may read what it prints.")).to_be_visible()
    expect(page.get_by_text("Attempt 1 started")).to_be_visible()
    for name in ("Cancel", "Edit", "Clone", "Show the environment"):
        expect(button(page, name)).to_have_count(0)
    expect(page.get_by_text("secret words", exact=True)).to_have_count(0)


def test_an_array_is_shown_as_one(site: Site, page: Page) -> None:
    id = site.yard.submit("--array", "0-2", "--", "sh", "-c", "exit $GPUYARD_ARRAY_TASK_ID")
    site.yard.wait(id)
    page.goto(f"{site.url}/jobs/{id}")
    expect(page.get_by_text("An array of 3 tasks: 2 failed, 1 succeeded.")).to_be_visible()
    page.get_by_role("link", name=f"{id}_1").click()
    expect(page.get_by_text("It has printed nothing.")).to_be_visible()
    expect(page.get_by_role("link", name=id, exact=True)).to_be_visible()


def test_the_log_goes_on_where_it_was_when_the_daemon_is_back(site: Site, page: Page) -> None:
    (site.yard.cwd / "go").unlink(missing_ok=True)
    script = "echo before; while [ ! -e go ]; do sleep 0.05; done; echo after; sleep 600"
    id = site.yard.submit("--", "sh", "-c", script)
    away = "**/api/v1/jobs/*/log?*offset=*"
    log = opened(page, site, id)
    expect(log.get_by_text("before")).to_be_visible()
    page.route(away, lambda route: route.abort())
    (site.yard.cwd / "go").touch()
    expect(log.get_by_text("after")).to_be_visible()  # that was asked for before
    page.reload()
    expect(page.get_by_text("The daemon does not answer at the moment")).to_be_visible()
    page.unroute(away)
    expect(page.get_by_text("The daemon does not answer at the moment")).not_to_be_visible()
    expect(log.locator(".gy-log-row:not(.gy-log-probe)")).to_have_text(["before", "after"])


# -- the parts of the log that need no page ------------------------------------------------------------------------


@pytest.fixture
def bench(site: Site, page: Page) -> Page:
    """A page that can import our scripts."""
    page.goto(f"{site.url}/page/assets/page.css")
    return page


LINES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "plain": [("plain", {})],
    "\x1b[1;31mred\x1b[0m not": [("red", {"bold": True, "fg": 1}), (" not", {})],
    "\x1b[38;5;208ma\x1b[48;2;1;2;3mb": [("a", {"fg": 208}), ("b", {"fg": 208, "bg": [1, 2, 3]})],
    "\x1b[38:2::9:8:7mx\x1b[39my": [("x", {"fg": [9, 8, 7]}), ("y", {})],
    " 10%|#  |\r 50%|## |\r100%|###|": [("100%|###|", {})],
    "longer\rshort": [("shortr", {})],
    "longer\r\x1b[Kshort": [("short", {})],
    "abc\b\bX": [("aXc", {})],
    "windows\r": [("windows", {})],
    "a\tb": [("a       b", {})],
    "\x1b]8;;http://x\x07link\x1b]8;;\x1b\\": [("link", {})],
    "\x1b[?25l\x1b[2J\x1b(Btext\x1b[3": [("text", {})],
    "bell\x07 nul\x00": [("bell nul", {})],
    EVIL: [(EVIL, {})],
}


def test_a_line_is_what_a_terminal_would_show(bench: Page) -> None:
    found = bench.evaluate(
        """async (lines) => {
            const { parse } = await import("/page/assets/ansi.js");
            return lines.map((line) => parse(line).runs.map((run) => [run.text, run.style]));
        }""",
        list(LINES),
    )
    assert [[tuple(run) for run in runs] for runs in found] == list(LINES.values())


NESTED: dict[str, list[str]] = {
    "plain\n\nlines\n": ["plain", "", "lines"],
    "\r1/2\n\r  a\x1b[A\n\r  bc\x1b[A\r2/2\n\r  d\x1b[A\n\ndone": ["2/2", "  dc", "done"],  # as tqdm does
    "one\ntwo\n\x1b[2A\x1b[2KONE\n\x1b[KTWO\nthree": ["ONE", "TWO", "three"],
    "one\ntwo\nthree\x1b[2FONE\x1b[EtWo\x1b[9Bend": ["ONE", "tWo", "three", "end"],
    "\x1b[5Atop\né\x1b[31m\x1b[1A\rTOP": ["TOP", "é"],
}


def test_bars_in_several_rows_are_written_over(bench: Page) -> None:
    found = bench.evaluate(
        """async (texts) => {
            const { plain } = await import("/page/assets/ansi.js");
            const { Window } = await import("/page/assets/logfile.js");
            const shown = (text, step) => {
                const window = new Window(null), file = new TextEncoder().encode(text);
                for (let at = 0; at < file.length; at += step) {
                    const bytes = file.slice(at, at + step);
                    window.append({ begin: at, end: at + bytes.length, bytes });
                }
                return window.lines.map((line) => plain(window.text(line)));
            };
            return texts.map((text) => [shown(text, 1000), shown(text, 7), shown(text, 1)]);
        }""",
        list(NESTED),
    )
    assert found == [[rows] * 3 for rows in NESTED.values()]


def test_every_colour_can_be_read_in_both_themes(bench: Page) -> None:
    worst = bench.evaluate(
        """async () => {
            const { colours, contrast } = await import("/page/assets/ansi.js");
            const rgb = (css) => css.match(/[0-9]+/g).map(Number);
            const papers = { false: [255, 255, 255], true: [18, 23, 30] };
            let worst = 21;
            for (const dark of [false, true])
                for (let fg = 0; fg < 256; fg++)
                    for (const style of [{ fg }, { fg, dim: true }, { bg: fg }, { fg, inverse: true }]) {
                        const { color, background } = colours(style, dark);
                        worst = Math.min(worst, contrast(rgb(color), background ? rgb(background) : papers[dark]));
                    }
            return worst;
        }"""
    )
    assert worst >= 4.5


WINDOW = """async ([text, hole]) => {
    const { Window, search } = await import("/page/assets/logfile.js");
    const file = new TextEncoder().encode(text);
    const [from, to] = hole ?? [file.length, file.length];
    file.fill(0, from, to);
    const source = {
        async tail(size) {
            const begin = Math.max(0, file.length - size);
            return { begin, bytes: file.slice(begin), size: file.length };
        },
        async range(begin, end) { return file.slice(begin, end); },
        async after(offset) {
            if (offset < from) return { begin: offset, end: from, bytes: file.slice(offset, from) };
            const begin = Math.max(offset, to);
            return { begin, end: file.length, bytes: file.slice(begin) };
        },
    };
    const seen = new Window(source);
    await seen.open();
    while (seen.begin > 0) await seen.earlier();
    const down = new Window(source);
    await down.around(0, file.length);
    while (down.end < file.length) await down.later();
    const hits = [];
    await search(source, file.length, "needle", true, null, (found) => hits.push(...found));
    const lines = (window) => window.lines.map((line) => window.text(line));
    return [lines(seen), lines(down), hits];
}"""


def test_a_log_is_the_same_from_either_end(bench: Page) -> None:
    text = "".join(f"{n} {'Needle ' * (n % 3000 == 7)}{'é' * (n % 50)}\n" for n in range(20_000)) + "open"
    up, down, hits = bench.evaluate(WINDOW, [text, None])
    assert up == down == text.split("\n")
    data = text.encode()
    assert [int(data[at:].partition(b" ")[0]) for at in hits] == [18007, 15007, 12007, 9007, 6007, 3007, 7]


def test_what_was_left_out_of_a_log_is_told(bench: Page) -> None:
    text = "".join(f"{n} {'needle' * (n in (3, 99_000))}\n" for n in range(100_000))
    up, down, hits = bench.evaluate(WINDOW, [text, [40_960, 409_600]])
    assert up[:3] == down[:3] == ["0 ", "1 ", "2 "]
    assert up[-1] == down[-1] == "99999 "
    told = "[368,640 bytes were left out here, to keep to the limit of a job's output]"
    assert up.count(told) == down.count(told) == 1
    assert [text[at:].partition(" ")[0] for at in hits] == ["99000", "3"]
