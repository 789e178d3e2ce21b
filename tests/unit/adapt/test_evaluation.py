"""How deciders are judged: ranks, shares, intervals, and learning anew without an environment."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.growing import made_tables, worlds

from gpuyard.adapt.agent.decision_trees import Table
from gpuyard.adapt.agent.evaluation import Evaluation, chosen, document, evaluate, evaluate_in, family, leave_one_out
from gpuyard.adapt.agent.reinforce import Recipe, learn
from gpuyard.adapt.deciders import Reinforce, TableOracle, make_decider
from gpuyard.adapt.decisions import Option, Situation
from gpuyard.errors import UserError

QUICK = Recipe(updates=20, members=2, keep=2)


def table(accuracy: list[list[float]], name: str = "e") -> Table:
    """One decision with as many options as there are sequences but one."""
    options = tuple(Option(k, f"s{k}", cost_ratio=1.5) for k in range(len(accuracy[0]) - 1))
    seen = tuple(Situation(50.0, 100.0, accuracy=0.5, steps_left=500.0, options=options) for _ in accuracy)
    sequences = tuple((k,) for k in range(len(accuracy[0])))
    return Table(name, tuple(range(len(accuracy))), sequences, np.array(accuracy), {(): seen})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    return made_tables(tmp_path_factory.mktemp("made"), worlds()[2:7])


def oracle(action: int) -> TableOracle:
    return TableOracle((action,), "e", 0.0)


def test_rank_share_and_interval_are_as_counted() -> None:
    known = table([[0.7, 0.8, 0.6], [0.7, 0.9, 0.5], [0.7, 0.85, 0.55]])
    found = evaluate_in(lambda: oracle(0), known, 500, np.random.default_rng(0), "abc")
    assert (found.rank, found.policy_hash) == (2, "abc")
    assert found.accuracy == pytest.approx(0.7)
    assert found.gain == pytest.approx(0.15)
    assert found.gap_share == pytest.approx(0.15 / 0.3)
    low, high = found.gain_interval
    assert 0.1 <= low < 0.15 < high <= 0.2
    assert found.interval == pytest.approx((0.7, 0.7))
    assert found.deciders["never"] == pytest.approx(0.55)
    assert found.deciders["random"] == pytest.approx((0.7 + 0.85 + 0.55) / 3)
    assert evaluate_in(lambda: oracle(2), known, 10, np.random.default_rng(0), None).rank == 3


def test_oracle_that_does_not_choose_by_luck_is_told() -> None:
    lucky = table([[0.9, 0.5, 0.5], [0.5, 0.9, 0.5], [0.5, 0.5, 0.5]])
    found = evaluate_in(lambda: oracle(2), lucky, 0, np.random.default_rng(0), None)
    assert found.oracle == pytest.approx(1.9 / 3)
    assert found.oracle_crossfit == pytest.approx(0.5)
    assert math.isnan(found.interval[0])


def test_one_seed_has_no_interval_and_no_gap_no_share() -> None:
    found = evaluate_in(lambda: oracle(1), table([[0.4, 0.6]]), 100, np.random.default_rng(0), None)
    assert math.isnan(found.gap_share)
    assert math.isnan(found.gain_interval[0])
    assert math.isnan(found.oracle_crossfit)
    assert math.isnan(Evaluation((found,), (math.nan, math.nan), False).gap_share)


def test_whole_is_the_sum_of_gains_over_the_sum_of_gaps() -> None:
    tables = [table([[0.6, 0.5]], "small"), table([[0.9, 0.5]], "large"), table([[0.3, 0.5]], "none")]
    found = evaluate(lambda: oracle(0), tables, 100)
    assert found.gap_share == pytest.approx((0.1 + 0.4 - 0.2) / 0.5)
    assert found.mean_gap_share == pytest.approx(1.0)
    assert found.worst.table.name == "none"
    told = document(found)
    assert [row["environment"] for row in told["environments"]] == ["small", "large", "none"]
    assert told["worst_gain"] == pytest.approx(-0.2)
    assert {"rank", "of", "gap_share", "accuracy", "policy_hash"} <= told.keys()


def test_of_a_single_environment_its_values_stand_at_the_top() -> None:
    found = evaluate(lambda: oracle(0), [table([[0.5, 0.6, 0.7]])], 0, policy_hash="x")
    told = document(found)
    assert (told["rank"], told["of"], told["accuracy"], told["policy_hash"]) == (3, 3, pytest.approx(0.5), "x")
    assert "ranking" not in told
    ranking = told["environments"][0]["ranking"]
    assert [one["accuracy"] for one in ranking] == [0.7, 0.6, 0.5]
    assert [one["rank"] for one in ranking] == [1, 2, 3]
    assert sum(one["agent"] for one in ranking) == 1
    assert sum(one["never"] for one in ranking) == 1


def test_chance_is_judged_by_what_it_comes_to_on_average(made: list[Table]) -> None:
    actions, weights = chosen(lambda: make_decider("random"), made[0])
    assert actions is None
    assert weights == pytest.approx(np.full(len(made[0].sequences), 1 / len(made[0].sequences)))
    _, biased = chosen(lambda: make_decider("random:chance=0"), made[0])
    assert biased[made[0].never] == pytest.approx(1.0)


def test_what_was_left_out_was_not_learned_from(made: list[Table]) -> None:
    found = leave_one_out(made, QUICK, 50)
    assert found.left_out
    assert [s.table.name for s in found.standings] == [t.name for t in made]
    for standing in found.standings:
        agent = learn([t for t in made if t.name != standing.table.name], QUICK)
        assert standing.policy_hash == agent.hash
        assert standing.actions == chosen(lambda agent=agent: Reinforce(agent), standing.table)[0]  # type: ignore[misc]
    assert len({s.policy_hash for s in found.standings}) == len(made)


def test_families_are_left_out_together(made: list[Table]) -> None:
    found = leave_one_out(made, QUICK, 0, parts=2)
    hashes = {family(s.table.name, 2): s.policy_hash for s in found.standings}
    assert len(set(hashes.values())) == len(hashes) == 2
    with pytest.raises(UserError, match="at least two"):
        leave_one_out(made, QUICK, 0, parts=1)


def test_evaluation_is_of_the_policy_given(tmp_path: Path, made: list[Table]) -> None:
    agent = learn(made[:1], QUICK)
    found = evaluate(lambda: Reinforce(agent), made[:2], 0, policy_hash=agent.hash)
    for standing in found.standings:
        sequence: tuple[int, ...] = ()
        while sequence in standing.table.typical:
            sequence = (*sequence, agent.action(standing.table.typical[sequence]))
        assert standing.actions == sequence
        assert standing.live_worst <= standing.live - standing.never + 1e-12
