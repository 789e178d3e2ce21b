"""Why jobs wait, told of a plan that stops others for somebody else."""

from __future__ import annotations

import pytest

from gpuyard.core.events import Event, Placed, RulesSet, Started, Submitted
from gpuyard.core.explanation import blockers
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
    first = [state.ids[row] for row, _ in blockers(draft, state.row_of["wide"])]
    assert sorted(first) == sorted({"a", "b", "c", "urgent"} - {victim})
