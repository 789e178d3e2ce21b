"""A process that has GPUs by leases now and then, and stamps when, until its input ends: a program of its own."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

from gpuyard.client.client import Client
from gpuyard.client.retry import patiently


def hold(client: Client, stamps: Path, rng: random.Random) -> None:
    """Wait for GPUs, for a while, and have them for a moment."""
    try:
        lease = client.acquire(
            rng.choice([1, 1, 2]), memory=rng.choice([None, "6G"]), priority=rng.choice([0.0, 5.0]),
            timeout=rng.choice([0.5, 5.0, 60.0]), say=lambda text: None,
        )  # fmt: skip
    except TimeoutError:
        return
    attempt = patiently(client.job, lease.id)["attempt"]
    with (stamps / lease.id).open("a", buffering=1) as file:
        for kind, seconds in (("start", rng.choice([0.0, 0.1, 1.0])), ("stop", 0.0)):
            gpus = ",".join(map(str, lease.indices))
            file.write(f"{kind} {lease.id} {attempt} {gpus} {os.getpid()} {time.time():.9f}\n")
            time.sleep(seconds)
    lease.release()


def main(socket: str, stamps: str, seed: str) -> None:
    over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    client, rng = Client(socket, timeout=30.0, say=lambda text: None), random.Random(seed)
    while not over.is_set():
        hold(client, Path(stamps), rng)


if __name__ == "__main__":
    main(*sys.argv[1:])
