"""REINFORCE over recorded trees of decisions, for all environments at once, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuyard.adapt.agent.agent_file import Agent, rounded
from gpuyard.adapt.agent.decision_trees import Actions, Table
from gpuyard.adapt.agent.scorer import FEATURES, WIDTH, Floats, Network, Range, Regression, known, shaken, softmax
from gpuyard.errors import UserError

Integers = npt.NDArray[np.int64]
LEAST_SCALE = 0.01  # accuracy that counts as a reward of 1 at least: smaller gaps are noise


@dataclass(frozen=True)
class Forest:
    """Trees side by side: a node per situation, a column per action."""

    features: Floats  # of all nodes and actions, one below the other
    possible: npt.NDArray[np.bool_]
    child: Integers  # the node that an action leads to; -1: the end
    value: Floats  # where it ends, the reward
    levels: tuple[Integers, ...]  # nodes by depth; the first are the roots
    root: Integers  # of each node, the number of its tree
    environment: Integers  # of each tree, the number of its environment
    weight: Floats  # of each tree

    @property
    def node(self) -> Integers:
        return np.repeat(np.arange(len(self.possible)), self.possible.shape[1])

    def chances(self, network: Network, temperature: float = 1.0, rows: Floats | None = None) -> Floats:
        scores = network.scores(self.features if rows is None else rows).reshape(network.members, *self.possible.shape)
        return softmax(np.where(self.possible, scores, -np.inf), temperature)

    def objective(self, worth: Floats) -> Floats:
        return np.asarray((worth[:, self.levels[0]] * self.weight).sum(axis=1))


def rewards(table: Table) -> Floats:
    """Gain of each sequence over never growing, relative to the largest gain, or to noise if that is more."""
    gain = table.values - table.values[table.never]
    return np.asarray(gain / reward_scale(table))


def reward_scale(table: Table) -> float:
    """The accuracy that is a reward of 1."""
    noise = 0.0 if np.isnan(table.noise) else 2.0 * table.noise
    return max(float(table.values.max() - table.values[table.never]), noise, LEAST_SCALE)


def build_forest(tables: Sequence[Table], within: Range) -> Forest:
    """The trees of tables: one per environment and seed, all with the environment's expected rewards."""
    width = 1 + max(seen[0].nothing for table in tables for seen in table.situations.values())
    nodes = sum(len(table.situations) * len(table.seeds) for table in tables)
    features, possible = np.zeros((nodes, width, WIDTH)), np.zeros((nodes, width), dtype=bool)
    child, value = np.full((nodes, width), -1), np.zeros((nodes, width))
    depths, root, environment, weight = list[int](), list[int](), list[int](), list[float]()
    for number, table in enumerate(tables):
        reward = rewards(table)
        for seed in range(len(table.seeds)):
            at = {prefix: len(depths) + k for k, prefix in enumerate(table.situations)}
            for prefix, node in at.items():
                seen = table.situations[prefix][seed]
                actions = slice(seen.nothing + 1)
                features[node, actions], possible[node, actions] = within.rows(seen), True
                for action in range(seen.nothing + 1):
                    after = (*prefix, action)
                    child[node, action] = at.get(after, -1)
                    value[node, action] = 0.0 if after in at else reward[table.place[after]]
                depths.append(len(prefix))
                root.append(len(weight))
            environment.append(number)
            weight.append(1.0 / len(table.seeds) / len(tables))
    depth = np.array(depths)
    levels = tuple(np.flatnonzero(depth == d) for d in range(max(depths) + 1))
    return Forest(
        features.reshape(-1, WIDTH), possible, child, value, levels, np.array(root), np.array(environment),
        np.array(weight),
    )  # fmt: skip


