"""Jobs that adapt, as real processes on two simulated GPUs: what they are lent, what they hear, and what they decide.

The job here is small and made up: it counts steps, grows by a number when it is lent a GPU, and ends with its budget.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.yard import Yard, until

from gpuyard.client.transport import Refused
from gpuyard.errors import UserError

JOB = """
import os, sys, time
from gpuyard.grants import Grants

grants = Grants.from_environment()
assert grants is not None
parameters, small, began = 10_602, 10_602, time.time()
print("begins", *grants.gpus, grants.budget, flush=True)
while time.time() < (grants.deadline or began + 60) - 4:
    time.sleep(0.02)
    grants.report(step_seconds=0.02, gain_per_second=GAIN, parameters=parameters)
    for event in grants.events():
        print(event.kind, event.number, ",".join(event.gpus), event.budget, event.why, flush=True)
        if event.kind == "up" and DECLINES:
            grants.report(decision="stayed as it is", reason="it would not pay off", accepted=False)
        elif event.kind == "up":
            before, parameters = parameters, 19_914
            grants.report(decision="grew at features.1", reason="expects +1.2 points; steps take 1.4 times as long",
                          accepted=True, parameters_before=before, parameters=parameters, cost_ratio=1.4)
        elif event.kind == "down":
            parameters = small
            grants.give_back(reason="went back to the small network")
        elif event.kind == "preempt":
            grants.flush(5)
            sys.exit(0)
