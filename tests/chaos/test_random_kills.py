"""Kill the daemon at random instants under load; in the end every promise must have been kept.

The load are jobs, arrays, batches, jobs that follow others, shares of memory, leases, and jobs that are preempted.

`GPUYARD_CHAOS_KILLS` says how often (`make chaos`: 200), `GPUYARD_CHAOS_SEED` repeats what a failure has printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.transport import Refused
from tests.chaos.checks import check_all, check_cancelled_together, check_tags, jobs_of
from tests.chaos.harness import PATIENCE, Daemon, exit_code, job_command, read_stamps
from tests.chaos.load import Clients, Holders, Told
from tests.contract.engine import alive

KILLS = int(os.environ.get("GPUYARD_CHAOS_KILLS", "12"))
SEED = int(os.environ.get("GPUYARD_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
LONGEST = 540.0
"""Seconds after which it is not killed any more, however often it was."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Started, and with all its jobs ended when the test is."""
    policy = "rr:quantum=0.2" if SEED % 2 else "priority"  # both stop jobs that can be, each in its way
    found = Daemon(tmp_path / "data", "--policy", policy, "--discipline", "skip")
    found.start()
    yield found
    found.close()


def test_nothing_is_lost_and_nothing_happens_twice(daemon: Daemon, tmp_path: Path) -> None:
    print(f"GPUYARD_CHAOS_SEED={SEED}")
    rng, stamps, begun = random.Random(SEED), tmp_path / "stamps", time.monotonic()
    stamps.mkdir()
    end = tmp_path / "end"
    long = daemon.client.submit(job_command(stamps, end), directory="/", environment={"PATH": "/usr/bin:/bin"})
    while not (stamps / long).exists():
        time.sleep(0.01)
    (pid,) = (stamp.pid for stamp in read_stamps(stamps))
    clients = Clients(daemon.client.socket, stamps, SEED, count=3, most=15 * KILLS)
    holders = Holders(daemon.client.socket, stamps, SEED, tmp_path / "holders.log")
    clients.start()
    kills = 0
    try:
        while kills < KILLS and time.monotonic() < begun + LONGEST:
            if rng.random() < 0.1:
                holders.kill()
            holders.begin()
            _kill(daemon, rng)
            kills += 1
            assert alive(pid)
        daemon.wait_until_up()
        holders.stop()
    finally:
        holders.kill()
        told = clients.stop()
    end.touch()
    _release_all(daemon, told)
    daemon.wait_until_empty()
    daemon.stop()
    assert daemon.leftovers() == []
    found = read_stamps(stamps)
    database = daemon.data_dir / "gpuyard.db"
    preempted = check_all(database, found, [long, *told.submitted], told.cancelled)
    jobs = jobs_of(database)
    check_tags(jobs, told.tags)
    check_cancelled_together(database, jobs, told.many)
    assert [stamp.pid for stamp in found if stamp.job == long] == [pid, pid]
    assert jobs[long].exit_code == exit_code(long)
    starts = {stamp.job: stamp.at for stamp in found if stamp.kind == "start"}
    for job, since, until in told.rests:
        assert not since < starts.get(job, 0.0) < until, f"job {job} started while it was held"
    held = sum(1 for stamp in found if stamp.kind == "start" and jobs[stamp.job].kind == "lease")
    shared = sum(1 for view in jobs.values() if view.work.get("gpu_memory"))
    print(f"requests: {dict(told.kinds)}; {held} leases held by {holders.begun} processes, {shared} shares of memory")
    print(
        f"{kills} kills, {daemon.lives} lives, {len(told.submitted)} acknowledged submits, {len(told.cancelled)} "
        f"cancels, {len(told.rests)} holds, {preempted} preemptions, {told.lost} requests without an answer, "
        f"{len(starts)} starts, {time.monotonic() - begun:.0f} s: every promise kept"
    )


def _kill(daemon: Daemon, rng: random.Random) -> None:
    """Kill it now or in a while, and start it again: at once, and now and then two of it."""
    time.sleep(rng.choice([0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.8)]))
    daemon.kill()
    rivals = 2 if rng.random() < 0.1 else 1
    for _ in range(rivals):
        daemon.spawn()
    if rng.random() < 0.25:  # it dies as it comes up
        time.sleep(rng.uniform(0.3, 1.6))
        return
    daemon.wait_until_up()
    assert daemon.losers(rivals) == [2] * (rivals - 1), daemon.words()


def _release_all(daemon: Daemon, told: Told) -> None:
    """Nobody knows of each hold and release whether it came through: let go of everything."""
    daemon.wait_until_up()
    deadline = time.monotonic() + PATIENCE
    while held := daemon.client.jobs(state="held"):
        assert time.monotonic() < deadline
        for job in held:
            with contextlib.suppress(Refused):
                daemon.client.release(job["id"])
