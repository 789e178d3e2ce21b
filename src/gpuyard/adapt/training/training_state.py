"""State of a training between two steps: what a snapshot holds, its event log, and its reports to the scheduler."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.decisions import UNKNOWN, Decision, DecisionSchedule, Option, Situation
from gpuyard.adapt.ops.forward_pass import parameters
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.training.data_batches import Batches, Evaluator
from gpuyard.adapt.training.growth import OptimizerOf, Prices, gain_per_second, headroom, noise, slope
from gpuyard.adapt.training.snapshots import (
    BaseNetwork,
    Stateful,
    Teacher,
    carry_over,
    cpu_copy,
    load_optimizer_state,
    load_random_state,
    optimizer_state,
    random_state,
)
from gpuyard.errors import UserError

Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """The events of one training. `history` is part of its state; events of only this process are not in it."""

    def __init__(self, path: str | os.PathLike[str] | None = None, listeners: Sequence[Listener] = ()) -> None:
        self.history: list[Event] = []
        self._path = None if path is None else Path(path)
        self._listeners = list(listeners)
        self._lines = 0

    def tell(self, event: Event, *, passing: bool = False) -> None:
        """Add an event; `passing` marks one that is no part of the training itself, such as a checkpoint."""
        if passing:
            event = {**event, "passing": True}
        else:
            self.history.append(event)
        if self._path is not None:
            self._write("a", [event])
        for listener in self._listeners:
            listener(event)

    def state(self) -> dict[str, Any]:
        return {"history": [_plain(event) for event in self.history], "lines": self._lines}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a state: later lines of the file are of a run that was not saved."""
        self.history = [dict(event) for event in state["history"]]
        if self._path is None:
            return
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        if len(lines) >= state["lines"] > 0:
            lines = lines[: state["lines"]] + [line for line in lines[state["lines"] :] if _is_passing(line)]
            self._path.write_text("".join(f"{line}\n" for line in lines))
            self._lines = len(lines)
        else:
            self._lines = 0
            self._write("w", self.history)

    def _write(self, mode: str, events: Sequence[Event]) -> None:
        assert self._path is not None
        try:
            if mode == "a" and self._lines == 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.exists() and self._path.stat().st_size:
                    raise UserError(f"{self._path} is there already; events go to a new file, or move that one away")
            with self._path.open(mode) as file:
                file.writelines(json.dumps(_plain(event)) + "\n" for event in events)
        except OSError as error:
            raise UserError(f"no events can be written to {self._path}: {error.strerror}") from None
        self._lines += len(events)


