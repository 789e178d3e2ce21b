"""Who decides in a training, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gpuyard.adapt.events import Event
from gpuyard.adapt.situation import Decision, Situation


class Decides(Protocol):
    """Who says whether to grow: anything of `gpuyard.adapt.deciders`, or your own."""

    def decide(self, situation: Situation) -> Decision: ...


@dataclass(frozen=True)
class Result:
    """How a training ended."""

    accuracy: float
    loss: float
    steps: int
    used: float
    total: float
    parameters: int
    actions: tuple[int, ...]
    """What was decided, in order; the number after the last option is nothing."""
    events: list[Event] = field(default_factory=list, repr=False)
