"""Gradient boosted trees, by histograms: every epoch adds a tree that corrects what the others leave.

python boosted_trees.py --epochs 80 --size 50000
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEATURES, BINS, DEPTH, RATE = 12, 32, 4, 0.2


def make_table(rows: int, random: np.random.Generator) -> tuple[Ints, Floats]:
    """Columns of numbers in bins, and a target that depends on some of them, and on two together."""
    table = random.uniform(-1, 1, size=(rows, FEATURES))
    target = np.sin(3 * table[:, 0]) + table[:, 1] ** 2 + 2 * table[:, 2] * table[:, 3]
    return ((table + 1) / 2 * BINS).astype(np.int64), target + random.normal(scale=0.1, size=rows)


def best_split(bins: Ints, rest: Floats, node: Ints, nodes: int) -> tuple[Ints, Ints]:
    """For each node the feature, and the bin up to which rows go left, that leave the smallest error."""
    gain = np.full((nodes, FEATURES, BINS), -np.inf)
    for feature in range(FEATURES):
        cell = node * BINS + bins[:, feature]
        sums = np.bincount(cell, rest, nodes * BINS).reshape(nodes, BINS).cumsum(axis=1)
        counts = np.bincount(cell, minlength=nodes * BINS).reshape(nodes, BINS).cumsum(axis=1)
        others, other_counts = sums[:, -1:] - sums, counts[:, -1:] - counts
        gain[:, feature] = sums**2 / np.maximum(counts, 1) + others**2 / np.maximum(other_counts, 1)
    best = gain.reshape(nodes, -1).argmax(axis=1)
    return best // BINS, best % BINS


def fit_tree(bins: Ints, rest: Floats) -> Floats:
    """What a tree of DEPTH levels says of every row: the mean of what is left in its leaf."""
    node = np.zeros(len(rest), dtype=np.int64)
    for level in range(DEPTH):
        feature, last_left = best_split(bins, rest, node, 2**level)
        node = 2 * node + (bins[np.arange(len(rest)), feature[node]] > last_left[node])
    counts = np.bincount(node, minlength=2**DEPTH)
    means: Floats = np.bincount(node, rest, 2**DEPTH) / np.maximum(counts, 1)
    return means[node]


def main() -> None:
    parser = argparse.ArgumentParser(description="Boost regression trees.")
    parser.add_argument("--epochs", type=int, default=80, help="trees")
    parser.add_argument("--size", type=int, default=50_000, help="rows of the table")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    bins, target = make_table(arguments.size, np.random.default_rng(arguments.seed))
    rest = target - target.mean()
    for epoch in range(1, arguments.epochs + 1):
        rest = rest - RATE * fit_tree(bins, rest)
        print(f"epoch {epoch}/{arguments.epochs} loss {np.mean(rest**2):.4f}", flush=True)


if __name__ == "__main__":
    main()
