"""A small convolutional network that tells stripes apart: one convolution, one pooling, one dense layer.

python cnn.py --epochs 15 --size 3000
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIDE, KERNEL, FILTERS, CLASSES, BATCH = 18, 5, 8, 4, 25
POOLED = (SIDE - KERNEL + 1) // 2


def make_images(count: int, random: np.random.Generator) -> tuple[Floats, Ints]:
    """Noisy stripes: level, upright, or along one of the diagonals."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    labels = random.integers(CLASSES, size=count)
    slopes = np.array([(1, 0), (0, 1), (1, 1), (1, -1)])[labels]
    along = slopes[:, 0, None, None] * rows + slopes[:, 1, None, None] * columns
    phase = random.uniform(0, 2 * np.pi, size=(count, 1, 1))
    return np.sin(along * 1.3 + phase) + random.normal(scale=2.0, size=along.shape), labels


class Network:
    """The weights, and one step of training."""

    def __init__(self, random: np.random.Generator) -> None:
        self.filters = random.normal(scale=0.1, size=(KERNEL * KERNEL, FILTERS))
        self.dense = random.normal(scale=0.05, size=(POOLED * POOLED * FILTERS, CLASSES))

    def train(self, images: Floats, labels: Ints, rate: float) -> float:
        """One step of gradient descent on a batch; the loss before it."""
        count = len(images)
        windows = np.lib.stride_tricks.sliding_window_view(images, (KERNEL, KERNEL), axis=(1, 2))
        patches = windows.reshape(-1, KERNEL * KERNEL)
        raw = (patches @ self.filters).reshape(count, POOLED, 2, POOLED, 2, FILTERS)
        active = np.maximum(raw, 0.0)
        pooled = active.mean(axis=(2, 4)).reshape(count, -1)
        scores = pooled @ self.dense
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        loss = -float(np.mean(np.log(chances[np.arange(count), labels] + 1e-12)))

        error = chances
        error[np.arange(count), labels] -= 1.0
        back = (error @ self.dense.T).reshape(count, POOLED, 1, POOLED, 1, FILTERS) / 4
        back = np.where(raw > 0, back, 0.0).reshape(-1, FILTERS)
        self.dense -= rate / count * (pooled.T @ error)
        self.filters -= rate / count * (patches.T @ back)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small convolutional network on stripes.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--size", type=int, default=3000, help="images in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    random = np.random.default_rng(arguments.seed)
    images, labels = make_images(arguments.size, random)
    network = Network(random)
    for epoch in range(1, arguments.epochs + 1):
        order = random.permutation(len(images))
        batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
        loss = np.mean([network.train(images[batch], labels[batch], rate=0.02) for batch in batches])
        print(f"epoch {epoch}/{arguments.epochs} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
