"""Learning from recorded runs: the gradient, the seed's tables, transfer, and that it abstains where it should."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.growing import made_tables

from gpuyard.adapt.agent import agent_file
from gpuyard.adapt.agent.agent_file import Agent
from gpuyard.adapt.agent.decision_trees import Table, read_tables
from gpuyard.adapt.agent.reinforce import Recipe, build_forest, draw, greedy, learn, play, rewards
from gpuyard.adapt.agent.scorer import Network, Regression, best_values, known
from gpuyard.errors import UserError

QUICK = Recipe(updates=100, members=2, keep=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    return made_tables(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def seed_tables(traces: Path) -> dict[str, Table]:
    folder = traces / "adaptation"
    if not folder.is_dir():
        pytest.skip(f"no tables of the seed in {folder}")
    return {table.name: table for table in read_tables([folder]).tables}


def reached(agent: Agent, table: Table) -> tuple[int, float]:
    """The rank and the accuracy of what an agent does."""
    sequence = greedy(agent.action, table)
    return table.rank(sequence), float(table.values[table.place[sequence]])


def share(agent: Agent, tables: list[Table]) -> float:
    gains = sum(reached(agent, table)[1] - table.values[table.never] for table in tables)
    return float(gains / sum(table.values.max() - table.values[table.never] for table in tables))


def test_values_of_nodes_are_those_of_all_sequences(made: list[Table]) -> None:
    table = made[0]
    forest = build_forest([table], known([table]))
    network = Network.random(np.random.default_rng(0), 2, 4)
    chances = forest.chances(network)
    weight = np.broadcast_to(forest.weight, (2, len(forest.weight)))
    reach, comes_to, worth = play(forest, chances, weight)
    likely = [
        chances[0, 0, a] * chances[0, forest.child[0, a], b] for a, b in table.sequences
    ]  # the first tree is the first seed's
    assert sum(likely) == pytest.approx(1.0)
    assert worth[0, 0] == pytest.approx(float(np.dot(likely, rewards(table))))
    assert (chances[0, 0] * comes_to[0, 0]).sum() == pytest.approx(worth[0, 0])
    assert reach[:, forest.levels[1]].sum(axis=1) == pytest.approx([1.0, 1.0])


def test_episodes_come_to_what_is_expected(made: list[Table]) -> None:
    forest = build_forest(made[4:6], known(made))
    chances = forest.chances(Network.random(np.random.default_rng(1), 1, 4))
    _, _, worth = play(forest, chances, forest.weight[None])
    counts, sums = draw(forest, chances, 20_000, np.random.default_rng(2))
    roots = forest.levels[0]
    assert counts[0, roots].sum(axis=1) == pytest.approx([20_000.0] * len(roots))
    assert sums[0, roots].sum(axis=1) / 20_000 == pytest.approx(worth[0, roots], abs=0.02)


def test_gains_are_those_over_never_growing_again(made: list[Table]) -> None:
    table = made[4]
    worth = best_values(table)
    assert worth[()] == table.values.max()
    within = known(made)
    others = [other for other in made if other is not table]
    fitted, blind = Regression(made, within).fit(), Regression(others, within).fit()
    rows = within.rows(table.typical[()])
    actual = [worth[(a,)] - table.values[table.never] for a in range(3)]
    (near, sure), (far, unsure) = fitted.predict(rows), blind.predict(rows)
    assert near == pytest.approx(actual, abs=0.01)
    assert far == pytest.approx(actual, abs=0.04)
    assert (sure < 0.2 * unsure).all()  # the nearer to what was recorded, the surer
    assert 0 < fitted.error < 0.05


def test_learned_agent_reaches_the_best_where_it_learned(made: list[Table]) -> None:
    agent = learn(made, QUICK)
    assert share(agent, made) > 0.95
    for table in made:
        assert reached(agent, table)[1] > table.values[table.never] - 0.005


def test_where_it_did_not_learn_it_gains_most_of_it_and_never_loses_much(made: list[Table]) -> None:
    gains, gaps, least = 0.0, 0.0, 1.0
    for table in made:
        agent = learn([other for other in made if other is not table], QUICK)
        gain = reached(agent, table)[1] - float(table.values[table.never])
        gains, gaps = gains + gain, gaps + float(table.values.max() - table.values[table.never])
        least = min(least, gain)
    assert gains / gaps > 0.7
    assert least > -0.005


def test_drawn_episodes_teach_too(made: list[Table]) -> None:
    tables = made[2:6]
    start = learn(tables, replace(QUICK, updates=1, rate=1e-9))
    agent = learn(tables, replace(QUICK, updates=200, episodes=8))
    assert share(agent, tables) > 0.8
    assert agent.training["curve"][-1][0] > start.training["curve"][0][0]


def test_same_seed_same_bytes(made: list[Table], tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        learn(made[:3], replace(QUICK, updates=20, seed=seed)).save(tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_a_file_decides_as_what_it_was_made_of(made: list[Table], tmp_path: Path) -> None:
    agent = learn(made[:4], replace(QUICK, updates=20))
    agent.save(tmp_path / "p.json")
    loaded, digest = agent_file.load_hashed(tmp_path / "p.json")
    assert loaded.hash == agent.hash
    assert len(digest) == 64
    seen = made[5].typical[()]
    for one, other in zip(agent.weigh(seen), loaded.weigh(seen), strict=True):
        assert one.tolist() == other.tolist()


def test_files_are_not_overwritten_and_damage_is_told(made: list[Table], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    agent = learn(made[:2], replace(QUICK, updates=2))
    agent.save(path)
    with pytest.raises(UserError, match="--force"):
        agent.save(path)
    agent.save(path, force=True)
    with pytest.raises(UserError, match="directory"):
        agent.save(tmp_path)
    facts = json.loads(path.read_text())
    for change, told in (
        ({"noise": 0.5}, "damaged"), ({"features": 99}, "version 99"), ({"format": "x"}, "no learned decider"),
    ):  # fmt: skip
        path.write_text(json.dumps(facts | change))
        with pytest.raises(UserError, match=told):
            agent_file.load(path)
    path.write_text("{")
    with pytest.raises(UserError, match="damaged"):
        agent_file.load(path)
    with pytest.raises(UserError, match="there is no learned decider"):
        agent_file.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("seed", [0, 1])
def test_seed_tables_are_learned(seed_tables: dict[str, Table], seed: int) -> None:
    for name, accuracy in (("cnn1-early", 0.7391), ("cnn1-late", 0.6827), ("cnn1-middle", 0.7348)):
        assert reached(learn([seed_tables[name]], Recipe(seed=seed)), seed_tables[name]) == (1, accuracy)


@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_transfer_from_early_to_late_is_of_the_new_policy(seed_tables: dict[str, Table], temperature: float) -> None:
    early = learn([seed_tables["cnn1-early"]])
    late = seed_tables["cnn1-late"]
    assert reached(early, late)[0] > 1
    new = learn([late], Recipe(temperature=temperature), early)
    assert reached(new, late) == (1, 0.6827)
    assert new.hash != early.hash
    assert new.training["from"] == early.hash
    assert new.training["curve"][0][3] == temperature


def test_one_policy_does_well_on_all_stages(seed_tables: dict[str, Table]) -> None:
    tables = [table for name, table in seed_tables.items() if name.startswith("cnn1")]
    agent = learn(tables)
    assert share(agent, tables) > 0.9
    assert all(reached(agent, table)[0] <= 5 for table in tables)


def test_nothing_to_learn_from_is_told() -> None:
    with pytest.raises(UserError, match="no environment"):
        learn([])
