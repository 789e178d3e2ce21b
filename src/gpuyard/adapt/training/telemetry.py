"""Events of a training, and its reports to the scheduler."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.adapt.decisions import Decision
from gpuyard.adapt.training import growth
from gpuyard.adapt.training.growth import situation
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.adapt.training.trainer import BudgetedTrainer


Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """The events of one training. `history` is part of its state; what concerns only this process is not in it."""

    def __init__(self, path: str | os.PathLike[str] | None = None, listeners: Sequence[Listener] = ()) -> None:
        self.history: list[Event] = []
        self._path = None if path is None else Path(path)
        self._listeners = list(listeners)
        self._lines = 0

    def tell(self, event: Event, *, passing: bool = False) -> None:
        """Something happened; `passing` says that it is no part of the training itself, such as a checkpoint."""
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
        """Go on from there: what a file has beyond was told by a run that went on without being saved."""
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
    """Whether a line tells of what did happen, although the training went back; half a line tells nothing."""
    try:
        return bool(json.loads(line).get("passing"))
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    """As JSON has it: what is unknown is null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


REPORT_EVERY = 2.0
"""Seconds between reports."""
FORECAST_EVERY = 3.0
"""Seconds, at least, between looks at what growing would bring."""

LEAST_LEFT = 0.25
"""Of the budget: over less than that no gain is spread, or it would seem ever larger towards the end."""


class Reports:
    """Tells the scheduler now and then how a training does."""

    def __init__(self, trainer: BudgetedTrainer) -> None:
        self._trainer = trainer
        self._told_at = self._foresee_at = -math.inf
        self._growing = 0.0
        """What growing would add to the accuracy at the deadline, by the decider's own account."""

    @property
    def due(self) -> float:
        """When it is told next, on the monotonic clock; never where there is no scheduler."""
        return self._told_at + REPORT_EVERY if self._trainer.budget.grants is not None else math.inf

    def tell(self) -> None:
        """Tell what a step takes, and what a second of more GPU would bring."""
        now = self._told_at = time.monotonic()
        if self._trainer.budget.grants is None:
            return
        if now >= self._foresee_at and self._may_grow():
            self._growing = self._foreseen()
            self._foresee_at = now + max(FORECAST_EVERY, 20 * (time.monotonic() - now))
        self._trainer.budget.grants.report(**self._facts())

    def _may_grow(self) -> bool:
        """Whether a decider that is offered something would still be asked."""
        trainer = self._trainer
        asking = trainer.agenda.asking
        known = len(trainer.examiner.points) >= 2 and not trainer.finished
        return known and not asking.by_the_clock and trainer.agenda.asked < asking.most

    def _foreseen(self) -> float:
        """What the decider expects of growing now; 0 if it would not, or tells nothing of the kind."""
        trainer = self._trainer
        if trainer.decider is None or not getattr(trainer.decider, "foresees", False):
            return 0.0
        options = trainer.options()
        if not options:
            return 0.0
        decision = trainer.decider.decide(situation(trainer, options))
        gain = decision.predicted_gain if decision.option is not None else 0.0
        return gain if math.isfinite(gain) else 0.0

    def _facts(self) -> dict[str, Any]:
        """What the network gains as it is, or what growing would add, spread over what is left: whichever is more.

        A network that will not grow any more has no use for a GPU that is lent.
        """
        trainer = self._trainer
        budget, examiner = trainer.budget, trainer.examiner
        seconds = budget.step_time
        growing = self._growing / max(budget.left, LEAST_LEFT * budget.total)
        gain = max(growth.gain_per_second(examiner.points, budget.total), growing) if self._may_grow() else 0.0
        return {
            "step_seconds": seconds if math.isfinite(seconds) else None,
            "gain_per_second": gain,
            "noise": growth.noise(examiner.points, examiner.samples) / budget.total if examiner.points else None,
            "accuracy": examiner.accuracy if examiner.points else None,
            "parameters": trainer.parameters,
        }


def decision_report(trainer: BudgetedTrainer, decision: Decision, before: int, failure: str) -> dict[str, Any]:
    """What the scheduler is told of a decision; if it had offered something, whether that is used."""
    option = None if failure else decision.option
    return {
        "decision": f"{option.op} {option.site}" if option else "nothing",
        "reason": failure or decision.reason,
        "accepted": option is not None if trainer.lent else None,
        "parameters_before": before,
        "parameters": trainer.parameters,
        "cost_ratio": option.cost_ratio if option and math.isfinite(option.cost_ratio) else None,
        "predicted_gain": decision.predicted_gain if math.isfinite(decision.predicted_gain) else None,
    }


def declined_report(trainer: BudgetedTrainer) -> dict[str, Any]:
    """What the scheduler is told of an offer that comes too late to be decided about."""
    return {
        "decision": "nothing",
        "reason": "its decisions are made: it grows no more",
        "accepted": False,
        "parameters_before": trainer.parameters,
        "parameters": trainer.parameters,
    }
