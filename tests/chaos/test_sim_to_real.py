"""The same jobs through the simulator and through the daemon: same order, same GPUs.

Jobs are sleeps, in units of 160 ms; no two submits or ends of a schedule come closer than 150 ms, so a busy machine
must be very late to change the order. If it is, there is another try with units twice as long. How soon jobs start is
measured by `bench/queue.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.daemon.store.views import JobView
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace
from tests.chaos.checks import jobs_of
from tests.chaos.harness import GPUS, Daemon

UNIT = 0.16
TRIES = 5


class Sleep(NamedTuple):
    """A job: when it comes, how long it takes, on how many GPUs, and how urgent it is."""

    at: int
    length: int
    gpus: int
    priority: int = 0


LISTS: dict[str, list[tuple[int, ...]]] = {
    "fcfs@strict@pack": [
        (0, 2, 3), (5, 3, 2), (6, 9, 2), (7, 8, 4), (9, 7, 2), (11, 3, 1), (12, 5, 1), (14, 3, 1), (16, 9, 1),
        (17, 6, 1), (18, 4, 2), (25, 2, 4),
    ],
    "sjf@skip@pack": [
        (3, 4, 2), (4, 7, 2), (5, 3, 2), (6, 2, 1), (10, 7, 2), (15, 5, 4), (16, 7, 2), (17, 4, 1), (24, 8, 1),
        (25, 4, 2), (27, 2, 3), (29, 3, 1),
    ],
    "priority@easy@pack": [
        (3, 5, 4, 1), (5, 7, 1, 0), (6, 2, 2, 2), (7, 10, 1, 1), (9, 4, 3, 1), (11, 2, 1, 2), (16, 8, 2, 1),
        (17, 6, 1, 1), (22, 10, 1, 1), (26, 4, 1, 0), (28, 4, 3, 1), (29, 9, 1, 1),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all policies."""
    found = Daemon(tmp_path_factory.mktemp("real") / "data")
    found.start()
    yield found
    found.close()


def _simulate(policy: str, jobs: list[Sleep]) -> Result:
    at, length, gpus, priority = zip(*jobs, strict=True)
    trace = Trace.of(np.array(at) * UNIT, np.array(length) * UNIT, gpus, priority=priority)
    result, _ = simulate(trace, Cluster((GPUS,)), policy, Options(engine="replay"))
    assert np.diff(np.sort([*trace.submit, *result.end])).min() > 0.15
    return result


def _run(daemon: Daemon, policy: str, jobs: list[Sleep], unit: float) -> list[JobView]:
    """Submit everything in time, and wait until all is over."""
    client = daemon.client
    client.set_policy(policy)
    ids, begun = [], time.monotonic()
    for job in jobs:
        time.sleep(max(0.0, begun + job.at * unit - time.monotonic()))
        seconds = job.length * unit
        command = ["/bin/sleep", f"{seconds:.3f}"]
        wishes = {"gpus": job.gpus, "priority": job.priority, "estimate": seconds}
        ids.append(client.submit(command, directory="/", environment={}, **wishes))  # type: ignore[arg-type]
    daemon.wait_until_empty()
    found = jobs_of(daemon.data_dir / "gpuyard.db")
    return [found[id] for id in ids]


@pytest.mark.parametrize("policy", LISTS)
def test_the_daemon_does_what_the_simulator_says(daemon: Daemon, policy: str) -> None:
    jobs = [Sleep(*values) for values in LISTS[policy]]
    result = _simulate(policy, jobs)
    wanted = result.start.tolist(), [tuple(sorted(gpus)) for gpus in result.placements]
    told = []
    for again in range(TRIES):
        views = _run(daemon, policy, jobs, UNIT * 2**again)
        same_order = _in_order(wanted[0], [view.started or 0.0 for view in views])
        same_gpus = [tuple(sorted(view.gpus)) for view in views] == wanted[1]
        if same_order and same_gpus:
            return
        told.append(f"order {same_order}, GPUs {same_gpus}")
    raise AssertionError("; ".join(told))


def _in_order(wanted: list[float], starts: list[float]) -> bool:
    """Whether who starts before another in the simulation also does so here."""
    rows = sorted(range(len(wanted)), key=lambda row: wanted[row])
    return all(
        starts[first] < starts[then] for first, then in pairwise(rows) if wanted[then] - wanted[first] > UNIT / 2
    )
