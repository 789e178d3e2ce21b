"""A recurrent network that learns to go on with sine waves, trained by backpropagation through time.

python recurrent.py --epochs 20 --size 2000
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LENGTH, UNITS, BATCH, RATE = 40, 32, 50, 0.001


def make_waves(count: int, random: np.random.Generator) -> Floats:
    """Sine waves of several lengths and phases; the last value of each is the one to tell."""
    pace = random.uniform(0.15, 0.6, size=(count, 1))
    phase = random.uniform(0, 2 * np.pi, size=(count, 1))
    return np.sin(pace * np.arange(LENGTH + 1) + phase)


class Network:
    """Weights of an Elman network with Adam's moments, and one step of training."""

    def __init__(self, random: np.random.Generator) -> None:
        self.weights = [
            random.normal(scale=0.5, size=(1, UNITS)),
            random.normal(scale=1 / np.sqrt(UNITS), size=(UNITS, UNITS)),
            random.normal(scale=0.1, size=(UNITS, 1)),
        ]
        self.moments = [(np.zeros_like(w), np.zeros_like(w)) for w in self.weights]
        self.steps = 0

    def train(self, waves: Floats) -> float:
        """One step on a batch of waves: the next value at every point is to be told. The loss before it."""
        enter, again, leave = self.weights
        states = [np.zeros((len(waves), UNITS))]
        for time in range(LENGTH):
            states.append(np.tanh(waves[:, time, None] @ enter + states[-1] @ again))
        errors = np.concatenate([state @ leave for state in states[1:]], axis=1) - waves[:, 1:]

        gradients = [np.zeros_like(w) for w in self.weights]
        later = np.zeros((len(waves), UNITS))
        for time in reversed(range(LENGTH)):
            error = errors[:, time, None] * (2 / errors.size)
            gradients[2] += states[time + 1].T @ error
            inner = (error @ leave.T + later) * (1 - states[time + 1] ** 2)
            gradients[0] += waves[:, time, None].T @ inner
            gradients[1] += states[time].T @ inner
            later = inner @ again.T
        self._step(gradients)
        return float(np.mean(errors**2))

    def _step(self, gradients: list[Floats]) -> None:
        self.steps += 1
        for weight, gradient, (mean, square) in zip(self.weights, gradients, self.moments, strict=True):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            fresh = np.sqrt(square / (1 - 0.999**self.steps)) + 1e-8
            weight -= RATE * mean / (1 - 0.9**self.steps) / fresh


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recurrent network on sine waves.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=2000, help="waves in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    random = np.random.default_rng(arguments.seed)
    waves = make_waves(arguments.size, random)
    network = Network(random)
    for epoch in range(1, arguments.epochs + 1):
        order = random.permutation(len(waves))
        loss = np.mean([network.train(waves[order[first : first + BATCH]]) for first in range(0, len(order), BATCH)])
        print(f"epoch {epoch}/{arguments.epochs} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
