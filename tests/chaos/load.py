"""Clients that submit, cancel, hold and release, and remember what they were told."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon, Refused
from tests.chaos.harness import job_command, stoppable_command


@dataclass(slots=True)
class Told:
    """What the daemon has acknowledged."""

    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    held: dict[str, float] = field(default_factory=dict)
    """When the hold of each job was acknowledged that was not released since."""
    rests: list[tuple[str, float, float]] = field(default_factory=list)
    """A job, and between which times it was held."""
    lost: int = 0
    """How many requests got no answer."""
    refused: int = 0


class Clients:
    """Several clients at once, each a thread, until they are told to stop."""

    def __init__(self, socket: str, stamps: Path, seed: int, count: int, most: int) -> None:
        self.told = [Told() for _ in range(count)]
        self.errors: list[BaseException] = []
        self._socket, self._stamps, self._most = socket, stamps, most // count
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(told, random.Random(f"{seed} {n}")))
            for n, told in enumerate(self.told)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> Told:
        """End, and say what all of them were told."""
        self._done.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        total = Told()
        for told in self.told:
            total.submitted += told.submitted
            total.cancelled += told.cancelled
            total.held |= told.held
            total.rests += told.rests
            total.lost += told.lost
            total.refused += told.refused
        return total

    def _run(self, told: Told, rng: random.Random) -> None:
        client = Client(self._socket, timeout=30.0)
        try:
            while not self._done.wait(rng.uniform(0.005, 0.08)):
                try:
                    self._one(client, told, rng)
                except NoDaemon:
                    told.lost += 1
                    self._done.wait(0.05)
        except BaseException as error:
            self.errors.append(error)

    def _one(self, client: Client, told: Told, rng: random.Random) -> None:
        dice = rng.random()
        if dice < 0.7:
            if len(told.submitted) < self._most:
                self._submit(client, told, rng)
        elif told.submitted:
            job = rng.choice(told.submitted[-10:])
            try:
                _disturb(client, told, dice, job)
            except Refused as error:
                if error.status != 409:
                    raise
                told.refused += 1

    def _submit(self, client: Client, told: Told, rng: random.Random) -> None:
        soft = rng.random() < 0.4
        if soft:
            command = stoppable_command(self._stamps, rng.choice([1, 5, 15]))
        else:
            command = job_command(self._stamps, round(rng.choice([0, 0.02, 0.1, 0.3]), 3))
        hold = rng.random() < 0.1
        job = client.submit(
            command,
            directory="/",
            environment={"PATH": "/usr/bin:/bin"},
            gpus=rng.choice([1, 1, 1, 2, 3]),
            grace=30.0 if soft else rng.choice([0.0, 2.0]),
            hold=hold,
            preemptible=soft,
            priority=float(rng.choice([0, 0, 5]) if not soft else rng.choice([-1, 0])),
        )
        told.submitted.append(job)
        if hold:
            told.held[job] = time.time()


def _disturb(client: Client, told: Told, dice: float, job: str) -> None:
    """Cancel, hold or release a job."""
    if dice < 0.8:
        client.cancel(job)
        told.cancelled.append(job)
        told.held.pop(job, None)
    elif dice < 0.9:
        client.hold(job)
        told.held[job] = time.time()
    elif told.held:
        job, since = next(iter(told.held.items()))
        told.rests.append((job, since, time.time()))
        del told.held[job]  # released or not, if no answer comes: so nothing is known of it any more
        client.release(job)
