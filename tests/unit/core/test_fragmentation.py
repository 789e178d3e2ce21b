"""Fragmentation by hand, the placements that care about it, and nodes with CPUs, host memory and GPU models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.engine import BadPlan, validate
from gpuyard.core.events import Event, Placed, Started, Submitted
from gpuyard.core.loops.fragmentation import fragments, typical
from gpuyard.core.loops.placement import claim, place, release
from gpuyard.core.loops.pool import Pool, Site, new_pool
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.planner import never_fits
from gpuyard.core.policy import PLACEMENTS
from gpuyard.core.state import State
from gpuyard.core.transitions import fold
from gpuyard.errors import UserError
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

Gpus = tuple[int, ...]
EVERY_GPU = np.ones((1, 8), dtype=bool)


def spot(placement: str, cluster: Cluster, request: Request, *jobs: tuple[Gpus, Request]) -> Gpus | None:
    """The GPUs that a new job gets beside the jobs that are there; None if it has to wait."""
    events: list[Event] = []
    for n, (gpus, held) in enumerate(jobs):
        events += [Submitted(0.0, str(n), held), Placed(0.0, str(n), 1, gpus), Started(0.0, str(n), 1)]
    state = fold(cluster, [*events, Submitted(1.0, "new", request)])
    starts = make_planner("fcfs@skip", placement=placement).plan(Snapshot(state, 1.0)).starts
    return starts[0].gpus if starts else None


def share(compute: float) -> Request:
    return Request(compute=compute)


def used(nodes: Gpus, compute: dict[int, float], cpus: tuple[float, ...] = ()) -> Pool:
    """A pool where these GPUs have so many percent left."""
    pool = new_pool(nodes, 16 * GIB, cpus)
    for gpu, left in compute.items():
        pool.compute[gpu] = left
    return pool


# -- what a fragment is ------------------------------------------------------------------------------

HALF, PAIR, CPU = (1, 0.5, 0.0, 0), (2, 1.0, 0.0, 0), (0, 1.0, 4.0, 0)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({HALF: 1}, 0.4),  # the GPU with too little room
        ({PAIR: 1}, 1.4),  # only one GPU is whole
        ({CPU: 1}, 1.4),  # of no use to whoever needs none
        ({HALF: 3, PAIR: 1}, 0.75 * 0.4 + 0.25 * 1.4),
        ({(1, 0.4, 0.0, 0): 1}, 0.0),
        ({(1, 0.4, 3.0, 0): 1}, 1.4),  # too few CPUs
    ],
)
def test_fragments_of_a_node(kinds: dict[tuple[int, float, float, int], int], expected: float) -> None:
    pool = used((2,), {1: 40.0}, cpus=(2.0,))
    assert fragments(pool, typical(kinds, EVERY_GPU[:, :2])) == pytest.approx([expected])


def test_fragments_of_the_wrong_model() -> None:
    scopes = np.array([[True, True], [False, True]])
    tasks = typical({(1, 0.5, 0.0, 1): 1}, scopes)
    assert fragments(used((1, 1), {1: 60.0}), tasks).tolist() == [1.0, 0.0]


def test_rare_jobs_do_not_count() -> None:
    tasks = typical({HALF: 94, PAIR: 5, CPU: 1}, EVERY_GPU)
    assert (tasks.gpus.tolist(), tasks.popularity.tolist()) == ([1, 2], [94 / 99, 5 / 99])
    assert typical({HALF: 95, PAIR: 5}, EVERY_GPU).gpus.tolist() == [1]


def test_nothing_is_typical_yet() -> None:
    assert fragments(new_pool((2, 2), GIB), typical({}, EVERY_GPU)).tolist() == [0.0, 0.0]


# -- where jobs go -----------------------------------------------------------------------------------


def test_fgd_spares_whole_gpus_where_jobs_want_them() -> None:
    """A third of the jobs want a whole GPU: half of an idle one would be lost to them, the used half is already."""
    jobs = [((0,), Request()), ((2,), share(50))]
    assert spot("fgd", Cluster((1, 1, 1)), share(50), *jobs) == (2,)
    assert spot("first", Cluster((1, 1, 1)), share(50), *jobs) == (1,)


def test_fgd_does_not_mind_where_nobody_wants_more() -> None:
    assert spot("fgd", Cluster((1, 1)), share(50), ((1,), share(50))) == (0,)


def test_fgd_chooses_the_gpu_too() -> None:
    """40 left on GPU 0, 70 on GPU 1: a 40 leaves either 0 and 70, or 40 and 30, of which the 30 is of no use."""
    jobs = [((0,), share(60)), ((1,), share(30)), ((2,), share(40)), ((2,), share(40)), ((3,), share(40))]
    assert spot("fgd", Cluster((2, 2)), share(40), *jobs) == (0,)


def test_fgd_keeps_pairs_together() -> None:
    """Everybody wants two GPUs; a job of one goes beside another of one."""
    jobs = [((0, 1), Request(gpus=2)), ((2,), Request()), ((6, 7), Request(gpus=2))]
    assert spot("fgd", Cluster((2, 2, 2, 2)), Request(), *jobs) == (3,)


# Three nodes of two. Node 0 is idle, GPU 2 is shared, GPU 4 is taken.
IN_USE = [((2,), share(30)), ((4,), Request())]


@pytest.mark.parametrize(
    ("placement", "request_", "expected"),
    [
        ("packing", share(50), (2,)),
        ("packing", share(80), (3,)),  # an idle GPU of a node in use; of two such, the lower
        ("packing", Request(), (3,)),
        ("packing", Request(gpus=2), (0, 1)),
        ("clustering", share(50), (2,)),
        ("clustering", share(80), (3,)),
        ("clustering", Request(), (5,)),
        ("clustering", Request(gpus=2), (0, 1)),
        ("fgd", Request(gpus=2), (0, 1)),
    ],
)
def test_beside_whom(placement: str, request_: Request, expected: Gpus) -> None:
    assert spot(placement, Cluster((2, 2, 2)), request_, *IN_USE) == expected


def test_packing_takes_the_tightest_gpu_and_the_smallest_idle_node() -> None:
    assert spot("packing", Cluster((2, 2)), share(30), ((0,), share(30)), ((3,), share(60))) == (3,)
    assert spot("packing", Cluster((4, 2)), Request()) == (4,)


def test_clustering_prefers_nodes_without_other_kinds() -> None:
    mixed, alone = [((0,), share(50)), ((1,), Request())], [((4,), share(10))]
    assert spot("clustering", Cluster((4, 4)), share(20), *mixed, *alone) == (4,)
    assert spot("clustering", Cluster((2, 2)), Request(gpus=2), ((0,), share(50)), ((3,), share(50))) is None


@pytest.mark.parametrize("placement", ["packing", "clustering", "fgd"])
def test_one_node_or_whole_nodes(placement: str) -> None:
    assert spot(placement, Cluster((2, 2)), Request(gpus=2), ((0,), Request()), ((2,), Request())) is None
    assert spot(placement, Cluster((2, 2, 2)), Request(gpus=4), ((2,), share(1))) == (0, 1, 4, 5)
    assert spot(placement, Cluster((2, 2)), Request(gpus=4)) == (0, 1, 2, 3)
    assert spot(placement, Cluster((2, 2)), Request(gpus=3, compute=50), ((0,), share(60))) == (2, 3, 1)


# -- CPUs, host memory, models -----------------------------------------------------------------------

NODES = Cluster((2, 2), cpus=(4, 8), host_memory=(64 * GIB, 32 * GIB), models=("V100", "A100"))


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize(
    ("request_", "jobs", "expected"),
    [
        (Request(cpus=6), [], {2, 3}),
        (Request(cpus=6), [((2,), Request(cpus=6))], None),
        (Request(cpus=4), [((0,), Request(cpus=0.5))], {2, 3}),
        (Request(gpus=2, cpus=4), [((2,), Request())], {0, 1}),
        (Request(host_memory=48 * GIB), [], {0, 1}),
        (Request(host_memory=48 * GIB), [((1,), Request(host_memory=17 * GIB))], None),
        (Request(gpu_types="a100|H100"), [], {2, 3}),
        (Request(gpu_types="A100", compute=30), [((2,), share(80)), ((3,), share(80))], None),
        (Request(gpu_types="A100", scope=(0, 3)), [], {3}),
        (Request(gpu_types="V100", cpus=4), [((0,), Request(cpus=1))], None),
    ],
)
def test_what_nodes_have(
    placement: str, request_: Request, jobs: list[tuple[Gpus, Request]], expected: set[int] | None
) -> None:
    found = spot(placement, NODES, request_, *jobs)
    assert (found is None) == (expected is None)
    assert set(found or ()) <= (expected or set())


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_a_job_larger_than_a_node_takes_its_part_of_the_cpus_on_each(placement: str) -> None:
    assert spot(placement, NODES, Request(gpus=3, cpus=6)) == (0, 1, 2)
    assert spot(placement, NODES, Request(gpus=3, cpus=9)) == (0, 2, 3)
    assert spot(placement, NODES, Request(gpus=3, cpus=15)) is None
    assert spot(placement, NODES, Request(gpus=4, cpus=10)) is None


def test_pack_counts_cpus() -> None:
    """Both nodes have one GPU left; the one with fewer CPUs left is fuller."""
    jobs = [((0,), Request(cpus=1)), ((2,), Request(cpus=6))]
    assert spot("pack", NODES, Request(cpus=1), *jobs) == (3,)
    assert spot("spread", NODES, Request(cpus=1), *jobs) == (1,)


def test_what_is_not_counted_is_not_missed() -> None:
    wanted = Request(cpus=1000, host_memory=1000 * GIB, gpu_types="H100")
    assert spot("pack", Cluster((2,)), wanted) == (0,)
    assert spot("pack", Cluster((1, 1), cpus=(0, 4)), Request(cpus=100)) == (0,)
    state = fold(Cluster((2,)), [Submitted(0.0, "a", wanted)])
    assert not state.shares
    assert fold(NODES, [Submitted(0.0, "a", Request(cpus=1))]).shares


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(cpus=20), "wants 20 CPUs, no node has more than 8"),
        (Request(host_memory=65 * GIB), "wants 65G of host memory, no node has more than 64G"),
        (Request(gpu_types="H100"), "wants 1 of H100, the cluster has 0"),
        (Request(gpus=3, gpu_types="A100"), "wants 3 of A100, the cluster has 2"),
        (
            Request(cpus=8, host_memory=64 * GIB),
            "wants 1 GPU, 8 CPUs and 64G of host memory together, no node has that",
        ),
        (Request(gpus=2, cpus=8), None),
    ],
)
def test_never_fits(request_: Request, reason: str | None) -> None:
    assert never_fits(NODES, request_, PLACEMENTS["fgd"], "fgd") == reason


def test_a_plan_that_overbooks_cpus_is_refused() -> None:
    state = fold(NODES, [Submitted(0.0, job, Request(cpus=3)) for job in "ab"])
    validate(state, Plan(starts=[Start("a", (0,)), Start("b", (2,))]))
    with pytest.raises(BadPlan, match="without room"):
        validate(state, Plan(starts=[Start("a", (0,)), Start("b", (1,))]))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"cpus": (1.0,)}, "cpus for each"),
        ({"models": ("a", "b", "c")}, "models for each"),
        ({"host_memory": (-1.0, 1.0)}, "0 or more"),
    ],
)
def test_clusters_that_make_no_sense(facts: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Cluster((2, 2), **facts)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="0 or more"):
        Request(cpus=-1)


# -- taking and giving back --------------------------------------------------------------------------

requests = st.builds(
    lambda gpus, compute, cpus, host, models: Request(
        gpus=gpus, compute=compute, cpus=cpus, host_memory=host * GIB, gpu_types=models
    ),
    st.integers(1, 5),
    st.sampled_from([100.0, 100.0, 33.3, 50.0]),
    st.sampled_from([0.0, 0.1, 1.3, 4.0]),
    st.sampled_from([0.0, 5.3, 20.0]),
    st.sampled_from(["", "", "V100", "V100|A100"]),
)


def as_lists(site: Site) -> list[list[float]]:
    return [np.asarray(field).tolist() for field in site.pool]


@given(
    wanted=st.lists(requests, min_size=1, max_size=12), placement=st.sampled_from(sorted(PLACEMENTS)), data=st.data()
)
def test_claim_and_release_leave_no_trace(wanted: list[Request], placement: str, data: st.DataObject) -> None:
    cluster = Cluster(
        (2, 3, 1), cpus=(4, 8, 0), host_memory=(64 * GIB, 32 * GIB, 32 * GIB), models=("V100", "A100", "")
    )
    state = State(cluster)
    rows = [state.table.add(0.0, request, 0) for request in wanted]
    site = Site(state.table.demand, state.pool, PLACEMENTS[placement], 5, True, state.table.tasks())
    empty = as_lists(site)
    spots = {}
    for row in rows:
        before = as_lists(site)
        found = place(site, row)
        assert as_lists(site) == before  # looking changes nothing
        if len(found):
            assert len(set(found.tolist())) == wanted[row].gpus
            claim(site, row, found)
            spots[row] = found
        assert site.pool.cpus.min() >= -1e-6
        assert site.pool.host.min() >= -1.0
        assert np.min(site.pool.compute) >= -1e-6
    for row in data.draw(st.permutations(list(spots))):
        release(site, row, spots[row])
    assert as_lists(site) == empty


def test_an_empty_node_is_exactly_empty_also_if_one_who_took_no_cpus_left_last() -> None:
    state = State(Cluster((2,), cpus=(4,), host_memory=(32 * GIB,)))
    wanted = [Request(compute=50.0, cpus=0.7), Request(compute=50.0, cpus=0.1), Request()]
    rows = [state.table.add(0.0, request, 0) for request in wanted]
    site = Site(state.table.demand, state.pool, PLACEMENTS["pack"], 5, True, state.table.tasks())
    empty = as_lists(site)
    spots = []
    for row in rows:
        spots.append(place(site, row))
        claim(site, row, spots[-1])
    for row, spot in zip(rows, spots, strict=True):
        release(site, row, spot)
    assert as_lists(site) == empty


@pytest.mark.parametrize(
    "policy", ["fcfs@strict", "fcfs@skip", "sjf@easy", "fcfs@conservative", "srtf", "rr:quantum=3"]
)
@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_no_schedule_overbooks_a_node(policy: str, placement: str) -> None:
    rng, n = np.random.default_rng(7), 60
    trace = Trace.of(
        rng.integers(0, 60, n), rng.integers(1, 20, n), rng.integers(1, 4, n),
        compute=rng.choice([100.0, 50.0, 25.0], n), cpus=rng.choice([0.0, 1.0, 2.5, 4.0], n),
        host_memory=rng.choice([0.0, 8.0, 30.0], n) * GIB, gpu_types=rng.choice(["", "", "V100", "A100"], n).tolist(),
    )  # fmt: skip
    cluster = Cluster((2, 4, 2), cpus=(4, 8, 6), host_memory=(64 * GIB,) * 3, models=("V100", "A100", "V100"))
    result, metrics = simulate(trace, cluster, policy, Options(placement=placement))
    assert metrics["completed"] + metrics["rejected"] == n
    assert metrics["rejected"] <= 6
    most = _most_at_once(result)
    assert (most[0] <= np.array(cluster.cpus) + 1e-6).all()
    assert (most[1] <= np.array(cluster.host_memory) + 1).all()
    models = np.repeat(cluster.models, cluster.nodes)
    for job, gpu in zip(result.segments.job.tolist(), result.segments.gpu.tolist(), strict=True):
        assert result.trace.gpu_types[job] in ("", models[gpu])


def _most_at_once(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """The most CPUs and host memory that were taken at one instant, on each node."""
    segments, trace = result.segments, result.trace
    node = np.repeat(np.arange(len(result.cluster.nodes)), result.cluster.nodes)[segments.gpu]
    most = []
    for wanted in (trace.cpus, trace.host_memory):
        part = (wanted / trace.gpus)[segments.job]
        taken = [
            np.bincount(node[alive], weights=part[alive], minlength=len(result.cluster.nodes))
            for now in np.unique(segments.start)
            for alive in [(segments.start <= now) & (now < segments.end)]
        ]
        most.append(np.max(taken, axis=0))
    return most[0], most[1]
