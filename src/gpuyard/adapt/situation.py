"""What a decider sees when it is asked whether to grow, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, TypeVar

from gpuyard.errors import UserError

UNKNOWN = math.nan
"""A quantity that nobody measured; null in JSON."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """One operation that could be done now."""

    action: int
    """Its number among the options; doing nothing has the number after the last."""
    site: str
    op: str = "deepen"
    cost_ratio: float = UNKNOWN
    """Time of a step after the operation, relative to now."""
    position: float = UNKNOWN
    """Where in the network: 0 is at the input, 1 at the output."""
    grown: int = 0
    """How often that place was grown so far."""
    params_ratio: float = UNKNOWN
    """Parameters after the operation, relative to now."""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """A training at the moment of a decision; `nan` is unknown."""

    time_left: float
    time_total: float
    """In units of the budget's clock."""
    steps_left: float = UNKNOWN
    """At the present time of a step."""
    steps_done: float = UNKNOWN
    accuracy: float = UNKNOWN
    """On validation data, now."""
    slope: float = UNKNOWN
    """Accuracy gained lately per whole budget: 0.1 is a point per tenth of the budget."""
    headroom: float = 1.0
    """Share of GPU memory that is free; 1 if unknown."""
    grown: int = 0
    decision: int = 0
    decisions: int = 1
    """Which decision this is, from 0 on, and how many there are in all."""
    noise: float = UNKNOWN
    """Standard deviation of an accuracy between seeds or evaluations."""
    loss_gap: float = UNKNOWN
    """Loss on validation data less that on training data."""
    train_accuracy: float = UNKNOWN
    options: tuple[Option, ...] = ()

    @property
    def nothing(self) -> int:
        """The action that does nothing."""
        return len(self.options)

    @property
    def fraction_left(self) -> float:
        """The share of the budget that is left."""
        return self.time_left / self.time_total if self.time_total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain values; what is unknown is null."""
        return {**_plain(asdict(self)), "options": [_plain(asdict(option)) for option in self.options]}

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Situation:
        """From what `to_json` gave; what is missing has its default."""
        options = tuple(_option(k, one) for k, one in enumerate(facts.get("options") or ()))
        known = {field.name: facts[field.name] for field in fields(Situation) if field.name in facts}
        return _made(Situation, {**known, "options": options})


@dataclass(frozen=True, slots=True)
class Decision:
    """What a decider answers."""

    option: Option | None
    """What to do; None: nothing."""
    probabilities: tuple[float, ...]
    """Of each option, and last of doing nothing."""
    reason: str
    predicted_gain: float = UNKNOWN
    """Accuracy that the best option is expected to add to doing nothing."""

    @property
    def action(self) -> int:
        """The number of what to do; that of doing nothing comes after the options'."""
        return len(self.probabilities) - 1 if self.option is None else self.option.action

    def to_json(self) -> dict[str, Any]:
        """As plain values, for a log."""
        return {
            "action": self.action,
            "site": None if self.option is None else self.option.site,
            "op": None if self.option is None else self.option.op,
            "probabilities": [round(p, 6) for p in self.probabilities],
            "reason": self.reason,
            "predicted_gain": None if math.isnan(self.predicted_gain) else self.predicted_gain,
        }


class Decider(Protocol):
    """Who decides."""

    name: str

    def decide(self, situation: Situation) -> Decision:
        """What to do now."""
        ...


def grow(situation: Situation, option: Option, reason: str, predicted_gain: float = UNKNOWN) -> Decision:
    """The decision to do one thing for certain."""
    return Decision(option, _certain(situation, option.action), reason, predicted_gain)


def nothing(situation: Situation, reason: str, predicted_gain: float = UNKNOWN) -> Decision:
    """The decision to do nothing for certain."""
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
    """One of a kind, each value checked; null becomes unknown."""
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
