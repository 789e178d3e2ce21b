"""The comparison report is one file that says everything and trusts nothing it is given."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.sim.report import COLUMNS, write_report
from gpuyard.sim.result import Result, Segments
from gpuyard.sim.trace import Floats, Trace

EVIL = "<script>alert('x')</script>&\"quoted\""


class _Checker(HTMLParser):
    """Collects tags and links, and checks that tags are closed in order."""

    VOID = frozenset({"meta", "img", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def make_result(policy: str, delay: float = 0.0, jobs: int = 4, gpus: int = 2) -> Result:
    """Jobs of 100 s, one after the other on each GPU, the whole schedule put off by `delay`."""
    index = np.arange(jobs)
    start: Floats = np.asarray(index // gpus * 100.0 + delay, dtype=np.float64)
    end: Floats = np.asarray(start + 100.0, dtype=np.float64)
    trace = Trace.of(np.zeros(jobs), np.full(jobs, 100.0), np.ones(jobs, dtype=int), ids=[EVIL] * jobs)
    gpu = (index % gpus).astype(np.int64)
    return Result(
        trace, Cluster((gpus,)), policy, start, end, np.zeros(jobs, dtype=np.int64),
        [(int(g),) for g in gpu], {}, Segments(index.astype(np.int64), gpu, start, end),
        settings={"seed": 7, "estimate": "perfect"},
    )  # fmt: skip


def make_row(policy: str, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {column.key: 1.0 for column in COLUMNS}
    return {"policy": policy, **row, "jobs": 4, "completed": 4, "rejected": 0, **values}


def write(path: Path, rows: list[dict[str, Any]], results: list[Result], **changes: Any) -> str:
    given: dict[str, Any] = {
        "title": "Comparison",
        "command": "gpuyard compare t.csv",
        "trace_facts": {"trace": "t.csv"},
        "notes": ["a note"],
    }
    written = write_report(path, results=results, rows=rows, **{**given, **changes})
    assert written == path
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [make_row("fcfs", jct_mean=7384.25), make_row("sjf@easy@first", jct_mean=100.5, fairness=0.25)]
    path = tmp_path_factory.mktemp("report") / "r.html"
    return write(path, rows, [make_result("fcfs", 5), make_result("sjf@easy@first")])


def test_is_well_formed_and_refers_to_nothing_outside(page: str) -> None:
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    for tag, attributes in checker.seen:
        assert tag not in {"link", "iframe", "object"}
        assert (attributes.get("src") or "data:").startswith("data:")
        assert "href" not in attributes
    assert not re.search(r"https?://", page)


def test_images_refer_to_nothing_outside_but_the_svg_namespaces(page: str) -> None:
    images = [base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)\"", page)]
    assert len(images) == 6  # ranking, CDFs, utilisation, queue, Gantt of the best, Gantt of fcfs
    for image in images:
        urls = set(re.findall(r"https?://[^\"'\s>]+", image))
        assert all(url.startswith(("http://www.w3.org/", "https://www.w3.org/")) for url in urls), urls
        assert "<script" not in image


def test_rows_are_ranked_by_mean_jct_with_exact_seconds_at_hand(page: str) -> None:
    body = page[page.index("<tbody>") :]
    assert body.index("sjf@") < body.index(">fcfs<")
    assert '<td data-v="7384.25" title="7384.25 s">2h 03m</td>' in body
    assert "<strong>sjf@easy@first</strong> has the lowest mean job completion time" in page


def test_best_value_of_each_column_is_marked(page: str) -> None:
    assert '<td data-v="100.5" class="best" title="100.5 s">' in page
    fairness = re.findall(r'<td data-v="(0\.25|1)"([^>]*)>(?:0\.25|1)</td>', page)
    assert ("0.25", "") in fairness
    assert ("1", ' class="best"') in fairness, "for fairness, higher is better"
    assert page.count('class="best"') == 2, "equal values are not marked"


def test_says_what_was_simulated_and_how_to_repeat_it(page: str) -> None:
    for text in ("t.csv", "1 x 2 GPUs, 16G each", "perfect", "<dd>7</dd>", "a note", "gpuyard compare t.csv"):
        assert text in page
    for column in COLUMNS:
        assert f"<dt>{column.title}</dt>" in page


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    page = write(
        tmp_path / "r.html", [make_row(EVIL)], [make_result(EVIL)],
        title=EVIL, command=EVIL, notes=[EVIL], trace_facts={EVIL: EVIL, "nested": {EVIL: [EVIL]}},
    )  # fmt: skip
    assert page.count("<script>") == 1, "only the page's own script"
    assert "alert('x')" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;quoted&quot;" in page


def test_missing_values_come_last_and_show_a_dash(tmp_path: Path) -> None:
    rows = [
        make_row("none", jct_mean=float("nan"), energy_kwh=None, completed=0),
        make_row("some", jct_mean=3.0),
    ]
    page = write(tmp_path / "r.html", rows, [make_result("none"), make_result("some")])
    body = page[page.index("<tbody>") :]
    assert body.index(">some<") < body.index(">none<")
    assert body.count('<td data-v="">–</td>') == 2
    assert "nan" not in body[: body.index("</tbody>")]
    assert "did not complete the same number of jobs" in page


def test_no_completed_job_and_no_policy_at_all(tmp_path: Path) -> None:
    result = make_result("fcfs", jobs=0)
    page = write(tmp_path / "a.html", [make_row("fcfs", jct_mean=float("nan"), completed=0)], [result])
    assert "No job was completed" in page
    assert "No job was completed" in write(tmp_path / "b.html", [], [])


def test_large_gantt_chart_is_left_out_in_words(tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", [make_row("fcfs")], [make_result("fcfs", jobs=5_000)])
    assert "The Gantt chart of fcfs is left out here: 5,000 bars on 2 GPUs." in page


def test_settings_that_differ_are_not_given_as_one(tmp_path: Path) -> None:
    one, two = make_result("a"), make_result("b")
    two.settings["seed"] = 8
    page = write(tmp_path / "r.html", [make_row("a"), make_row("b")], [one, two])
    assert "differs between the policies" in page


def test_same_input_gives_the_same_file(page: str, tmp_path: Path) -> None:
    rows = [make_row("fcfs", jct_mean=7384.25), make_row("sjf@easy@first", jct_mean=100.5, fairness=0.25)]
    again = write(tmp_path / "deep" / "s.html", rows, [make_result("fcfs", 5), make_result("sjf@easy@first")])
    assert again == page
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["s.html"]
