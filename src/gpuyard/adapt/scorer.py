"""What a decider makes of a situation: comparable features of each option and of doing nothing, and what scores them.

One small network scores every option and doing nothing alike, so there may be any number of options, of any names.
Features are free of scale where that can be (shares, ratios, logarithms), so that what was learned in some environments
means the same in others. What is unknown counts 0, and where that matters an indicator says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuyard.adapt.situation import Option, Situation

VERSION = 1
Floats = npt.NDArray[np.float64]
FEATURES = (
    "nothing", "fraction_left", "steps_left", "steps_after", "steps_unknown", "cost", "cost_unknown", "size",
    "accuracy", "accuracy_unknown", "going_on", "forgone", "slope_unknown", "noise", "overfitting", "headroom",
    "grown", "grown_here", "position", "decision", "decisions_left",
)  # fmt: skip
"""In the order in which networks take them."""
PAIRED = (
    "fraction_left", "steps_after", "cost", "size", "accuracy", "going_on", "forgone", "grown", "grown_here",
    "position", "decisions_left",
)  # fmt: skip
"""Those whose products with each other count as well: what one is worth depends on the others."""
_FIRST, _SECOND = np.triu_indices(len(PAIRED))
_PAIRS = np.array([FEATURES.index(name) for name in PAIRED])
WIDTH = len(FEATURES) + len(_FIRST)
REACH = 3.0
"""Features are kept within plus and minus this: nothing was learned beyond."""


def describe(situation: Situation) -> Floats:
    """Features of each option, and last of doing nothing, which is where all others are compared to: a row for each."""
    nothing = [1.0] + [0.0] * (len(FEATURES) - 1)
    rows = np.clip(np.array([*(_row(situation, option) for option in situation.options), nothing]), -REACH, REACH)
    return np.hstack([rows, rows[:, _PAIRS[_FIRST]] * rows[:, _PAIRS[_SECOND]]])


def _row(seen: Situation, option: Option) -> list[float]:
    cost, slope, left = option.cost_ratio, _known(seen.slope), seen.fraction_left
    dearer = _log(cost)
    going_on = min(max(slope, 0.0) * left, _known(1.0 - seen.accuracy, 0.5))
    return [
        0.0,
        2.0 * left - 1.0,
        _log(seen.steps_left / 1000.0) / math.log(10.0),
        _log(seen.steps_left / cost / 1000.0 if cost > 0 else math.nan) / math.log(10.0),
        float(math.isnan(seen.steps_left)),
        dearer,
        float(math.isnan(cost)),
        _log(option.params_ratio),
        _known(2.0 * seen.accuracy - 1.0),
        float(math.isnan(seen.accuracy)),
        10.0 * going_on,
        10.0 * going_on * (1.0 - math.exp(-dearer)),
        float(math.isnan(seen.slope)),
        20.0 * _known(seen.noise),
        _known(seen.loss_gap, 5.0 * _known(seen.train_accuracy - seen.accuracy)),
        2.0 * seen.headroom - 1.0,
        0.5 * seen.grown,
        0.5 * option.grown,
        _known(2.0 * option.position - 1.0),
        2.0 * (seen.decision + 1) / max(seen.decisions, 1) - 1.0,
        0.5 * (seen.decisions - 1 - seen.decision),
    ]


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

    def chances(self, situation: Situation) -> Floats:
        """Of each option and of nothing: the mean of the members'."""
        return np.asarray(softmax(self.scores(describe(situation))).mean(axis=0))

    def choice(self, situation: Situation) -> int:
        """The likeliest action."""
        return int(np.argmax(self.chances(situation)))

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
