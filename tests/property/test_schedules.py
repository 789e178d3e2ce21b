"""What must hold of every schedule, whatever the workload, the policy, the discipline and the placement."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.events import Event, Started
from gpuyard.core.loops.backfill import DISCIPLINES
from gpuyard.core.model import GIB, Cluster
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import PLACEMENTS
from gpuyard.core.reasons import Resources
from gpuyard.core.state import State
from gpuyard.core.transitions import fold
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, RestartCost, restart_costs, simulate
from gpuyard.sim.trace import Trace

SLACK = 1e-6
CLUSTERS = [Cluster(nodes) for nodes in [(1,), (4,), (2, 2), (4, 2, 1), (3, 3, 3)]]
Piece = tuple[float, float, tuple[int, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """Everything that decides a schedule."""

    trace: Trace
    cluster: Cluster
    policy: str
    options: Options

    def run(self, log: list[Event] | None = None) -> Result:
        return simulate(self.trace, self.cluster, self.policy, self.options, log=log)[0]


@st.composite
def traces(draw: st.DrawFn, max_gpus: int, *, shares: bool | None = None, upper_bounds: bool = False) -> Trace:
    """Up to 15 jobs on whole or decimal times; some may be too large for the cluster."""
    n = draw(st.integers(1, 15))
    unit = draw(st.sampled_from([1.0, 0.1]))
    latest = draw(st.sampled_from([0, 20, 150]))

    def column(values: st.SearchStrategy[T]) -> list[T]:
        return draw(st.lists(values, min_size=n, max_size=n))

    run = np.array(column(st.integers(1, 40))) * unit
    factor = column(st.sampled_from([1.0, 1.0, 2.0, 5.0] if upper_bounds else [1.0, 0.3, 2.0]))
    some_share = draw(st.booleans()) if shares is None else shares
    kinds = st.sampled_from(
        [(0.0, 100.0), (6 * GIB, 0.0), (5.3 * GIB, 33.3), (0.0, 33.4), (0.0, 50.0), (16 * GIB, 10.0)]
    )
    demand = column(kinds) if some_share else [(0.0, 100.0)] * n
    return Trace.of(
        np.array(column(st.integers(0, latest))) * unit,
        run,
        column(st.integers(1, max_gpus)),
        requested=run * np.array(factor),
        memory=[memory for memory, _ in demand],
        compute=[compute for _, compute in demand],
        users=column(st.sampled_from(["ann", "bob", ""])),
        weight=column(st.sampled_from([1.0, 2.0, 0.5])),
        tickets=column(st.sampled_from([1.0, 10.0])),
        priority=column(st.sampled_from([0.0, 1.0, -3.0])),
        deadline=column(st.sampled_from([10.0, 100.0, np.inf])),
        preemptible=column(st.sampled_from([True, True, False])),
    )


COSTS: list[RestartCost] = [0.0, 0.0, 1.5, (0.5, 1.0, 1.5)]


@st.composite
def cases(draw: st.DrawFn, policies: list[str] | None = None, shares: bool | None = None) -> Case:
    cluster = draw(st.sampled_from(CLUSTERS))
    name = draw(st.sampled_from(policies or sorted(POLICIES)))
    policy = POLICIES[name]
    discipline = draw(st.sampled_from(["strict", "skip"] if policy.preemptive else sorted(DISCIPLINES)))
    quantum = draw(st.sampled_from([2.0, 7.5])) if policy.sliced else draw(st.sampled_from([None, 0.0, 3.0]))
    if name == "las":
        name = draw(st.sampled_from(["las", "las:queues=5/20/60", "las:queues=1/2/3/4/5/6/7/8"]))
    options = Options(
        discipline=discipline,
        placement=draw(st.sampled_from(sorted(PLACEMENTS))),
        estimate=draw(st.sampled_from(["actual", "requested", "noisy:0.5"])),
        quantum=quantum,
        restart_cost=draw(st.sampled_from(COSTS)),
        round_length=0.0 if discipline in ("commit", "easy-shadow") else draw(st.sampled_from([0.0, 0.0, 0.7, 5.0])),
        seed=draw(st.integers(0, 3)),
    )
    return Case(draw(traces(cluster.gpus + 1, shares=shares)), cluster, name, options)


def pieces(result: Result) -> dict[int, list[Piece]]:
    """Every run of every job: when, and on which GPUs; in the order of time."""
    gpus: dict[tuple[int, float, float], list[int]] = defaultdict(list)
    segments = result.segments
    for job, gpu, start, end in zip(
        segments.job.tolist(), segments.gpu.tolist(), segments.start.tolist(), segments.end.tolist(), strict=True
    ):
        gpus[job, start, end].append(gpu)
    found: dict[int, list[Piece]] = defaultdict(list)
    for (job, start, end), held in sorted(gpus.items()):
        found[job].append((start, end, tuple(held)))
    return found


def check_capacity(result: Result) -> None:
    """At every instant at which something starts, no GPU holds more than it has."""
    trace, segments = result.trace, result.segments
    whole = trace.compute >= 100
    for t in np.unique(segments.start):
        now = (segments.start <= t) & (t < segments.end)
        job, gpu = segments.job[now], segments.gpu[now]
        tenants = np.bincount(gpu, minlength=result.cluster.gpus)
        assert (tenants[gpu[whole[job]]] == 1).all(), f"a whole GPU is shared at {t}"
        for wanted, capacity in ((trace.memory, result.cluster.memory), (trace.compute, 100.0)):
            assert np.bincount(gpu, weights=wanted[job]).max() <= capacity * (1 + 1e-9), f"too much on a GPU at {t}"


def check_gangs(result: Result) -> None:
    """Each run holds exactly as many distinct GPUs as the job wants, all for the same time, and runs do not overlap."""
    for job, runs in pieces(result).items():
        for start, end, gpus in runs:
            assert end > start
            assert len(gpus) == len(set(gpus)) == result.trace.gpus[job]
            assert all(0 <= gpu < result.cluster.gpus for gpu in gpus)
        for (_, end, _), (start, _, _) in pairwise(runs):
            assert start >= end


def check_everybody_served(result: Result) -> None:
    for job in range(len(result.trace)):
        if job in result.rejected:
            assert result.rejected[job]
            assert np.isnan(result.start[job])
            assert np.isnan(result.end[job])
            assert result.placements[job] == ()
        else:
            assert result.trace.submit[job] <= result.start[job] < result.end[job] < np.inf
    assert set(pieces(result)) == set(range(len(result.trace))) - set(result.rejected)


def check_rounds(result: Result, length: float) -> None:
    """Nothing starts but at multiples of the round."""
    if length:
        counts = result.segments.start / length
        assert counts == pytest.approx(np.round(counts), abs=SLACK)


def check_conservation(result: Result, cost: RestartCost) -> None:
    """A run brings its length less the restart's cost (all of it lost, where it was stopped before that was over)."""
    costs = restart_costs(result.trace.gpus, cost)
    for job, runs in pieces(result).items():
        progress = sum(max(end - start - (costs[job] if n else 0.0), 0.0) for n, (start, end, _) in enumerate(runs))
        assert progress == pytest.approx(result.trace.run[job], abs=SLACK)
        assert len(runs) == result.preemptions[job] + 1
        assert (runs[0][0], runs[-1][1]) == (result.start[job], result.end[job])
        assert set(runs[-1][2]) == set(result.placements[job])


