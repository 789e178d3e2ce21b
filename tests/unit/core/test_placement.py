"""Where jobs go: each placement by examples worked out by hand, and taking and giving back without a trace."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.events import Event, Exited, Placed, Started, Submitted
from gpuyard.core.loops.placement import claim, has_room, nodes_for, place, release
from gpuyard.core.loops.pool import CONSOLIDATE, Site
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.planner import never_fits
from gpuyard.core.policy import PLACEMENTS
from gpuyard.core.state import State
from gpuyard.core.transitions import fold
from gpuyard.errors import UserError
from gpuyard.policies.resolver import make_planner

Gpus = tuple[int, ...]


def taken(job: str, gpus: Gpus, request: Request) -> list[Event]:
    """A job that runs on these GPUs."""
    return [Submitted(0.0, job, request), Placed(0.0, job, 1, gpus), Started(0.0, job, 1)]


def spot(
    placement: str, nodes: Gpus, request: Request, *jobs: Gpus | tuple[Gpus, Request], seed: int = 0
) -> Gpus | None:
    """The GPUs that a new job gets beside the jobs that are there; None if it has to wait."""
    events: list[Event] = []
    for n, job in enumerate(jobs):
        match job:
            case (tuple(gpus), Request() as held):
                events += taken(str(n), gpus, held)
            case gpus:
                events += taken(str(n), gpus, whole(len(gpus)))
    state = fold(Cluster(nodes), [*events, Submitted(1.0, "new", request)], seed)
    starts = make_planner("fcfs@skip", placement=placement).plan(Snapshot(state, 1.0)).starts
    return starts[0].gpus if starts else None


def whole(gpus: int) -> Request:
    return Request(gpus=gpus)


def share(compute: float = 0.0, memory: float = 0.0, gpus: int = 1) -> Request:
    return Request(gpus=gpus, compute=compute, memory=memory)


# Two nodes of four: 0-3 and 4-7.
@pytest.mark.parametrize(
    ("placement", "gpus", "jobs", "expected"),
    [
        ("first", 1, [], (0,)),
        ("first", 2, [(0,), (2,)], (1, 3)),
        ("first", 3, [(0, 1, 2)], (3, 4, 5)),
        ("pack", 1, [], (0,)),
        ("pack", 1, [(4, 5)], (6,)),
        ("pack", 2, [(0,), (4, 5, 6)], (1, 2)),
        ("pack", 3, [(0, 1), (4,)], (5, 6, 7)),
        ("pack", 5, [(0,), (4,)], (1, 2, 3, 5, 6)),
        ("spread", 1, [(0,)], (4,)),
        ("spread", 2, [], (0, 4)),
        ("spread", 3, [(0, 1)], (4, 5, 2)),
        ("consolidate", 1, [], (0,)),
        ("consolidate", 1, [(4,)], (5,)),
        ("consolidate", 3, [(0, 1), (4,)], (5, 6, 7)),
        ("consolidate", 3, [(0, 1), (4, 5)], None),
        ("consolidate", 4, [(0,)], (4, 5, 6, 7)),
        ("consolidate", 5, [], (0, 1, 2, 3, 4)),
        ("consolidate", 5, [(0,)], (4, 5, 6, 7, 1)),
        ("consolidate", 5, [(0,), (4,)], None),
        ("consolidate", 8, [], tuple(range(8))),
        ("consolidate", 8, [(3,)], None),
        ("random", 8, [], tuple(range(8))),
    ],
)
def test_whole_gpus_on_two_nodes(placement: str, gpus: int, jobs: list[Gpus], expected: Gpus | None) -> None:
    found = spot(placement, (4, 4), whole(gpus), *jobs)
    assert (found and sorted(found)) == (expected and sorted(expected))


@pytest.mark.parametrize(
    ("gpus", "jobs", "expected"),
    [
        (2, [(0, 1), (4,), (8, 9)], (2, 3)),  # best fit: 2, 3 and 2 GPUs are free; the lower of the two
        (6, [(0,), (4, 5)], (8, 9, 10, 11, 1, 2)),  # the whole node, then the one with the most free GPUs
        (6, [(0, 1), (8, 9)], (4, 5, 6, 7, 2, 3)),  # a tie for the remainder: the lowest node
        (9, [(0,), (4,)], None),  # only one whole node is free
        (9, [(0,)], (4, 5, 6, 7, 8, 9, 10, 11, 1)),
        (11, [(0, 1)], None),  # two whole nodes, but the remainder does not fit on one
    ],
)
def test_consolidate_on_three_nodes(gpus: int, jobs: list[Gpus], expected: Gpus | None) -> None:
    found = spot("consolidate", (4, 4, 4), whole(gpus), *jobs)
    assert (found and sorted(found)) == (expected and sorted(expected))


def test_consolidate_on_unequal_nodes() -> None:
    # Nodes of 2, 4 and 3: GPUs 0-1, 2-5, 6-8.
    nodes = (2, 4, 3)
    assert spot("consolidate", nodes, whole(2)) == (0, 1)
    assert spot("consolidate", nodes, whole(3)) == (6, 7, 8)
    assert spot("consolidate", nodes, whole(4)) == (2, 3, 4, 5)
    assert sorted(spot("consolidate", nodes, whole(7)) or ()) == [2, 3, 4, 5, 6, 7, 8]
    assert sorted(spot("consolidate", nodes, whole(9)) or ()) == list(range(9))
    assert spot("consolidate", nodes, whole(4), (2,)) is None  # a job that fits a node waits for one


def test_gangs_are_all_or_nothing() -> None:
    for placement in PLACEMENTS:
        assert spot(placement, (2, 2), whole(3), (0,), (2,)) is None
        assert len(spot(placement, (4,), whole(3), (1,)) or ()) == 3


def test_random_placement_is_seeded() -> None:
    spots = [spot("random", (4, 4), whole(2), seed=seed) for seed in range(12)]
    assert spots == [spot("random", (4, 4), whole(2), seed=seed) for seed in range(12)]
    assert len(set(spots)) > 3
    assert all(len(set(found or ())) == 2 for found in spots)


# -- shares ----------------------------------------------------------------------------------------


def test_shares_by_compute() -> None:
    half = share(compute=50)
    assert spot("first", (2,), half, ((0,), half)) == (0,)
    assert spot("first", (2,), half, ((0,), half), ((0,), half)) == (1,)
    assert spot("first", (1,), share(compute=50.5), ((0,), half)) is None


def test_shares_by_memory() -> None:
    ten = share(memory=10 * GIB)  # of 16
    assert spot("first", (2,), share(memory=6 * GIB), ((0,), ten)) == (0,)
    assert spot("first", (2,), share(memory=6.1 * GIB), ((0,), ten)) == (1,)
    assert spot("first", (1,), share(memory=6.1 * GIB), ((0,), ten)) is None


def test_shares_by_memory_and_compute_count_both() -> None:
    both = share(memory=10 * GIB, compute=20)
    assert spot("first", (2,), share(memory=2 * GIB, compute=80), ((0,), both)) == (0,)
    assert spot("first", (2,), share(memory=2 * GIB, compute=81), ((0,), both)) == (1,)
    assert spot("first", (2,), share(memory=7 * GIB, compute=10), ((0,), both)) == (1,)


def test_whole_gpus_are_not_shared() -> None:
    assert spot("first", (2,), share(compute=1), (0,)) == (1,)
    assert spot("first", (2,), share(memory=1), (0,)) == (1,)
    assert spot("first", (2,), whole(1), ((0,), share(compute=1))) == (1,)
    assert spot("first", (1,), whole(1), ((0,), share(memory=1))) is None


@pytest.mark.parametrize(
    "requests",
    [
        [share(compute=33.3), share(compute=33.3), share(compute=33.4)],
        [share(compute=0.1)] * 1000,
        [share(memory=5.3 * GIB), share(memory=5.3 * GIB), share(memory=5.4 * GIB)],
        [share(memory=1.6 * GIB)] * 10,
    ],
)
def test_decimals_add_up(requests: list[Request]) -> None:
    state = fold(Cluster((1,)), [Submitted(0.0, str(n), request) for n, request in enumerate(requests)])
    planner = make_planner("fcfs@skip")
    assert len(planner.plan(Snapshot(state, 0.0)).starts) == len(requests)
    more = [Submitted(0.0, str(n), request) for n, request in enumerate([*requests, requests[0]])]
    assert len(planner.plan(Snapshot(fold(Cluster((1,)), more), 0.0)).starts) == len(requests)


@pytest.mark.parametrize(
    ("placement", "expected"), [("first", (0,)), ("pack", (1,)), ("spread", (2,)), ("consolidate", (1,))]
)
def test_a_share_beside_others(placement: str, expected: Gpus) -> None:
    beside = [((0,), share(compute=20)), ((1,), share(compute=60)), ((3,), share(compute=90))]
    assert spot(placement, (4,), share(compute=30), *beside) == expected


def test_pack_and_spread_count_memory_too() -> None:
    beside = [((0,), share(compute=10)), ((1,), share(memory=8 * GIB))]
    assert spot("pack", (3,), share(compute=10), *beside) == (1,)
    assert spot("spread", (3,), share(compute=10), *beside) == (2,)


def test_gangs_of_shares() -> None:
    three = share(compute=50, gpus=3)
    assert spot("first", (2, 2), three, ((0,), share(compute=60))) == (1, 2, 3)
    assert spot("first", (2, 2), three, ((0,), share(compute=60)), ((1,), share(compute=60))) is None
    assert sorted(spot("consolidate", (2, 3), share(compute=50, gpus=3)) or ()) == [2, 3, 4]
    assert spot("consolidate", (2, 3), three, ((3,), share(compute=60))) is None


def test_consolidated_shares_leave_the_least_room() -> None:
    """Two nodes of two: the pair goes where half of it is taken already."""
    assert spot("consolidate", (2, 2), share(compute=40, gpus=2), ((2,), share(compute=50))) == (2, 3)


# -- scopes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_scopes(placement: str) -> None:
    assert spot(placement, (4,), Request(gpus=1, scope=(2,))) == (2,)
    assert spot(placement, (4,), Request(gpus=1, scope=(2,)), (2,)) is None
    assert set(spot(placement, (4,), Request(gpus=2, scope=(3, 1, 0)), (1,)) or ()) == {0, 3}
    assert spot(placement, (4,), Request(gpus=2, scope=(1, 3)), (1,)) is None


def test_scope_of_a_share() -> None:
    assert spot("first", (3,), Request(compute=50, scope=(1, 2)), ((1,), share(compute=60))) == (2,)


def test_scopes_do_not_mix() -> None:
    """Jobs of different scopes in one queue, each on its own GPUs."""
    submits = [Submitted(0.0, str(n), Request(scope=(gpu,))) for n, gpu in enumerate((3, 1, 2, 1))]
    state = fold(Cluster((4,)), submits)
    starts = make_planner("fcfs@skip").plan(Snapshot(state, 0.0)).starts
    assert [(start.job, start.gpus) for start in starts] == [("0", (3,)), ("1", (1,)), ("2", (2,))]


# -- what never fits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "placement", "reason"),
    [
        (Request(gpus=7), "first", "wants 7 GPUs, the cluster has 6"),
        (Request(memory=17 * GIB), "first", "wants 17G on each GPU, a GPU has 16G"),
        (Request(scope=(6,)), "first", "wants GPU 6, the cluster has GPUs 0 to 5"),
        (Request(scope=(-1, 2)), "first", "wants GPU -1, the cluster has GPUs 0 to 5"),
        (Request(gpus=2, scope=(1,)), "first", "wants 2 GPUs, and `from` names 1"),
        (
            Request(gpus=2, scope=(0, 4)),
            "consolidate",
            "wants 2 GPUs, which placement consolidate never puts on nodes of 4",
        ),
        (Request(gpus=6), "consolidate", None),
        (Request(gpus=2, scope=(0, 4)), "first", None),
        (Request(memory=16 * GIB), "first", None),
        (Request(gpus=6, compute=1), "pack", None),
    ],
)
def test_never_fits(request_: Request, placement: str, reason: str | None) -> None:
    assert never_fits(Cluster((4, 2)), request_, PLACEMENTS[placement], placement) == reason


@given(gpus=st.integers(1, 12), nodes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_whole_gpus_fit_an_empty_cluster_or_never(gpus: int, nodes: list[int]) -> None:
    cluster = Cluster(tuple(nodes))
    for name in ("first", "pack", "spread", "random", "consolidate"):
        refused = never_fits(cluster, whole(gpus), PLACEMENTS[name], name)
        assert (refused is None) == (gpus <= cluster.gpus), (name, refused)
        assert (spot(name, cluster.nodes, whole(gpus)) is None) == (refused is not None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": 0}, "at least 1 GPU"),
        ({"estimate": 0}, "must be above 0"),
        ({"estimate": float("nan")}, "not a number"),
        ({"memory": -1}, "0 or more"),
        ({"compute": 101}, "0 to 100"),
        ({"compute": 0}, "memory, compute, or both"),
        ({"weight": 0}, "weight must be above 0"),
        ({"tickets": -1}, "tickets must be above 0"),
        ({"scope": (1, 1)}, "each GPU once"),
    ],
)
def test_requests_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Request(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "x", "4x", "x8", "0x8", "4x0", "-1x8", "4*8", "1.5x2", "0", "-4"])
def test_clusters_that_make_no_sense(text: str) -> None:
    with pytest.raises(UserError, match="cluster"):
        Cluster.parse(text)


def test_a_bare_number_is_one_node() -> None:
    assert Cluster.parse("4") == Cluster((4,))
    assert Cluster.parse("4,2x8").nodes == (4, 8, 8)


def test_clusters() -> None:
    cluster = Cluster.parse("2x3,1x1")
    assert (cluster.nodes, cluster.gpus) == ((3, 3, 1), 7)
    assert (
        [cluster.label(gpu) for gpu in range(7)]
        == cluster.labels()
        == ["0:0", "0:1", "0:2", "1:0", "1:1", "1:2", "2:0"]
    )
    with pytest.raises(IndexError):
        cluster.label(7)


# -- taking and giving back ---------------------------------------------------------------------------

requests = st.builds(
    lambda gpus, kind: Request(gpus=gpus, memory=kind[0], compute=kind[1]),
    st.integers(1, 4),
    st.sampled_from([(0.0, 100.0), (0.0, 33.3), (0.0, 50.0), (3.3 * GIB, 0.0), (5 * GIB, 12.5)]),
)


def as_lists(site: Site) -> list[list[float]]:
    return [np.asarray(field).tolist() for field in deepcopy(site.pool)]


@given(
    wanted=st.lists(requests, min_size=1, max_size=12),
    placement=st.sampled_from(sorted(PLACEMENTS)),
    nodes=st.sampled_from([(4,), (2, 2), (1, 3, 2)]),
    data=st.data(),
)
def test_claim_and_release_leave_no_trace(
    wanted: list[Request], placement: str, nodes: tuple[int, ...], data: st.DataObject
) -> None:
    state = State(Cluster(nodes))
    rows = [state.table.add(0.0, request, 0) for request in wanted]
    site = Site(state.table.demand, state.pool, PLACEMENTS[placement], 5, True)
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
        assert np.min(site.pool.memory) >= -1.0
        assert np.min(site.pool.compute) >= -1e-6
        assert np.min(site.pool.idle) >= 0
    for row in data.draw(st.permutations(list(spots))):
        release(site, row, spots[row])
    assert as_lists(site) == empty


@given(wanted=st.lists(requests, min_size=1, max_size=10), placement=st.sampled_from(sorted(PLACEMENTS)))
def test_a_yard_that_has_emptied_is_empty(wanted: list[Request], placement: str) -> None:
    """The same through events: everybody who is started ends, and the cluster is as it was."""
    cluster = Cluster((2, 2))
    state = fold(cluster, [Submitted(0.0, str(n), request) for n, request in enumerate(wanted)])
    starts = make_planner("fcfs@skip", placement=placement).plan(Snapshot(state, 0.0)).starts
    events: list[Event] = [Submitted(0.0, str(n), request) for n, request in enumerate(wanted)]
    events += [Placed(0.0, start.job, 1, start.gpus) for start in starts]
    events += [Started(0.0, start.job, 1) for start in starts]
    events += [Exited(5.0, start.job, 1) for start in starts]
    assert as_lists(fold(cluster, events).site()) == as_lists(State(cluster).site())


def consolidated(nodes: list[tuple[int, int]], k: int) -> list[int] | None:
    """Nodes (size, idle) for k GPUs, as `consolidate` is described; None where they do not fit."""
    if k <= max(size for size, _ in nodes):
        room = [(idle, n) for n, (_, idle) in enumerate(nodes) if idle >= k]
        return [min(room)[1]] * k if room else None
    found: list[int] = []
    left = [idle for _, idle in nodes]
    for n in sorted(range(len(nodes)), key=lambda n: -nodes[n][0]):
        size, idle = nodes[n]
        if idle == size <= k - len(found):
            found += [n] * size
            left[n] = 0
    best = max(range(len(nodes)), key=lambda n: left[n])
    rest = k - len(found)
    return found + [best] * rest if left[best] >= rest else None


NODES = st.sampled_from([1, 2, 4, 8]).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size)))


@given(st.lists(NODES, min_size=1), st.integers(1, 30))
def test_consolidate_on_nodes_of_any_size(nodes: list[tuple[int, int]], k: int) -> None:
    expected = consolidated(nodes, k)
    size, idle = np.array(nodes).T.copy()
    assert has_room(CONSOLIDATE, size, idle, k) == (expected is not None)
    assert nodes_for(CONSOLIDATE, size, idle, k, 0).tolist() == (expected or [])