def _is_passing(line: str) -> bool:
    """Whether a line remains valid although the training went back; a cut-off line does not."""
    try:
        return bool(json.loads(line).get("passing"))
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    """As JSON: unknown values are null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


VERSION = 1
_NUMBERS = ("steps", "started", "finished", "train_loss", "rate", "lent", "small")
GLANCE = 4  # samples that are enough to see where a network can grow


class Decides(Protocol):
    """Who says whether to grow: anything of `gpuyard.adapt.deciders`, or your own."""

    def decide(self, situation: Situation) -> Decision: ...


class TrainingState:
    """Network, optimizer, data, budget, schedule and counters of a training; `BudgetedTrainer` sets them and trains."""

    model: nn.Module
    base: BaseNetwork
    device: torch.device
    optimizer: Optimizer
    make_optimizer: OptimizerOf
    loss: Callable[[Any, Any], Tensor]
    cost: Callable[[nn.Module], float] | None
    budget: Budget
    plan: RatePlan
    batches: Batches
    evaluator: Evaluator
    agenda: DecisionSchedule
    decider: Decides | None
    grow_by: tuple[str, ...]
    prices: Prices
    log: EventLog
    teacher: Teacher | None
    pending: Situation | None  # the situation that waits for a decision
    actions: list[int]
    parameters: int
    step_cost: float
    steps: int
    started: bool
    finished: bool
    train_loss: float
    rate: float
    lent: bool  # whether the scheduler gave more, and nothing was decided about it
    small: int  # how often the network had grown before resources went up; below 0: they never did

    def network_changed(self) -> None:
        self.parameters = parameters(self.model)
        price = self.cost(self.model) if self.cost is not None and self.budget.exact else 1.0
        self.step_cost = price + (self.teacher.price(self.cost) if self.teacher and self.budget.exact else 0.0)
        groups = self.optimizer.param_groups
        for group in groups:
            group.setdefault("initial_lr", groups[0].get("initial_lr", group["lr"]))
        self._rates = [(group, float(group["initial_lr"])) for group in groups]

    def options(self) -> tuple[Option, ...]:
        with self.budget.aside():
            inputs = self.batches.example(GLANCE)[0]
            batch = self.batches.example(self.base.batch)
            return self.prices.options(self.model, inputs, batch, self.budget, self.grow_by)

    def situation(self, options: tuple[Option, ...]) -> Situation:
        budget, evaluator = self.budget, self.evaluator
        by_fraction = [(time / budget.total, accuracy) for time, accuracy in evaluator.points]
        step = self.step_cost if budget.exact else budget.step_time
        left = budget.end - budget.used
        return Situation(
            time_left=budget.left,
            time_total=budget.total,
            steps_left=max(0.0, left / step) if step > 0 else UNKNOWN,
            steps_done=float(self.steps),
            accuracy=evaluator.accuracy,
            slope=slope(by_fraction),
            headroom=headroom(self.device),
            grown=len(ops.growth_log(self.model)),
            decision=self.agenda.asked,
            decisions=self.agenda.asking.decisions,
            noise=noise(evaluator.points, evaluator.samples),
            loss_gap=evaluator.loss - self.train_loss,
            options=options,
        )

    def state(self) -> dict[str, Any]:
        """All that the rest of this training depends on, as tensors on the CPU and plain values, sharing nothing."""
        teacher, decider = self.teacher, self.decider
        return {
            "version": VERSION,
            "of": self.base.facts(),
            "growth": ops.growth_log(self.model),
            "model": cpu_copy(dict(self.model.state_dict())),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "budget": self.budget.state(),
            "plan": self.plan.state(),
            "batches": self.batches.state(),
            "agenda": self.agenda.state(),
            "random": random_state(),
            "numbers": {name: getattr(self, name) for name in _NUMBERS},
            "examiner": self.evaluator.state(),
            "actions": list(self.actions),
            "log": self.log.state(),
            "pending": None if self.pending is None else self.pending.to_json(),
            "teacher": None if teacher is None else teacher.state(),
            "decider": cpu_copy(decider.state()) if isinstance(decider, Stateful) else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from such a state; it can be used again."""
        if state.get("version") != VERSION:
            raise UserError(f"this state is of version {state.get('version')}, and only {VERSION} is known")
        if state["of"] != self.base.facts():
            raise UserError("this state is of another training: its network or its batches differ from this one's")
        if ops.growth_log(self.model) != state["growth"]:
            self.model = self.base.grown(state["growth"], self.model).to(self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer = self.make_optimizer(self.model.parameters())
        load_optimizer_state(self.optimizer, self.model, state["optimizer"])
        self.budget.load_state(state["budget"])
        self.plan.load_state(state["plan"])
        self.batches.load_state(state["batches"])
        self.agenda.load_state(state["agenda"])
        for name in _NUMBERS:
            setattr(self, name, state["numbers"][name])
        self.evaluator.load_state(state["examiner"])
        self.actions = list(state["actions"])
        self.log.load_state(state["log"])
        self.pending = None if state["pending"] is None else Situation.from_json(state["pending"])
        self.teacher = None if state["teacher"] is None else self._read_teacher(state["teacher"])
        if state["decider"] is not None and isinstance(self.decider, Stateful):
            self.decider.load_state(cpu_copy(state["decider"]))
        self.model.train()
        self.network_changed()
        load_random_state(state["random"])  # last: making networks and optimizers may draw some

    def _read_teacher(self, state: dict[str, Any]) -> Teacher:
        model = self.base.grown(state["growth"]).to(self.device)
        model.load_state_dict(state["model"])
        return Teacher(model, state["epoch"], state["steps"])

    def replay_decisions(self) -> None:
        """Ask a new decider what the former one was asked, so that its random numbers continue where they were."""
        if self.decider is None or isinstance(self.decider, Stateful):
            return
        for event in self.log.history:
            if event["event"] == "decision" and event["situation"]["options"]:
                self.decider.decide(Situation.from_json(event["situation"]))

    def shrink_network(self, growths: int) -> None:
        """Undo the last growths; the smaller network keeps what fits of the optimizer, the larger one teaches it."""
        before = optimizer_state(self.optimizer, self.model)
        student = ops.shrink(self.model, growths)
        optimizer = self.make_optimizer(student.parameters())
        carry_over(optimizer, student, before)
        for group, old in zip(optimizer.param_groups, before["groups"], strict=False):
            group["initial_lr"] = old["options"].get("initial_lr", group["lr"])
        self.teacher = Teacher(self.model, self.batches.per_epoch)
        self.model, self.optimizer = student, optimizer


REPORT_EVERY = 2.0  # seconds between reports
FORECAST_EVERY = 3.0  # seconds, at least, between looks at what growing would bring

LEAST_LEFT = 0.25  # part of the budget over which gains are spread at least, or they would grow towards the end


class Reports:
    def __init__(self, training: TrainingState) -> None:
        self._training = training
        self._told_at = self._foresee_at = -math.inf
        self._growing = 0.0  # accuracy at the deadline that growing would add, by the decider

    @property
    def due(self) -> float:
        """When the next report is due, on the monotonic clock; never without a scheduler."""
        return self._told_at + REPORT_EVERY if self._training.budget.grants is not None else math.inf

    def tell(self) -> None:
        now = self._told_at = time.monotonic()
        if self._training.budget.grants is None:
            return
        if now >= self._foresee_at and self._may_grow():
            self._growing = self._foreseen()
            self._foresee_at = now + max(FORECAST_EVERY, 20 * (time.monotonic() - now))
        self._training.budget.grants.report(**self._facts())

    def _may_grow(self) -> bool:
        training = self._training
        asking = training.agenda.asking
        known = len(training.evaluator.points) >= 2 and not training.finished
        return known and not asking.by_the_clock and training.agenda.asked < asking.most

    def _foreseen(self) -> float:
        """The decider's expected gain of growing now; 0 if it would not, or gives none."""
        training = self._training
        if training.decider is None or not getattr(training.decider, "foresees", False):
            return 0.0
        options = training.options()
        if not options:
            return 0.0
        decision = training.decider.decide(training.situation(options))
        gain = decision.predicted_gain if decision.option is not None else 0.0
        return gain if math.isfinite(gain) else 0.0

    def _facts(self) -> dict[str, Any]:
        """What the network gains as it is, or what growing would add, spread over what is left: whichever is more.

        A network that will not grow any more has no use for a GPU that is lent.
        """
        training = self._training
        budget, evaluator = training.budget, training.evaluator
        seconds = budget.step_time
        growing = self._growing / max(budget.left, LEAST_LEFT * budget.total)
        gain = max(gain_per_second(evaluator.points, budget.total), growing) if self._may_grow() else 0.0
        return {
            "step_seconds": seconds if math.isfinite(seconds) else None,
            "gain_per_second": gain,
            "noise": noise(evaluator.points, evaluator.samples) / budget.total if evaluator.points else None,
            "accuracy": evaluator.accuracy if evaluator.points else None,
            "parameters": training.parameters,
        }


def decision_report(training: TrainingState, decision: Decision, before: int, failure: str) -> dict[str, Any]:
    """Report of a decision; if the scheduler had offered something, whether that is used."""
    option = None if failure else decision.option
    return {
        "decision": f"{option.op} {option.site}" if option else "nothing",
        "reason": failure or decision.reason,
        "accepted": option is not None if training.lent else None,
        "parameters_before": before,
        "parameters": training.parameters,
        "cost_ratio": option.cost_ratio if option and math.isfinite(option.cost_ratio) else None,
        "predicted_gain": decision.predicted_gain if math.isfinite(decision.predicted_gain) else None,
    }


def declined_report(training: TrainingState) -> dict[str, Any]:
    return {
        "decision": "nothing",
        "reason": "its decisions are made: it grows no more",
        "accepted": False,
        "parameters_before": training.parameters,
        "parameters": training.parameters,
    }
