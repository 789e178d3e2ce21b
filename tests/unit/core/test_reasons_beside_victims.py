"""Why jobs wait, told of a plan that stops others for somebody else."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.core.draft import Draft
from gpuyard.core.events import Event, Placed, RulesSet, Started, Submitted
from gpuyard.core.explanation import blockers, expected_fit, rivals
from gpuyard.core.model import GIB, Cluster, Request, Rules
from gpuyard.core.plan import Snapshot
from gpuyard.core.reasons import Resources
from gpuyard.core.transitions import fold
from gpuyard.policies.resolver import make_planner

LOW = Request(estimate=100.0, preemptible=True)
SHARE = Request(estimate=100.0, memory=2.0 * GIB, compute=0.0, preemptible=True)


def running(job: str, gpu: int, request: Request) -> list[Event]:
    return [Submitted(0.0, job, request), Placed(0.0, job, 1, (gpu,)), Started(0.0, job, 1)]


def full_house() -> list[Event]:
    """Three GPUs with somebody on each who may be stopped; one urgent job waits, and one that wants all three."""
    urgent = Submitted(1.0, "urgent", Request(estimate=10.0, priority=9.0))
    wide = Submitted(1.0, "wide", Request(gpus=3, estimate=10.0))
    return [
        RulesSet(0.0, Rules()),
        *running("a", 0, LOW), *running("b", 1, LOW), *running("c", 2, SHARE),
        urgent, wide,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["multifactor@easy@pack", "multifactor@conservative@pack", "srtf@skip@pack"])
def test_who_is_stopped_is_not_waited_for(text: str) -> None:
    state = fold(Cluster((3,)), full_house())
    planner = make_planner(text)
    plan = planner.plan(Snapshot(state, 2.0))
    assert [start.job for start in plan.starts] == ["urgent"]
    [victim] = plan.stops
    assert isinstance(plan.held["wide"], Resources)
    draft = planner._draft(Snapshot(state, 2.0))
    first = [state.ids[row] for row in blockers(draft, state.row_of["wide"], {})]
    assert sorted(first) == sorted({"a", "b", "c", "urgent"} - {victim})


def test_what_a_job_waits_for_goes_by_the_expected_ends_that_are_given() -> None:
    """Not by the plan's: a job may tell that it is nearly done, or take longer than it said."""
    one, whole = Request(estimate=10.0), Request(gpus=3, estimate=10.0)
    waits = [Submitted(1.0, "waits", one), Submitted(1.0, "wide", whole)]
    held = [running("a", 0, one), running("b", 1, one), running("c", 2, one)]
    state = fold(Cluster((3,)), [*(event for part in held for event in part), *waits])
    draft = Draft(Snapshot(state, 2.0), make_planner("fcfs@easy").policy, 0, 0)
    waiting, wide = state.row_of["waits"], state.row_of["wide"]
    ends = {"a": 50.0, "b": 7.0}
    assert [state.ids[row] for row in blockers(draft, waiting, ends)] == ["b"]
    assert expected_fit(draft, waiting, ends) == 7.0
    assert expected_fit(draft, wide, ends) is None  # of c nobody knows
    assert expected_fit(draft, wide, {**ends, "c": 9.0}) == 50.0


def test_who_waits_for_other_gpus_is_no_rival() -> None:
    events: list[Event] = [
        Submitted(0.0, job, Request(estimate=10.0, scope=scope))
        for job, scope in (("left", (0,)), ("right", (1,)), ("any", ()))
    ]
    state = fold(Cluster((2,)), events)
    draft = Draft(Snapshot(state, 0.0), make_planner("fcfs@easy").policy, 0, 0)
    left, right, every = (state.row_of[job] for job in ("left", "right", "any"))
    assert rivals(draft, right, np.array([left])).tolist() == []
    assert rivals(draft, every, np.array([left, right])).tolist() == [left, right]
    assert rivals(draft, left, np.array([], dtype=np.int64)).tolist() == []