def play(forest: Forest, chances: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Of every member: how likely each node is, what each action comes to, and what each node is worth.

    The weights are of each member and tree.
    """
    reach, worth = np.zeros(chances.shape[:2]), np.zeros(chances.shape[:2])
    comes_to = np.broadcast_to(forest.value, chances.shape).copy()
    for nodes in reversed(forest.levels):
        after, part = forest.child[nodes], comes_to[:, nodes]
        inner = after >= 0
        part[:, inner] = worth[:, after[inner]]
        comes_to[:, nodes] = part
        worth[:, nodes] = (chances[:, nodes] * part).sum(axis=2)
    reach[:, forest.levels[0]] = weight
    for nodes in forest.levels[:-1]:
        after = forest.child[nodes]
        inner = after >= 0
        reach[:, after[inner]] = (reach[:, nodes, None] * chances[:, nodes])[:, inner]
    return reach, comes_to, worth


def draw(forest: Forest, chances: Floats, episodes: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    counts, sums = np.zeros(chances.shape), np.zeros(chances.shape)
    visits = np.zeros(chances.shape[:2], dtype=np.int64)
    visits[:, forest.levels[0]] = episodes
    for nodes in forest.levels:
        counts[:, nodes] = rng.multinomial(visits[:, nodes], chances[:, nodes])
        inner = forest.child[nodes] >= 0
        visits[:, forest.child[nodes][inner]] = counts[:, nodes][:, inner]
    for nodes in reversed(forest.levels):
        after, part = forest.child[nodes], counts[:, nodes] * forest.value[nodes]
        inner = after >= 0
        part[:, inner] = sums[:, after[inner]].sum(axis=2)
        sums[:, nodes] = part
    return counts, sums


Watch = Callable[[int, int, str], None]
COOLED = 0.7  # share of the updates after which temperature and bonus have fallen
LASTING = 0.05  # the largest part of the bonus that stays where rewards are noisy
POINT = 0.01  # accuracy per budget left that the regression must promise for a score of 1, where learning begins


@dataclass(frozen=True)
class Recipe:
    updates: int = 400
    rate: float = 0.03
    units: int = 12
    members: int = 6  # networks that learn beside each other from different beginnings
    keep: int = 3  # members with the highest return, which decide together unless the best alone is better
    temperature: float = 1.0  # of the softmax at the beginning; it falls to 1
    entropy: float = 0.3  # bonus at the beginning, relative to a reward of 1; it falls to what noise makes of rewards
    ridge: float = 1e-3
    bagging: float = 0.0  # variation of the environments' weights among members: 0 none, 1 exponential
    shake: float = 0.1  # noise of features at each update: environments that were not recorded differ a little
    episodes: int = 0  # drawn for each update, environment and seed; 0: the expectation over all of them
    seed: int = 0


@dataclass(frozen=True)
class Update:
    objective: float  # expected reward under the chances of that moment, the mean of the members
    drawn: float  # mean reward of one episode in each environment and seed, of the first member
    entropy: float  # relative to that of equal chances
    temperature: float


def learn(
    tables: Sequence[Table], recipe: Recipe | None = None, start: Agent | None = None, watch: Watch | None = None
) -> Agent:
    """A decider for these environments; with `start`, training continues from that one."""
    if not tables:
        raise UserError("there is no environment to learn from; record some")
    recipe = recipe or Recipe()
    within = known(tables) if start is None else known(tables).join(start.within)
    regression = Regression(tables, within, recipe.shake)
    gains = regression.fit()
    network = _beginning(regression, gains.ridge, recipe) if start is None else _again(start.network, recipe)
    network, curve = climb(tables, recipe, within, network, watch)
    noises = [table.noise for table in tables if not math.isnan(table.noise)]
    training = {
        "environments": [_described(table) for table in tables],
        "recipe": asdict(recipe),
        "from": None if start is None else start.hash,
        "curve": [[round(value, 6) for value in asdict(update).values()] for update in curve],
        "columns": list(asdict(curve[-1])),
    }
    return rounded(Agent(network, gains, within, median(noises) if noises else math.nan, training))


def recipe_of(agent: Agent) -> Recipe:
    given = agent.training.get("recipe", {})
    return Recipe(**{field.name: given[field.name] for field in fields(Recipe) if field.name in given})


def climb(
    tables: Sequence[Table], recipe: Recipe, within: Range, network: Network, watch: Watch | None = None
) -> tuple[Network, list[Update]]:
    forest, rng = build_forest(tables, within), np.random.default_rng(recipe.seed)
    weight = forest.weight * _shares(recipe, len(tables))[:, forest.environment]
    ascent, curve, stays = Ascent(network, recipe.rate, recipe.ridge), list[Update](), _lasting_bonus(tables)
    for k in range(recipe.updates):
        warm = max(1.0 - k / recipe.updates / COOLED, 0.0)
        temperature, bonus = recipe.temperature**warm, max(recipe.entropy * warm, stays)
        rows = shaken(forest.features, forest.node, recipe.shake, rng) if recipe.shake else forest.features
        chances = forest.chances(ascent.network, temperature, rows)
        reach, comes_to, worth = play(forest, chances, weight)
        if recipe.episodes:
            slope = _drawn_slope(forest, chances, worth, weight, recipe.episodes, rng)
        else:
            slope = reach[..., None] * chances * (comes_to - worth[..., None])
        slope += bonus * _towards_even(reach, chances)
        ascent.step(rows, slope.reshape(len(slope), -1) / temperature)
        curve.append(_point(forest, chances, reach, worth, temperature, rng))
        if watch is not None:
            watch(k + 1, recipe.updates, f"objective {curve[-1].objective:.3f}")
    return _selected(tables, within, forest, ascent.network, recipe.keep), curve


def greedy(choose: Callable[[Any], int], table: Table) -> Actions:
    prefix: Actions = ()
    while prefix in table.typical:
        prefix = (*prefix, choose(table.typical[prefix]))
    return prefix


def _described(table: Table) -> dict[str, Any]:
    return {
        "environment": table.name, "seeds": len(table.seeds), "sequences": len(table.sequences),
        "never": round(float(table.values[table.never]), 6), "best": round(float(table.values.max()), 6),
    }  # fmt: skip


def _lasting_bonus(tables: Sequence[Table]) -> float:
    """The noise of rewards: smaller differences are not to be learned."""
    shares = [table.noise / reward_scale(table) for table in tables if not math.isnan(table.noise)]
    return min(median(shares), LASTING) if shares else 0.0


def _shares(recipe: Recipe, environments: int) -> Floats:
    drawn = np.random.default_rng([recipe.seed, 1]).exponential(1.0, (recipe.members, environments))
    shares = 1.0 - recipe.bagging + recipe.bagging * drawn
    return np.asarray(shares / shares.mean(axis=1, keepdims=True))


def _beginning(regression: Regression, ridge: float, recipe: Recipe) -> Network:
    network = Network.random(np.random.default_rng([recipe.seed, 2]), recipe.members, recipe.units)
    shares = _shares(recipe, len(regression.parts))
    return replace(network, direct=np.stack([regression.solve(part, ridge) for part in shares]) / POINT)


def _again(start: Network, recipe: Recipe) -> Network:
    """Members that start from others; additional ones are disturbed a little."""
    rng, at = np.random.default_rng([recipe.seed, 2]), np.arange(recipe.members) % start.members
    parts = [part[at] for part in (start.hidden, start.bias, start.out, start.direct)]
    for part in parts:
        part[start.members :] += rng.normal(0.0, 0.05, part[start.members :].shape)
    return Network(*parts)


def _towards_even(reach: Floats, chances: Floats) -> Floats:
    logs = np.log(np.maximum(chances, 1e-12))
    entropy = -(chances * logs).sum(axis=2, keepdims=True)
    return np.asarray(-reach[..., None] * chances * (logs + entropy))


def _drawn_slope(
    forest: Forest, chances: Floats, worth: Floats, weight: Floats, episodes: int, rng: np.random.Generator
) -> Floats:
    """REINFORCE's gradient from drawn episodes: reward less the node's value, for each action taken."""
    counts, sums = draw(forest, chances, episodes, rng)
    ahead = (sums - counts * worth[..., None]) / episodes
    slope = ahead - chances * ahead.sum(axis=2, keepdims=True)
    return np.asarray(slope * weight[:, forest.root, None])


def _point(
    forest: Forest, chances: Floats, reach: Floats, worth: Floats, temperature: float, rng: np.random.Generator
) -> Update:
    even = np.log(np.maximum(forest.possible.sum(axis=1), 2))
    entropy = -(chances * np.log(np.maximum(chances, 1e-12))).sum(axis=2) / even
    _, sums = draw(forest, chances[:1], 1, rng)
    roots = forest.levels[0]
    drawn = float((sums[0, roots].sum(axis=1) * forest.weight).sum())
    objective = float(forest.objective(worth).mean())
    return Update(objective, drawn, float((entropy * reach).sum() / reach.sum()), temperature)


class Ascent:
    """Adam, uphill, for all members at once; weights are pulled to where they began."""

    def __init__(self, network: Network, rate: float, ridge: float) -> None:
        self.network, self.rate, self.ridge, self.steps = network, rate, ridge, 0
        self.parts = [network.hidden, network.bias, network.out, network.direct]
        self.home = [np.zeros_like(part) for part in self.parts[:3]] + [network.direct]
        self.first = [np.zeros_like(part) for part in self.parts]
        self.second = [np.zeros_like(part) for part in self.parts]

    def step(self, rows: Floats, slope: Floats) -> None:
        net, plain = self.network, rows[:, : len(FEATURES)]
        inner = np.tanh(plain @ net.hidden + net.bias[:, None])
        back = slope[..., None] * net.out[:, None] * (1.0 - inner**2)
        slopes = [plain.T @ back, back.sum(axis=1), np.einsum("mrh,mr->mh", inner, slope), slope @ rows]
        self.steps += 1
        for k, (part, up) in enumerate(zip(self.parts, slopes, strict=True)):
            up = up - self.ridge * (part - self.home[k])
            self.first[k] = 0.9 * self.first[k] + 0.1 * up
            self.second[k] = 0.99 * self.second[k] + 0.01 * up**2
            mean, square = self.first[k] / (1 - 0.9**self.steps), self.second[k] / (1 - 0.99**self.steps)
            self.parts[k] = part + self.rate * mean / (np.sqrt(square) + 1e-8)
        self.network = Network(*self.parts)


def _selected(tables: Sequence[Table], within: Range, forest: Forest, network: Network, keep: int) -> Network:
    """The members that together are best where they learned: some, or the best alone."""
    _, _, worth = play(forest, forest.chances(network), forest.weight)
    order = np.argsort(-forest.objective(worth), kind="stable")

    def comes_to(some: Network) -> float:
        reached = [greedy(lambda seen: int(np.argmax(some.chances(within.rows(seen)))), table) for table in tables]
        return float(np.mean([rewards(t)[t.place[one]] for t, one in zip(tables, reached, strict=True)]))

    choices = [network.choose(order[:k].tolist()) for k in (keep, 1)]
    return max(choices, key=lambda some: round(comes_to(some), 3))
