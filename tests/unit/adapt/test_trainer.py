"""Training within a budget: it learns, decides, grows and shrinks, and ends in time."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.smalltraining import Choose, PassingClock, adam, data, network, price, training
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpuyard.adapt import ops
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.decisions import Asking, Decision, Situation, grow
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.signals import Interrupted
from gpuyard.adapt.training.trainer import BudgetedTrainer
from gpuyard.errors import UserError


def test_a_training_learns_and_uses_its_budget_up() -> None:
    trainer = training(300, evaluate_every=0.1)
    result = trainer.fit()
    assert result.accuracy > 0.8
    assert 300 - trainer.step_cost < result.used <= 300
    assert trainer.rate <= 0.01
    evaluations = [event for event in result.events if event["event"] == "evaluation"]
    assert len(evaluations) == 11  # nine on the way, one for a decision, and the last
    assert evaluations[0]["accuracy"] < evaluations[-1]["accuracy"]
    assert result.actions == (2, 2)  # nothing, twice: there are two places


def test_it_grows_as_decided_and_pays_more_for_its_steps_then() -> None:
    trainer = training(200, "virtual", 0, 1)
    result = trainer.fit()
    decisions = [event for event in result.events if event["event"] == "decision"]
    assert [event["action"] for event in decisions] == [0, 1]
    assert decisions[0]["parameters"] > decisions[0]["parameters_before"]
    assert decisions[1]["parameters_before"] == decisions[0]["parameters"]
    assert decisions[0]["probabilities"] == [1.0, 0.0, 0.0]
    assert decisions[0]["reason"] == "as told"
    assert result.parameters == decisions[1]["parameters"] == sum(one.numel() for one in trainer.model.parameters())
    assert trainer.step_cost == pytest.approx(price(trainer.model))
    assert result.used <= 200
    assert trainer.rate <= 0.01
    assert len(ops.growth_log(trainer.model)) == 2


def test_what_a_decider_sees() -> None:
    decider = Choose(0, 0)
    trainer = training(400, "virtual", decider=decider, evaluate_every=0.05)
    trainer.fit()
    first, second = decider.seen
    assert (first.decision, second.decision, first.decisions) == (0, 1, 2)
    assert first.time_total == 400
    assert 295 < first.time_left <= 300
    assert first.steps_left == pytest.approx(first.time_left / price(network()), rel=0.01)
    assert first.steps_done == round((400 - first.time_left) / price(network()))
    assert 0.3 < first.accuracy < 1.0
    assert first.slope > 0
    assert 0 < first.noise < 0.2
    assert math.isfinite(first.loss_gap)
    assert (first.headroom, first.grown, second.grown) == (1.0, 0, 1)
    assert [option.action for option in first.options] == [0, 1]
    assert [option.grown for option in second.options] == [1, 0]
    assert all(
        option.cost_ratio > 1 and option.params_ratio == pytest.approx(option.cost_ratio) for option in first.options
    )
    before, after = price(network()), price(trainer.model)
    assert first.options[0].cost_ratio * second.options[0].cost_ratio == pytest.approx(after / before)


def test_finding_out_about_prices_leaves_no_trace() -> None:
    class Never:
        def decide(self, situation: Any) -> Any:
            return Choose().decide(situation)

    asked, alone = training(100, decider=Never()), training(100, asking=Asking(most=0))
    asked.fit()
    alone.fit()
    for ours, theirs in zip(asked.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_after_up_it_is_asked_at_once_and_then_every_epoch() -> None:
    decider = Choose(0, 9, 1)
    trainer = training(200, decider=decider, asking=Asking(most=3), gpu_changes=[{"time": 50, "change": "up"}])
    result = trainer.fit()
    steps = [event["step"] for event in result.events if event["event"] == "decision"]
    assert len(steps) == 3
    assert steps[1] - steps[0] == steps[2] - steps[1] == 400 // 32
    assert decider.seen[0].time_left == pytest.approx(150, abs=2)
    assert result.actions == (0, 2, 1)
    assert result.events[0]["event"] == "evaluation"
    changes = [event for event in result.events if event["event"] == "resources"]
    assert [event["change"] for event in changes] == ["up"]


def test_down_goes_back_and_learns_from_the_larger_network() -> None:
    changes = [{"time": 120, "change": "down"}, {"time": 10, "change": "up"}]
    trainer = training(300, "virtual", 0, 9, asking=Asking(most=2), gpu_changes=changes)
    result = trainer.fit()
    assert result.parameters == sum(one.numel() for one in network().parameters())
    assert ops.growth_log(trainer.model) == []
    shrunk = next(event for event in result.events if event["event"] == "shrunk")
    assert shrunk["parameters_before"] > shrunk["parameters"]
    before = [event["accuracy"] for event in result.events if event["event"] == "evaluation" and event["time"] < 119][
        -1
    ]
    after = next(event for event in result.events if event["event"] == "after down")
    assert after["step"] == shrunk["step"] + 400 // 32
    assert after["accuracy"] > before - 0.1
    assert trainer.teacher is None  # it faded
    assert trainer.step_cost == pytest.approx(price(network()))
    assert trainer.rate <= 0.01


def test_down_without_having_grown_changes_nothing() -> None:
    result = training(60, gpu_changes=[{"time": 20, "change": "down"}], asking=Asking(most=0)).fit()
    assert not [event for event in result.events if event["event"] == "shrunk"]


def test_restarting_the_rate_after_growing() -> None:
    rates: list[float] = []
    trainer = training(200, "virtual", 0, 9, restart_rate=True, plan=RatePlan(warmup=0.02))
    while (situation := trainer.advance()) is not None:
        rates.append(trainer.rate)
        trainer.apply(Choose(0, 9).decide(situation))
    trainer.finish()
    assert rates[1] > 2 / 3 * 0.99  # a third of what was left is gone; without restarting it would be a half
    assert trainer.rate <= 0.01


@pytest.mark.parametrize("clock", ["virtual", "passing"])
@pytest.mark.parametrize("change", [0.5, -0.3])
def test_a_changed_grant_ends_in_time_with_a_rate_of_nothing(clock: str, change: float) -> None:
    total = 150.0 if clock == "virtual" else 2.5

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "decision" and trainer.budget.total == total:
            trainer.budget.set_total(total * (1 + change), "as told")

    trainer = training(total, "virtual" if clock == "virtual" else PassingClock(), 0, 0, callbacks=[heard])
    result = trainer.fit()
    assert result.total == total * (1 + change)
    assert trainer.rate <= 0.01
    assert result.used <= result.total * 1.01 + (trainer.budget.step_time if clock == "passing" else 0)
    assert result.used >= result.total * 0.9
    assert next(event for event in result.events if event["event"] == "grant")["why"] == "as told"


def test_prices_are_measured_on_other_clocks_if_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.adapt.training.growth.time", SimpleNamespace(perf_counter=PassingClock().now))
    decider = Choose(0)
    training(5, PassingClock(), decider=decider, asking=Asking(fractions=(0.2,)), cost=None).fit()
    assert all(0.3 < option.cost_ratio < 5 for option in decider.seen[0].options)
    decider = Choose(0)
    training(0.05, PassingClock(), decider=decider, asking=Asking(fractions=(0.2,)), cost=None).fit()
    assert all(math.isnan(option.cost_ratio) for seen in decider.seen for option in seen.options)


def test_widening_is_an_option_if_asked_for() -> None:
    decider = Choose(1)
    trainer = training(100, decider=decider, grow_by=("deepen", "widen"), asking=Asking(fractions=(0.3,)))
    trainer.fit()
    assert {option.op for option in decider.seen[0].options} == {"deepen", "widen"}


def test_growing_that_fails_is_told_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise ops.Refused("not here")

    trainer = training(100, "virtual", 0, 0)
    situation = trainer.advance()
    assert situation is not None
    monkeypatch.setattr(ops, "deepen", refuse)
    trainer.apply(Choose(0).decide(situation))
    monkeypatch.undo()
    result = trainer.fit()
    assert result.actions == (2, 0)
    assert [event["reason"] for event in result.events if event["event"] == "decision"] == ["not here", "as told"]


def test_events_are_lines_of_a_file_and_never_replaced(tmp_path: Path) -> None:
    log = tmp_path / "runs" / "log.jsonl"
    result = training(60, "virtual", 0, log=log).fit()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == [event["event"] for event in result.events]
    assert lines[-1]["event"] == "end"
    assert {"step", "time", "parameters", "train_loss", "rate"} <= set(lines[0])
    with pytest.raises(UserError, match="already"):
        training(60, log=log).fit()


@pytest.mark.parametrize("kind", ["dataset", "loader", "stream"])
def test_data_of_other_kinds(kind: str) -> None:
    train, validation = data(100), data(60, 1)
    kinds: dict[str, Any] = {
        "dataset": lambda given: [*zip(*given, strict=True)],
        "loader": lambda given: DataLoader(TensorDataset(*given), batch_size=20),
        "stream": lambda given: [(given[0][k : k + 20], given[1][k : k + 20]) for k in range(0, len(given[0]), 20)],
    }

    class Pairs(torch.utils.data.Dataset[Any]):
        def __init__(self, rows: list[Any]) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, number: int) -> Any:
            return self.rows[number]

    given = [kinds[kind](one) for one in (train, validation)]
    if kind == "dataset":
        given = [Pairs(one) for one in given]
    trainer = BudgetedTrainer(network(), given[0], given[1], Budget(80, "virtual"), batch_size=20, optimizer=adam)
    result = trainer.fit()
    assert result.steps == 80
    assert trainer.batches.per_epoch == 5
    assert trainer.evaluator.samples == 60
    assert result.accuracy > 0.3


class FakeGrants:
    """The scheduler's side, as a test has it."""

    def __init__(self, *events: Any) -> None:
        self.coming, self.reports, self.returned = list(events), list[dict[str, Any]](), list[str]()

    def events(self) -> list[Any]:
        now, self.coming = self.coming, []
        return now

    def report(self, **values: Any) -> None:
        self.reports.append(values)

    def give_back(self, gpus: Any = None, *, reason: str = "") -> None:
        self.returned.append(reason)


