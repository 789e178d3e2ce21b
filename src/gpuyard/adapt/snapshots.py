"""The whole state of a training: what it takes to go on elsewhere, to the last bit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import nn

from gpuyard.adapt import ops
from gpuyard.adapt.distilling import Teacher
from gpuyard.adapt.situation import Situation
from gpuyard.adapt.states import copied, load_optimizer_state, load_random_state, optimizer_state, random_state
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.adapt.trainer import BudgetedTrainer

VERSION = 1
_NUMBERS = ("steps", "started", "finished", "train_loss", "rate", "lent", "small")


@runtime_checkable
class _Remembers(Protocol):
    """A decider whose answers depend on more than what it is asked."""

    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...


class Base:
    """The network as it was before it grew, which every grown one is made from."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        first = next(model.parameters(), None)
        if first is None:
            raise UserError("this network has no parameters, so there is nothing to train")
        self.device = first.device
        self._model = copy.deepcopy(model).to("cpu")
        self._log = ops.growth_log(model)
        self.batch = batch

    def facts(self) -> dict[str, Any]:
        """What tells whether a state is of this training."""
        shapes = {name: list(one.shape) for name, one in self._model.named_parameters()}
        return {"shapes": shapes, "batch": self.batch}

    def grown(self, log: list[dict[str, Any]], fresh: nn.Module | None = None) -> nn.Module:
        """A network that has grown as a log tells; made of `fresh` if that has not grown yet."""
        start = fresh if fresh is not None and ops.growth_log(fresh) == self._log else copy.deepcopy(self._model)
        if log == self._log:
            return start
        if self._log:
            raise UserError("this network had grown before the training began: hand over the one that code makes")
        return ops.rebuild(start, log)


def snapshot(trainer: BudgetedTrainer) -> dict[str, Any]:
    """All of it: tensors on the CPU and plain values, sharing nothing with the training."""
    teacher, decider = trainer.teacher, trainer.decider
    return {
        "version": VERSION,
        "of": trainer.base.facts(),
        "growth": ops.growth_log(trainer.model),
        "model": copied(dict(trainer.model.state_dict())),
        "optimizer": optimizer_state(trainer.optimizer, trainer.model),
        "budget": trainer.budget.state(),
        "plan": trainer.plan.state(),
        "batches": trainer.batches.state(),
        "agenda": trainer.agenda.state(),
        "random": random_state(),
        "numbers": {name: getattr(trainer, name) for name in _NUMBERS},
        "examiner": trainer.examiner.state(),
        "actions": list(trainer.actions),
        "log": trainer.log.state(),
        "pending": None if trainer.pending is None else trainer.pending.to_json(),
        "teacher": None if teacher is None else teacher.state(),
        "decider": copied(decider.state()) if isinstance(decider, _Remembers) else None,
    }


def restore(trainer: BudgetedTrainer, state: dict[str, Any]) -> None:
    """Put a training where that one was."""
    if state.get("version") != VERSION:
        raise UserError(f"this state is of version {state.get('version')}, and only {VERSION} is known")
    if state["of"] != trainer.base.facts():
        raise UserError("this state is of another training: its network or its batches differ from this one's")
    if ops.growth_log(trainer.model) != state["growth"]:
        trainer.model = trainer.base.grown(state["growth"], trainer.model).to(trainer.device)
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer = trainer.make_optimizer(trainer.model.parameters())
    load_optimizer_state(trainer.optimizer, trainer.model, state["optimizer"])
    trainer.budget.load_state(state["budget"])
    trainer.plan.load_state(state["plan"])
    trainer.batches.load_state(state["batches"])
    trainer.agenda.load_state(state["agenda"])
    for name in _NUMBERS:
        setattr(trainer, name, state["numbers"][name])
    trainer.examiner.load_state(state["examiner"])
    trainer.actions = list(state["actions"])
    trainer.log.load_state(state["log"])
    trainer.pending = None if state["pending"] is None else Situation.from_json(state["pending"])
    trainer.teacher = None if state["teacher"] is None else _teacher(trainer, state["teacher"])
    if state["decider"] is not None and isinstance(trainer.decider, _Remembers):
        trainer.decider.load_state(copied(state["decider"]))
    trainer.model.train()
    trainer.network_changed()
    load_random_state(state["random"])  # last: making networks and optimizers may draw some


def remind(trainer: BudgetedTrainer) -> None:
    """Ask a new decider what the one before it was asked: if it draws random numbers, these go on where they were."""
    if trainer.decider is None or isinstance(trainer.decider, _Remembers):
        return
    for event in trainer.log.history:
        if event["event"] == "decision" and event["situation"]["options"]:
            trainer.decider.decide(Situation.from_json(event["situation"]))


def _teacher(trainer: BudgetedTrainer, state: dict[str, Any]) -> Teacher:
    model = trainer.base.grown(state["growth"]).to(trainer.device)
    model.load_state_dict(state["model"])
    return Teacher(model, state["epoch"], state["steps"])
