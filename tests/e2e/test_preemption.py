"""Real jobs that are stopped for others and go on from their checkpoints."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from datetime import datetime
from statistics import median

import pytest
from tests.conftest import REPOSITORY
from tests.yard import Yard, until

from gpuyard.client.client import Client

EXAMPLE = REPOSITORY / "examples" / "preemptible.py"
SLICES = 10
"""Time slices that the first job has had when shares are compared."""


def _counting(steps: int) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", str(EXAMPLE), str(steps)  # quick to start


def _output(client: Client, id: str, attempt: int) -> list[str]:
    return client.log(id, attempt=attempt).data.decode().splitlines()


def test_a_job_is_stopped_for_a_higher_priority_and_loses_nothing(own_yard: Yard) -> None:
    own_yard.serve("--policy", "priority")
    client = own_yard.client
    firm = own_yard.submit("--gpus", "2", "--", "sleep", "1000")
    low = own_yard.submit("--gpus", "2", "--preemptible", "--signal", "USR1@30", "--", *_counting(60))
    own_yard.await_output(low, b"step 5\n")
    high = own_yard.submit("--gpus", "1", "--priority", "5", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done")
    until(lambda: client.job(high)["started_at"], "the start of the urgent job")
    waits = client.job(low)
    assert (waits["state"], waits["preemptions"], waits["gpus"]) == ("queued", 1, [])
    assert waits["message"] == f"stopped for job {high}, waits again"
    assert f"(stopped for job {high})" in str(client.explain(low)["reason"])
    columns = client.columns()[1]
    began = dict(zip(columns["id"], zip(columns["submitted"], columns["waiting_since"], strict=True), strict=True))
    assert began[low][1] > began[low][0]
    assert began[high][1] == began[high][0]
    own_yard.end(9)  # nothing of this is in memory only
    own_yard.serve("--policy", "priority")
    (own_yard.cwd / "go").touch()
    assert own_yard.wait(low)["state"] == "succeeded"
    first, second = _output(client, low, 1), _output(client, low, 2)
    assert first[0] == "attempt 1 begins at step 0"
    assert first[-1].startswith("asked to stop at step ")
    reached = int(first[-1].split()[-1])
    assert reached >= 5
    assert second[0] == f"attempt 2 begins at step {reached}"
    assert second[-1] == "done after 60 steps"
    untouched = client.job(firm)
    assert (untouched["state"], untouched["attempt"], untouched["preemptions"]) == ("running", 1, 0)


def test_one_that_does_not_listen_is_killed_and_waits_again(own_yard: Yard) -> None:
    own_yard.serve("--policy", "priority")
    script = "trap '' TERM; echo on; while :; do sleep 0.02; done"
    low = own_yard.submit("--gpus", "4", "--preemptible", "--grace", "0.2", "--", "sh", "-c", script)
    own_yard.await_output(low, b"on\n")
    high = own_yard.submit("--priority", "1", "--", "sleep", "1000")
    client = own_yard.client
    until(lambda: client.job(high)["started_at"], "the start of the urgent job")
    assert client.job(low)["message"] == f"stopped for job {high} (killed after its grace), waits again"
    assert own_yard("cancel", low).code == 0


def _slices(client: Client) -> dict[str, list[float]]:
    """The seconds for which each job had a GPU, one slice after another; those who have one still are left out."""
    begun: dict[str, float] = {}
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in client.events(limit=5000)["events"]:
        if event["kind"] == "Started":
            begun[event["job"]] = datetime.fromisoformat(event["at"]).timestamp()
        elif event["kind"] in ("Preempted", "Exited"):
            end = datetime.fromisoformat(event["at"]).timestamp()
            found[event["job"]].append(end - begun.pop(event["job"]))
    return found


def test_round_robin_gives_each_job_its_share(own_yard: Yard) -> None:
    """In turn, and by the middle of their slices: how long a single one takes to stop is up to the machine."""
    own_yard.serve("--policy", "rr:quantum=0.3", "--simulate-gpus", "2x16G")
    jobs = [own_yard.submit("--hold", "--preemptible", "--", *_counting(100_000)) for _ in range(5)]
    for job in jobs:
        own_yard.client.release(job)

    def enough() -> dict[str, list[float]] | None:
        time.sleep(0.1)
        had = _slices(own_yard.client)
        return had if min(len(had.get(job, ())) for job in jobs) >= SLICES else None

    had = until(enough, "ten slices for everybody")
    turns = [len(had[job]) for job in jobs]
    assert max(turns) - min(turns) <= 2
    middle = {job: median(had[job]) for job in jobs}
    assert min(middle.values()) >= 0.3
    assert max(middle.values()) <= 1.5 * min(middle.values())
    for job in jobs:
        _goes_on(own_yard.client, job)


def _goes_on(client: Client, job: str) -> None:
    """Every attempt of a job begins where the one before it was stopped."""
    reached = 0
    for attempt in range(1, client.job(job)["attempt"]):
        lines = _output(client, job, attempt)
        if not lines:  # it was stopped before it could say anything
            continue
        assert lines[0] == f"attempt {attempt} begins at step {reached}"
        assert lines[-1].startswith("asked to stop at step ")
        reached = int(lines[-1].split()[-1])


def test_least_attained_service_lets_newcomers_go_first(own_yard: Yard) -> None:
    own_yard.serve("--policy", "las:queues=0.4/1000", "--simulate-gpus", "1x16G")
    old = own_yard.submit("--preemptible", "--", *_counting(100))
    own_yard.await_output(old, b"step 3\n")
    new = own_yard.submit("--preemptible", "--", *_counting(5))
    assert own_yard.wait(new)["state"] == "succeeded"
    assert own_yard.client.job(old)["preemptions"] == 1
    assert own_yard.wait(old)["state"] == "succeeded"
    _goes_on(own_yard.client, old)


def test_a_time_limit_is_announced(own_yard: Yard) -> None:
    own_yard.serve()
    script = "trap 'echo saved; exit 0' USR1; while :; do sleep 0.02; done"
    told = own_yard.submit("--time", "1000s", "--signal", "USR1@999.5", "--", "sh", "-c", script)
    assert own_yard.wait(told)["state"] == "succeeded"  # it was asked, and ended by itself
    assert own_yard.client.log(told).data.endswith(b"saved\n")


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        ("KILL", "'KILL' is not a signal to stop by; write one of HUP, INT"),
        ("USR1@0", "the time after @ must be above 0"),
        ("B:USR1@60", "a signal goes to all processes of a job; write USR1@60"),
        ("USR1@60", "let its notice be shorter than its time limit"),
    ],
)
def test_signals_that_make_no_sense(yard: Yard, signal: str, message: str) -> None:
    done = yard("submit", "--preemptible", "--time", "60s", "--signal", signal, "--", "true")
    assert done.code == 2
    assert message in done.err
