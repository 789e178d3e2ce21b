"""The training loop within a budget: steps, decisions, evaluations and checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.budget import Budget, Change
from gpuyard.adapt.decisions import Asking, Decision, DecisionSchedule, Situation, nothing, resource_changes
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.signals import Interrupted, Signals
from gpuyard.adapt.training import data_batches
from gpuyard.adapt.training.data_batches import Evaluator, make_batches
from gpuyard.adapt.training.growth import OptimizerOf, Price, Prices, adam, grow
from gpuyard.adapt.training.snapshots import BaseNetwork, Checkpoints, Teacher, seed_all
from gpuyard.adapt.training.training_state import (
    Decides,
    Event,
    EventLog,
    Listener,
    Reports,
    TrainingState,
    decision_report,
    declined_report,
)
from gpuyard.errors import UserError


@dataclass(frozen=True)
class Result:
    accuracy: float
    loss: float
    steps: int
    used: float
    total: float
    parameters: int
    actions: tuple[int, ...]  # decisions in order; the number after the last option is nothing
    events: list[Event] = field(default_factory=list, repr=False)


EXAMPLE = 32  # samples that growing is calibrated and verified with; more would take longer, and tell no more
_SMOOTH = 0.02


class BudgetedTrainer(TrainingState):
    """One training. Data are tensors `(x, y)`, a dataset, a DataLoader, or anything that gives batches again and again.

    `optimizer` makes one from parameters, and has the full learning rate; `plan` says what part of it holds when.
    `cost(model)` is the price of a step on a virtual clock. `decider` is asked as `asking` says; `gpu_changes` are
    changes of resources at given times, as a scheduler would tell them. With a directory for `checkpoints` the training
    goes on where the last one left off.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Any,
        validation: Any,
        budget: Budget,
        *,
        loss: Callable[[Any, Any], Tensor] = functional.cross_entropy,
        metric: data_batches.Metric = data_batches.accuracy,
        optimizer: OptimizerOf = adam,
        plan: RatePlan | None = None,
        cost: Callable[[nn.Module], float] | None = None,
        decider: Decides | None = None,
        asking: Asking | None = None,
        gpu_changes: Sequence[Mapping[str, Any]] = (),
        grow_by: tuple[str, ...] = ("deepen",),
        restart_rate: bool = False,
        evaluate_every: float | None = 0.05,
        batch_size: int = 64,
        seed: int = 0,
        checkpoints: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        log: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Listener] = (),
        known_prices: dict[str, Price] | None = None,
    ) -> None:
        if not math.isfinite(budget.total):
            raise UserError("a training needs a budget that ends")
        self.model, self.budget, self.seed, self.base = model, budget, seed, BaseNetwork(model, batch_size)
        self.device = self.base.device
        self.loss, self.make_optimizer, self.cost = loss, optimizer, cost
        self.batches = make_batches(train, batch_size, seed, self.device)
        self._validation = data_batches.Validation(validation, loss, metric, self.device)
        self.plan, self.decider, self.grow_by = plan or RatePlan(), decider, grow_by
        asking = asking or Asking(most=3 if decider is not None else 0)
        self.agenda = DecisionSchedule(asking, resource_changes(gpu_changes), evaluate_every)
        self.restart_rate, self.prices = restart_rate, Prices(optimizer, loss, cost, known_prices)
        self.log, self.watch = EventLog(log, callbacks), Signals()
        self.checkpoints = None if checkpoints is None else Checkpoints(checkpoints)
        self._checkpoint_every = checkpoint_every
        self._reports = Reports(self)
        self._reset(optimizer(model.parameters()))
        budget.listeners.append(self._granted)

    def _reset(self, optimizer: Optimizer) -> None:
        self.optimizer, self.teacher, self.pending = optimizer, None, None
        self.steps, self.started, self.finished = 0, False, False
        self.evaluator = Evaluator(self._validation, self.budget)
        self.actions = []
        self.train_loss = self.rate = math.nan
        self.lent, self.small = False, -1
        self.network_changed()

    # -- the three parts --------------------------------------------------------------------------

    def fit(self, *, resume: bool = True) -> Result:
        """Train until the budget is over. Raises `Interrupted` after a signal to end."""
        with self.watch:
            if resume and not self.started:
                self.resume()
            while (situation := self.advance()) is not None:
                self.apply(self.decider.decide(situation) if self.decider else nothing(situation, "nobody decides"))
            return self.finish()

    def resume(self) -> bool:
        state = None if self.checkpoints is None else self.checkpoints.read()
        if state is None:
            return False
        self.load_state(state)
        self.replay_decisions()
        self._log_event("resumed", passing=True)
        return True

    def advance(self) -> Situation | None:
        """Train until a decision is due; None once the budget is over."""
        budget, schedule, watch = self.budget, self.agenda, self.watch
        self._start()
        while self.pending is None and not self.finished:
            if watch.any or time.monotonic() >= self._look:
                self._handle_signals()
            if budget.news or self.steps >= schedule.due_step or budget.used >= schedule.due_time:
                self._do_what_is_due()
                continue
            if not budget.step(self.step_cost):
                break
            self._train()
        if budget.stopped and self.pending is None and not self.finished:
            self._interrupt(budget.stopped)
        return self.pending

    def apply(self, decision: Decision) -> None:
        """Carry out a decision completely; signals wait meanwhile."""
        situation, self.pending = self.pending, None
        if situation is None:
            raise UserError("there is nothing to decide now: advance() until there is")
        before, failure = self.parameters, ""
        if decision.option is not None:
            failure = self._grow(decision)
        self.actions.append(situation.nothing if decision.option is None or failure else decision.option.action)
        self.agenda.answered(self.steps, self.batches.per_epoch)
        facts = {**decision.to_json(), "action": self.actions[-1], "reason": failure or decision.reason}
        self._log_event(
            "decision", **facts, accuracy=situation.accuracy, parameters_before=before, situation=situation.to_json()
        )
        if self.budget.grants is not None:
            self.budget.grants.report(**decision_report(self, decision, before, failure))
        if self.lent and self.actions[-1] == situation.nothing:
            self.agenda.resources("down", self.steps)  # the offer is declined
        self.lent = False
        self._plan()

    def finish(self) -> Result:
        if not self.finished:
            self._evaluate(last=True)
            self.finished = True
            self._log_event("end", accuracy=self.evaluator.accuracy, loss=self.evaluator.loss)
            self._save()
        self._reports.tell()
        return Result(
            self.evaluator.accuracy,
            self.evaluator.loss,
            self.steps,
            self.budget.used,
            self.budget.total,
            self.parameters,
            tuple(self.actions),
            self.log.history,
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a state, to the last bit if the clock is virtual; the state can be used again."""
        self.restore(state)
        self._plan()

    # -- a step -----------------------------------------------------------------------------------

    def _train(self) -> None:
        inputs, targets = self.batches.next()
        self.rate = scale = self.plan.scale(self.budget)
        for group, rate in self._rates:
            group["lr"] = rate * scale
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        loss = self.loss(outputs, targets)
        if self.teacher is not None:
            loss = self.teacher.blend(loss, outputs, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        value = loss.item()  # on a GPU this waits for the step, which keeps its time true
        if not math.isfinite(value):
            raise UserError(f"the loss is {value} at step {self.steps}: lower the learning rate, or look into the data")
        smooth = self.train_loss
        self.train_loss = value if smooth != smooth else smooth + _SMOOTH * (value - smooth)
        if self.teacher is not None:
            self._after_taught_step(self.teacher)

    def _after_taught_step(self, teacher: Teacher) -> None:
        if teacher.an_epoch_on and self.evaluator.room():
            self._evaluate("after down")
        if teacher.done():
            self.teacher = None
            self.network_changed()

    # -- what comes between steps -----------------------------------------------------------------

    def _start(self) -> None:
        """Start the clock; what the end will take is measured now, where it is not known."""
        if self.started:
            return
        self.started = True
        seed_all(self.seed)
        self.model.train()
        self.budget.start()
        self.evaluator.probe(self.model)
        self._save()
        self._plan()

    def _plan(self) -> None:
        self.agenda.plan(self.budget, self._spacing())
        save_at = self._saved_at + self._pause if self.checkpoints else math.inf
        self._look = min(save_at, self._reports.due)

    _look = -math.inf
    _pause = 0.0
    _saved_at = -math.inf

    def _handle_signals(self) -> None:
        """Do what signals ask for, and what is due by the wall clock. No part of the training itself."""
        self.budget.end_step()
        now = time.monotonic()
        if self.watch.save or now - self._saved_at >= self._pause:
            self._save()
            self.watch.saved()
        if self.watch.end:
            self._interrupt(self.watch.end, saved=True)
        if now >= self._reports.due:
            self._reports.tell()
        self._plan()

    def _do_what_is_due(self) -> None:
        """Do what is due: changes of resources, an evaluation, a decision."""
        budget, schedule = self.budget, self.agenda
        budget.end_step()
        while budget.news:
            self._resources(event := budget.news.popleft(), event.kind)
        while change := schedule.change(budget):
            self._resources(None, change)
        if schedule.evaluation(budget, self._spacing()) and self.evaluator.room():
            self._evaluate()
        if schedule.question(budget, self.steps):
            self._decide()
        self._plan()

    def _resources(self, event: Any, kind: str) -> None:
        if kind not in ("up", "down"):
            return
        self._log_event(
            "resources", change=kind, why=getattr(event, "why", "as told"), gpus=list(getattr(event, "gpus", ()))
        )
        self.agenda.resources(kind, self.steps)
        if kind == "up":
            self._resources_up(offered=event is not None)
            return
        self.lent = False
        self._shrink(len(ops.growth_log(self.model)) - self.small if self.small >= 0 else 1)
        if event is not None and self.budget.grants is not None:
            self.budget.grants.give_back(reason="what grew with it is gone")

    def _resources_up(self, offered: bool) -> None:
        """Resources went up: remember the network's size, and decline if no decision will follow."""
        self.small = len(ops.growth_log(self.model))
        self.lent = offered and self.agenda.asks
        if offered and not self.lent and self.budget.grants is not None:
            self.budget.grants.report(**declined_report(self))

    def _granted(self, change: Change) -> None:
        kind = "extend" if change.after > change.before else "shrink"
        self._log_event("grant", kind=kind, before=change.before, after=change.after, why=change.why)
        self.agenda.plan(self.budget, self._spacing())

    def _decide(self) -> None:
        if self.evaluator.step != self.steps and self.evaluator.room():
            self._evaluate(decision=True)
        options = self.options()
        self.pending = self.situation(options)
        if not options:
            self.apply(nothing(self.pending, "the network can grow nowhere"))

    def _grow(self, decision: Decision) -> str:
        """Grow; returns why not, if it failed."""
        option = decision.option
        assert option is not None
        try:
            with self.budget.aside():
                example = self.batches.example(EXAMPLE)[0]
                grow(self.model, option.op, option.site, example=example, optimizer=self.optimizer)
        except (ops.Refused, ops.NotPreserved) as error:
            return str(error)
        self.network_changed()
        self.budget.dearer(option.cost_ratio)
        self.evaluator.probe(self.model)
        if self.restart_rate:
            self.plan.restart()
        return ""

    def _shrink(self, growths: int) -> None:
        growths = min(growths, len(ops.growth_log(self.model)))
        if growths < 1:
            return
        before = self.parameters
        with self.budget.aside():
            self.shrink_network(growths)
            self.model.train()
        self.network_changed()
        self.evaluator.probe(self.model)
        self._log_event("shrunk", parameters_before=before)
        if self.evaluator.room():
            self._evaluate()

    # -- evaluating, saving, telling --------------------------------------------------------------

    def _spacing(self) -> float:
        return self.evaluator.plan(self.agenda.interval(self.budget))

    def _evaluate(self, what: str = "evaluation", *, last: bool = False, decision: bool = False) -> None:
        score = self.evaluator.evaluate(self.model, self.steps, last=last, decision=decision)
        self._log_event(what, accuracy=score.accuracy, loss=score.loss, samples=score.samples)

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        began = time.monotonic()
        with self.budget.aside("checkpoint"):
            path = self.checkpoints.write(self.state())
        self._saved_at = time.monotonic()
        self._pause = max(self._checkpoint_every, 50 * (self._saved_at - began)) if self._checkpoint_every else 0.0
        self._log_event("checkpoint", passing=True, file=path.name)

    def _interrupt(self, why: str, saved: bool = False) -> None:
        if not saved:
            self._save()
        self._log_event("interrupted", passing=True, reason=why)
        raise Interrupted(why)

    def _log_event(self, what: str, *, passing: bool = False, **facts: Any) -> None:
        event = {"event": what, "step": self.steps, "time": self.budget.used, "time_left": self.budget.left}
        event |= {"parameters": self.parameters, "train_loss": self.train_loss, "rate": self.rate}
        self.log.tell(event | facts, passing=passing)
