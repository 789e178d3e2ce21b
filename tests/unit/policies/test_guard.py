"""A trained policy where it counts: when the base heuristic ranks instead, what is counted, and who may decide."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.core.columns import COLUMNS
from gpuyard.core.events import Cancelled, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.policies import POLICIES
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.errors import UserError
from gpuyard.policies.features import COLUMNS as INPUTS
from gpuyard.policies.features import NAMES, features
from gpuyard.policies.guard import (
    KINDS,
    LONGEST_REST,
    SHARE,
    Guarded,
    NotPassed,
    details_of,
    forced_hash,
    guard_of,
    guarded,
    serve_policy,
)
from gpuyard.policies.network import BASES, SIZES, Network, parameter_count, score_queue, untrained
from gpuyard.policies.trained_policy import Learned, load
from gpuyard.spec.notation import absolute, describe_learned

NOW = 50_000.0
WIDE = np.full(len(NAMES), 100.0)
PASSED = {
    "passed": True, "ratio": 0.9, "ratio_low": 0.85, "ratio_high": 0.95, "mean_ratio": 0.91, "p99_ratio": 0.99,
    "best_heuristic": "saf", "reasons": [],
}  # fmt: skip
FAILED = PASSED | {"passed": False, "ratio": 1.04, "ratio_low": 0.98, "ratio_high": 1.1, "reasons": ["no better"]}


class Ticks:
    """A clock that goes on by what each look at it takes."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def network(base: str = "saf", seed: int = 0, starvation: float = 1e6) -> Network:
    parameters = np.random.default_rng(seed).normal(0.0, 1.0, parameter_count(8))
    return Network(base, 8, starvation, parameters)


def trained(net: Network | None = None, gate: dict[str, Any] | None = None, **ranges: Any) -> Learned:
    return Learned(net or network(), ranges.get("low", -WIDE), ranges.get("high", WIDE), "easy", {}, gate or {})


def queue(jobs: int = 40, seed: int = 1, **more: Any) -> State:
    state, rng = State(Cluster((4, 4))), np.random.default_rng(seed)
    for n in range(jobs):
        gpus, estimate = int(rng.choice((1, 2, 4))), float(rng.lognormal(7.0, 1.5))
        apply(state, Submitted(100.0 * n, str(n), Request(gpus=gpus, estimate=estimate, user=f"u{n % 3}", **more)))
    return state


def watched(learned: Learned, clock: Ticks | None = None, limit: float = 0.05) -> Guarded:
    return guarded("learned:x", learned, clock or Ticks(), limit=limit)


def order(policy: Any, state: State, now: float = NOW) -> list[int]:
    rows = state.waiting.array
    found: list[int] = rows[np.argsort(policy.rank(state, rows, now), kind="stable")].tolist()
    return found


def test_where_nothing_is_wrong_it_is_the_policy_itself_to_the_last_digit() -> None:
    state, learned = queue(), trained()
    rows = state.waiting.array
    policy = watched(learned)
    assert (policy.rank(state, rows, NOW) == learned.policy("learned:x").rank(state, rows, NOW)).all()
    assert order(policy, state) != order(POLICIES["saf"], state)
    assert policy.guard.counts.plans == 1
    assert policy.guard.counts.fallbacks == dict.fromkeys(KINDS, 0)
    assert policy.text == "learned:x"


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_scores_that_are_no_numbers(base: str, wrong: float) -> None:
    net = network(base)
    net.parameters[0] = wrong
    state, policy = queue(), watched(trained(net))
    assert (policy.rank(state, state.waiting.array, NOW) == POLICIES[base].rank(state, state.waiting.array, NOW)).all()
    assert order(policy, state) == order(POLICIES[base], state)
    assert policy.guard.counts.fallbacks == {"not-a-number": 1, "unusual": 0, "late": 0}


def test_a_feature_of_the_queue_far_from_training() -> None:
    state, low, high = queue(), -WIDE, WIDE.copy()
    high[NAMES.index("queue")] = 0.3  # 40 jobs are 0.57
    low = low.copy()
    low[NAMES.index("queue")] = 0.0
    policy = watched(trained(low=low, high=high))
    assert order(policy, state) == order(POLICIES["saf"], state)
    assert policy.guard.counts.fallbacks["unusual"] == 1
    high[NAMES.index("queue")] = 0.48  # a quarter of the range more, and it is not far
    policy = watched(trained(low=low, high=high))
    order(policy, state)
    assert policy.guard.counts.fallbacks["unusual"] == 0


