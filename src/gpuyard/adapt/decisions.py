"""Decisions to grow: when a decider is asked, the situation that it sees, and its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, TypeVar

from gpuyard.adapt.budget import Budget
from gpuyard.errors import UserError

UNKNOWN = math.nan  # a quantity that was not measured; null in JSON
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    action: int  # its number among the options; doing nothing has the number after the last
    site: str
    op: str = "deepen"
    cost_ratio: float = UNKNOWN  # time of a step after the operation, relative to now
    position: float = UNKNOWN  # where in the network: 0 is at the input, 1 at the output
    grown: int = 0  # how often that place was grown so far
    params_ratio: float = UNKNOWN  # parameters after the operation, relative to now
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """A training at the moment of a decision; `nan` is unknown."""

    time_left: float
    time_total: float  # in units of the budget's clock
    steps_left: float = UNKNOWN  # at the present time of a step
    steps_done: float = UNKNOWN
    accuracy: float = UNKNOWN  # on validation data, now
    slope: float = UNKNOWN  # recent gain in accuracy per whole budget: 0.1 is a point per tenth of the budget
    headroom: float = 1.0  # share of GPU memory that is free; 1 if unknown
    grown: int = 0
    decision: int = 0
    decisions: int = 1  # which decision this is, from 0 on, and how many there are in all
    noise: float = UNKNOWN  # standard deviation of an accuracy between seeds or evaluations
    loss_gap: float = UNKNOWN  # loss on validation data less that on training data
    train_accuracy: float = UNKNOWN
    options: tuple[Option, ...] = ()

    @property
    def nothing(self) -> int:
        """The action that does nothing."""
        return len(self.options)

    @property
    def fraction_left(self) -> float:
        return self.time_left / self.time_total if self.time_total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain values; unknown ones are null."""
        return {**_plain(asdict(self)), "options": [_plain(asdict(option)) for option in self.options]}

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Situation:
        """From `to_json`; missing values have their defaults."""
        options = tuple(_option(k, one) for k, one in enumerate(facts.get("options") or ()))
        known = {field.name: facts[field.name] for field in fields(Situation) if field.name in facts}
        return _made(Situation, {**known, "options": options})


@dataclass(frozen=True, slots=True)
class Decision:
    option: Option | None  # what to do; None: nothing
    probabilities: tuple[float, ...]  # of each option, and last of doing nothing
    reason: str
    predicted_gain: float = UNKNOWN  # accuracy that the best option is expected to add to doing nothing

    @property
    def action(self) -> int:
        """The number of the option; doing nothing comes after the options."""
        return len(self.probabilities) - 1 if self.option is None else self.option.action

    def to_json(self) -> dict[str, Any]:
        return {
            "action": self.action,
            "site": None if self.option is None else self.option.site,
            "op": None if self.option is None else self.option.op,
            "probabilities": [round(p, 6) for p in self.probabilities],
            "reason": self.reason,
            "predicted_gain": None if math.isnan(self.predicted_gain) else self.predicted_gain,
        }


class Decider(Protocol):
    name: str

    def decide(self, situation: Situation) -> Decision: ...


def grow(situation: Situation, option: Option, reason: str, predicted_gain: float = UNKNOWN) -> Decision:
    """The decision for one option, with certainty."""
    return Decision(option, _certain(situation, option.action), reason, predicted_gain)


def nothing(situation: Situation, reason: str, predicted_gain: float = UNKNOWN) -> Decision:
    """The decision to do nothing, with certainty."""
    return Decision(None, _certain(situation, situation.nothing), reason, predicted_gain)


def _certain(situation: Situation, action: int) -> tuple[float, ...]:
    return tuple(float(k == action) for k in range(situation.nothing + 1))


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in facts.items()}


def _option(place: int, facts: Any) -> Option:
    if not isinstance(facts, Mapping):
        raise UserError("a situation's options must be objects with 'site', 'op', 'cost_ratio' and so on")
    known = {field.name: facts[field.name] for field in fields(Option) if field.name in facts}
    made = _made(Option, {"action": place, "site": str(place), **known})
    if made.action != place:
        raise UserError(f"a situation's option {place} has the action {made.action}; they must be numbered from 0 on")
    return made


def _made(kind: type[T], facts: dict[str, Any]) -> T:
    """An instance, each value checked; null becomes unknown."""
    found: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in facts:
            continue
        value = facts[field.name]
        if field.type == "float":
            value = _number(field.name, value)
        elif field.type == "int":
            number = _number(field.name, value)
            if number != number or number != int(number):
                raise UserError(f"'{field.name}' of a situation must be a whole number, not {value!r}")
            value = int(number)
        elif field.type == "str":
            value = str(value)
        found[field.name] = value
    try:
        return kind(**found)
    except TypeError:
        raise UserError("a situation needs at least 'time_left' and 'time_total'") from None


def _number(name: str, value: Any) -> float:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"'{name}' of a situation must be a number or null, not {value!r}")
    return float(value)


CHANGES = ("up", "down")
_EPSILON = 1e-9


