"""500 jobs on 4 GPUs, many of which use more than they say: who keeps its word is never harmed, and all finish."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.yard import Yard, until

GIB, MIB = 2**30, 2**20
SEED = 8
JOBS = 500
PATIENCE = 240.0


def _job(dice: random.Random) -> tuple[bool, dict[str, Any]]:
    """A job, and whether it keeps its word."""
    promised = dice.choice((1, 2, 3, 4, 6)) * GIB
    honest = dice.random() < 0.7
    most = promised if honest else int(promised * dice.uniform(1.2, 3.5))
    most = min(most, 15 * GIB)
    shape = dice.choice(("constant", "ramp", "spikes"))
    if shape == "constant":
        use = f"{most}"
    elif shape == "ramp":
        use = f"ramp/0.1:{most // 3},{most // 2},{most}"
    else:
        use = f"spikes:{most // 4},{most},0.2s,0.1s"
    seconds = dice.uniform(0.2, 0.7)
    wishes = {
        "gpu_memory": promised,
        "simulate_use": use,
        "name": "honest" if honest else "liar",
        "command": ["sleep", f"{seconds:.2f}"],
        "directory": "/",
        "environment": {"PATH": "/usr/bin:/bin"},
    }
    return honest, wishes


@pytest.mark.slow
def test_the_honest_finish_at_their_first_attempt_and_liars_are_resized(own_yard: Yard) -> None:
    yard, dice = own_yard, random.Random(SEED)
    yard.serve()
    jobs = [_job(dice) for _ in range(JOBS)]
    ids = yard.client.submit_all([wishes for _, wishes in jobs])
    until(lambda: len(yard.client.jobs()) < JOBS * 2 // 3, "the end of the first jobs")
    yard.end(signal.SIGKILL)  # decisions and measurements are on disk, and jobs run on
    yard.serve()
    for id in ids:
        yard.client.wait(id, timeout=PATIENCE)
    found = {job["id"]: job for job in yard.client.history(limit=JOBS)}
    ended = [(honest, found[id]) for id, (honest, _) in zip(ids, jobs, strict=True)]
    assert Counter(job["state"] for _, job in ended) == {"succeeded": JOBS}
    events = list(_events(yard))
    starts = Counter(event["job"] for event in events if event["kind"] == "Started")
    harmed = {event["job"] for event in events if event["kind"] == "Requeued" and event.get("ooms")}
    # starts, not attempts: the kill may have come between placing a job and launching it, which makes another attempt
    assert {(starts[job["id"]], job["ooms"], job["id"] in harmed) for honest, job in ended if honest} == {(1, 0, False)}
    caught = [job for honest, job in ended if not honest and job["ooms"]]
    assert len(caught) > 5, "too few were caught for this to show anything"
    assert all(not job["gpu_memory"] or job["gpu_memory"] > cast(int, job["gpu_memory_asked"]) for job in caught)
    assert max(job["ooms"] for job in caught) <= 3


def _events(yard: Yard) -> Iterator[dict[str, Any]]:
    after = 0
    while page := yard.client.events(after, limit=1000)["events"]:
        yield from page
        after = page[-1]["seq"]