def test_a_few_odd_jobs_do_not_matter_and_many_do() -> None:
    low, high = -WIDE, WIDE.copy()
    high[NAMES.index("memory")], low = 0.0, low.copy()
    low[NAMES.index("memory")] = 0.0
    for odd, fallbacks in ((int(40 * SHARE), 0), (int(40 * SHARE) + 1, 1)):
        state, policy = queue(40 - odd), watched(trained(low=low, high=high))
        for n in range(odd):
            apply(state, Submitted(1e4 + n, f"odd{n}", Request(estimate=500.0, memory=60 * 2.0**30)))
        order(policy, state)
        assert policy.guard.counts.fallbacks["unusual"] == fallbacks


def test_late_rankings_rest_longer_each_time_until_one_is_in_time() -> None:
    clock, state = Ticks(), queue()
    policy = watched(trained(), clock)
    guard, now = policy.guard, NOW
    rest = 1.0
    for _ in range(14):
        clock.step = 0.06
        tries = guard.counts.fallbacks["late"]
        now += 1.0
        assert order(policy, state, now) == order(POLICIES["saf"], state, now)
        clock.step = 0.0
        clock.now += 0.9 * rest
        assert order(policy, state, now + 0.5) == order(POLICIES["saf"], state, now + 0.5)
        assert guard.counts.fallbacks["late"] == tries + 2
        clock.now += 0.2 * rest
        rest = min(2 * rest, LONGEST_REST)
    clock.now += LONGEST_REST
    assert order(policy, state, now + 0.6) != order(POLICIES["saf"], state, now + 0.6)
    clock.step = 0.06
    order(policy, state, now + 0.7)
    clock.step = 0.0
    clock.now += 1.1  # the first rest again
    assert order(policy, state, now + 0.8) != order(POLICIES["saf"], state, now + 0.8)


def test_without_a_limit_nothing_is_late() -> None:
    clock = Ticks()
    clock.step = 100.0
    policy = watched(trained(), clock, limit=0.0)
    order(policy, queue())
    assert policy.guard.counts.fallbacks["late"] == 0


def test_one_decision_holds_for_an_instant() -> None:
    state, clock = queue(), Ticks()
    policy = watched(trained(), clock)
    clock.step = 0.06
    order(policy, state)
    clock.step, clock.now = 0.0, 1e9  # by now it could be tried again
    assert order(policy, state) == order(POLICIES["saf"], state)
    assert (policy.guard.counts.plans, policy.guard.counts.fallbacks["late"]) == (1, 1)
    assert order(policy, state, NOW + 1) != order(POLICIES["saf"], state, NOW + 1)
    assert policy.guard.counts.plans == 2


def test_a_job_that_starves_is_counted_once() -> None:
    state = queue(3)
    policy = watched(trained(network(starvation=2.0)))
    apply(state, Submitted(10.0, "long", Request(gpus=1, estimate=10.0)))
    for now in (20.0, 20.5):
        order(policy, state, now)
    assert policy.guard.counts.starved == 0
    for now in (NOW, NOW + 10.0):
        order(policy, state, now)
    assert policy.guard.counts.starved == 4
    apply(state, Cancelled(NOW + 11.0, "long"))
    order(policy, state, NOW + 12.0)
    assert policy.guard.report()["starved"] == 4


def test_each_kind_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    net = network()
    net.parameters[3] = math.nan
    state, policy = queue(), watched(trained(net))
    with caplog.at_level(logging.WARNING, "gpuyard"):
        for n in range(5):
            order(policy, state, NOW + n)
    assert len(caplog.records) == 1
    assert "no finite number; saf ranks the queue" in caplog.text
    assert policy.guard.counts.fallbacks["not-a-number"] == 5


def test_an_empty_ranking_is_no_trouble() -> None:
    policy = watched(trained())
    assert len(policy.rank(queue(0), np.zeros(0, dtype=np.int64), NOW)) == 0


