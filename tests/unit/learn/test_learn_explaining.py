"""What a trained policy prefers, told from its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.cli.learning.learn import explain as command
from gpuyard.errors import UserError
from gpuyard.figures.style import png_bytes
from gpuyard.learn.explanation import Explanation, Preference, explain
from gpuyard.learn.policy_figures import preferences
from gpuyard.policies.features import NAMES, OF_ALL, OF_JOBS
from gpuyard.policies.network import JOB_FEATURES, UNIT, Network, parameter_count, untrained
from gpuyard.policies.trained_policy import Learned

TYPICAL = {
    "estimate": 3600.0, "gpus": 4.0, "submit": 50_000.0, "wait": 600.0, "memory": 0.0, "usage_share": 0.2,
    "attained": 0.0, "opening": 0.0, "suitable": 10.0, "shorter": 0.5, "idle": 10.0, "hole": 4.0, "queue": 20.0,
    "queue_work": 1e6, "shadow": 500.0, "capacity": 64.0,
}  # fmt: skip
LOW = np.array([-1.5 if n == "length" else 0.0 for n in NAMES])
HIGH = np.array([2.0 if n == "length" else 0.0 if n == "memory" else 0.95 for n in NAMES])


def policy(network: Network, **training: Any) -> Learned:
    return Learned(network, LOW, HIGH, "easy", {"typical": TYPICAL, **training})


def linear(base: str = "saf", **weights: float) -> Learned:
    """A policy without hidden units, of which these features count."""
    parameters = np.array([weights.get(name, 0.0) for name in OF_JOBS])
    return policy(Network(base, 0, 20.0, parameters))


def of(found: Explanation) -> dict[str, Preference]:
    return {p.quantity.column: p for p in found.preferences}


def test_an_untrained_policy_prefers_what_its_base_does() -> None:
    found = explain(policy(untrained("saf", 4, 20.0, np.random.default_rng(0))))
    for p in found.preferences:
        np.testing.assert_allclose(p.scores, p.base)
        assert p.added == pytest.approx(0.0)
    curves = of(found)
    assert curves["estimate"].ahead == "low"
    assert curves["gpus"].ahead == "low"
    assert curves["wait"].ahead == "either"
    assert curves["wait"].spread == 0.0
    assert all(i.importance == pytest.approx(0.0, abs=1e-9) for i in found.importances)
    assert any("nothing of these" in line for line in found.summary)


def test_curves_are_relative_to_the_typical_job_and_follow_the_weights() -> None:
    found = of(explain(linear("sjf", standing=-3.0, shorter=2.0)))
    estimate, wait = found["estimate"], found["wait"]
    assert np.interp(TYPICAL["estimate"], estimate.values, estimate.scores) == pytest.approx(0.0, abs=0.02)
    assert estimate.scores[-1] - estimate.scores[0] == pytest.approx(np.log(estimate.values[-1] / estimate.values[0]))
    assert wait.ahead == "high"
    assert wait.spread > 1.5
    assert wait.base_spread == 0.0
    assert found["shorter"].ahead == "low"
    assert found["shorter"].spread == pytest.approx(2.0 * 0.95, rel=0.03)


def test_importance_of_a_linear_feature_is_its_weight_times_its_range() -> None:
    found = {i.feature: i for i in explain(linear(part=2.0, fits=-0.5, memory=9.0)).importances}
    assert found["part"].importance == pytest.approx(2.0 * 0.95)
    assert found["part"].ahead == "low"
    assert found["fits"].importance == pytest.approx(0.5 * 0.95)
    assert found["fits"].ahead == "high"
    assert found["memory"].importance == 0.0
    assert found["memory"].ahead == "unseen"
    assert all(found[name].importance == pytest.approx(0.0, abs=1e-12) for name in OF_ALL)


def test_importances_come_the_greatest_first() -> None:
    values = [i.importance for i in explain(linear(part=1.0, standing=2.0, far=0.5)).importances]
    assert values == sorted(values, reverse=True)
    assert len(values) == len(NAMES)


def test_what_all_share_counts_by_what_it_changes() -> None:
    """A unit that is on only while the queue is long makes `part` count then: so `queue` counts, by that much."""
    parameters = np.zeros(parameter_count(4))
    unit = np.zeros(UNIT)
    unit[0], unit[1 + NAMES.index("queue")], unit[1 + NAMES.index("part")], unit[-1] = -0.9, 1.0, 1.0, 1.0
    parameters[JOB_FEATURES : JOB_FEATURES + UNIT] = unit
    found = {i.feature: i for i in explain(policy(Network("saf", 4, 20.0, parameters))).importances}
    assert found["queue"].importance > 0.5
    assert found["queue"].shared
    assert found["idle"].importance == pytest.approx(0.0, abs=1e-9)


def test_starving_is_left_out_of_the_curves() -> None:
    network = replace(linear().network, starvation=1e-6)
    assert of(explain(policy(network)))["wait"].spread < 1.0


def test_what_was_never_varied_is_said_to_be_unknown() -> None:
    found = explain(linear(memory=5.0))
    assert of(found)["memory"].ahead == "unseen"
    said = next(line for line in found.summary if line.startswith("Never varied"))
    assert "memory" in said
    assert "run time" not in said


def test_words_keep_to_the_numbers() -> None:
    short = explain(linear("sjf"))
    assert "short jobs" in short.summary[0]
    assert "long jobs" not in short.summary[0]
    assert any("1 min" in line and "1 h, all else alike, even if" in line for line in short.summary)
    patient = explain(linear("sjf", standing=-20.0))
    assert any("unless that one has waited" in line for line in patient.summary)
    turned = explain(linear("sjf", length=-6.0))  # more than the key's 3 a step
    assert any(line.startswith("A job of 1 h goes ahead of one of 1 min") for line in turned.summary)
    assert "long jobs" in turned.summary[0]


def test_a_curve_that_turns_is_said_to_go_both_ways() -> None:
    parameters = np.zeros(parameter_count(4))
    unit = np.zeros(UNIT)
    unit[0], unit[1 + NAMES.index("shorter")], unit[-1] = -0.5, 1.0, 8.0
    parameters[NAMES.index("shorter")] = -4.0
    parameters[JOB_FEATURES : JOB_FEATURES + UNIT] = unit
    found = explain(policy(Network("sjf", 4, 20.0, parameters)))
    assert of(found)["shorter"].ahead == "mixed"
    assert any("goes both ways" in line and "most ahead at 50%" in line for line in found.summary)


@pytest.mark.parametrize("base", ["fcfs", "sjf", "f1", "f3", "wfp3", "unicep"])
def test_any_base_is_explained_and_drawn(base: str) -> None:
    rng = np.random.default_rng(1)
    found = explain(policy(Network(base, 8, 20.0, rng.normal(0.0, 1.0, parameter_count(8)))))
    assert all(np.isfinite(p.scores).all() and np.isfinite(p.base).all() for p in found.preferences)
    if base in ("fcfs", "wfp3"):
        assert png_bytes(preferences(found)).startswith(b"\x89PNG")


def test_a_policy_that_does_not_say_what_it_saw_is_refused() -> None:
    with pytest.raises(UserError, match="train it anew"):
        explain(Learned(linear().network, LOW, HIGH, "easy", {}))


def test_command_prints_tables_and_writes_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    linear(standing=-1.0).save(path)
    command(f"learned:{path}", str(tmp_path / "out"), False)
    shown = capsys.readouterr()
    assert "IMPORTANCE" in shown.out
    assert "standing" in shown.out
    assert "OF SAF ALONE" in shown.out
    assert "Goes ahead" in shown.err
    assert (tmp_path / "out" / "preferences.png").read_bytes().startswith(b"\x89PNG")


def test_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    linear(standing=-1.0).save(path)
    command(str(path), None, True)
    value = json.loads(capsys.readouterr().out)
    assert value["base"] == "saf"
    assert len(value["features"]) == len(NAMES)
    assert {q["quantity"] for q in value["quantities"]} >= {"estimate", "gpus", "wait", "opening"}


def test_a_folder_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    linear().save(tmp_path / "p.json")
    with pytest.raises(UserError, match="cannot be written"):
        command(str(tmp_path / "p.json"), str(tmp_path / "p.json" / "below"), False)
