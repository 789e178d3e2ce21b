"""Clients that submit, cancel, hold and release, and remember what they were told; and processes that hold leases."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.client.client import Client
from gpuyard.client.connection import description
from gpuyard.client.transport import NoDaemon, Refused
from gpuyard.spec.notation import array_of
from tests.chaos.harness import GPU_MEMORY, PATIENCE, SOURCES, job_command, stoppable_command
from tests.conftest import REPOSITORY

KINDS = ("job", "job", "job", "array", "batch", "dependency")
NAMES = ("red", "green", "blue", "white")


@dataclass(slots=True)
class Told:
    """What the daemon has acknowledged."""

    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    many: list[tuple[str, str, float]] = field(default_factory=list)
    """The array, or the name and the newest job then, of jobs that were cancelled together; and when that was."""
    held: dict[str, float] = field(default_factory=dict)
    """When the hold of each job was acknowledged that was not released since."""
    rests: list[tuple[str, float, float]] = field(default_factory=list)
    """A job, and between which times it was held."""
    tags: Counter[str] = field(default_factory=Counter)
    """How many jobs each request asked for, by the tag that they have."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many requests of each kind there were."""
    lost: int = 0
    """How many requests got no answer."""
    refused: int = 0

    def add(self, other: Told) -> None:
        """What somebody else was told."""
        self.submitted += other.submitted
        self.cancelled += other.cancelled
        self.many += other.many
        self.held |= other.held
        self.rests += other.rests
        self.tags += other.tags
        self.kinds += other.kinds
        self.lost += other.lost
        self.refused += other.refused


class Holders:
    """A process that holds leases: ended now and then, as nobody can prevent, and begun again."""

    def __init__(self, socket: str, stamps: Path, seed: int, log: Path) -> None:
        self.begun = 0
        self._command = [sys.executable, "-m", "tests.chaos.holder", socket, str(stamps)]
        self._seed, self._log = seed, log
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Let there be one."""
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        self.begun += 1
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{SOURCES}:{REPOSITORY}"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, f"{self._seed} {self.begun}"], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env=environment, cwd=REPOSITORY,
            )  # fmt: skip

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self.stop()

    def stop(self) -> None:
        """Let it come to its end, with no lease left."""
        if self._process is not None:
            self._process.communicate(timeout=PATIENCE)
            self._process = None


class Clients:
    """Several clients at once, each a thread, until they are told to stop."""

    def __init__(self, socket: str, stamps: Path, seed: int, count: int, most: int) -> None:
        self.told = [Told() for _ in range(count)]
        self.errors: list[BaseException] = []
        self._socket, self._stamps, self._most = socket, stamps, most // count
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(n, told, random.Random(f"{seed} {n}")))
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
            total.add(told)
        return total

    def _run(self, number: int, told: Told, rng: random.Random) -> None:
        client = Client(self._socket, timeout=30.0, say=lambda text: None)
        try:
            while not self._done.wait(rng.uniform(0.005, 0.08)):
                try:
                    self._one(client, told, rng, number)
                except NoDaemon:
                    told.lost += 1
                    self._done.wait(0.05)
        except BaseException as error:
            self.errors.append(error)

    def _one(self, client: Client, told: Told, rng: random.Random, number: int) -> None:
        dice = rng.random()
        try:
            if dice < 0.7:
                if len(told.submitted) < self._most:
                    self._submit(client, told, rng, number)
            elif told.submitted:
                _disturb(client, told, dice, rng.choice(told.submitted[-10:]), rng)
        except Refused as error:
            if error.status != 409 and "could never start" not in str(error):  # the one that it follows ended otherwise
                raise
            told.refused += 1

    def _submit(self, client: Client, told: Told, rng: random.Random, number: int) -> None:
        tag = f"{number}-{told.kinds.total()}"
        kind, jobs = rng.choice(KINDS if told.submitted else KINDS[:-1]), [self._job(rng, tag)]
        told.kinds[kind] += 1
        if kind == "batch":
            jobs += [self._job(rng, tag) for _ in range(2)]
            rows = [{**job, "row": {"number": n, "wave": (n + 1) // 2}} for n, job in enumerate(jobs, 1)]
            told.tags[tag] = len(rows)
            ids = client.submit_batch(rows, tag, waves=rng.random() < 0.5)["ids"]
        elif kind == "array":
            tasks, most = rng.choice([3, 5]), rng.choice(["", "%2"])
            told.tags[tag] = tasks
            array = client.submit_described({**jobs[0], "array": f"0-{tasks - 1}{most}"})
            ids = [f"{array}_{task}" for task in range(tasks)]
        else:
            after = f"{rng.choice(['afterok', 'afternotok', 'afterany'])}:{rng.choice(told.submitted[-10:] or [''])}"
            told.tags[tag] = 1
            ids = [client.submit_described(jobs[0] | ({"dependency": after} if kind == "dependency" else {}))]
        told.submitted += ids
        if jobs[0]["hold"]:
            told.held[ids[0]] = time.time()

    def _job(self, rng: random.Random, tag: str) -> dict[str, Any]:
        """A job: one that can be stopped and goes on, or not; on GPUs of its own, or on shares of them."""
        soft, share = rng.random() < 0.4, rng.choice([None, None, 0.25, 0.375])
        if soft:
            command = stoppable_command(self._stamps, rng.choice([1, 5, 15]))
        else:
            command = job_command(self._stamps, round(rng.choice([0, 0.02, 0.1, 0.3]), 3))
        wishes: dict[str, Any] = {
            "gpus": rng.choice([1, 1, 1, 2, 3]),
            "grace": 30.0 if soft else rng.choice([0.0, 2.0]),
            "hold": rng.random() < 0.1,
            "name": rng.choice(NAMES),
            "preemptible": soft,
            "priority": float(rng.choice([0, 0, 5]) if not soft else rng.choice([-1, 0])),
            "tags": [tag],
        }
        if share is not None:
            wishes["gpu_memory"] = int(share * GPU_MEMORY)
        return description(command, "/", {"PATH": "/usr/bin:/bin"}, **wishes)


def _disturb(client: Client, told: Told, dice: float, job: str, rng: random.Random) -> None:
    """Cancel, hold or release a job; or cancel all of its array, or those of a name."""
    if dice < 0.77:
        client.cancel(job)
        told.cancelled.append(job)
        told.held.pop(job, None)
    elif dice < 0.8:
        _cancel_many(client, told, job, rng)
    elif dice < 0.9:
        client.hold(job)
        told.held[job] = time.time()
    elif told.held:
        job, since = next(iter(told.held.items()))
        told.rests.append((job, since, time.time()))
        del told.held[job]  # released or not, if no answer comes: so nothing is known of it any more
        client.release(job)


def _cancel_many(client: Client, told: Told, job: str, rng: random.Random) -> None:
    if array := array_of(job):
        told.kinds["cancel an array"] += 1
        client.cancel(array)
        told.many.append((array, "", time.time()))
    else:
        name = rng.choice(NAMES)
        told.kinds["cancel by name"] += 1
        client.change_jobs("cancel", name=name)
        told.many.append((name, told.submitted[-1], time.time()))
