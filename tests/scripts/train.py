"""A tiny stand-in for a training program: it tells what it sees, and can stop and go on."""

import argparse
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="")
parser.add_argument("--wait-for-signal", action="store_true")
options = parser.parse_args()

rank, world = os.environ.get("SLURM_PROCID", "0"), os.environ.get("SLURM_NTASKS", "1")
print(f"rank {rank} of {world} on GPUs {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
print(f"lr {options.lr:g} seed {options.seed}", flush=True)


def save(number: int, frame: object) -> None:
    """Write a checkpoint, and stop."""
    with open(options.checkpoint, "w") as file:
        file.write("epoch 7\n")
    print("checkpoint written", flush=True)
    sys.exit(0)


if options.checkpoint and os.path.exists(options.checkpoint):
    with open(options.checkpoint) as file:
        print("resuming from", file.read().strip(), flush=True)
elif options.wait_for_signal:
    signal.signal(signal.SIGUSR1, save)
    print("training", flush=True)
    time.sleep(60)
for epoch in range(options.epochs):
    print(f"epoch {epoch}", flush=True)
