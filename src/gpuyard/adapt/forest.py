"""Trees of recorded decisions as arrays, and what policies come to in them: exactly, or by episodes that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuyard.adapt.scorer import WIDTH, Floats, Network, Range, softmax
from gpuyard.adapt.tables import Table

Integers = npt.NDArray[np.int64]
LEAST_SCALE = 0.01
"""Accuracy that counts as a reward of 1 at least: smaller gaps are noise."""


@dataclass(frozen=True)
class Forest:
    """Trees side by side: a node per situation, a column per action."""

    features: Floats
    """Of all nodes and actions, one below the other."""
    possible: npt.NDArray[np.bool_]
    child: Integers
    """The node that an action leads to; -1: the end."""
    value: Floats
    """Where it ends, the reward."""
    levels: tuple[Integers, ...]
    """Nodes by depth; the first are the roots."""
    root: Integers
    """Of each node, the number of its tree."""
    environment: Integers
    """Of each tree, the number of its environment."""
    weight: Floats
    """Of each tree."""

    @property
    def node(self) -> Integers:
        """Of each row of features, the number of its node."""
        return np.repeat(np.arange(len(self.possible)), self.possible.shape[1])

    def chances(self, network: Network, temperature: float = 1.0, rows: Floats | None = None) -> Floats:
        """Of every member, node and action."""
        scores = network.scores(self.features if rows is None else rows).reshape(network.members, *self.possible.shape)
        return softmax(np.where(self.possible, scores, -np.inf), temperature)

    def objective(self, worth: Floats) -> Floats:
        """Of every member, the mean of what the roots are worth."""
        return np.asarray((worth[:, self.levels[0]] * self.weight).sum(axis=1))


def rewards(table: Table) -> Floats:
    """What each sequence gains over never growing, relative to what there is to gain, or to noise if that is more."""
    gain = table.values - table.values[table.never]
    return np.asarray(gain / reward_scale(table))


def reward_scale(table: Table) -> float:
    """The accuracy that is a reward of 1."""
    noise = 0.0 if np.isnan(table.noise) else 2.0 * table.noise
    return max(float(table.values.max() - table.values[table.never]), noise, LEAST_SCALE)


def plant(tables: Sequence[Table], within: Range) -> Forest:
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
    """How often each action was done in episodes from each root, and the sum of their rewards."""
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
