"""The rule that decides by default: it learns nothing, counts what growing costs in steps, and says why.

A new layer takes away a part of the error that is left, if enough steps remain at the new price for it to learn; each
further one takes away less. Against that stand the steps that are not made. A training of few steps is still steep, and
loses much by each of them; a long one has long been flat. The accuracy's own slope would tell that better if it were
less noisy: on recorded runs it misled more than it helped, so the number of steps stands for it.

The constants were chosen among some two thousand combinations, on a recording like the one in `examples/adapt`: there
the rule reaches 40 % of what there is to gain, and nowhere loses more than 0.2 points. Others gain more and lose more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuyard.adapt.situation import Decision, Option, Situation, grow, nothing

PAYBACK = 100.0
"""Steps after which a new layer shows 63 % of what it can (one less 1/e); with half as many it shows 22 %."""
REACH = 0.2
"""The part of the error left that one more layer can take away."""
NEXT = 0.6
"""What the next growth can take away, relative to the one before."""
STEEP = 1.2
"""The part of the error that a training in its first steps takes away by 2.7 times as many of them."""
FLAT = 700.0
"""Steps in all at which that has fallen to 37 % (1/e)."""
MARGIN = 0.2
"""Times the noise of one evaluation that the gain must be."""
MOST_NOISE = 0.03
"""More than that is the bend of a curve that still rises, and is not taken for noise."""
USUAL_NOISE = 0.01
USUAL_COST = 1.5
USUAL_ACCURACY = 0.5
USUAL_STEPS = 2000.0
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
        noise = USUAL_NOISE if math.isnan(situation.noise) else min(situation.noise, MOST_NOISE)
        said = (
            f"growing at {best.option.site} makes a step {best.cost:.2f} times as long, which leaves "
            f"{best.steps:,.0f} steps; a new layer shows after {self.payback:,.0f}: "
            f"{100 * best.brings:+.1f} points for it, less {100 * best.forgone:.1f} for steps not made"
        )
        if best.gain < self.margin * noise:
            compared = f"{100 * best.gain:+.1f} is below the noise of {100 * self.margin * noise:.1f}"
            return nothing(situation, f"{said}; {compared}", best.gain)
        compared = f"{100 * best.gain:+.1f} is above the noise of {100 * self.margin * noise:.1f}"
        return grow(situation, best.option, f"{said}; {compared}", best.gain)

    def weigh(self, situation: Situation, option: Option) -> Weighed:
        """What an option brings and costs."""
        cost = USUAL_COST if math.isnan(option.cost_ratio) else max(option.cost_ratio, 1e-6)
        error = 1.0 - (USUAL_ACCURACY if math.isnan(situation.accuracy) else min(situation.accuracy, 1.0))
        done, left = _steps(situation)
        steps = left / cost
        brings = error * REACH * NEXT**situation.grown * (1.0 - math.exp(-((steps / self.payback) ** 2)))
        fewer = math.log((done + left) / (done + steps))
        return Weighed(option, cost, steps, brings, error * STEEP * fewer * math.exp(-(done + left) / FLAT))


def _steps(situation: Situation) -> tuple[float, float]:
    """Steps done, at least one, and left; where nobody counts them, by what is left of the time."""
    left = situation.steps_left
    if math.isnan(left):
        left = situation.fraction_left * USUAL_STEPS
    done = situation.steps_done
    if math.isnan(done):
        done = left * (1.0 / max(situation.fraction_left, 1e-3) - 1.0)
    return max(done, 1.0), max(left, 0.0)
