"""No job is left waiting that could start: greedy disciplines start all that fit, and EASY backfilling all that delay
nobody. EASY keeps its promises, and is no worse than conservative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.model import GIB, Cluster
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.reasons import Resources
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

Watch = Callable[[Snapshot, Plan], None]
Holder = tuple[float, tuple[int, ...]]  # when a job is expected to end, and the nodes of its GPUs
CLUSTERS = ((4, 4), (8, 8, 8), (4, 2, 3), (2, 2, 8, 1), (3, 3))


def watched(
    trace: Trace, nodes: tuple[int, ...], discipline: str, placement: str, watch: Watch, policy: str = "fcfs"
) -> Result:
    def remember(self: OrderedPlanner, snapshot: Snapshot) -> Plan:
        made = plan(self, snapshot)
        watch(snapshot, made)
        return made

    plan = OrderedPlanner.plan
    options = Options(discipline=discipline, placement=placement, estimate="requested", engine="replay")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedPlanner, "plan", remember)
        return simulate(trace, Cluster(nodes), policy, options)[0]


def fits_at(head: int, nodes: tuple[int, ...], holders: list[Holder], now: float) -> float:
    """When some node has all the GPUs that the head asks for, by a search over all ends."""
    for at in sorted({now, *(until for until, _ in holders)}):
        idle = list(nodes)
        for until, held in holders:
            if until > at:
                for n in held:
                    idle[n] -= 1
        if max(idle) >= head:
            return at
    raise AssertionError("the head never fits")


def needless(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Jobs that a plan of `consolidate` leaves waiting although they could run on some node and delay the head by
    nothing."""
    state, now, nodes = snapshot.state, snapshot.now, snapshot.state.cluster.nodes
    table, node = state.table, state.pool.node
    begun = {state.row_of[one.job]: one.gpus for one in plan.starts}
    spots = [(float(table.started[row] + table.estimate[row]), state.spot[row]) for row in snapshot.running.tolist()]
    spots += [(now + float(table.estimate[row]), np.array(gpus)) for row, gpus in begun.items()]
    holders = [(max(until, np.nextafter(now, np.inf)), tuple(node[gpus].tolist())) for until, gpus in spots]
    waiting = [row for row in snapshot.waiting.tolist() if row not in begun]
    if not waiting:
        return []
    head, idle = int(table.demand.gpus[waiting[0]]), list(nodes)
    for _, held in holders:
        for n in held:
            idle[n] -= 1
    promised = fits_at(head, nodes, holders, now)
    found = []
    for row in waiting[1:]:
        k, until = int(table.demand.gpus[row]), now + float(table.estimate[row])
        found += [
            f"{state.ids[row]} at {now} on node {n}"
            for n in range(len(nodes))
            if idle[n] >= k and fits_at(head, nodes, [*holders, (until, (n,) * k)], now) <= promised
        ]
    return found


