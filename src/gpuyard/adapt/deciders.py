"""Deciders: simple rules, the cost rule (the default) and learned agents."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.adapt.decisions import Decider, Decision, Option, Situation, grow, nothing
from gpuyard.errors import UserError, suggest

if TYPE_CHECKING:
    from gpuyard.adapt.agent.agent_file import Agent
    from gpuyard.adapt.agent.decision_trees import Actions


PAYBACK = 100.0  # steps after which a new layer shows 63 % of its gain (1 - 1/e); after half of them, 22 %
REACH = 0.2  # the part of the error left that one more layer can take away
NEXT = 0.6  # gain of the next growth, relative to the one before
STEEP = 1.2  # the part of the error that a training in its first steps takes away by 2.7 times as many of them
FLAT = 700.0  # steps in all at which that has fallen to 37 % (1/e)
MARGIN = 0.2  # times the noise of one evaluation that the gain must be
MOST_NOISE = 0.03  # more is the bend of a rising curve, not noise
USUAL_NOISE = 0.01
USUAL_COST = 1.5
USUAL_ACCURACY = 0.5
USUAL_STEPS = 2000.0  # defaults for unknown values
LEAST_HEADROOM = 0.05  # share of GPU memory that must be free


@dataclass(frozen=True)
class Weighed:
    option: Option
    cost: float
    steps: float  # that are left after paying for it
    brings: float
    forgone: float

    @property
    def gain(self) -> float:
        return self.brings - self.forgone


class CostRule:
    """Grows where the remaining steps, at the new price, let a new layer pay back more than noise."""

    name = "cost-rule"
    foresees = True  # its answer depends on the situation alone, and tells what it expects: it may be asked at any time

    def __init__(self, payback: float = PAYBACK, margin: float = MARGIN) -> None:
        self.payback, self.margin = payback, margin

    def decide(self, situation: Situation) -> Decision:
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
        cost = USUAL_COST if math.isnan(option.cost_ratio) else max(option.cost_ratio, 1e-6)
        error = 1.0 - (USUAL_ACCURACY if math.isnan(situation.accuracy) else min(situation.accuracy, 1.0))
        done, left = _steps(situation)
        steps = left / cost
        brings = error * REACH * NEXT**situation.grown * (1.0 - math.exp(-((steps / self.payback) ** 2)))
        fewer = math.log((done + left) / (done + steps))
        return Weighed(option, cost, steps, brings, error * STEEP * fewer * math.exp(-(done + left) / FLAT))


def _steps(situation: Situation) -> tuple[float, float]:
    """Steps done, at least one, and left; without counts, by the time left."""
    left = situation.steps_left
    if math.isnan(left):
        left = situation.fraction_left * USUAL_STEPS
    done = situation.steps_done
    if math.isnan(done):
        done = left * (1.0 / max(situation.fraction_left, 1e-3) - 1.0)
    return max(done, 1.0), max(left, 0.0)


DEFAULT = "cost-rule"


class Never:
    name = "never"

    def decide(self, situation: Situation) -> Decision:
        return nothing(situation, "it never grows")


class Timed:
    """Grows at fixed decisions, regardless of the situation: the first, the middle, the last, or every n-th."""

    def __init__(self, name: str, times: int = 1, every: int = 1, site: str = "cheapest") -> None:
        self.name, self.times, self.every, self.site = name, times, every, site

    def decide(self, situation: Situation) -> Decision:
        due, when = self._due(situation.decision, situation.decisions)
        told = f"decision {situation.decision + 1} of {situation.decisions}"
        if not due:
            return nothing(situation, f"{told}: it grows at {when}")
        if not situation.options:
            return nothing(situation, f"{told}: there is nowhere to grow")
        option, why = pick(situation, self.site)
        return grow(situation, option, f"{told} is one of {when}: grows at {option.site}, {why}")

    def _due(self, decision: int, decisions: int) -> tuple[bool, str]:
        if self.name == "periodic":
            return decision % self.every == 0, f"every {self.every}. decision" if self.every > 1 else "every decision"
        times = min(self.times, decisions)
        first = {"early": 0, "middle": (decisions - times) // 2, "late": decisions - times}[self.name]
        which = f"the {'first' if self.name == 'early' else 'last' if self.name == 'late' else 'middle'}"
        return first <= decision < first + times, which + (f" {times}" if times > 1 else "")


class Random:
    """Grows at random: every option and nothing alike, or with a given probability."""

    name = "random"

    def __init__(self, seed: int = 0, chance: float = math.nan) -> None:
        self.chance, self._random = chance, random.Random(seed)

    def decide(self, situation: Situation) -> Decision:
        options = situation.nothing
        chance = options / (options + 1) if math.isnan(self.chance) else self.chance if options else 0.0
        chances = (*(chance / options for _ in range(options)), 1.0 - chance)
        drawn = self._random.random()
        if not options or drawn >= chance:
            return Decision(None, chances, f"chance: drew {drawn:.2f}, and grows below {chance:.2f}")
        option = situation.options[min(int(drawn / chance * options), options - 1)]
        return Decision(option, chances, f"chance: drew {drawn:.2f}, which is {option.site}")


class TableOracle:
    """Repeats the best sequence of a recording of the same environment."""

    name = "table-oracle"

    def __init__(self, sequence: Actions, environment: str, accuracy: float) -> None:
        self.sequence, self.environment, self.accuracy = sequence, environment, accuracy

    def decide(self, situation: Situation) -> Decision:
        """The next action of the best sequence; nothing after its end."""
        if situation.decision >= len(self.sequence):
            return nothing(situation, f"the recording of {self.environment} has no more decisions")
        action = self.sequence[situation.decision]
        if action > situation.nothing:
            raise UserError(
                f"the recording of {self.environment} chose action {action}, and here are only "
                f"{situation.nothing} options; record this environment"
            )
        why = f"{list(self.sequence)} came to most in the recording of {self.environment}: {self.accuracy:.4f}"
        return (
            nothing(situation, why) if action == situation.nothing else grow(situation, situation.options[action], why)
        )


class Reinforce:
    """Acts as learned from recordings; does nothing where the expected gain is below noise."""

    name = "reinforce"
    foresees = True  # its answer depends on the situation alone, and tells what it expects: it may be asked at any time

    def __init__(self, agent: Agent, source: str = "") -> None:
        self.agent, self.source = agent, source

    def decide(self, situation: Situation) -> Decision:
        if not situation.options:
            return nothing(situation, "there is nowhere to grow")
        weighed, gains, noises = self.agent.weigh(situation)
        chances, likeliest = tuple(float(chance) for chance in weighed), int(weighed.argmax())
        if likeliest == situation.nothing:
            best = float(gains.max())
            said = f"doing nothing is the likeliest, {chances[-1]:.0%}; growing is expected to add {_points(best)}"
            return Decision(None, chances, said, best)
        option, gain, noise = situation.options[likeliest], float(gains[likeliest]), float(noises[likeliest])
        said = f"{option.site} is the likeliest, {chances[likeliest]:.0%} against {chances[-1]:.0%} for nothing"
        if gain < noise:
            said = f"{said}; but {_points(gain)} expected of it are below the noise of {100 * noise:.2f}"
            return Decision(None, chances, said, gain)
        above = f", above the noise of {100 * noise:.2f}" if math.isfinite(noise) else ""
        return Decision(option, chances, f"{said}; it is expected to add {_points(gain)}{above}", gain)


def _points(gain: float) -> str:
    return f"{100 * gain:+.2f} points"


def pick(situation: Situation, site: str) -> tuple[Option, str]:
    """The option that a word or a number names, and the reason."""
    options = situation.options
    if site == "first":
        return options[0], "the first"
    if site == "last":
        return options[-1], "the last"
    if site != "cheapest":
        return options[min(int(site), len(options) - 1)], "as told"
    known = [option for option in options if not math.isnan(option.cost_ratio)]
    if not known:
        return options[-1], "the last, since costs are unknown"
    cheapest = min(known, key=lambda option: option.cost_ratio)
    return cheapest, f"the cheapest: a step takes {cheapest.cost_ratio:.2f} times as long"


def make_decider(text: str) -> Decider:
    """A decider by its text: `name`, `name:key=value,...`, `reinforce[:FILE]` or `table-oracle:FILE#ENVIRONMENT`."""
    name, _, rest = text.strip().partition(":")
    if name not in _MAKERS:
        raise UserError(f"no decider is called '{name}'{suggest(name, _MAKERS)}; there are {', '.join(_MAKERS)}")
    if name == "reinforce":
        return _reinforce(rest)
    if name == "table-oracle":
        return _table_oracle(rest)
    maker, known = _MAKERS[name]
    return maker(**_settings(name, rest, known))


def decider_names() -> tuple[str, ...]:
    return tuple(_MAKERS)


def _settings(name: str, text: str, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            has = f"; it has {', '.join(known)}" if known else "; it has none"
            raise UserError(f"{name} has no setting '{key}'{suggest(key, known)}{has}")
        if not sign:
            raise UserError(f"{name} wants {key}=VALUE, not '{part}'")
        try:
            found[key] = known[key](value)
        except ValueError as error:
            raise UserError(f"{name}: {key} {error}, not '{value}'") from None
    return found


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(value)


def _seed(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("must be a whole number from 0 on")
    return int(value)


def _site(value: str) -> str:
    if value not in ("cheapest", "first", "last") and not value.isdecimal():
        raise ValueError("must be cheapest, first, last or the number of a site, from 0 on")
    return value


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return number

    return read


def _timed(name: str, *settings: str) -> tuple[Callable[..., Decider], dict[str, Callable[[str], Any]]]:
    readers: dict[str, Callable[[str], Any]] = {"times": _count, "every": _count, "site": _site}
    return lambda **given: Timed(name, **given), {key: readers[key] for key in settings}


def _reinforce(file: str) -> Decider:
    from gpuyard.adapt.agent.agent_file import load, shipped

    return Reinforce(load(file or shipped()), file)


def _table_oracle(text: str) -> Decider:
    from gpuyard.adapt.agent.decision_trees import read_tables

    file, _, environment = text.partition("#")
    if not file:
        raise UserError("say which: table-oracle:FILE#ENVIRONMENT, a recording and an environment in it")
    reading = read_tables([Path(file)])
    if not environment and len(reading.tables) > 1:
        names = ", ".join(table.name for table in reading.tables)
        raise UserError(f"say which environment of {file}: table-oracle:{file}#NAME, one of {names}")
    table = reading.choose(environment or None).tables[0]
    return TableOracle(table.sequences[table.best], table.name, float(table.values[table.best]))


_MAKERS: dict[str, tuple[Callable[..., Decider], dict[str, Callable[[str], Any]]]] = {
    "never": (Never, {}),
    "early": _timed("early", "times", "site"),
    "middle": _timed("middle", "times", "site"),
    "late": _timed("late", "times", "site"),
    "periodic": _timed("periodic", "every", "site"),
    "random": (Random, {"seed": _seed, "chance": _number(0.0, 1.0)}),
    "cost-rule": (CostRule, {"payback": _number(1.0, 1e9), "margin": _number(0.0, 100.0)}),
    "table-oracle": (_table_oracle, {}),
    "reinforce": (_reinforce, {}),
}