def check_one_piece(result: Result, log: list[Event]) -> None:
    starts = [event.job for event in log if isinstance(event, Started)]
    for job in np.flatnonzero(~result.trace.preemptible):
        assert result.preemptions[job] == 0
        assert starts.count(result.trace.ids[job]) == (0 if job in result.rejected else 1)


@settings(max_examples=120)
@given(case=cases())
def test_every_schedule_is_sound(case: Case) -> None:
    log: list[Event] = []
    result = case.run(log)
    check_gangs(result)
    check_everybody_served(result)
    if len(result.segments):
        check_capacity(result)
    check_rounds(result, case.options.round_length)
    check_conservation(result, case.options.restart_cost)
    check_one_piece(result, log)


@settings(max_examples=100)
@given(case=cases(["srtf", "srsf", "las", "rr"]))
def test_preemptive_schedules_are_sound(case: Case) -> None:
    log: list[Event] = []
    result = case.run(log)
    check_gangs(result)
    check_everybody_served(result)
    if len(result.segments):
        check_capacity(result)
    check_rounds(result, case.options.round_length)
    check_conservation(result, case.options.restart_cost)
    check_one_piece(result, log)


@given(case=cases())
def test_same_seed_same_schedule(case: Case) -> None:
    one, two = case.run(), case.run()
    for name in ("start", "end", "preemptions"):
        assert np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True), name
    assert pieces(one) == pieces(two)
    assert (one.rejected, one.placements) == (two.rejected, two.placements)


