"""The rule that decides by default: it learns nothing, counts what growing costs in steps, and says why.

A new layer does not help at once: it needs steps to learn, and makes each step dearer. Of the error that is left a
layer can take away a part, which shrinks with each that was added before. It shows in the steps that remain at the new
price. Against that stand the steps that are not made: at the present slope they would have brought some accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuyard.adapt.situation import Decision, Option, Situation, grow, nothing

PAYBACK = 600.0
"""Steps after which a new layer shows 63 % of what it can (one less 1/e)."""
REACH = 0.15
"""The part of the error left that one more layer can take away in the long run."""
NEXT = 0.5
"""What the next growth can take away, relative to the one before."""
LASTS = 0.5
"""Accuracy rises ever slower: of what the present slope promises for the rest, this part comes."""
MARGIN = 1.0
"""Times the noise that the gain must be."""
USUAL_NOISE = 0.005
USUAL_COST = 1.5
USUAL_ACCURACY = 0.5
"""What is taken where nothing is known."""
LEAST_HEADROOM = 0.05
"""Share of GPU memory that must be free."""


@dataclass(frozen=True)
class Weighed:
    """What an option is expected to bring and to cost, in accuracy."""

    option: Option
    cost: float
    steps: float
    """That are left after paying for it."""
    brings: float
    forgone: float

    @property
    def gain(self) -> float:
        """What remains."""
        return self.brings - self.forgone


class CostRule:
    """Grows where the steps that are left, at the new price, let a new layer pay back more than noise."""

    name = "cost-rule"
    foresees = True
    """Its answer depends on the situation alone, and tells what it expects: it may be asked at any time."""

    def __init__(self, payback: float = PAYBACK, margin: float = MARGIN) -> None:
        self.payback, self.margin = payback, margin

    def decide(self, situation: Situation) -> Decision:
        """The option with the highest gain, if that is above noise."""
        if not situation.options:
            return nothing(situation, "there is nowhere to grow")
        if situation.headroom < LEAST_HEADROOM:
            return nothing(situation, f"only {situation.headroom:.0%} of the GPU's memory is free")
        best = max((self.weigh(situation, option) for option in situation.options), key=lambda w: w.gain)
        noise = USUAL_NOISE if math.isnan(situation.noise) else situation.noise
        said = (
            f"{best.option.site} makes a step {best.cost:.2f} times as long, which leaves {best.steps:,.0f} steps; a "
            f"new layer needs about {self.payback:,.0f} to pay back: {100 * best.brings:+.1f} points for it, "
            f"{-100 * best.forgone:+.1f} for steps not made"
        )
        if best.gain < self.margin * noise:
            compared = f"{100 * best.gain:+.1f} is below the noise of {100 * self.margin * noise:.1f}"
            return nothing(situation, f"{said}; {compared}", best.gain)
        compared = f"{100 * best.gain:+.1f} is above the noise of {100 * self.margin * noise:.1f}"
        return grow(situation, best.option, f"{said}; {compared}", best.gain)

    def weigh(self, situation: Situation, option: Option) -> Weighed:
        """What an option brings and costs."""
        cost = USUAL_COST if math.isnan(option.cost_ratio) else max(option.cost_ratio, 1e-6)
        accuracy = USUAL_ACCURACY if math.isnan(situation.accuracy) else situation.accuracy
        steps = self._steps(situation) / cost
        shown = 1.0 - math.exp(-steps / self.payback)
        brings = max(1.0 - accuracy, 0.0) * REACH * NEXT**situation.grown * shown
        slope = 0.0 if math.isnan(situation.slope) else max(situation.slope, 0.0)
        promised = min(slope * situation.fraction_left * LASTS, max(1.0 - accuracy, 0.0))
        return Weighed(option, cost, steps, brings, promised * max(1.0 - 1.0 / cost, 0.0))

    def _steps(self, situation: Situation) -> float:
        """Steps left; where nobody counts them, a budget is taken for one of ten paybacks."""
        if math.isnan(situation.steps_left):
            return situation.fraction_left * 10.0 * self.payback
        return situation.steps_left
