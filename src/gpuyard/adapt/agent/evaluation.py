"""How well a decider chooses in recorded environments: its rank, its share of what was to be gained, how sure that is.

Accuracies are means over the seeds of a recording. The best of many noisy means is better by luck, too:
`oracle_crossfit` chooses by all seeds but one and takes the accuracy of that one. Intervals are of resampled seeds
(bootstrap), 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.adapt.agent.agent_file import Agent
from gpuyard.adapt.agent.decision_trees import Actions, Table
from gpuyard.adapt.agent.reinforce import Recipe, learn
from gpuyard.adapt.agent.scorer import Floats
from gpuyard.adapt.deciders import Random, Reinforce, make_decider
from gpuyard.adapt.decisions import Decider, Situation
from gpuyard.errors import UserError

BASELINES = ("never", "early", "middle", "late", "periodic", "random", "cost-rule")  # shown for comparison
Make = Callable[[], Decider]
Interval = tuple[float, float]
UNSURE = (math.nan, math.nan)


@dataclass(frozen=True)
class DeciderResult:
    table: Table
    actions: Actions | None  # its sequence in the mean situations; None: it is random
    accuracy: float
    interval: Interval
    gain: float  # over never growing
    gain_interval: Interval
    share_interval: Interval
    live: float  # mean accuracy where it sees what each seed saw, instead of the average
    live_worst: float  # the least gain of those
    oracle_crossfit: float
    deciders: dict[str, float]
    policy_hash: str | None

    @property
    def never(self) -> float:
        return float(self.table.values[self.table.never])

    @property
    def oracle(self) -> float:
        return float(self.table.values.max())

    @property
    def gap(self) -> float:
        return self.oracle - self.never

    @property
    def gap_share(self) -> float:
        """The part of the gap that was gained; nan without a gap."""
        return self.gain / self.gap if self.gap > 0 else math.nan

    @property
    def rank(self) -> int:
        return 1 + int((self.table.values > self.accuracy + 1e-12).sum())


@dataclass(frozen=True)
class Evaluation:
    standings: tuple[DeciderResult, ...]
    share_interval: Interval
    left_out: bool  # whether it learned again without each environment

    @property
    def gap_share(self) -> float:
        """The sum of gains over the sum of gaps: environments count by their gaps."""
        return share(self.standings)

    @property
    def mean_gap_share(self) -> float:
        shares = [s.gap_share for s in self.standings if not math.isnan(s.gap_share)]
        return float(np.mean(shares)) if shares else math.nan

    @property
    def crossfit_gap_share(self) -> float:
        """The sum of gains over those of an oracle that does not choose by luck."""
        known = [s for s in self.standings if not math.isnan(s.oracle_crossfit)]
        gaps = sum(max(s.oracle_crossfit - s.never, 0.0) for s in known)
        return sum(s.gain for s in known) / gaps if gaps > 0 else math.nan

    @property
    def worst(self) -> DeciderResult:
        return min(self.standings, key=lambda s: s.gain)


def share(standings: Sequence[DeciderResult]) -> float:
    gap = sum(s.gap for s in standings)
    return sum(s.gain for s in standings) / gap if gap > 0 else math.nan


def evaluate(
    make: Make, tables: Sequence[Table], bootstrap: int = 2000, seed: int = 0, policy_hash: str | None = None
) -> Evaluation:
    rng = np.random.default_rng(seed)
    found = tuple(evaluate_in(make, table, bootstrap, rng, policy_hash) for table in tables)
    return Evaluation(found, _whole(found, bootstrap, rng), False)


def leave_one_out(
    tables: Sequence[Table], recipe: Recipe, bootstrap: int = 2000, parts: int | None = None,
    watch: Callable[[int, int, str], None] | None = None,
) -> Evaluation:  # fmt: skip
    """Results where the decider did not learn: it learns again without each environment, or each family of them."""
    families = {table.name: family(table.name, parts) for table in tables}
    groups = list(dict.fromkeys(families.values()))
    if len(groups) < 2:
        raise UserError("leaving out needs at least two environments, or families of them; record more")
    rng, found = np.random.default_rng(recipe.seed), list[DeciderResult]()
    for k, group in enumerate(groups):
        agent = learn([table for table in tables if families[table.name] != group], recipe)
        make = learned_decider(agent)
        found += [
            evaluate_in(make, table, bootstrap, rng, agent.hash) for table in tables if families[table.name] == group
        ]  # fmt: skip
        if watch is not None:
            watch(k + 1, len(groups), group)
    return Evaluation(tuple(found), _whole(found, bootstrap, rng), True)


def family(name: str, parts: int | None) -> str:
    """The name that environments share which are left out together: the first parts of their names."""
    return name if parts is None else "-".join(name.split("-")[:parts])


def evaluate_in(
    make: Make, table: Table, bootstrap: int, rng: np.random.Generator, policy_hash: str | None
) -> DeciderResult:
    actions, weights = chosen(make, table)
    by_seed = [float(chosen(make, table, k)[1] @ table.values) for k in range(len(table.seeds))]
    accuracy, never = float(weights @ table.values), float(table.values[table.never])
    runs = np.stack([table.accuracy @ weights, table.accuracy[:, table.never], table.accuracy[:, table.best]])
    means = _drawn_means(runs, bootstrap, rng)
    gains = means[0] - means[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = gains / (means[2] - means[1])
    return DeciderResult(
        table, actions, accuracy, _interval(means[0]), accuracy - never, _interval(gains), _interval(shares),
        float(np.mean(by_seed)), min(by_seed) - never, _crossfit(table),
        {name: float(chosen(_named(name), table)[1] @ table.values) for name in BASELINES}, policy_hash,
    )  # fmt: skip


def chosen(make: Make, table: Table, seed: int | None = None) -> tuple[Actions | None, Floats]:
    """The decider's sequence, and the probability of each: by one seed's situations, or on average."""
    decider = make()
    seen: Callable[[Actions], Situation] = (
        table.typical.__getitem__ if seed is None else lambda prefix: table.situations[prefix][seed]
    )
    weights = np.zeros(len(table.sequences))
    if isinstance(decider, Random):
        _spread(decider, table, seen, (), 1.0, weights)
        return None, weights
    prefix: Actions = ()
    while prefix in table.situations:
        prefix = (*prefix, decider.decide(seen(prefix)).action)
    weights[table.place[prefix]] = 1.0
    return prefix, weights


def _spread(
    decider: Decider, table: Table, seen: Callable[[Actions], Situation], prefix: Actions, chance: float, into: Floats
) -> None:
    if prefix not in table.situations:
        into[table.place[prefix]] += chance
        return
    for action, part in enumerate(decider.decide(seen(prefix)).probabilities):
        _spread(decider, table, seen, (*prefix, action), chance * part, into)


def _named(name: str) -> Make:
    return lambda: make_decider(name)


def learned_decider(agent: Agent) -> Make:
    return lambda: Reinforce(agent)


def _crossfit(table: Table) -> float:
    if len(table.seeds) < 2:
        return math.nan
    total = table.accuracy.sum(axis=0)
    return float(np.mean([one[int(np.argmax(total - one))] for one in table.accuracy]))


def _drawn_means(runs: Floats, bootstrap: int, rng: np.random.Generator) -> Floats:
    columns = runs.shape[1]
    if columns < 2 or bootstrap < 1:
        return np.full((len(runs), 1), math.nan)
    return np.asarray(runs[:, rng.integers(0, columns, (bootstrap, columns))].mean(axis=2))


def _interval(values: Floats) -> Interval:
    known = values[np.isfinite(values)]
    if not len(known):
        return UNSURE
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)


def _whole(standings: Sequence[DeciderResult], bootstrap: int, rng: np.random.Generator) -> Interval:
    if len(standings) < 2 or bootstrap < 1:
        return standings[0].share_interval if standings else UNSURE
    gains, gaps = np.array([s.gain for s in standings]), np.array([s.gap for s in standings])
    drawn = rng.integers(0, len(standings), (bootstrap, len(standings)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return _interval(gains[drawn].sum(axis=1) / gaps[drawn].sum(axis=1))


def row(found: DeciderResult) -> dict[str, Any]:
    table = found.table
    order = np.argsort(-table.values, kind="stable")
    return {
        "environment": table.name, "rank": found.rank, "of": len(table.sequences), "gap_share": found.gap_share,
        "gap_share_interval": list(found.share_interval), "accuracy": found.accuracy,
        "accuracy_interval": list(found.interval), "gain": found.gain, "gain_interval": list(found.gain_interval),
        "policy_hash": found.policy_hash, "actions": None if found.actions is None else list(found.actions),
        "never": found.never, "never_rank": table.rank(table.sequences[table.never]), "oracle": found.oracle,
        "oracle_actions": list(table.sequences[table.best]), "oracle_crossfit": found.oracle_crossfit,
        "random": found.deciders["random"], "live_accuracy": found.live, "live_worst_gain": found.live_worst,
        "seeds": len(table.seeds), "noise": table.noise, "deciders": found.deciders,
        "ranking": [
            {
                "rank": table.rank(table.sequences[k]), "actions": list(table.sequences[k]),
                "accuracy": float(table.values[k]), "error": float(table.errors[k]),
                "agent": table.sequences[k] == found.actions, "never": int(k) == table.never,
            }
            for k in order
        ],
    }  # fmt: skip


def document(found: Evaluation) -> dict[str, Any]:
    """As plain values; those of a single environment are also at the top level."""
    rows = [row(one) for one in found.standings]
    hashes = {one.policy_hash for one in found.standings}
    whole = {
        "rank": float(np.mean([r["rank"] for r in rows])), "of": float(np.mean([r["of"] for r in rows])),
        "gap_share": found.gap_share, "gap_share_interval": list(found.share_interval),
        "accuracy": float(np.mean([r["accuracy"] for r in rows])),
        "policy_hash": next(iter(hashes)) if len(hashes) == 1 else None,
    }  # fmt: skip
    top = {key: value for key, value in rows[0].items() if key != "ranking"} if len(rows) == 1 else whole
    return {
        **top, "mean_gap_share": found.mean_gap_share, "crossfit_gap_share": found.crossfit_gap_share,
        "worst_gain": found.worst.gain, "worst_environment": found.worst.table.name, "leave_one_out": found.left_out,
        "deciders_gap_share": decider_shares(found.standings), "environments": rows,
    }  # fmt: skip


def decider_shares(standings: Sequence[DeciderResult]) -> dict[str, float]:
    """The share of the gap that each other decider reaches in all environments together."""
    gap = sum(s.gap for s in standings)
    return {
        name: sum(s.deciders[name] - s.never for s in standings) / gap if gap > 0 else math.nan for name in BASELINES
    }  # fmt: skip