@given(case=cases(), data=st.data())
def test_folding_the_log_gives_the_live_state(case: Case, data: st.DataObject) -> None:
    """Also when the fold stops half way and goes on, as a restart does."""
    log: list[Event] = []
    seen: list[tuple[int, dict[str, Any]]] = []
    states: list[State] = []
    stop = data.draw(st.integers(0, 20))

    def remember(self: OrderedPlanner, snapshot: Snapshot) -> Plan:
        if len(seen) <= stop:
            seen.append((len(log), deepcopy(snapshot.state.facts())))
        states.append(snapshot.state)
        return plan(self, snapshot)

    plan = OrderedPlanner.plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedPlanner, "plan", remember)
        case.run(log)
    if not seen:  # every job was rejected, and there was nothing to plan
        return
    assert fold(case.cluster, log, case.options.seed).facts() == states[-1].facts()
    events, facts = seen[-1]
    assert fold(case.cluster, log[:events], case.options.seed).facts() == facts


@st.composite
def backfilled(draw: st.DrawFn, shares: bool) -> Case:
    cluster = draw(st.sampled_from(CLUSTERS[1:]))
    trace = draw(traces(cluster.gpus, shares=shares, upper_bounds=True))
    placement = draw(st.sampled_from(["first", "consolidate", "pack", "spread"]))
    return Case(trace, cluster, "fcfs@easy", Options(placement=placement, estimate="requested"))


def reservations(case: Case) -> tuple[Result, list[tuple[float, str, float]]]:
    """The schedule, and at every plan the head of the queue with the time at which it is expected to fit."""
    heads: list[tuple[float, str, float]] = []

    def remember(self: OrderedPlanner, snapshot: Snapshot) -> Plan:
        made = plan(self, snapshot)
        for job, reason in list(made.held.items())[:1]:
            assert isinstance(reason, Resources)
            assert reason.expected_at is not None
            heads.append((snapshot.now, job, reason.expected_at))
        return made

    plan = OrderedPlanner.plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedPlanner, "plan", remember)
        return case.run(), heads


@pytest.mark.parametrize("shares", [False, True], ids=["whole GPUs", "shares"])
@settings(max_examples=120)
@given(data=st.data())
def test_easy_keeps_its_reservations(shares: bool, data: st.DataObject) -> None:
    """With estimates that are upper bounds, whoever becomes head starts no later than it is then told."""
    result, heads = reservations(data.draw(backfilled(shares)))
    started = dict(zip(result.trace.ids, result.start.tolist(), strict=True))
    for now, job, expected_at in heads:
        assert started[job] <= expected_at + SLACK, f"job {job} was told {expected_at} at {now}"


def test_easy_reservations_are_not_trivial() -> None:
    """The property above has something to check: a head that waits, and a job that overtakes it."""
    trace = Trace.of([0, 1, 2], [10, 10, 5], [2, 4, 2], requested=[12, 10, 6])
    result, heads = reservations(Case(trace, Cluster((4,)), "fcfs@easy", Options()))
    assert heads[0] == (1.0, "1", 12.0)
    assert result.start.tolist() == [0, 10, 2]


@settings(max_examples=120)
@given(trace=traces(4, shares=False))
def test_conservative_delays_nobody_compared_with_strict(trace: Trace) -> None:
    """FCFS, exact estimates, one node."""
    exact = Options(estimate="actual")
    strict = simulate(trace, Cluster((4,)), "fcfs@strict", exact)[0]
    conservative = simulate(trace, Cluster((4,)), "fcfs@conservative", exact)[0]
    assert (conservative.start <= strict.start + SLACK).all()


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=15)
@given(data=st.data())
def test_each_policy_serves_everybody(name: str, data: st.DataObject) -> None:
    """Every built-in policy by itself, so that none is left out by chance."""
    case = data.draw(cases([name]))
    result = case.run()
    check_everybody_served(result)
    check_conservation(result, case.options.restart_cost)