def test_an_untrained_policy_plans_as_its_heuristic(tmp_path: Path) -> None:
    state = queue(200, seed=3)
    trained(untrained("saf", 8, 1e6, np.random.default_rng(0)), PASSED).save(tmp_path / "p.json")
    planner = serve_policy(f"learned:{tmp_path}/p.json", discipline="skip", placement="pack", lenient=True)
    assert planner.text == f"learned:{tmp_path}/p.json@easy@pack"  # as it was trained
    mine = planner.plan(Snapshot(state, NOW)).starts
    assert mine == serve_policy("saf@easy@pack").plan(Snapshot(state, NOW)).starts


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ({}, "nobody has evaluated it"),
        (FAILED, r"its gate is not passed \(1.04 times saf, 0.98 to 1.1\): no better"),
        ({"passed": False, "ratio": "x"}, "its gate is not passed. gpuyard learn evaluate"),
    ],
)
def test_who_may_decide(tmp_path: Path, gate: dict[str, Any], says: str) -> None:
    file = tmp_path / "p.json"
    trained(gate=gate).save(file)
    with pytest.raises(NotPassed, match=says) as refused:
        serve_policy(f"learned:{file}")
    assert f"gpuyard learn evaluate {file} TRACE --record" in str(refused.value)
    assert "--force" in str(refused.value)
    planner = serve_policy(f"learned:{file}@strict", discipline="skip", force=True)
    guard = guard_of(planner)
    assert guard is not None
    assert guard.forced
    assert planner.discipline == "strict"
    kept = details_of(planner)
    assert kept == {"learned": {"hash": load(str(file)).hash[:12], "base": "saf", "forced": True}}
    assert guard_of(serve_policy(f"learned:{file}", forced_before=forced_hash(kept))) is not None
    trained(network(seed=9), gate).save(file)  # another one: nobody forced that
    with pytest.raises(NotPassed):
        serve_policy(f"learned:{file}", forced_before=forced_hash(kept))


def test_one_that_passed_is_not_forced(tmp_path: Path) -> None:
    trained(gate=PASSED).save(tmp_path / "p.json")
    planner = serve_policy(f"learned:{tmp_path}/p.json", force=True)
    guard = guard_of(planner)
    assert guard is not None
    told = guard.report()
    assert (told["forced"], told["gate"]) == (False, PASSED)
    assert json.loads(json.dumps(told)) == told
    assert "on top of saf; its gate is passed (0.9 times saf, 0.85 to 0.95); 0 plans" in describe_learned(told)
    assert forced_hash(details_of(planner)) == ""
    assert guard_of(serve_policy("sjf")) is None
    assert details_of(serve_policy("sjf")) == {}


def test_what_is_said_of_fallbacks() -> None:
    guard = watched(trained()).guard
    guard.counts.plans, guard.counts.starved = 1200, 1
    guard.counts.fallbacks["unusual"] = 3
    line = describe_learned(replace_forced(guard.report()))
    assert "nobody has evaluated it, and it was forced; 1,200 plans, 3 of them by saf (unusual 3); 1 job put" in line


def replace_forced(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "forced": True}


def test_files_that_are_no_policies_are_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    short = trained(gate=PASSED)
    replace(short, low=np.zeros(3)).save(file)
    with pytest.raises(UserError, match="does not say what it was trained on"):
        serve_policy(f"learned:{file}")
    for text in ("[" * 100_000, "{}", "", "\0"):
        file.write_text(text)
        with pytest.raises(UserError):
            serve_policy(f"learned:{file}")
    with file.open("w") as stream:
        stream.truncate(2**30)
    with pytest.raises(UserError, match="too large"):
        serve_policy(f"learned:{file}")
    for name in ("learned:~nobody-of-that-name/p.json", "learned:", f"learned:{tmp_path}"):
        with pytest.raises(UserError):
            serve_policy(name)


def test_paths_become_whole_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("")
    assert absolute("learned:./p.json@easy@pack") == f"learned:{tmp_path}/p.json@easy@pack"
    assert absolute("learned:p.json") == f"learned:{tmp_path}/p.json"
    assert absolute("learned:here@skip") == f"learned:{tmp_path}/here@skip"
    assert absolute("learned:/a/b.json") == "learned:/a/b.json"
    assert absolute("learned:shipped-one@easy") == "learned:shipped-one@easy"
    assert absolute("./mine.py:mine@easy") == f"{tmp_path}/mine.py:mine@easy"
    assert absolute("sjf") == "sjf"


def test_serving_needs_numpy_alone() -> None:
    heavy = ("torch", "numba", "gymnasium")
    code = f"import sys, gpuyard.policies.guard; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("hidden", SIZES)
def test_a_whole_queue_is_scored_to_the_last_digit(base: str, hidden: int) -> None:
    parameters = np.random.default_rng(hidden).normal(0.0, 1.0, parameter_count(hidden))
    net = Network(base, hidden, 0.1, parameters)  # with some that starve
    for jobs in (1, 7, 1001):
        state, now = queue(jobs, seed=jobs), NOW + 100.0 * jobs
        rows = state.waiting.array
        values = [COLUMNS[name].values(state, rows, now) for name in INPUTS]
        assert (score_queue(values, features(*values), net.weights) == net.policy().rank(state, rows, now)).all()