grants.report(decision="is done", reason="its budget is used", parameters=parameters)
grants.flush(5)
print("ends", parameters, *grants.gpus, flush=True)
"""


@pytest.fixture
def two(own_yard: Yard) -> Iterator[Yard]:
    """A yard of two GPUs."""
    own_yard.serve("--simulate-gpus", "2x16G")
    yield own_yard
    own_yard.clear()


def adaptive(yard: Yard, *options: str, gain: float = 1e-4, declines: bool = False, opts_in: bool = True) -> str:
    """Submit a job that adapts."""
    text = JOB.replace("GAIN", repr(gain)).replace("DECLINES", str(declines))
    flag = ("--adaptive",) if opts_in else ()
    return yard.submit(*flag, "--grace", "5s", *options, "--", sys.executable, "-c", text)


def lent(yard: Yard, job: str) -> list[int]:
    return yard.client.job(job)["granted"]


def heard(yard: Yard, job: str) -> list[list[str]]:
    """What a job printed, word by word."""
    return [line.split() for line in yard.client.log(job).data.decode().splitlines()]


def never_two_at_once(yard: Yard) -> None:
    """By the whole log, nobody ever was on a GPU that somebody else had, own or on loan."""
    on: dict[int, str] = {}
    for event in yard.client.events(0, limit=10_000)["events"]:
        job, kind = event["job"], event["kind"]
        if kind in ("Placed", "Granted"):
            for gpu in event["gpus"]:
                assert gpu not in on, f"GPU {gpu} is job {on[gpu]}'s when {event} happens"
                on[gpu] = job
        elif kind == "Returned":
            for gpu in event["gpus"]:
                assert on.pop(gpu) == job
        elif kind in ("Exited", "Preempted", "Requeued"):
            on = {gpu: other for gpu, other in on.items() if other != job}


def test_two_jobs_one_ends_and_the_other_grows_within_its_budget(two: Yard, tmp_path: Path) -> None:
    release = tmp_path / "release"
    other = two.submit("--", "sh", "-c", f"until [ -e {release} ]; do sleep 0.02; done")
    job = adaptive(two, "--time", "15s", "--name", "grows")
    two.await_output(job, b"begins")
    assert lent(two, job) == []
    release.touch()
    two.wait(other)
    until(lambda: lent(two, job), "a loan")
    [gpu] = two.client.job(other)["gpus"]
    assert lent(two, job) == [gpu]
    until(lambda: two.client.adaptation(job)["decisions"], "its decision")
    told = two.client.gpus()["gpus"][gpu]
    assert (told["state"], told["jobs"], told["granted"]) == ("ours", [job], job)
    assert told["why"] == f"lent to job {job}, which adapts, until somebody needs it"
    assert "grew at features.1" in two("explain", job).out
    assert f"has GPU {gpu} on loan" in two("explain", job).out

    done = two.wait(job)
    assert (done["state"], done["granted"]) == ("succeeded", [])
    assert _at(done["ended_at"]) - _at(done["started_at"]) < 15.0, "it ended by itself, before its time was over"
    found = two.client.adaptation(job)
    [loan] = found["grants"]
    assert loan["why"] == "nobody waits for it, and it gains 0.6 points per minute"
    assert loan["gpu"] == gpu
    assert loan["until"] == pytest.approx(_at(done["ended_at"]), abs=0.01)
    grew, ended = found["decisions"]
    assert (grew["decision"], grew["reason"]) == (
        "grew at features.1", "expects +1.2 points; steps take 1.4 times as long",
    )  # fmt: skip
    assert (grew["parameters_before"], grew["parameters"], grew["accepted"]) == (10_602, 19_914, True)
    assert ended["decision"] == "is done"
    shown = two("show", job).out
    assert "Adaptive:" in shown
    assert f"was lent GPU {gpu}: nobody waits for it" in shown
    assert "accepted: grew at features.1 (10,602 to 19,914 parameters): expects +1.2 points" in shown
    [past] = [one for one in two.client.history() if one["id"] == job]
    assert past["reason"] == "is done: its budget is used"
    columns = two.client.usage()["columns"]
    assert ("grant", [gpu]) in zip(columns["kind"], columns["gpu"], strict=True)
    never_two_at_once(two)


def test_whoever_comes_takes_the_gpu_back(two: Yard) -> None:
    job = adaptive(two, "--time", "60s")
    until(lambda: lent(two, job), "a loan")
    until(lambda: two.client.adaptation(job)["decisions"], "its decision")
    third = two.submit("--", "sleep", "0.3")
    assert two.wait(third)["state"] == "succeeded"
    assert two.client.job(third)["gpus"] == [1]
    kinds = [words[0] for words in heard(two, job)]
    assert kinds[:3] == ["begins", "up", "down"]
    [loan, *_] = two.client.adaptation(job)["grants"]
    assert loan.get("ended") == f"job {third} needs it; it left as it was told to: went back to the small network"
    assert two.client.job(job)["state"] == "running", "it goes on with its own GPU"
    never_two_at_once(two)


def test_a_loan_outlives_a_daemon_that_is_killed(two: Yard) -> None:
    job = adaptive(two, "--time", "60s")
    until(lambda: two.client.adaptation(job)["decisions"], "its decision")
    two.end(signal.SIGKILL)
    two.serve("--simulate-gpus", "2x16G")
    assert lent(two, job) == [1]
    third = two.submit("--", "sleep", "0.2")
    assert two.wait(third)["gpus"] == [1]
    words = heard(two, job)
    assert [one[0] for one in words[:3]] == ["begins", "up", "down"], "nothing is lost, and nothing told twice"
    numbers = [int(one[1]) for one in words[1:]]
    assert numbers == sorted(set(numbers))
    never_two_at_once(two)


def test_its_time_may_be_changed_while_it_runs(two: Yard) -> None:
    two.submit("--hold", "--", "true")
    job = adaptive(two, "--time", "60s", gain=0.0)
    two.await_output(job, b"begins")
    assert two("edit", job, "--time", "90s").code == 0
    two.await_output(job, b"extend")
    soon = int(time.time() - _at(two.client.job(job)["started_at"])) + 9
    assert two("edit", job, "--time", f"{soon}s").code == 0
    done = two.wait(job)
    assert done["state"] == "succeeded"
    assert _at(done["ended_at"]) - _at(done["started_at"]) < soon
    said = [(words[0], words[3]) for words in heard(two, job) if words[0] in ("extend", "shrink")]
    assert said == [("extend", "90.0"), ("shrink", f"{soon}.0")]
    changed = two.client.adaptation(job)["times"]
    assert [(one["before"], one["after"]) for one in changed] == [(60.0, 90.0), (90.0, float(soon))]


def test_it_hears_that_it_is_to_end(two: Yard) -> None:
    job = adaptive(two, gain=0.0)
    two.await_output(job, b"begins")
    two.client.cancel(job, grace=3)
    assert two.wait(job)["state"] == "cancelled"
    assert two.client.adaptation(job)["grants"] == []


def test_who_declines_keeps_nothing(two: Yard) -> None:
    job = adaptive(two, declines=True)
    until(lambda: two.client.adaptation(job)["decisions"], "its decision")
    found = two.client.adaptation(job)
    assert (found["granted"], found["decisions"][0]["accepted"]) == ([], False)
    assert found["grants"][0].get("ended") == "it declined: it would not pay off"
    assert two.client.gpus()["gpus"][1]["state"] == "free"


def test_without_consent_nothing_is_offered(two: Yard) -> None:
    text = (
        "import os, time; print(sorted(n for n in os.environ if n.startswith('GPUYARD_')), flush=True); time.sleep(60)"
    )
    job = two.submit("--time", "60s", "--", sys.executable, "-c", text)
    two.await_output(job, b"]")
    names = eval(two.client.log(job).data)
    assert {"GPUYARD_BUDGET", "GPUYARD_DEADLINE", "GPUYARD_CHECKPOINT_DIR"} <= set(names)
    assert not {"GPUYARD_ADAPTIVE", "GPUYARD_CONTROL"} & set(names)
    with pytest.raises(Refused, match="did not opt in"):
        two.client.report(job, gain_per_second=1.0)
    assert two("edit", job, "--adaptive").code == 0
    two.client.report(job, gain_per_second=1.0, step_seconds=0.1)
    until(lambda: lent(two, job), "a loan, once it has consented")
    assert two("edit", job, "--no-adaptive").code == 0
    [down] = [event for event in two.client.grant(job)["events"] if event["kind"] == "down"]
    assert down["why"] == "it is not adaptive any more"


def test_what_it_is_given(two: Yard, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#GPUYARD --adaptive --time 90s --grace 7s\n"
        'echo "$GPUYARD_ADAPTIVE $GPUYARD_BUDGET $GPUYARD_GRACE $GPUYARD_DEADLINE $GPUYARD_CONTROL"\n'
        'stat -c %a "$GPUYARD_CHECKPOINT_DIR"\n'
    )
    job = two.submit(script)
    two.wait(job)
    first, mode = two.client.log(job).data.decode().splitlines()
    adapts, budget, grace, deadline, control = first.split()
    assert (adapts, budget, grace, control) == ("1", "90", "7", f"unix:{two.data_dir / 'gpuyard.sock'}")
    assert float(deadline) == pytest.approx(_at(two.client.job(job)["started_at"]) + 90, abs=1.0)
    assert mode == "700"
    assert two.client.job(job)["adaptive"] is True
    file = tmp_path / "jobs.yaml"
    file.write_text("- command: 'true'\n  adaptive: true\n- command: 'true'\n")
    done = two("submit", "--file", file, "--json")
    ids = json.loads(done.out)["ids"] if done.code == 0 else pytest.fail(done.err)
    assert [two.client.job(id)["adaptive"] for id in ids] == [True, False]


def test_nonsense_is_refused_at_the_edge(two: Yard) -> None:
    job = two.submit("--adaptive", "--", "sleep", "60")
    until(lambda: two.client.job(job)["started_at"])
    nonsense: list[dict[str, Any]] = [
        {"gain_per_second": "much"}, {"step_seconds": -1}, {"gain_per_second": 1e9}, {"wishes": 1},
        {"decision": "x" * 501}, {"accepted": 1},
    ]  # fmt: skip
    for report in nonsense:
        with pytest.raises(UserError):
            two.client.report(job, **report)
    with pytest.raises(Refused, match="there is no job 99"):
        two.client.grant("99")


def _at(text: str | None) -> float:
    assert text is not None
    return datetime.fromisoformat(text).timestamp()
