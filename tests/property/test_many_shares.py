"""A long queue of shares is not tried job by job; the plan is the one that trying them all would make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core import disciplines
from gpuyard.core.draft import Draft, DraftSite
from gpuyard.core.events import Event, GpusDrained, GpusWithdrawn, MemoryTaken, Placed, Started, Submitted
from gpuyard.core.loops import backfill
from gpuyard.core.loops.placement import place
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.policies.resolver import make_planner

CLUSTERS = [Cluster((3,)), Cluster((2,), 16 * GIB, gpu_memory=(16 * GIB, 8 * GIB)), Cluster((2, 2), cpus=(4.0, 4.0))]
POLICIES = [
    f"{policy}@{discipline}@{placement}"
    for policy in ("fcfs", "sjf")
    for discipline in ("skip", "easy")
    for placement in ("pack", "spread", "first", "packing", "consolidate")
]
wishes = st.builds(
    Request,
    gpus=st.sampled_from([1, 1, 1, 2]),
    estimate=st.sampled_from([5.0, 60.0, 600.0]),
    memory=st.sampled_from([2 * GIB, 5 * GIB, 7.5 * GIB, 9 * GIB]),
    compute=st.sampled_from([0.0, 0.0, 0.0, 25.0, 100.0]),
    scope=st.sampled_from([(), (), (), (0,), (1,)]),
    cpus=st.sampled_from([0.0, 1.0, 1.5]),
)
events = st.sampled_from(
    [None, None, GpusDrained(0.0, (0,)), GpusWithdrawn(0.0, (1,), "shared"), GpusWithdrawn(0.0, (0,), "foreign")]
)


def one_by_one(draft: Draft, order: Any, late: Any, attempt: Callable[[int], Any]) -> None:
    for row in order.tolist():
        attempt(row)


def anew(board: DraftSite, row: int) -> Any:
    return place(board.site, row)


def whoever(draft: Draft, rows: Any) -> Any:
    return rows[(draft.demand.gpus[rows] <= draft.idle) | (draft.demand.compute[rows] < 100)]


def starts(state: State, policy: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(start.job, start.gpus) for start in make_planner(policy).plan(Snapshot(state, 10.0)).starts]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(CLUSTERS), st.sampled_from(POLICIES), st.lists(wishes, max_size=6), st.lists(wishes, max_size=14),
    events, st.sampled_from([0.0, GIB / 2, 3 * GIB]),
)  # fmt: skip
def test_the_plan_is_that_of_trying_everybody(
    cluster: Cluster, policy: str, first: list[Request], then: list[Request], event: Event | None, taken: float
) -> None:
    state = State(cluster)
    apply(state, MemoryTaken(0.0, (taken,) * cluster.gpus, taken))
    for n, request in enumerate(first):
        apply(state, Submitted(0.0, f"a{n}", request))
    for job, gpus in starts(state, "fcfs@skip@spread"):
        apply(state, Placed(1.0, job, 1, gpus))
        apply(state, Started(1.0, job, 1))
    for n, request in enumerate(then):
        apply(state, Submitted(2.0, f"b{n}", request))
    if event is not None:
        apply(state, event)
    found = starts(state, policy)
    with (
        mock.patch.object(disciplines, "_by_kinds", one_by_one),
        mock.patch.object(disciplines, "_could_fit", whoever),
        mock.patch.object(disciplines, "reserve", backfill.reserve),
        mock.patch.object(DraftSite, "spot", anew),
        mock.patch.object(DraftSite, "fits", lambda board, row: len(anew(board, row)) > 0),
    ):
        assert starts(state, policy) == found


def test_many_that_ask_for_the_same_are_looked_at_once() -> None:
    state = State(Cluster((2,)))
    for n in range(300):
        apply(state, Submitted(0.0, str(n), Request(memory=9 * GIB, compute=0.0, estimate=float(n + 1))))
    tried: list[int] = []
    spot = DraftSite.spot

    def counted(board: DraftSite, row: int) -> Any:
        tried.append(row)
        return spot(board, row)

    with mock.patch.object(DraftSite, "spot", counted):
        assert [job for job, _ in starts(state, "fcfs@skip@pack")] == ["0", "1"]
    assert len(tried) == 3