@dataclass(frozen=True)
class Asking:
    """Fractions of the budget, or times; with neither, `most` times after resources went up, an epoch apart."""

    fractions: tuple[float, ...] = ()
    times: tuple[float, ...] = ()
    most: int = 3

    def __post_init__(self) -> None:
        if any(not 0 <= fraction < 1 for fraction in self.fractions):
            raise UserError("decisions are made at fractions of the budget from 0 to below 1")
        if any(not time >= 0 for time in self.times):
            raise UserError("decisions are made at times from 0 on")
        if self.most < 0:
            raise UserError(f"a decider is asked 0 times or more, not {self.most}")

    @property
    def by_the_clock(self) -> bool:
        """Whether the times of decisions are known beforehand."""
        return bool(self.fractions or self.times)

    @property
    def decisions(self) -> int:
        return len(self.fractions) + len(self.times) if self.by_the_clock else self.most


@dataclass(frozen=True)
class ResourceChange:
    """A change of resources from the job's own file, instead of a scheduler."""

    time: float
    change: str


def resource_changes(changes: Sequence[Mapping[str, Any]]) -> tuple[ResourceChange, ...]:
    """Changes in order of time, checked."""
    found = []
    for one in changes:
        time, change = one.get("time"), one.get("change")
        if not isinstance(time, int | float) or not time >= 0:
            raise UserError(f"a gpu_change needs a time from 0 on, not {time!r}")
        if change not in CHANGES:
            raise UserError(f"a gpu_change is 'up' or 'down', not {change!r}")
        found.append(ResourceChange(float(time), str(change)))
    return tuple(sorted(found, key=lambda one: one.time))


class DecisionSchedule:
    """When the next decision, change of resources and evaluation are due. All but the settings is state."""

    def __init__(self, asking: Asking, changes: tuple[ResourceChange, ...], every: float | None) -> None:
        if every is not None and not every > 0:
            raise UserError(f"evaluate_every is a part of the budget above 0, or None, not {every:g}")
        self.asking, self._changes, self._every = asking, changes, every
        self.asked = 0  # decisions so far
        self._changed = 0
        self._ask_step = math.inf
        self.evaluated = 0.0  # when the last regular evaluation was due
        self.due_time, self.due_step = 0.0, math.inf

    def plan(self, budget: Budget, spacing: float = 0.0) -> None:
        """Compute when the next thing is due; evaluations are at least `spacing` apart."""
        due = [self._evaluation(budget, spacing), self._point(budget)]
        if self._changed < len(self._changes):
            due.append(self._changes[self._changed].time)
        self.due_time, self.due_step = min(due) - _EPSILON * budget.total, self._ask_step

    def _evaluation(self, budget: Budget, spacing: float) -> float:
        if self._every is None:
            return math.inf
        return self.evaluated + max(self.interval(budget), spacing)

    def interval(self, budget: Budget) -> float:
        """The intended time between evaluations."""
        return math.inf if self._every is None else self._every * budget.total

    def _point(self, budget: Budget) -> float:
        asking = self.asking
        points = sorted([*(fraction * budget.total for fraction in asking.fractions), *asking.times])
        return points[self.asked] if self.asked < len(points) else math.inf

    def change(self, budget: Budget) -> str:
        """The change of resources that is due, once; empty if none is."""
        due = self._changes[self._changed].time if self._changed < len(self._changes) else math.inf
        if budget.used >= due - _EPSILON * budget.total:
            self._changed += 1
            return self._changes[self._changed - 1].change
        return ""

    def resources(self, change: str, step: int) -> None:
        """Resources changed: decide from now on, or no more."""
        if not self.asking.by_the_clock:
            self._ask_step = step if change == "up" and self.asked < self.asking.most else math.inf

    @property
    def asks(self) -> bool:
        """Whether a decision follows a change of resources."""
        return self._ask_step < math.inf

    def question(self, budget: Budget, step: int) -> bool:
        return step >= self._ask_step or budget.used >= self._point(budget) - _EPSILON * budget.total

    def answered(self, step: int, epoch: int) -> None:
        """A decision was made; the next may follow an epoch later."""
        self.asked += 1
        if self._ask_step < math.inf:
            self._ask_step = step + epoch if self.asked < self.asking.most else math.inf

    def evaluation(self, budget: Budget, spacing: float) -> bool:
        """Whether an evaluation is due; it then counts as made."""
        used = budget.used
        if used < self._evaluation(budget, spacing) - _EPSILON * budget.total:
            return False
        step = (self._every or 1.0) * budget.total
        self.evaluated = max(self.evaluated, step * math.floor(used / step + _EPSILON))
        return True

    def state(self) -> dict[str, Any]:
        return {"asked": self.asked, "changed": self._changed, "ask_step": self._ask_step, "evaluated": self.evaluated}

    def load_state(self, state: dict[str, Any]) -> None:
        self.asked, self._changed = state["asked"], state["changed"]
        self._ask_step, self.evaluated = state["ask_step"], state["evaluated"]
