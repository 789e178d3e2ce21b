"""Train a small network on generated digits, as one would on MNIST. It can be stopped, and goes on where it was.

python mnist_like.py --epochs 10 --id first          # trains here and now; first.npz holds how far it got
python mnist_like.py --epochs 20 --id first          # goes on with epoch 11
python mnist_like.py --epochs 20 --id second --wait  # waits for a GPU in gpuyard's queue

`--wait` asks gpuyard for a GPU, which is this process's until it ends; within a job it has one already.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Weights = dict[str, Floats]

# Digits three columns wide and five rows high; each number stands for a row, its bits for the columns.
FONT = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")
SCALE, MARGIN, HIDDEN, BATCH, RATE = 4, 4, 64, 50, 0.05
HEIGHT, WIDTH = 5 * SCALE + MARGIN, 3 * SCALE + MARGIN


def make_digits(count: int, random: np.random.Generator) -> tuple[Floats, Ints]:
    """Pictures of digits, each somewhere in its frame and full of noise, and which digits they are."""
    rows = np.array([[int(row) for row in digit] for digit in FONT])
    shapes = (rows[:, :, None] >> np.array([2, 1, 0]) & 1).repeat(SCALE, axis=1).repeat(SCALE, axis=2)
    digits = random.integers(10, size=count)
    pictures = random.normal(scale=0.6, size=(count, HEIGHT, WIDTH))
    places = random.integers(MARGIN + 1, size=(count, 2))
    for picture, digit, (down, right) in zip(pictures, digits, places, strict=True):
        picture[down : down + 5 * SCALE, right : right + 3 * SCALE] += shapes[digit]
    return pictures.reshape(count, -1), digits


def guess(weights: Weights, pictures: Floats) -> tuple[Floats, Floats]:
    """What the hidden layer makes of pictures, and how likely each digit is."""
    hidden = np.maximum(pictures @ weights["enter"] + weights["bias"], 0.0)
    scores = hidden @ weights["leave"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def train(weights: Weights, pictures: Floats, digits: Ints) -> float:
    """One step of gradient descent on a batch; the loss before it."""
    hidden, error = guess(weights, pictures)
    each = np.arange(len(digits))
    loss = -float(np.mean(np.log(error[each, digits] + 1e-12)))
    error[each, digits] -= 1.0
    back = np.where(hidden > 0, error @ weights["leave"].T, 0.0)
    weights["leave"] -= RATE / len(digits) * (hidden.T @ error)
    weights["enter"] -= RATE / len(digits) * (pictures.T @ back)
    weights["bias"] -= RATE * back.mean(axis=0)
    return loss


def save(path: Path, epoch: int, weights: Weights) -> None:
    """Write the checkpoint in one step, so that a job which is ended in the middle leaves the one before."""
    part = path.with_name(f"{path.stem}.part.npz")
    content: dict[str, Any] = {"epoch": epoch, **weights}
    np.savez(part, **content)
    part.replace(path)


def load(path: Path, seed: int) -> tuple[int, Weights]:
    """Epochs done so far and the weights: those of the checkpoint, or random ones."""
    if path.exists():
        with np.load(path) as found:
            weights = {name: found[name] for name in ("enter", "bias", "leave")}
            return int(found["epoch"]), weights
    random = np.random.default_rng(seed)
    enter = random.normal(scale=0.05, size=(HEIGHT * WIDTH, HIDDEN))
    return 0, {"enter": enter, "bias": np.zeros(HIDDEN), "leave": random.normal(scale=0.1, size=(HIDDEN, 10))}


def wait_in_the_queue(name: str) -> None:
    """Go on when a GPU is free; it is ours, and CUDA_VISIBLE_DEVICES names it, until this process ends."""
    import gpuyard  # here: without --wait nothing of it is needed

    print(f"{name} waits for a GPU in gpuyard's queue", file=sys.stderr, flush=True)
    try:
        gpus = gpuyard.wait_for_gpus(1, name=name)
    except gpuyard.GpuyardError as error:
        sys.exit(f"{name}: {error}")
    print(f"{name} has GPU {gpus[0]}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on generated digits.")
    parser.add_argument("--epochs", type=int, default=15, help="in all, those of the checkpoint included")
    parser.add_argument("--id", default="mnist", help="names the checkpoint, ID.npz")
    parser.add_argument("--wait", action="store_true", help="wait for a GPU in gpuyard's queue")
    parser.add_argument("--size", type=int, default=5000, help="pictures in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.wait:
        wait_in_the_queue(arguments.id)

    pictures, digits = make_digits(arguments.size, np.random.default_rng(arguments.seed))
    unseen = make_digits(500, np.random.default_rng(arguments.seed + 1))
    checkpoint = Path(f"{arguments.id}.npz")
    done, weights = load(checkpoint, arguments.seed)
    if done:
        print(f"{checkpoint}: {done} epochs are done", flush=True)
    for epoch in range(done + 1, arguments.epochs + 1):
        # An order of its own for each epoch: a run that was interrupted ends as one that was not.
        order = np.random.default_rng([arguments.seed, epoch]).permutation(len(digits))
        batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
        loss = np.mean([train(weights, pictures[batch], digits[batch]) for batch in batches])
        accuracy = np.mean(guess(weights, unseen[0])[1].argmax(axis=1) == unseen[1])
        print(f"epoch {epoch}/{arguments.epochs} loss {loss:.4f} accuracy {accuracy:.3f}", flush=True)
        save(checkpoint, epoch, weights)


if __name__ == "__main__":
    main()
