"""Matrix products: find a hidden matrix by gradient descent, which is nothing but products of matrices.

python matmul.py --epochs 30 --size 400
"""

from __future__ import annotations

import argparse

import numpy as np

STEPS = 4
"""Steps of gradient descent in an epoch."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Find a hidden matrix by gradient descent.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--size", type=int, default=400, help="rows and columns of the hidden matrix")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    random = np.random.default_rng(arguments.seed)
    size = arguments.size
    hidden = random.normal(size=(size, size))
    inputs = random.normal(size=(4 * size, size))
    outputs = inputs @ hidden
    found = np.zeros_like(hidden)
    rate = 0.06 / len(inputs)
    for epoch in range(1, arguments.epochs + 1):
        for _ in range(STEPS):
            found -= rate * (inputs.T @ (inputs @ found - outputs))
        loss = float(np.mean((found - hidden) ** 2))
        print(f"epoch {epoch}/{arguments.epochs} loss {loss:.4g}", flush=True)


if __name__ == "__main__":
    main()
