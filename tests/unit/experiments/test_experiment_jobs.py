"""What an experiment tells a daemon of its jobs, and what it makes of what became of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrival, Behaviour, Experiment, Scheduler, Workload
from gpuyard.experiments.local_backend import daemon_settings, job_options_of, job_result, use_of
from gpuyard.gpus.simulated import parse_use

GIB = 2**30
SSD = Workload("ssd", 2, ("true",), gpu_memory=2.0 * GIB, estimate=9.0, behaviour=Behaviour(10.0, memory=1.0 * GIB))
EXPERIMENT = Experiment("e", (SSD,), (Scheduler("a"),), gpus="2x8G", period=0.5)


def test_what_jobs_ask_for_depends_on_the_scheduler() -> None:
    alone, shared = Scheduler("a", "exclusive"), Scheduler("b", "usage")
    common = {"gpus": 1, "priority": 0.0, "oom_retries": 20, "estimate": 9.0}
    assert job_options_of(SSD, alone, 100.0, 8.0 * GIB, False) == common
    assert job_options_of(SSD, shared, 100.0, 8.0 * GIB, False) == {**common, "gpu_memory": 4 * GIB}
    assert job_options_of(SSD, shared, 900.0, 8.0 * GIB, False) == {**common, "gpu_memory": 8 * GIB}
    assert "gpu_memory" not in job_options_of(replace(SSD, gpu_memory=0.0), shared, 100.0, 8.0 * GIB, False)


def test_simulated_gpus_are_told_what_a_job_uses() -> None:
    use = parse_use(job_options_of(SSD, Scheduler("a"), 0.0, 8.0 * GIB, True)["simulate_use"])
    assert (use.step, use.peak, use.utilization) == (1.0, GIB, 80.0)
    assert (use.at(0.0), use.at(5.0), use.at(99.0)) == (GIB // 10, GIB * 6 // 10, GIB)
    at_once = replace(SSD, behaviour=Behaviour(10.0, ramp=0.0, utilization=5.0))
    assert parse_use(use_of(at_once)).values == (2 * GIB,)


def test_options_of_a_scheduler_are_settings_of_its_daemon() -> None:
    found = daemon_settings(EXPERIMENT, Scheduler("a", "usage", "sjf", options={"gpu_buffer": "1G", "preempt": False}))
    assert found == {
        "gpu_buffer": "1G", "preempt": "false", "simulate_gpus": "2x8G", "policy": "sjf", "admission": "usage",
        "record_period": "0.5",
    }  # fmt: skip
    assert daemon_settings(EXPERIMENT, Scheduler("a"))["admission"] == "requests"
    with pytest.raises(UserError, match="its options are settings, and there is no 'socket'"):
        daemon_settings(EXPERIMENT, Scheduler("a", options={"socket": "/x"}))


def event(kind: str, second: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "at": f"2026-01-01T00:00:{second:02d}.500+00:00", **more}


def test_a_job_that_was_restarted() -> None:
    events = [
        event("Submitted", 2), event("Placed", 3), event("Started", 4), event("Requeued", 9),
        event("Placed", 10), event("Started", 11),
    ]  # fmt: skip
    told: Any = {
        "submitted_at": event("", 2)["at"], "ended_at": event("", 31)["at"], "ooms": 1, "state": "succeeded",
        "admission": {"by": "cbp"},
    }  # fmt: skip
    begin = 1767225600.5
    found = job_result(Arrival(0.0, "ssd-1", SSD), told, events, begin, by_usage=True)
    assert (found.arrived, found.started, found.ended, found.ran) == (2.0, 4.0, 31.0, 20.0)
    assert (found.restarts, found.ooms, found.state, found.admitted_by) == (1, 1, "succeeded", "cbp")
    assert job_result(Arrival(0.0, "ssd-1", SSD), told, events, begin, by_usage=False).admitted_by == ""
    told["admission"] = None
    first = job_result(Arrival(0.0, "ssd-1", SSD), told, events[:3], begin, by_usage=True)
    assert (first.admitted_by, first.restarts) == ("fit", 0)
    never = job_result(Arrival(0.0, "ssd-1", SSD), told, events[:1], begin, by_usage=True)
    assert (never.started, never.ran, never.admitted_by) == (None, 0.0, "")
