"""The report on a trained policy: what it says, what stands beside it, and that it claims no more than it has."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.figures.style import png_bytes
from gpuyard.learn import policy_figures
from gpuyard.learn.arena import Stats
from gpuyard.learn.evaluation import LEARNED, Evaluation, evaluate, judge
from gpuyard.learn.evaluation_summary import losses, rows, verdict_lines, windows_csv
from gpuyard.learn.report import lead, write_report
from gpuyard.learn.trace_windows import Problem, make_problem
from gpuyard.learn.training import Recipe, train
from gpuyard.policies.network import BASES
from gpuyard.policies.trained_policy import Learned
from gpuyard.sim.workload import generate_poisson

TINY = Recipe(generations=2, population=4, windows=6, window=64, warm=16, check_every=1)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    trace = generate_poisson(3, jobs=900, gpus=16, load=1.0)
    return [make_problem(trace, estimate=kind) for kind in ("requested", "actual")]


@pytest.fixture(scope="module")
def learned(problems: list[Problem]) -> Learned:
    return train([problems[0]], TINY, processes=1)[0]


@pytest.fixture(scope="module")
def evaluations(learned: Learned, problems: list[Problem]) -> list[Evaluation]:
    return [evaluate(learned, problem, seeds=2, size=40, processes=1) for problem in problems]


@pytest.fixture(scope="module")
def out(learned: Learned, evaluations: list[Evaluation], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "a" / "b"
    verdicts = [judge(e) for e in evaluations]
    write_report(learned, "<small> & odd", evaluations, verdicts, folder, "gpuyard learn evaluate p.json")
    return folder


def with_costs(found: Evaluation, learned: float, others: float) -> Evaluation:
    """The same windows, with made-up costs: of learned, and of all others."""
    n = len(found.windows)
    ours, theirs = (Stats(cost, 60.0, 10.0, 600.0, 900.0, None) for cost in (learned, others))
    return replace(found, stats={LEARNED: [ours] * n, **{name: [theirs] * n for name in BASES}})


def text_of(page: str) -> str:
    """What a reader sees."""
    page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


def test_page_tells_the_verdict_first_and_stands_alone(out: Path, evaluations: list[Evaluation]) -> None:
    page = (out / "report.html").read_text()
    assert "&lt;small&gt; &amp; odd" in page
    assert "<small> & odd" not in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    text = text_of(page)
    verdict = judge(evaluations[0])
    said = "It passes the gate." if verdict["passed"] else "It does not pass the gate"
    assert said in text
    assert text.index(said) < text.index("How it was trained")
    assert f"{verdict['ratio_low']:.3f} to {verdict['ratio_high']:.3f}" in text
    for heading in ("What it prefers", "What this does not tell", "another game", "Reproduce", "Ratio of means"):
        assert heading in text
    assert "gpuyard learn evaluate p.json" in text


def test_figures_are_written_for_every_evaluation(out: Path) -> None:
    names = {path.name for path in out.glob("*.png")}
    assert {"learning-curve.png", "preferences.png"} <= names
    for kind in ("ratios", "windows", "waits"):
        assert sum(name.startswith(kind) for name in names) == 2
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in out.glob("*.png"))
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def test_json_holds_the_numbers(out: Path, learned: Learned, evaluations: list[Evaluation]) -> None:
    value = json.loads((out / "evaluation.json").read_text())
    assert value["policy"]["hash"] == learned.hash
    assert value["training"]["recipe"]["generations"] == 2
    assert [e["estimate"] for e in value["evaluations"]] == ["requested", "actual"]
    first, found = value["evaluations"][0], evaluations[0]
    assert first["verdict"]["ratio"] == pytest.approx(found.ratio(LEARNED, found.best_heuristic), abs=1e-5)
    assert {row["policy"] for row in first["policies"]} == set(found.stats)
    assert [row["policy"] for row in first["policies"]][-2:] in (["rr", "las"], ["las", "rr"])
    assert first["losses"]["windows"] == len(found.windows)


def test_csv_has_a_line_per_window_and_policy(out: Path, evaluations: list[Evaluation]) -> None:
    with (out / "windows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(e.windows) * len(e.stats) for e in evaluations)
    ours = [float(r["cost"]) for r in lines if r["policy"] == LEARNED and r["estimate"] == "requested"]
    np.testing.assert_allclose(ours, evaluations[0].costs(LEARNED), rtol=1e-5)
    assert windows_csv([]).count("\n") == 1


def test_the_same_report_twice_is_the_same(
    out: Path, learned: Learned, evaluations: list[Evaluation], tmp_path: Path
) -> None:
    verdicts = [judge(e) for e in evaluations]
    write_report(learned, "<small> & odd", evaluations, verdicts, tmp_path, "gpuyard learn evaluate p.json")
    assert (tmp_path / "report.html").read_bytes() == (out / "report.html").read_bytes()


def test_losses_are_counted(evaluations: list[Evaluation]) -> None:
    found = evaluations[0]
    best = found.best_heuristic
    lost = losses(found)
    ours, theirs = found.costs(LEARNED), found.costs(best)
    assert lost.lost == (ours > theirs).sum()
    assert lost.clearly <= lost.lost
    assert lost.worst_ratio == pytest.approx((ours / theirs).max())
    assert all(ratio > 1.02 for ratio in lost.beaten_by.values())


def test_words_where_it_loses_everywhere_and_where_nowhere(learned: Learned, evaluations: list[Evaluation]) -> None:
    worse, better = (with_costs(evaluations[0], cost, 2.0) for cost in (3.0, 1.0))
    text = " ".join(verdict_lines(learned, worse, judge(worse)))
    n = len(worse.windows)
    assert "does not pass" in text
    assert f"in {n} of {n} windows (100%)" in text
    assert "saf (1.500)" in text
    text = " ".join(verdict_lines(learned, better, judge(better)))
    assert "It passes the gate." in text
    assert f"in none of the {n} windows" in text
    assert "no heuristic that stops nobody is better by more than 2%" in text
    assert losses(better).beaten_by == {}
    assert losses(worse).beaten_in["saf"] == 1.0


def test_words_tell_whether_it_knows_the_trace(learned: Learned, evaluations: list[Evaluation]) -> None:
    lines = [verdict_lines(learned, found, judge(found))[-1] for found in evaluations]
    assert "earlier part of this trace, with such" in lines[0]
    assert "but with other estimates (requested)" in lines[1]
    stranger = replace(learned, training={})
    assert "not trained on any part" in verdict_lines(stranger, evaluations[0], judge(evaluations[0]))[-1]


def test_windows_that_tell_nobody_apart_are_said_to(learned: Learned, evaluations: list[Evaluation]) -> None:
    same = with_costs(evaluations[0], 1.0, 1.0)
    assert "cannot tell them apart" in verdict_lines(learned, same, judge(same))[0]
    assert "apart" not in verdict_lines(learned, evaluations[0], judge(evaluations[0]))[0]


def test_few_stretches_of_time_are_said_to_be_few(learned: Learned, evaluations: list[Evaluation]) -> None:
    found = replace(evaluations[0], blocks=[0] * len(evaluations[0].windows))
    assert "too few" in " ".join(verdict_lines(learned, found, judge(found)))


@pytest.mark.parametrize("passed", [[True], [False], [True, True], [True, False], [False, False], []])
def test_lead_is_no_larger_than_the_verdicts(passed: list[bool]) -> None:
    base: dict[str, Any] = {"trace": "t", "estimate": "actual", "ratio": 0.9, "ratio_low": 0.8, "ratio_high": 0.95,
                            "best_heuristic": "saf"}  # fmt: skip
    said = lead([{**base, "passed": p} for p in passed])
    assert ("does not" in said) == (not all(passed))
    if len(passed) == 2 and any(passed):
        assert ("all 2" in said) == all(passed)
        assert ("1 of 2" in said) == (not all(passed))


def test_rows_put_those_that_stop_jobs_last(evaluations: list[Evaluation]) -> None:
    told = rows(evaluations[0])
    assert {row["policy"] for row in told[-2:]} == {"rr", "las"}
    ratios = [row["ratio"] for row in told[:-2]]
    assert ratios == sorted(ratios)


def test_a_report_without_preemption_and_training_record(
    learned: Learned, evaluations: list[Evaluation], tmp_path: Path
) -> None:
    bare = replace(learned, training={})
    found = with_costs(evaluations[0], 1.0, 1.0)
    page = text_of(write_report(bare, "bare", [found], [judge(found)], tmp_path, "x").read_text())
    assert "What it prefers" not in page
    assert "generations" not in page
    assert not (tmp_path / "learning-curve.png").exists()


def test_figures_of_equal_and_extreme_costs_can_be_drawn(evaluations: list[Evaluation]) -> None:
    for cost in (1.0, 1e6):
        found = with_costs(evaluations[0], cost, 1.0)
        for draw in (policy_figures.ratios, policy_figures.paired, policy_figures.waits):
            assert png_bytes(draw(found)).startswith(b"\x89PNG")


def test_a_learning_curve_may_be_short_or_empty() -> None:
    for curve in ([], [[1, 1.1, None]], [[1, 1.1, None], [2, 0.9, 0.97]]):
        assert png_bytes(policy_figures.learning_curve({"curve": curve})).startswith(b"\x89PNG")