def event(kind: str) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, deadline=None, budget=None, why="there was one idle", gpus=("0", "1"), grace=5.0)


def granted(grants: FakeGrants, *actions: int) -> BudgetedTrainer:
    budget = Budget(150, "virtual", grants=grants)
    return BudgetedTrainer(
        network(), data(400), data(200, 1), budget, cost=price, batch_size=32, decider=Choose(*actions), optimizer=adam,
        asking=Asking(most=2),
    )  # fmt: skip


def test_the_scheduler_is_told_of_decisions_and_of_how_it_goes() -> None:
    grants = FakeGrants(event("up"))
    granted(grants, 1, 9).fit()
    first, second = [report for report in grants.reports if "decision" in report]
    assert first["decision"].startswith("deepen ")
    assert first["accepted"] is True
    assert first["parameters"] > first["parameters_before"]
    assert first["cost_ratio"] > 1
    assert (second["decision"], second["accepted"]) == ("nothing", None)
    last = grants.reports[-1]
    assert last["accuracy"] > 0.3
    assert last["gain_per_second"] >= 0
    assert last["parameters"] == first["parameters"]


def test_what_is_declined_is_given_back() -> None:
    grants = FakeGrants(event("up"))
    granted(grants, 9, 0).fit()
    decisions = [report for report in grants.reports if "decision" in report]
    assert [report["accepted"] for report in decisions] == [False]


