"""What a decider makes of a situation: comparable features of each option and of doing nothing, and what scores them.

One small network scores every option and doing nothing alike, so there may be any number of options, of any names.
Features are free of scale where that can be (shares, ratios, logarithms), so that what was learned in some environments
means the same in others. What is unknown counts 0, and where that matters an indicator says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuyard.adapt.situation import Option, Situation

VERSION = 1
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
FEATURES = (
    "nothing", "fraction_left", "steps_left", "steps_after", "lives_after", "steps_unknown", "cost", "cost_unknown",
    "size", "accuracy", "accuracy_unknown", "going_on", "final", "forgone", "slope_unknown", "noise", "overfitting",
    "headroom", "grown", "grown_here", "position", "decision", "decisions_left",
)  # fmt: skip
"""In the order in which networks take them."""
PAIRED = (
    "fraction_left", "steps_after", "lives_after", "cost", "final", "overfitting", "grown", "grown_here", "position",
    "decisions_left",
)  # fmt: skip
"""Those whose products with each other count as well: what one is worth depends on the others."""
_FIRST, _SECOND = np.triu_indices(len(PAIRED))
_PAIRS = np.array([FEATURES.index(name) for name in PAIRED])
WIDTH = len(FEATURES) + len(_FIRST)
FIRM = ("nothing", "steps_unknown", "cost_unknown", "accuracy_unknown", "slope_unknown", "grown", "grown_here",
        "decision", "decisions_left")  # fmt: skip
"""Those that are counted, or are so or not: no measurement that could have been a little different."""
_LOOSE = np.array([float(name not in FIRM) for name in FEATURES])
REACH = 3.0
"""Features are kept within plus and minus this."""


@dataclass(frozen=True)
class Range:
    """Between which values each feature was where something was learned: beyond, the nearest of them counts."""

    low: Floats
    high: Floats

    def rows(self, situation: Situation) -> Floats:
        """What is scored of each option, and last of doing nothing: a row for each."""
        return expand(np.clip(describe(situation), self.low, self.high))

    def join(self, other: Range) -> Range:
        """Between which values they were in either."""
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    @staticmethod
    def of(situations: Iterable[Situation]) -> Range:
        """Of what was seen; doing nothing is always within."""
        rows = np.vstack([describe(situation) for situation in situations])
        return Range(rows.min(axis=0), rows.max(axis=0))


def describe(situation: Situation) -> Floats:
    """Features of each option, and last of doing nothing, which is where all others are compared to: a row for each."""
    nothing = [1.0] + [0.0] * (len(FEATURES) - 1)
    rows = np.array([*(_row(situation, option) for option in situation.options), nothing])
    return np.asarray(np.clip(rows, -REACH, REACH))


def expand(rows: Floats) -> Floats:
    """The features, and the products of some."""
    return np.hstack([rows, rows[:, _PAIRS[_FIRST]] * rows[:, _PAIRS[_SECOND]]])


def shaken(rows: Floats, nodes: Integers, much: float, rng: np.random.Generator) -> Floats:
    """Rows as they could have been measured, expanded: those of a node are shaken alike; doing nothing stays."""
    plain = rows[:, : len(FEATURES)]
    by = rng.normal(0.0, much, (int(nodes.max()) + 1, len(FEATURES)))[nodes] * _LOOSE
    return expand(plain + by * (plain[:, :1] == 0.0))


def _row(seen: Situation, option: Option) -> list[float]:
    cost, left = option.cost_ratio, seen.fraction_left
    dearer, going_on = _log(cost), expected_rise(seen)
    return [
        0.0,
        2.0 * left - 1.0,
        _log_steps(seen.steps_left),
        _log_steps(seen.steps_left / cost if cost > 0 else math.nan),
        _log(seen.steps_left / cost / lifetime(seen) if cost > 0 else math.nan) / math.log(10.0),
        float(math.isnan(seen.steps_left)),
        2.0 * dearer - 1.0,
        float(math.isnan(cost)),
        2.0 * _log(option.params_ratio),
        _known(2.0 * seen.accuracy - 1.0),
        float(math.isnan(seen.accuracy)),
        5.0 * going_on - 1.0,
        _known(2.0 * (seen.accuracy + going_on) - 1.0),
        10.0 * (going_on - expected_rise(seen, math.exp(dearer))),
        float(math.isnan(seen.slope)),
        20.0 * _known(seen.noise),
        2.0 * _known(seen.loss_gap, 2.0 * _known(seen.train_accuracy - seen.accuracy)),
        2.0 * seen.headroom - 1.0,
        seen.grown - 1.0,
        option.grown - 0.5,
        _known(2.0 * option.position - 1.0),
        2.0 * (seen.decision + 1) / max(seen.decisions, 1) - 1.0,
        seen.decisions - 2.0 - seen.decision,
    ]


def expected_rise(seen: Situation, cost: float = 1.0) -> float:
    """Accuracy that going on is expected to add, a step being so much dearer: it rises with the logarithm of steps."""
    if math.isnan(seen.slope):
        return 0.0
    done = max(1.0 - seen.fraction_left, LEAST_DONE)
    rise = max(seen.slope, 0.0) * done * math.log((done + seen.fraction_left / cost) / done)
    return min(max(rise, 0.0), MOST_RISE * (1.0 - _known(seen.accuracy, 0.5)))


def lifetime(seen: Situation) -> float:
    """Steps that this network takes to learn: those after which it is right half of the time, if errors fall as 1/x."""
    right = min(max(seen.accuracy, 0.01), 0.99)
    return seen.steps_done * (1.0 - right) / right if seen.steps_done > 0 and not math.isnan(right) else math.nan


LEAST_DONE = 0.02
"""Share of the budget that counts as done at least, where a slope is drawn on."""
MOST_RISE = 0.7
"""Of the error that is left, the part that going on takes away at most."""


def _log_steps(steps: float) -> float:
    """On a scale on which 300 steps are about 0, and ten times as many are 1 more."""
    return _log(max(steps, 1.0)) / math.log(10.0) - 2.5 if not math.isnan(steps) else 0.0


def _log(value: float) -> float:
    """The logarithm; 0 of what is unknown or none."""
    return math.log(value) if value > 0 and math.isfinite(value) else 0.0


def _known(value: float, otherwise: float = 0.0) -> float:
    return otherwise if math.isnan(value) else value


@dataclass(frozen=True)
class Network:
    """Members that each score a row by one hidden layer: `v . tanh(x W + b) + x u`; their mean counts."""

    hidden: Floats
    """Of each member, features by units."""
    bias: Floats
    out: Floats
    direct: Floats

    @property
    def members(self) -> int:
        """How many networks there are."""
        return len(self.hidden)

    def scores(self, rows: Floats) -> Floats:
        """Of each member and row."""
        return np.asarray(
            np.einsum("mrh,mh->mr", np.tanh(rows[:, : len(FEATURES)] @ self.hidden + self.bias[:, None]), self.out)
            + self.direct @ rows.T
        )

    def chances(self, rows: Floats) -> Floats:
        """Of each row: the mean of the members'."""
        return np.asarray(softmax(self.scores(rows)).mean(axis=0))

    def choose(self, members: Sequence[int]) -> Network:
        """Only some members."""
        at = list(members)
        return Network(self.hidden[at], self.bias[at], self.out[at], self.direct[at])

    @staticmethod
    def random(generator: np.random.Generator, members: int, units: int) -> Network:
        """Fresh members, which score all rows nearly alike."""
        inputs = len(FEATURES)
        return Network(
            generator.normal(0.0, 1.0 / math.sqrt(inputs), (members, inputs, units)) * 2.0,
            generator.normal(0.0, 0.3, (members, units)),
            generator.normal(0.0, 0.05, (members, units)),
            np.zeros((members, WIDTH)),
        )


def softmax(scores: Floats, temperature: float = 1.0) -> Floats:
    """Probabilities along the last axis."""
    powers = np.exp((scores - scores.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
