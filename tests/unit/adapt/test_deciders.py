"""Deciders: what they do, what they say, and how they are named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.growing import made_tables, worlds, write_recording

from gpuyard.adapt.agent.reinforce import Recipe, greedy, learn
from gpuyard.adapt.deciders import Reinforce, TableOracle, Timed, decider_names, make_decider
from gpuyard.adapt.decisions import UNKNOWN, Decision, Option, Situation
from gpuyard.errors import UserError

OPTIONS = (
    Option(0, "conv1", cost_ratio=2.8, position=0.0), Option(1, "conv2", cost_ratio=1.6, position=0.5),
    Option(2, "head", cost_ratio=1.9, position=1.0),
)  # fmt: skip
SEEN = Situation(
    1800.0,
    2000.0,
    steps_left=1800.0,
    steps_done=200.0,
    accuracy=0.6,
    slope=0.3,
    noise=0.01,
    decisions=3,
    options=OPTIONS,
)


def actions(decider: str, decisions: int = 5) -> list[int]:
    """What a decider does at each decision; -1 is nothing."""
    made = make_decider(decider)
    found = [made.decide(replace(SEEN, decision=k, decisions=decisions)) for k in range(decisions)]
    return [-1 if one.option is None else one.action for one in found]


def test_situations_come_back_from_json_as_they_were() -> None:
    seen = replace(SEEN, accuracy=UNKNOWN)
    text = json.dumps(seen.to_json(), allow_nan=False)
    back = Situation.from_json(json.loads(text))
    assert math.isnan(back.accuracy)
    assert replace(back, accuracy=0.5, loss_gap=0.0, train_accuracy=0.0) == replace(
        seen, accuracy=0.5, loss_gap=0.0, train_accuracy=0.0, options=back.options
    )
    assert [o.site for o in back.options] == ["conv1", "conv2", "head"]
    assert back.nothing == 3


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"time_left": 1.0}, "time_total"),
        ({"time_left": "soon", "time_total": 1.0}, "'time_left'"),
        ({"time_left": 1.0, "time_total": 1.0, "grown": 0.5}, "whole number"),
        ({"time_left": 1.0, "time_total": 1.0, "options": [{"action": 1, "site": "a"}]}, "numbered from 0"),
        ({"time_left": 1.0, "time_total": 1.0, "options": ["a"]}, "objects"),
    ],
)
def test_situations_that_are_none_are_refused(facts: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Situation.from_json(facts)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("never", [-1, -1, -1, -1, -1]),
        ("early", [1, -1, -1, -1, -1]),
        ("early:times=3,site=0", [0, 0, 0, -1, -1]),
        ("middle", [-1, -1, 1, -1, -1]),
        ("late:site=last", [-1, -1, -1, -1, 2]),
        ("late:times=9", [1, 1, 1, 1, 1]),
        ("periodic:every=2,site=first", [0, -1, 0, -1, 0]),
    ],
)
def test_rules_grow_when_they_say(text: str, wanted: list[int]) -> None:
    assert actions(text) == wanted


def test_cheapest_is_the_last_where_costs_are_unknown() -> None:
    blind = replace(SEEN, options=tuple(replace(o, cost_ratio=UNKNOWN) for o in OPTIONS))
    assert Timed("early").decide(blind).action == 2
    assert "unknown" in Timed("early").decide(blind).reason


def test_random_repeats_with_its_seed_and_keeps_its_chance() -> None:
    assert actions("random:seed=3", 40) == actions("random:seed=3", 40)
    assert actions("random:seed=3", 40) != actions("random:seed=4", 40)
    assert actions("random:chance=0", 20) == [-1] * 20
    assert -1 not in actions("random:chance=1", 20)
    drawn = actions("random", 4000)
    assert all(900 < drawn.count(a) < 1100 for a in (-1, 0, 1, 2))
    assert make_decider("random").decide(SEEN).probabilities == (0.25, 0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cost-rul", "did you mean 'cost-rule'"),
        ("periodic:evry=2", "did you mean 'every'"),
        ("periodic:every=0", "at least 1"),
        ("early:site=top", "cheapest, first, last"),
        ("random:chance=2", "from 0 to 1"),
        ("early:times", "times=VALUE"),
        ("never:x=1", "it has none"),
        ("reinforce:nowhere.json", "there is no learned decider"),
        ("table-oracle", "table-oracle:FILE#ENVIRONMENT"),
    ],
)
def test_mistakes_in_names_are_told(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_decider(text)


def test_the_shipped_agent_declines_with_little_time_and_grows_with_much() -> None:
    agent = make_decider("reinforce")
    little = replace(
        SEEN, time_left=180.0, time_total=200.0, steps_left=180.0, steps_done=20.0, accuracy=0.2, slope=0.2
    )
    assert agent.decide(little).option is None
    much = replace(SEEN, accuracy=0.72, slope=3.5, noise=0.02, loss_gap=-0.23)
    grown = agent.decide(much)
    assert grown.option is not None
    assert grown.predicted_gain > 0


def test_every_decider_does_without_options() -> None:
    nowhere = replace(SEEN, options=())
    for name in decider_names():
        if name != "table-oracle":
            decision = make_decider(name).decide(nowhere)
            assert decision.option is None
            assert decision.probabilities == (1.0,)


def cost_rule(**changes: float) -> Decision:
    return make_decider("cost-rule").decide(replace(SEEN, **changes))  # type: ignore[arg-type]


def test_cost_rule_grows_with_time_and_declines_without() -> None:
    grown = cost_rule()
    assert grown.option is not None
    assert grown.option.site == "conv2"  # the cheapest of equals
    assert grown.predicted_gain > SEEN.noise
    declined = cost_rule(steps_left=180.0, steps_done=20.0, time_left=180.0, time_total=200.0)
    assert declined.option is None
    assert "112 steps" in declined.reason  # what is left at the new price
    assert "below the noise" in declined.reason


def test_cost_rule_abstains_below_noise_and_without_memory() -> None:
    assert cost_rule(noise=0.5, accuracy=0.98).option is None
    assert cost_rule(noise=0.001, accuracy=0.98).option is not None
    assert cost_rule(headroom=0.01).option is None
    assert "1%" in cost_rule(headroom=0.01).reason


def test_cost_rule_gains_less_the_dearer_a_step_gets() -> None:
    def gain(cost: float) -> float:
        seen = replace(SEEN, options=(replace(OPTIONS[0], cost_ratio=cost),))
        return make_decider("cost-rule").decide(seen).predicted_gain

    gains = [gain(cost) for cost in (1.0, 1.5, 3.0, 9.0)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > gains[-1]


def test_cost_rule_does_with_what_is_unknown() -> None:
    blind = Situation(300.0, 400.0, options=tuple(Option(k, str(k)) for k in range(2)))
    assert make_decider("cost-rule").decide(blind).option is not None
    assert make_decider("cost-rule").decide(replace(blind, time_left=4.0)).option is None


def test_table_oracle_does_what_came_to_most(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a.jsonl", worlds()[:2], seeds=(0, 1))
    with pytest.raises(UserError, match="say which environment"):
        make_decider(f"table-oracle:{path}")
    table = made_tables(tmp_path, worlds()[:1], (0, 1))[0]
    oracle = make_decider(f"table-oracle:{path}#{table.name}")
    assert greedy(lambda seen: oracle.decide(seen).action, table) == table.sequences[table.best]
    with pytest.raises(UserError, match="record this environment"):
        TableOracle((2, 0), "elsewhere", 0.9).decide(replace(SEEN, options=OPTIONS[:1]))


def test_learned_decider_tells_chances_and_abstains_below_noise(tmp_path: Path) -> None:
    agent = learn(made_tables(tmp_path, worlds()), Recipe(updates=60, members=2))
    agent.save(tmp_path / "p.json")
    decider = make_decider(f"reinforce:{tmp_path / 'p.json'}")
    table = made_tables(tmp_path, [w for w in worlds() if "B8000-early" in w.name][:1])[0]
    seen = table.typical[()]
    grown = decider.decide(seen)
    assert grown.option is not None
    assert sum(grown.probabilities) == pytest.approx(1.0)
    assert len(grown.probabilities) == seen.nothing + 1
    assert grown.option.site in grown.reason
    unsure = replace(agent, gains=replace(agent.gains, error=9.0, points=agent.gains.points + 99.0))
    abstained = Reinforce(unsure).decide(seen)
    assert abstained.option is None
    assert "below the noise" in abstained.reason
    assert abstained.probabilities == grown.probabilities
    assert decider.decide(replace(seen, options=())).option is None


def test_learned_decider_takes_any_number_of_options(tmp_path: Path) -> None:
    agent = learn(made_tables(tmp_path, worlds()[:2]), Recipe(updates=5, members=1))
    agent.save(tmp_path / "p.json")
    decider = make_decider(f"reinforce:{tmp_path / 'p.json'}")
    for number in (1, 2, 17):
        options = tuple(Option(k, f"never heard of {k}", kind="odd") for k in range(number))
        assert len(decider.decide(Situation(1.0, 2.0, options=options)).probabilities) == number + 1
