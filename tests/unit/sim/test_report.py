"""The comparison report is one file that says everything and trusts nothing it is given."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuyard
from gpuyard.core.model import Cluster
from gpuyard.figures.html_page import text_of
from gpuyard.sim.compare import Comparison, Window
from gpuyard.sim.comparison_report import COLUMNS, write_report
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.result_files import sizes_text
from gpuyard.sim.summary import Summary, summarise
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


def make_result(policy: str, delay: float = 0.0, jobs: int = 4, gpus: int = 2, users: int = 2) -> Result:
    """Jobs of 100 s, one after the other on each GPU, the whole schedule put off by `delay`."""
    index = np.arange(jobs)
    start: Floats = np.asarray(index // gpus * 100.0 + delay, dtype=np.float64)
    end: Floats = np.asarray(start + 100.0, dtype=np.float64)
    trace = Trace.of(
        np.zeros(jobs), np.full(jobs, 100.0), np.ones(jobs, dtype=int),
        ids=[EVIL] * jobs, users=[f"<i>{i % users}" if users else "" for i in range(jobs)],
    )  # fmt: skip
    gpu = (index % gpus).astype(np.int64)
    return Result(
        trace, Cluster((gpus,)), policy, start, end, np.zeros(jobs, dtype=np.int64),
        Placements.of([(int(g),) for g in gpu]), {}, Segments(index.astype(np.int64), gpu, start, end),
        settings={"seed": 7, "estimate": "perfect"},
    )  # fmt: skip


def make_row(policy: str, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {column.key: 1.0 for column in COLUMNS if column.key != "jct_mean_diff"}
    return {"policy": policy, **row, "jobs": 4, "completed": 4, "rejected": 0, **values}


def make_summary(policy: str, delay: float = 0.0, jobs: int = 4, users: int = 2, **values: Any) -> Summary:
    return summarise(make_result(policy, delay, jobs, users=users), make_row(policy, **values))


def write(path: Path, summaries: list[Summary], failures: dict[str, str] | None = None, **changes: Any) -> str:
    given: dict[str, Any] = {
        "title": "Comparison",
        "command": "gpuyard compare t.csv",
        "trace_facts": {"trace": "t.csv"},
        "notes": ["a note"],
        "comparison": Comparison(Cluster((2,)), summaries, failures or {}),
    }
    written = write_report(path, **{**given, **changes})
    assert written == path
    return path.read_text(encoding="utf-8")


tell = partial(write, figures={})
"""A report without pictures, whose drawing takes seconds."""


def two() -> list[Summary]:
    return [make_summary("sjf@easy@first", jct_mean=100.5, fairness=0.25), make_summary("fcfs", 5, jct_mean=7384.25)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("report") / "r.html", two())


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
    assert len(images) == 7  # ranking, CDFs, utilisation, queue, users, Gantt of the best, Gantt of fcfs
    for image in images:
        urls = set(re.findall(r"https?://[^\"'\s>]+", image))
        assert all(url.startswith(("http://www.w3.org/", "https://www.w3.org/")) for url in urls), urls
        assert "<script" not in image


def test_rows_are_ranked_by_mean_jct_with_exact_seconds_at_hand(page: str) -> None:
    body = page[page.index("<tbody>") :]
    assert body.index("sjf@") < body.index(">fcfs<")
    assert '<td data-v="7384.25" title="7384.25 s">2h 03m</td>' in body
    assert "<strong>sjf@easy@first</strong> has the lowest mean job completion time" in page


def test_a_row_says_what_the_policy_leaves_open(tmp_path: Path) -> None:
    text = tell(tmp_path / "r.html", [make_summary("fcfs", discipline="strict", placement="<pack>")])
    assert '<th scope="row">fcfs<small>strict, &lt;pack&gt;</small></th>' in text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (10_578.15, "number", "10,578"),
        (1234.56, "number", "1,235"),
        (1.0474, "number", "1.047"),
        (5.0, "rate", "18,000"),
        (0.0042, "rate", "15.12"),
    ],
)
def test_numbers_are_written_out(value: float, kind: str, text: str) -> None:
    assert text_of(value, kind) == text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, "none"),
        ({1: 3}, "1 (100% of jobs)"),
        ({1: 9_990, 2: 6, 8: 4}, "1 (100% of jobs), 2 (<0.1%), 8 (<0.1%)"),
        ({1: 50, 2: 20, 4: 10, 8: 9, 16: 6, 32: 4, 2048: 1},
         "1 (50% of jobs), 2 (20%), 4 (10%), 8 (9.0%), 16 (6.0%), up to 2,048"),
    ],
)  # fmt: skip
def test_sizes_are_told_by_how_frequent_they_are(counts: dict[int, int], text: str) -> None:
    assert sizes_text(counts) == text


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
        assert (f"<dt>{column.title}</dt>" in page) == (column.key not in ("jct_mean_diff", "rejected"))
    assert f"Made with gpuyard {gpuyard.__version__}" in page


def test_the_date_is_told_where_it_is_given(tmp_path: Path) -> None:
    page = tell(tmp_path / "r.html", two(), when=datetime(2026, 3, 4, 5, 6, tzinfo=UTC))
    assert "Made on 2026-03-04 05:06 UTC with gpuyard" in page


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    page = tell(
        tmp_path / "r.html", [make_summary(EVIL)], {EVIL: EVIL},
        title=EVIL, command=EVIL, notes=[EVIL], trace_facts={EVIL: EVIL, "nested": {EVIL: [EVIL]}},
    )  # fmt: skip
    assert page.count("<script>") == 1, "only the page's own script"
    assert "alert('x')" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;quoted&quot;" in page
    assert "<i>" not in page


def test_missing_values_show_a_dash(tmp_path: Path) -> None:
    page = tell(
        tmp_path / "r.html", [make_summary("some", jct_mean=3.0), make_summary("none", jct_mean=None, completed=0)]
    )
    body = page[page.index("<tbody>") :]
    assert body[: body.index("</tbody>")].count('<td data-v="">–</td>') == 1
    assert "nan" not in body[: body.index("</tbody>")]
    assert "did not complete the same number of jobs" in page


def test_no_completed_job_and_no_policy_at_all(tmp_path: Path) -> None:
    page = write(tmp_path / "a.html", [make_summary("fcfs", jobs=0, jct_mean=None, completed=0)])
    assert "No job was completed" in page
    assert "No job was completed" in write(tmp_path / "b.html", [], {"fcfs": "broken"})


def test_large_schedules_have_no_gantt_chart(tmp_path: Path) -> None:
    assert "<h2>Schedule</h2>" not in write(tmp_path / "r.html", [make_summary("fcfs", jobs=5_000)])
    assert "<h2>Schedule</h2>" in write(tmp_path / "s.html", [make_summary("fcfs", jobs=50)])


def test_settings_that_differ_are_not_given_as_one(tmp_path: Path) -> None:
    one, other = two()
    other.settings["seed"] = 8
    assert "differs between the policies" in tell(tmp_path / "r.html", [one, other])


def test_same_input_gives_the_same_file(page: str, tmp_path: Path) -> None:
    assert write(tmp_path / "deep" / "s.html", two()) == page
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["s.html"]


def test_users_are_listed_under_the_best_policy_and_the_baseline(page: str) -> None:
    assert "Fairness between users" in page
    table = page[page.index('<table class="users">') :]
    for text in (
        "wait under sjf@<wbr>easy",
        "wait under fcfs",
        "slowdown under fcfs",
        "&lt;i&gt;0",
        "&lt;i&gt;1",
        "<td>2</td>",
    ):
        assert text in table[: table.index("</table>")]


def test_a_trace_without_users_has_no_section_for_them(tmp_path: Path) -> None:
    assert "Fairness between" not in tell(tmp_path / "r.html", [make_summary("fcfs", users=0)])


def test_failures_are_told_before_the_table(tmp_path: Path) -> None:
    page = tell(tmp_path / "r.html", two(), {"rr": "make the quantum longer"})
    assert "<strong>rr</strong>: make the quantum longer" in page
    assert page.index("make the quantum longer") < page.index("<tbody>")


def test_intervals_stand_beneath_the_means_and_in_the_lead(tmp_path: Path) -> None:
    best = make_summary("sjf", jct_mean=100.0, jct_mean_ci=[90.0, 110.0])
    sure = make_summary(
        "fcfs", jct_mean=200.0, jct_mean_ci=[150.0, 250.0], jct_mean_diff=100.0, jct_mean_diff_ci=[60.0, 140.0]
    )
    windows = (Window(0.0, 5.0), Window(5.0, 9.0))
    page = write(tmp_path / "r.html", [], comparison=Comparison(Cluster((2,)), [best, sure], {}, 1, windows, 1))
    assert "(1m 40s ± 10s)" in page
    assert "Its lead over fcfs is 1m 40s ± 40s with 95% confidence." in page
    assert ">1m 40s<small>± 10s</small></td>" in page
    assert "vs best" in page
    assert "in window 2 of 2" in page
    unsure = make_summary("fcfs", jct_mean=200.0, jct_mean_diff=10.0, jct_mean_diff_ci=[-1.0, 21.0])
    page = tell(tmp_path / "r.html", [], comparison=Comparison(Cluster((2,)), [best, unsure], {}, 2))
    assert "cannot be told from these runs" in page
