"""Jobs of several parts, each on one node, and what else a cluster manager needs of the core."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core import draft as board
from gpuyard.core.checkpoint import dump, load
from gpuyard.core.draft import Draft, overdue_end_soon
from gpuyard.core.engine import Engine, validate
from gpuyard.core.events import (
    Charged,
    Exited,
    HostTaken,
    Placed,
    Promised,
    Recalled,
    RulesSet,
    Spared,
    Started,
    Submitted,
)
from gpuyard.core.loops import backfill
from gpuyard.core.model import GIB, Cluster, Request, Rules
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.errors import UserError
from gpuyard.policies.resolver import make_planner

NODES = Cluster((4, 4, 2), 16 * GIB, cpus=(16.0, 16.0, 8.0), host_memory=(64 * GIB,) * 3)
PLACEMENTS = ("first", "pack", "spread", "consolidate", "random", "packing", "clustering", "fgd")


def engine(policy: str = "fcfs@skip@pack", cluster: Cluster = NODES) -> Engine:
    return Engine(cluster, make_planner(policy))


def planned(one: Engine, now: float = 0.0, most: int = 1000) -> Plan:
    plan = one.planner.plan(Snapshot(one.state, now, most=most))
    validate(one.state, plan)
    return plan


def begin(one: Engine, job: str, gpus: tuple[int, ...], at: float = 0.0) -> None:
    one.record(Placed(at, job, 1, gpus))
    one.record(Started(at, job, 1))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_part_is_on_one_node(placement: str) -> None:
    one = engine(f"fcfs@skip@{placement}")
    one.record(Submitted(0.0, "gang", Request(gpus=8, parts=(3, 3, 2), cpus=8.0)))
    (start,) = planned(one).starts
    node = one.state.pool.node[list(start.gpus)]
    assert len(set(start.gpus)) == 8
    for part in (node[:3], node[3:6], node[6:]):
        assert len(set(part.tolist())) == 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_all_parts_start_or_none_does(placement: str) -> None:
    one = engine(f"fcfs@skip@{placement}")
    one.record(Submitted(0.0, "a", Request(gpus=2, cpus=1.0)))
    begin(one, "a", (0, 4))
    one.record(Submitted(0.0, "gang", Request(gpus=8, parts=(4, 4), cpus=2.0)))
    assert planned(one).starts == []
    one.record(Exited(1.0, "a", 1))
    assert [start.job for start in planned(one, 1.0).starts] == ["gang"]


def test_a_gang_that_no_nodes_could_hold_is_refused() -> None:
    one = engine()
    assert one.submit(0.0, "fits", Request(gpus=8, parts=(4, 4), cpus=1.0)) is None
    assert one.submit(0.0, "wide", Request(gpus=10, parts=(5, 5), cpus=1.0)) is not None
    assert one.submit(0.0, "many", Request(gpus=12, parts=(4, 4, 4), cpus=1.0)) is not None


def test_parts_are_all_gpus_of_a_job_the_largest_first() -> None:
    with pytest.raises(UserError, match="all of its GPUs"):
        Request(gpus=3, parts=(2, 2))
    with pytest.raises(UserError, match="largest first"):
        Request(gpus=3, parts=(1, 2))


@pytest.mark.parametrize("policy", ["fcfs@skip", "las@skip", "fcfs@easy"])
def test_a_job_of_one_part_that_fits_nowhere_rules_out_no_gang_of_its_size(policy: str) -> None:
    """Two nodes have 2 idle GPUs each: none for a job of 4 in one part, enough for one of two parts."""
    one = engine(f"{policy}@consolidate")
    for n, gpus in enumerate([(0, 1), (4, 5)]):
        one.record(Submitted(0.0, f"r{n}", Request(gpus=2, estimate=100.0, preemptible=False)))
        begin(one, f"r{n}", gpus)
    one.record(Submitted(1.0, "head", Request(gpus=8, estimate=50.0)))
    one.record(Submitted(1.0, "whole", Request(gpus=4, estimate=50.0)))
    one.record(Submitted(1.0, "gang", Request(gpus=4, parts=(2, 2), estimate=50.0)))
    assert [start.job for start in planned(one, 1.0).starts] == ["gang"]


def test_cpus_count_for_each_part() -> None:
    one = engine()
    one.record(Submitted(0.0, "gang", Request(gpus=4, parts=(2, 2), cpus=30.0)))  # 15 for each part, of 16
    (start,) = planned(one).starts
    assert len(set(one.state.pool.node[list(start.gpus)].tolist())) == 2


def test_small_jobs_do_not_delay_a_gang_at_the_head() -> None:
    one = engine("fcfs@easy@pack")
    for n in range(4):
        one.record(Submitted(0.0, f"r{n}", Request(gpus=1, estimate=100.0, cpus=1.0)))
        begin(one, f"r{n}", (n,))
    one.record(Submitted(1.0, "gang", Request(gpus=8, parts=(4, 4), estimate=50.0, cpus=2.0)))
    one.record(Submitted(2.0, "long", Request(gpus=1, estimate=1000.0, cpus=1.0)))
    one.record(Submitted(2.0, "short", Request(gpus=1, estimate=90.0, cpus=1.0)))
    found = {start.job: start.gpus for start in planned(one, 2.0).starts}
    assert set(found) == {"long", "short"}
    assert one.state.pool.node[found["long"][0]] == 2  # where the gang has no use for it


def test_a_state_with_gangs_can_be_kept_and_loaded() -> None:
    one = engine()
    one.record(HostTaken(0.0, 1, 4.0, GIB))
    one.record(Submitted(0.0, "gang", Request(gpus=8, parts=(4, 4), cpus=2.0, patient=True)))
    again = load(NODES, dump(one.state))
    assert again.parts == {0: (4, 4)}
    assert again.patient == {0}
    assert again.facts() == one.state.facts()


def test_what_others_take_of_a_node_is_not_there() -> None:
    one = engine()
    one.record(HostTaken(0.0, 0, 15.5, 0.0))
    one.record(HostTaken(0.0, 1, 15.5, 0.0))
    one.record(Submitted(0.0, "a", Request(gpus=2, cpus=1.0)))
    (start,) = planned(one).starts
    assert start.gpus == (8, 9)
    begin(one, "a", start.gpus)
    one.record(HostTaken(1.0, 0, 0.0, 0.0))
    one.record(Exited(2.0, "a", 1))
    assert one.state.pool.cpus.tolist() == [16.0, 0.5, 8.0]
    assert one.state.pool.all_cpus.tolist() == [16.0, 0.5, 8.0]


def test_a_plan_starts_so_many_at_most() -> None:
    one = engine()
    for n in range(9):
        one.record(Submitted(0.0, f"j{n}", Request(gpus=1, cpus=1.0)))
    for policy in ("fcfs@skip@pack", "fcfs@easy@pack", "fcfs@strict@pack"):
        one.planner = make_planner(policy)
        assert [start.job for start in planned(one, most=4).starts] == ["j0", "j1", "j2", "j3"]


def test_nobody_is_stopped_for_a_patient_job_or_for_a_share_alone() -> None:
    one = engine("multifactor@easy@pack", Cluster((1,), cpus=(8.0,)))
    one.record(RulesSet(0.0, Rules(half_life=100.0, for_shares=False)))
    one.record(Submitted(0.0, "low", Request(user="a", cpus=1.0)))
    begin(one, "low", (0,))
    one.record(Submitted(1.0, "other", Request(user="b", cpus=1.0)))
    one.record(Submitted(1.0, "patient", Request(user="b", priority=100.0, patient=True, cpus=1.0)))
    assert planned(one, 2.0).stops == []
    one.record(Submitted(2.0, "high", Request(user="b", priority=100.0, cpus=1.0)))
    assert planned(one, 2.0).stops == ["low"]


def test_who_was_told_to_end_and_could_not_be_stopped_goes_on() -> None:
    one = engine("multifactor@easy@pack", Cluster((1,), cpus=(8.0,)))
    one.record(Submitted(0.0, "low", Request(cpus=1.0)))
    begin(one, "low", (0,))
    fixed = one.state.fixed
    one.record(Submitted(1.0, "high", Request(priority=9.0, cpus=1.0)))
    one.record(Promised(1.0, "high", (0,)))
    one.record(Recalled(1.0, "low", 1, "preempted"))
    assert one.state.fixed == fixed + 1
    one.record(Spared(2.0, "low", 1))
    assert one.state.fixed == fixed
    assert not one.state.recalled


shares = st.builds(
    Request,
    gpus=st.integers(1, 3),
    estimate=st.sampled_from([10.0, 20.0, 30.0, 30.0]),
    memory=st.sampled_from([0.0, 4 * GIB, 9 * GIB]),
    compute=st.sampled_from([100.0, 50.0]),
    cpus=st.sampled_from([0.5, 2.0]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(shares, max_size=8), shares, st.sampled_from([(), (2, 1), (1, 1, 1)]),
    st.sampled_from(["first", "pack", "spread", "packing"]),
)  # fmt: skip
def test_a_head_is_expected_when_leaving_one_by_one_would_make_room(
    running: list[Request], head: Request, parts: tuple[int, ...], placement: str
) -> None:
    state, planner = State(NODES), make_planner(f"fcfs@skip@{placement}")
    for n, request in enumerate(running):
        apply(state, Submitted(float(n), f"r{n}", request))
    for start in planner.plan(Snapshot(state, 1.0)).starts:
        apply(state, Placed(1.0, start.job, 1, start.gpus))
        apply(state, Started(1.0, start.job, 1))
    wanted = Request(gpus=sum(parts), parts=parts, cpus=1.0) if parts else head
    apply(state, Submitted(2.0, "head", wanted))
    row = state.row_of["head"]
    draft = Draft(Snapshot(state, 2.0), planner.policy, planner.code, 0)
    holders = overdue_end_soon(draft.holders_by_end(), 2.0)
    slow, after = backfill.reserve(row, holders, draft.site)
    quick, later = board.reserve(row, holders, draft.site)
    assert quick == slow
    if slow < np.inf:
        assert later.pool.tenants.tolist() == after.pool.tenants.tolist()
        assert np.allclose(later.pool.memory, after.pool.memory)
        assert np.allclose(later.pool.cpus, after.pool.cpus)
        assert later.pool.idle.tolist() == after.pool.idle.tolist()


def test_charges_of_gangs_are_checked_like_all_others() -> None:
    one = engine()
    one.record(Submitted(0.0, "a", Request(gpus=4, parts=(2, 2), memory=4 * GIB, compute=0.0, cpus=1.0)))
    one.record(Charged(0.0, "a", 2 * GIB, "history"))
    (start,) = planned(one).starts
    one.place(0.0, start)
    assert sorted(one.state.pool.memory.tolist())[:2] == [12 * GIB] * 2


def test_parts_that_share_gpus_may_have_the_same_ones() -> None:
    one = engine("fcfs@skip@pack", Cluster((1,), 16 * GIB, cpus=(8.0,)))
    one.record(Submitted(0.0, "a", Request(gpus=3, parts=(1, 1, 1), memory=5 * GIB, compute=0.0, cpus=3.0)))
    (start,) = planned(one).starts
    assert start.gpus == (0, 0, 0)
    one.record(Submitted(0.0, "b", Request(gpus=1, memory=2 * GIB, compute=0.0, cpus=1.0)))
    assert [found.job for found in planned(one).starts] == ["a"]  # and 1G is left
    one.place(0.0, start)
    assert one.state.pool.memory.tolist() == [GIB]
    assert one.state.pool.cpus.tolist() == [5.0]
    one.record(Exited(1.0, "a", 1))
    assert one.state.pool.memory.tolist() == [16 * GIB]
    assert one.state.pool.cpus.tolist() == [8.0]
    one.record(Submitted(1.0, "c", Request(gpus=4, parts=(1, 1, 1, 1), memory=5 * GIB, compute=0.0, cpus=1.0)))
    assert [found.job for found in planned(one, 1.0).starts] == ["b"]