@st.composite
def whole_gpu_jobs(draw: st.DrawFn, wide: bool = False) -> tuple[Trace, tuple[int, ...]]:
    """Jobs that fit on one node each, or `wide` ones as well."""
    nodes = draw(st.sampled_from([(3, 3), (4, 2, 3), (3, 2, 2), (2, 1, 1)] if wide else CLUSTERS))
    n = draw(st.integers(3, 15))

    def column(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    run = np.array(column(1, 30), dtype=float)
    requested = run * draw(st.lists(st.sampled_from([1.0, 1.0, 2.0]), min_size=n, max_size=n))
    return Trace.of(
        column(0, 10 if wide else 40), run, column(1, sum(nodes) if wide else max(nodes)), requested=requested
    ), nodes


def left_over(snapshot: Snapshot, plan: Plan, one_node: bool) -> list[str]:
    """Jobs that a plan leaves waiting although there is room for them. With `one_node`, a job must be on one node; if
    it is wider than any, on whole nodes, and on one other for the rest."""
    state, sizes = snapshot.state, snapshot.state.cluster.nodes
    idle = np.array(state.pool.idle)
    for sign, gpus in [(-1, one.gpus) for one in plan.starts] + [
        (1, state.spot[state.row_of[job]]) for job in plan.stops
    ]:
        np.add.at(idle, state.pool.node[list(gpus)], sign)
    whole = int(idle[idle == sizes].sum()) + max([0, *idle[idle < sizes].tolist()])
    most = {True: idle.max(), False: whole} if one_node else dict.fromkeys((True, False), idle.sum())
    begun = {one.job for one in plan.starts}
    waiting = [row for row in snapshot.waiting.tolist() if state.ids[row] not in begun]
    asked = {state.ids[row]: int(state.table.demand.gpus[row]) for row in waiting}
    return [f"{job} at {snapshot.now}" for job, k in asked.items() if k <= most[k <= max(sizes)]]


@pytest.mark.parametrize("policy", ["fcfs", "wfp3", "srtf", "las"])
@settings(max_examples=40)
@given(workload=whole_gpu_jobs(wide=True), placement=st.sampled_from(["consolidate", "first", "packing"]))
def test_greedy_disciplines_start_all_that_fit(
    policy: str, workload: tuple[Trace, tuple[int, ...]], placement: str
) -> None:
    found: list[str] = []
    one_node = placement != "first"
    watched(
        *workload, "skip", placement, lambda snapshot, plan: found.extend(left_over(snapshot, plan, one_node)), policy
    )
    assert not found


@pytest.mark.parametrize("engine", ["replay", "kernel"])
@pytest.mark.parametrize("policy", ["fcfs@skip", "wfp3@skip", "las", "fcfs@easy", "fcfs@easy-shadow"])
def test_a_job_that_fits_on_no_node_rules_out_none_that_takes_several(policy: str, engine: str) -> None:
    """The node of 8 GPUs is busy. No node has 6 GPUs, but three whole nodes of 4 have 10."""
    jobs = [(0, 100, 8), (1, 10, 20), (2, 10, 6), (3, 10, 10)]
    options = Options(placement="consolidate", engine=engine)
    result = simulate(Trace.of(*zip(*jobs, strict=True)), Cluster((8, 4, 4, 4)), policy, options)[0]
    assert result.start[3] == 3


@settings(max_examples=150)
@given(workload=whole_gpu_jobs())
def test_easy_refuses_no_job_that_delays_nobody(workload: tuple[Trace, tuple[int, ...]]) -> None:
    refused: list[str] = []
    watched(*workload, "easy", "consolidate", lambda snapshot, plan: refused.extend(needless(snapshot, plan)))
    assert not refused


JOBS = [(0, 10, 3), (0, 20, 3), (1, 10, 4), (2, 30, 1), (3, 5, 1)]  # submission, run time, GPUs
STARTS = [0, 0, 10, 2, 3]


@pytest.mark.parametrize("engine", ["replay", "kernel"])
@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_a_job_in_the_heads_way_on_one_node_starts_on_another(discipline: str, engine: str) -> None:
    options = Options(discipline=discipline, placement="consolidate", engine=engine)
    result = simulate(Trace.of(*zip(*JOBS, strict=True)), Cluster((4, 4)), "fcfs", options)[0]
    assert result.start.tolist() == STARTS


@pytest.mark.parametrize("placement", ["first", "pack", "spread", "consolidate", "random", "packing", "fgd"])
def test_so_does_a_share_of_a_gpu(placement: str) -> None:
    """The head waits for all of the GPU that is free at 10; a long job may share the other one."""
    jobs = [(0, 10, 60), (0, 20, 60), (1, 10, 100), (2, 30, 30)]  # submission, run time, share of a GPU
    submit, run, share = zip(*jobs, strict=True)
    trace = Trace.of(submit, run, [1] * 4, compute=share)
    result = simulate(trace, Cluster((1, 1)), "fcfs", Options(discipline="easy", placement=placement))[0]
    assert result.start.tolist() == [0, 0, 10, 2]


def test_a_job_wider_than_a_node_leaves_whole_nodes_to_the_head() -> None:
    """The head waits for three whole nodes of five. A long job takes one of the two that are idle, and for the rest of
    its GPUs not the other, which has the most idle GPUs, but one that a small job has begun."""
    jobs = [(0, 10, 8), (0, 10, 8), (0, 50, 2), (1, 10, 24), (2, 100, 10)]
    options = Options(discipline="easy", placement="consolidate")
    result = simulate(Trace.of(*zip(*jobs, strict=True)), Cluster((8,) * 5), "fcfs", options)[0]
    assert result.start.tolist() == [0, 0, 0, 10, 2]


def random_workload(seed: int, shares: bool) -> tuple[Trace, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    nodes = CLUSTERS[int(rng.integers(len(CLUSTERS)))]
    n, total = int(rng.integers(5, 40)), sum(nodes)
    wide = rng.random(n) < 0.15
    gpus = np.where(wide, rng.integers(1, total + 1, n), rng.integers(1, max(nodes) + 1, n))
    run = rng.integers(1, 60, n).astype(float)
    span = float(run @ gpus) / total * rng.uniform(0.3, 1.2)
    submit = np.sort(rng.integers(0, int(span) + 1, n)).astype(float)
    kinds = np.array([(0.0, 100.0), (6 * GIB, 0.0), (5.3 * GIB, 33.3), (0.0, 50.0)])
    memory, compute = kinds[rng.integers(len(kinds), size=n) if shares else np.zeros(n, dtype=np.int64)].T
    return Trace.of(submit, run, gpus, requested=run, memory=memory, compute=compute), nodes


def compared(seed: int, placement: str, shares: bool) -> tuple[float, float, int, list[str]]:
    """Mean waits of EASY and of conservative, how many promises EASY made to heads, and which it broke."""
    trace, nodes = random_workload(seed, shares)
    promises: list[tuple[str, float]] = []

    def note(snapshot: Snapshot, plan: Plan) -> None:
        for job, reason in list(plan.held.items())[:1]:
            if isinstance(reason, Resources) and reason.expected_at is not None:
                promises.append((job, reason.expected_at))

    easy = watched(trace, nodes, "easy", placement, note)
    conservative = watched(trace, nodes, "conservative", placement, lambda snapshot, plan: None)
    started = dict(zip(trace.ids, easy.start.tolist(), strict=True))
    broken = [f"{job} promised {at}" for job, at in promises if started[job] > at + 1e-6]
    waits = [float(np.nanmean(result.start - trace.submit)) for result in (easy, conservative)]
    return waits[0], waits[1], len(promises), broken


@pytest.mark.parametrize("shares", [False, True], ids=["whole GPUs", "shares"])
def test_easy_keeps_its_promises_and_waits_no_longer_than_conservative(shares: bool) -> None:
    """Exact estimates; single workloads differ either way. `python -m tests.property.test_backfilling` runs 3,000."""
    found = [compared(seed, "consolidate", shares) for seed in range(30)]
    assert sum(promises for *_, promises, _ in found) > 300
    assert not [broken for *_, broken in found if broken]
    assert np.mean([easy for easy, *_ in found]) <= np.mean([conservative for _, conservative, *_ in found])


if __name__ == "__main__":
    for way in ("consolidate", "first", "pack", "spread", "random"):
        for shared in (False, True):
            outcomes = [compared(seed, way, shared) for seed in range(3000)]
            mean = np.mean([one[:2] for one in outcomes], axis=0)
            print(
                f"{way}, {'shares' if shared else 'whole GPUs'}: mean wait {mean[0]:.3f}, conservative {mean[1]:.3f};"
                f" {sum(one[2] for one in outcomes)} promises, {sum(len(one[3]) for one in outcomes)} broken"
            )