def test_what_is_taken_back_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.adapt.budget._POLL", 0.0)
    grants = FakeGrants(event("up"))
    trainer = granted(grants, 0, 9)
    trainer.log._listeners.append(lambda told: grants.coming.append(event("down")) if told["time"] > 70 else None)
    trainer.fit()
    assert grants.returned[0] == "what grew with it is gone"
    assert trainer.parameters == sum(one.numel() for one in network().parameters())


def test_preemption_saves_and_raises(tmp_path: Path) -> None:
    budget = Budget(150, "virtual", grants=FakeGrants(event("preempt")))
    trainer = BudgetedTrainer(network(), data(400), data(200, 1), budget, checkpoints=tmp_path)
    with pytest.raises(Interrupted, match="idle") as caught:
        trainer.fit()
    assert caught.value.code == 75
    assert list(tmp_path.glob("checkpoint-*.pt"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gpu_changes": [{"time": 1, "change": "sideways"}]}, "'up' or 'down'"),
        ({"gpu_changes": [{"change": "up"}]}, "needs a time"),
        ({"evaluate_every": 0.0}, "above 0"),
        ({"batch_size": 0}, "at least 1 sample"),
        ({"grow_by": ("shuffle",)}, "shuffle"),
    ],
)
def test_mistakes_in_settings_are_told(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        training(20, **settings).fit()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: BudgetedTrainer(nn.ReLU(), data(9), data(9), Budget(5, "virtual")), "no parameters"),
        (lambda: BudgetedTrainer(network(), data(0), data(9), Budget(5, "virtual")), "nothing to train with"),
        (lambda: BudgetedTrainer(network(), [], data(9), Budget(5, "virtual")).fit(), "nothing to train with"),
        (lambda: BudgetedTrainer(network(), data(9), data(0), Budget(5, "virtual")), "nothing to validate with"),
        (lambda: BudgetedTrainer(network(), 7, data(9), Budget(5, "virtual")), "training data are"),
        (lambda: BudgetedTrainer(network(), (data(9)[0], data(8)[1]), data(9), Budget(5)), "differ in number"),
        (lambda: BudgetedTrainer(network(), data(9), data(9), Budget(math.inf)), "a budget that ends"),
        (lambda: training(5).apply(None), "nothing to decide"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_told(make: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make()


def test_a_loss_of_nan_is_told() -> None:
    inputs, targets = data(100)
    inputs[17, 3] = math.nan
    with pytest.raises(UserError, match="the loss is nan at step 1"):
        BudgetedTrainer(network(), (inputs, targets), data(50), Budget(50, "virtual"), batch_size=100).fit()


def test_evaluations_that_come_often_keep_neither_checkpoints_nor_reports_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, now = list[dict[str, Any]](), iter(range(10**9))
    monkeypatch.setattr(
        "gpuyard.adapt.training.trainer.time.monotonic", lambda: 0.05 * next(now)
    )  # 0.05 s for each look at it
    grants = SimpleNamespace(events=list, report=lambda **facts: told.append(facts))
    events: list[dict[str, Any]] = []
    often = {"checkpoint_every": 3.0, "evaluate_every": 0.01, "callbacks": [events.append]}
    trainer = training(120, "virtual", checkpoints=tmp_path, **often)
    trainer.budget.grants = grants
    trainer.fit()
    assert [event["event"] for event in events].count("checkpoint") > 3
    assert len(told) > 3


def test_what_growing_would_bring_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    told, now = list[dict[str, Any]](), iter(range(10**9))
    monkeypatch.setattr("gpuyard.adapt.training.trainer.time.monotonic", lambda: 0.05 * next(now))

    class Foreseeing(Choose):
        foresees = True

        def decide(self, situation: Situation) -> Decision:
            return grow(situation, situation.options[0], "it pays", 0.5)

    trainer = training(120, "virtual", decider=Foreseeing(), asking=Asking(most=1))
    trainer.budget.grants = SimpleNamespace(events=list, report=lambda **facts: told.append(facts))
    trainer.fit()
    assert trainer.actions == []  # nobody offered anything, so it was never asked in earnest
    assert max(facts["gain_per_second"] for facts in told) >= 0.5 / 120


def up_and_down(trainer: BudgetedTrainer, at: dict[int, str]) -> list[dict[str, Any]]:
    """Train, with resources that come and go after so many evaluations; what was decided, as the scheduler hears it."""
    told: list[dict[str, Any]] = []
    back = SimpleNamespace(events=list, report=lambda **facts: told.append(facts), give_back=lambda reason: None)
    trainer.budget.grants = back

    evaluations = count(1)

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation" and (kind := at.get(next(evaluations))):
            trainer.budget.news.append(SimpleNamespace(kind=kind, why="a test", gpus=()))

    trainer.log._listeners.append(heard)
    trainer.fit()
    return [facts for facts in told if "decision" in facts]


def test_an_offer_that_nobody_will_decide_about_is_declined_and_undoes_nothing() -> None:
    trainer = training(120, "virtual", decider=Choose(0), asking=Asking(most=1))
    told = up_and_down(trainer, {2: "up", 6: "up", 10: "down"})
    assert [facts["accepted"] for facts in told] == [True, False]
    assert len(ops.growth_log(trainer.model)) == 1  # it grew on the first loan, not on the one that was taken back


def test_what_grew_on_a_loan_goes_with_it() -> None:
    trainer = training(120, "virtual", decider=Choose(0), asking=Asking(most=1))
    up_and_down(trainer, {2: "up", 6: "down"})
    assert ops.growth_log(trainer.model) == []
