"""In which order the rows of a batch start: wave by wave, and inside a wave by priority, then as in the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

USUAL = 20
"""Rows of a wave, if nobody says otherwise."""


class Turn(NamedTuple):
    """When a row has its turn."""

    place: int
    """Which of the rows it is, from 0 on."""
    wave: int
    """From 1 on."""


def turns(urgency: Sequence[float], size: int) -> list[Turn]:
    """The rows in the order in which they start; the higher the urgency the sooner, but only inside a wave.

    A size of 0 makes one wave of all.
    """
    found = [Turn(place, place // size + 1 if size else 1) for place in range(len(urgency))]
    return sorted(found, key=lambda turn: (turn.wave, -urgency[turn.place], turn.place))


def urgencies(priorities: Sequence[float]) -> list[float]:
    """Priorities of which lower ones go first, as the queue has them: higher first, and none above the usual 0."""
    first = min(priorities, default=0.0)
    return [first - priority for priority in priorities]
