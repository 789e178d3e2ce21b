"""The script that the demo's jobs run:

it prints like a training, reports progress, and mostly sleeps. It is copied into the demo's directory as `train.py`,
and needs nothing but Python.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time

_BAR = 24
_LOOKS = 5  # how often an epoch draws its bar


def main() -> None:
    parser = argparse.ArgumentParser(description="Stands for a training: prints, tells how far it is, and sleeps.")
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=4.0, help="Seconds that an epoch takes.")
    parser.add_argument("--fail-at", type=int, default=0, help="The epoch in which it breaks down.")
    given = parser.parse_args()
    draw = random.Random(f"{given.model} {given.lr} {given.seed}")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
    print(f"{given.model}: lr {given.lr:g}, seed {given.seed}, GPUs {gpus}", flush=True)
    loss = draw.uniform(2.0, 3.0)
    for epoch in range(1, given.epochs + 1):
        loss = _epoch(epoch, given, loss, draw)
        if epoch == given.fail_at:
            raise FloatingPointError(f"loss is nan in epoch {epoch}; try a smaller --lr than {given.lr:g}")
    print(f"\033[1;32mdone: loss {loss:.4f}\033[0m", flush=True)


def _epoch(epoch: int, given: argparse.Namespace, loss: float, draw: random.Random) -> float:
    steps = draw.choice((50, 100, 200))
    for look in range(1, _LOOKS + 1):
        time.sleep(given.pace / _LOOKS)
        loss = max(0.02, loss * draw.uniform(0.93, 0.99))
        done = steps * look // _LOOKS
        filled = _BAR * look // _LOOKS
        bar = "█" * filled + " " * (_BAR - filled)
        rate = steps / given.pace
        ending = "\n" if look == _LOOKS else ""
        head = f"\repoch {epoch}/{given.epochs}: {100 * look // _LOOKS:3d}%|{bar}| {done}/{steps}"
        sys.stdout.write(f"{head} [{rate:.1f}it/s, loss={loss:.4f}]{ending}")
        sys.stdout.flush()
        _report(epoch - 1 + look / _LOOKS, given.epochs)
    print(f"\033[36mval\033[0m epoch {epoch}: accuracy {math.exp(-loss / 2):.3f}", flush=True)
    return loss


def _report(done: float, total: int) -> None:
    """What `gpuyard.progress` does, for a program that does not have it."""
    if path := os.environ.get("GPUYARD_PROGRESS"):
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(f"{done:.2f}/{total}\n")
        os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main()
