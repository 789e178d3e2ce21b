"""The page that `gpuyard plot` writes, in a real browser: it asks for nothing, and all of it can be used."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from gpuyard.figures.interactive_page import plots_page
from gpuyard.recordings.series import Mark, Recording, Series, Subject

START = 1_794_850_000.0
HOSTILE = "</script><img src=x onerror=alert(1)>"


def recorded(name: str = "A100") -> Recording:
    """Two GPUs for a hundred seconds: the first at 20 W and then at 220, the other unknown for a while."""
    at = START + np.arange(100.0)
    steps, other = np.where(np.arange(100) < 50, 20.0, 220.0), np.full(100, 80.0)
    other[40:60] = np.nan
    series = [
        Series(Subject(0, "GPU-0", name), "power", at, steps),
        Series(Subject(1, "GPU-1", name), "power", at, other),
        Series(Subject(0, "GPU-0", name), "throttle", at, np.where(steps > 100, 4.0, 0.0)),
        Series(Subject(0, "GPU-0", name), "xid", at, np.where(np.arange(100) > 80, 79.0, 0.0)),
    ]
    marks = [Mark(START + 10, f"job 7 ({HOSTILE})", START + 90)]
    return Recording(START, START + 100, series, marks, [f"nothing is known from {HOSTILE}"], True)


@pytest.fixture
def plotted(page: Page) -> Page:
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.set_content(plots_page([(HOSTILE, recorded(HOSTILE))], ["power", "throttle", "xid"]))
    expect(page.locator(".charts svg")).to_have_count(3)
    assert not wrong, wrong
    return page


def test_pointing_tells_values_and_gaps(plotted: Page) -> None:
    chart, tip = plotted.locator(".charts svg").first, plotted.locator(".charts .tip")
    area = chart.bounding_box()
    assert area is not None
    plotted.mouse.move(area["x"] + area["width"] * 0.9, area["y"] + area["height"] / 2)
    expect(tip).to_contain_text("GPU 0220 W")
    expect(tip).to_contain_text("GPU 180 W")
    plotted.mouse.move(area["x"] + area["width"] * 0.5, area["y"] + area["height"] / 2)
    expect(tip).not_to_contain_text("GPU 1")
    expect(tip).to_contain_text(f"job 7 ({HOSTILE})")
    plotted.mouse.move(1, 1)
    expect(tip).to_be_hidden()


def test_dragging_zooms_all_charts_and_a_button_shows_all_again(plotted: Page) -> None:
    charts, back = plotted.locator(".charts svg"), plotted.get_by_role("button", name="Show all")
    expect(back).to_be_disabled()
    before = charts.last.inner_html()
    area = charts.first.bounding_box()
    assert area is not None
    plotted.mouse.move(area["x"] + area["width"] * 0.4, area["y"] + 60)
    plotted.mouse.down()
    plotted.mouse.move(area["x"] + area["width"] * 0.6, area["y"] + 70)
    plotted.mouse.up()
    expect(back).to_be_enabled()
    assert charts.last.inner_html() != before
    back.click()
    expect(back).to_be_disabled()


def test_names_hide_lines_and_show_them_again(plotted: Page) -> None:
    lines = plotted.locator(".charts svg").first.locator("path.line")
    name = plotted.get_by_role("button", name="GPU 1")
    expect(lines).to_have_count(2)
    name.click()
    expect(name).to_have_attribute("aria-pressed", "false")
    expect(lines).to_have_count(1)
    name.press("Enter")
    expect(lines).to_have_count(2)


def test_the_keyboard_moves_zooms_and_is_told_values(plotted: Page) -> None:
    chart, back = plotted.locator(".charts svg").first, plotted.get_by_role("button", name="Show all")
    chart.focus()
    chart.press("End")
    expect(plotted.locator(".charts [aria-live]")).to_contain_text("220 W")
    chart.press("+")
    expect(back).to_be_enabled()
    chart.press("Escape")
    expect(back).to_be_disabled()


def test_a_narrow_window_needs_no_sideways_scrolling_and_the_table_has_the_numbers(plotted: Page) -> None:
    plotted.set_viewport_size({"width": 390, "height": 844})
    expect(plotted.locator(".charts svg").first).to_have_attribute("viewBox", re.compile(r"^0 0 3\d\d(\.\d+)? "))
    assert plotted.evaluate("document.documentElement.scrollWidth") <= 390
    plotted.get_by_text("The numbers").click()
    expect(plotted.get_by_role("row", name="Power GPU 0 20 W 120 W 220 W 100")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_everybody(plotted: Page, scheme: str) -> None:
    plotted.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-core is missing; pip install -e '.[dev]' brings it"
    )
    found = axe.Axe().run(plotted)
    assert found.violations_count == 0, found.generate_report()
