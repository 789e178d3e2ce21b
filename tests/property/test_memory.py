"""What is left of a GPU is what there is, less what is taken of it, less what its jobs were promised; always."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.checkpoint import dump, load
from gpuyard.core.events import (
    Event,
    Exited,
    GpusDrained,
    GpusRestored,
    GpusResumed,
    GpusWithdrawn,
    MemoryTaken,
    Opened,
    Placed,
    Preempted,
    Started,
    Submitted,
)
from gpuyard.core.loops.placement import fits_in_place
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.reasons import Resources, Room
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.errors import Bug
from gpuyard.policies.resolver import make_planner

MIXED = Cluster((3,), 16 * GIB, gpu_memory=(16 * GIB, 16 * GIB, 8 * GIB))
HALF = GIB / 2
OUT = 1e6  # percent that a GPU on which nothing may be started lacks
REQUESTS = [
    Request(memory=6 * GIB, compute=0.0),
    Request(memory=2.25 * GIB, compute=0.0, gpus=2),
    Request(memory=3 * GIB, compute=25.0),
    Request(memory=15.8 * GIB, compute=100.0),
    Request(gpus=2),
]
taken = st.lists(st.sampled_from([0.0, HALF, 1.75 * GIB, 20 * GIB]), min_size=3, max_size=3)
steps = st.one_of(
    st.tuples(st.just("come"), st.integers(0, len(REQUESTS) - 1), st.permutations(range(3))),
    st.tuples(st.just("leave"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("take"), taken, st.just(None)),
    st.tuples(st.just("withdraw"), st.integers(0, 2), st.sampled_from(["foreign", "unknown", "shared"])),
    st.tuples(st.sampled_from(["restore", "drain", "resume"]), st.integers(0, 2), st.just(None)),
    st.tuples(st.just("open"), st.none(), st.none()),
)


class Story:
    """Things happen to a yard."""

    def __init__(self) -> None:
        self.state, self.count = State(MIXED), 0

    def step(self, what: str, a: Any, b: Any) -> None:
        state, running = self.state, self.state.running.array.tolist()
        if what == "come":
            self._come(REQUESTS[a], tuple(b))
        elif what == "leave" and running:
            row = running[a % len(running)]
            event = Preempted if b else Exited
            apply(state, event(0.0, state.ids[row], state.attempt[row]))
        elif what == "take":
            apply(state, MemoryTaken(0.0, tuple(a), HALF))
        elif what == "open":
            apply(state, Opened(0.0, MIXED))
        elif what == "withdraw":
            apply(state, GpusWithdrawn(0.0, (a,), b))
        elif what in ("restore", "drain", "resume"):
            kinds: dict[str, Any] = {"restore": GpusRestored, "drain": GpusDrained, "resume": GpusResumed}
            apply(state, kinds[what](0.0, (a,)))

    def _come(self, request: Request, order: tuple[int, ...]) -> None:
        self.count += 1
        job = str(self.count)
        apply(self.state, Submitted(0.0, job, request))
        row, spot = self.state.row_of[job], order[: request.gpus]
        if fits_in_place(self.state.site(), row, np.array(spot)):
            apply(self.state, Placed(0.0, job, 1, spot))
            apply(self.state, Started(0.0, job, 1))

    def check(self) -> None:
        state, pool = self.state, self.state.pool
        for gpu, size in enumerate(MIXED.gpu_memory):
            rows = [row for row in state.running.array.tolist() if gpu in state.spot[row]]
            total = max(size - (state.taken[gpu] if state.taken else 0.0), 1.0)
            whole = [row for row in rows if state.table.compute[row] >= 100]
            blocks = [state.withdrawn.get(gpu), "drained" if gpu in state.drained else None]
            strong = sum(block not in (None, "shared") for block in blocks)
            assert pool.total[gpu] == total
            assert pool.tenants[gpu] == len(rows) + sum(block is not None for block in blocks)
            assert not whole or len(rows) == 1
            if whole:
                assert (pool.memory[gpu], pool.compute[gpu]) == (-1.0, -OUT * strong)
            else:
                assert pool.memory[gpu] == total - sum(state.table.memory[rows])
                assert pool.compute[gpu] == 100.0 - sum(state.table.compute[rows]) - OUT * strong
        assert pool.idle[0] == (pool.tenants == 0).sum()


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25))
def test_what_is_left_is_what_nobody_has(story: list[tuple[str, Any, Any]]) -> None:
    yard = Story()
    for step in story:
        yard.step(*step)
        yard.check()
    kept = load(MIXED, json.loads(json.dumps(dump(yard.state))))
    for name in ("idle", "tenants", "memory", "compute", "total"):
        assert getattr(kept.pool, name).tolist() == getattr(yard.state.pool, name).tolist(), name
    assert (kept.taken, kept.buffer) == (yard.state.taken, yard.state.buffer)


def on_one_gpu(*events: Event, size: float = 16 * GIB) -> State:
    return fold(Cluster((1,), size), events)


def share(job: str, memory: float, **more: Any) -> Submitted:
    return Submitted(0.0, job, Request(memory=memory, compute=0.0, **more))


def started(state: State, policy: str = "fcfs@skip@pack") -> list[str]:
    return [start.job for start in make_planner(policy).plan(Snapshot(state, 0.0)).starts]


def test_as_many_start_as_fit_beside_what_is_taken() -> None:
    jobs = [share(str(n), 5 * GIB) for n in range(4)]
    assert started(on_one_gpu(*jobs)) == ["0", "1", "2"]
    assert started(on_one_gpu(MemoryTaken(0.0, (1.5 * GIB,), HALF), *jobs)) == ["0", "1"]
    assert started(on_one_gpu(MemoryTaken(0.0, (1.5 * GIB,), HALF), MemoryTaken(0.0, (HALF,), HALF), *jobs)) == [
        "0", "1", "2",
    ]  # fmt: skip


def test_the_reason_tells_what_is_left_and_why_it_is_not_more() -> None:
    ran: list[Event] = [MemoryTaken(0.0, (1.5 * GIB,), HALF), share("a", 11 * GIB), Placed(0.0, "a", 1, (0,))]
    state = on_one_gpu(*ran, share("b", 6 * GIB))
    reason = make_planner("fcfs@skip@pack").plan(Snapshot(state, 0.0)).held["b"]
    assert isinstance(reason, Resources)
    assert reason.room == Room(0, 3.5 * GIB, 16 * GIB, HALF, GIB)
    assert str(reason) == "needs 6G on 1 GPU; GPU 0 has 3.5G left of 16G (512M kept free, 1G used by others)"


def test_whole_gpus_do_not_mind_what_is_kept_free() -> None:
    state = on_one_gpu(
        MemoryTaken(0.0, (HALF,), HALF), Submitted(0.0, "a", Request(memory=15.8 * GIB, scope=(0,), compute=100.0))
    )
    assert started(state) == ["a"]


def test_a_job_that_wants_a_gpu_for_itself_gets_one_that_is_large_enough() -> None:
    wish = Request(memory=12 * GIB, compute=100.0)
    for scope in ((), (0, 2), (2, 1)):
        state = fold(MIXED, [Submitted(0.0, "a", replace(wish, scope=scope))])
        plan = make_planner("fcfs@skip@spread").plan(Snapshot(state, 0.0))
        assert plan.starts[0].gpus[0] != 2
        assert started(load(MIXED, dump(state))) == ["a"]
    refusals = [
        (replace(wish, scope=(2,)), "wants 12G on each of 1 GPUs, and 0 of those have as much"),
        (replace(wish, gpus=3, compute=0.0), "wants 12G on each of 3 GPUs, and 2 of those have as much"),
    ]
    for request, why in refusals:
        assert make_planner("fcfs").refuses(State(MIXED), request) == why


def test_shares_may_start_beside_others_and_whole_gpus_may_not() -> None:
    jobs: list[Event] = [Submitted(0.0, "whole", Request()), share("share", 5 * GIB), share("large", 12 * GIB)]
    beside: list[Event] = [MemoryTaken(0.0, (HALF + 4 * GIB,), HALF), GpusWithdrawn(0.0, (0,), "shared")]
    state = on_one_gpu(*jobs, *beside)
    assert started(state) == ["share"]
    apply(state, Placed(0.0, "share", 1, (0,)))
    apply(state, GpusWithdrawn(0.0, (0,), "foreign"))
    assert started(state) == []
    apply(state, Exited(0.0, "share", 1))
    apply(state, GpusWithdrawn(0.0, (0,), "shared"))
    assert started(state) == []  # 11.5G are left
    apply(state, GpusRestored(0.0, (0,)))
    assert started(state) == ["whole"]


def test_of_all_gpus_it_must_be_said() -> None:
    with pytest.raises(Bug, match="memory is taken of 2 GPUs, and there are 1"):
        on_one_gpu(MemoryTaken(0.0, (1.0, 1.0)))
