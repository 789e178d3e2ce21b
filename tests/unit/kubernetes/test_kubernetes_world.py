"""The cluster as the core sees it: what becomes of pods and nodes, whatever the order in which they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuyard.core.model import Phase
from gpuyard.core.plan import Snapshot, Start
from gpuyard.kubernetes.cluster.cluster_nodes import GIB, Node
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.pods import Gang, Pod
from gpuyard.kubernetes.explanations import verdict
from gpuyard.kubernetes.settings import Settings
from gpuyard.policies.resolver import make_planner

NOW = 1000.0


def node(name: str, **more: Any) -> Node:
    return replace(Node(name, gpus=2, gpu_memory=16 * GIB, cpus=16.0, memory=64 * GIB), **more)


def share(name: str, gib: float = 4.0, **more: Any) -> Pod:
    return replace(Pod(f"uid-{name}", "default", name, "gpuyard", gpus=1, gpu_memory=gib * GIB), **more)


def whole(name: str, gpus: int = 1, **more: Any) -> Pod:
    return replace(Pod(f"uid-{name}", "default", name, "gpuyard", gpus=gpus, whole=True), **more)


def bound(pod: Pod, where: str, *indices: int, **more: Any) -> Pod:
    return replace(pod, node=where, indices=indices, **more)


@pytest.fixture
def world() -> ClusterState:
    """Two nodes with two GPUs each."""
    found = ClusterState(make_planner("fcfs", discipline="easy", placement="pack"), Settings(), lambda pod: 60.0)
    for name in ("n1", "n2"):
        found.put_node(node(name), NOW)
    found.settle(NOW)
    return found


def plan(world: ClusterState) -> list[Start]:
    world.settle(NOW)
    assert world.engine is not None
    return world.engine.planner.plan(Snapshot(world.engine.state, NOW)).starts


def start_all(world: ClusterState) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Where everybody goes who can start."""
    found = {}
    for start in plan(world):
        for one in world.start(start, NOW):
            found[one.pod.name] = (one.node, one.indices)
    return found


def idle(world: ClusterState) -> int:
    assert world.state is not None
    world.settle(NOW)
    return int(world.state.pool.idle.sum())


def free(world: ClusterState) -> list[float]:
    """GiB that are left of each GPU for those who share."""
    assert world.state is not None
    world.settle(NOW)
    return [round(float(left) / GIB, 2) for left in world.state.pool.memory]


def waiting(world: ClusterState) -> list[str]:
    assert world.state is not None
    return [world.state.ids[row] for row in world.state.waiting.array.tolist()]


# -- the usual way --------------------------------------------------------------------------------------


def test_a_pod_waits_is_placed_bound_runs_and_leaves(world: ClusterState) -> None:
    pod = share("a", 6)
    world.put_pod(pod, NOW)
    assert start_all(world) == {"a": ("n1", (0,))}
    assert set(world.assumed) == {"uid-a"}
    world.put_pod(pod, NOW)  # told again before the binding is
    assert start_all(world) == {}
    world.put_pod(bound(pod, "n1", 0), NOW)
    assert not world.assumed
    assert free(world) == [10, 16, 16, 16]
    world.put_pod(bound(pod, "n1", 0, phase="Running", started=NOW), NOW)
    world.put_pod(bound(pod, "n1", 0, phase="Succeeded"), NOW + 5)
    assert free(world) == [16, 16, 16, 16]
    world.drop_pod(bound(pod, "n1", 0), NOW + 6)
    assert not world.pods


def test_a_name_may_be_used_again(world: ClusterState) -> None:
    world.put_pod(whole("a"), NOW)
    start_all(world)
    world.drop_pod(whole("a"), NOW)
    world.put_pod(replace(whole("a", 2), uid="another"), NOW)
    assert start_all(world) == {"a": ("n1", (0, 1))}
    assert idle(world) == 2


# -- what comes in another order ------------------------------------------------------------------------


def test_a_binding_that_was_taken_though_it_seemed_not_stands(world: ClusterState) -> None:
    """The answer was lost, the second try was refused, and the watch was quicker than that."""
    pod = share("a", 6)
    world.put_pod(pod, NOW)
    start_all(world)
    world.put_pod(bound(pod, "n1", 0), NOW)
    world.give_back("uid-a", NOW, NOW + 1)
    assert waiting(world) == []
    assert free(world) == [10, 16, 16, 16]


def test_the_same_where_the_watch_is_slower(world: ClusterState) -> None:
    pod = share("a", 6)
    world.put_pod(pod, NOW)
    start_all(world)
    world.give_back("uid-a", NOW, NOW + 1)
    assert waiting(world) == ["default/a"]
    world.put_pod(bound(pod, "n1", 0), NOW)
    assert waiting(world) == []
    assert free(world) == [10, 16, 16, 16]


@pytest.mark.parametrize("late", [True, False])
def test_a_pod_that_somebody_else_bound_is_where_they_say(world: ClusterState, late: bool) -> None:
    pod = share("a", 6)
    world.put_pod(pod, NOW)
    start_all(world)
    if late:
        world.give_back("uid-a", NOW, NOW + 1)
    world.put_pod(bound(pod, "n2", 1), NOW)
    if not late:
        world.give_back("uid-a", NOW, NOW + 1)
    assert waiting(world) == []
    assert free(world) == [16, 16, 16, 10]


def test_gpus_that_nobody_names_are_foreign(world: ClusterState) -> None:
    pod = whole("a")
    world.put_pod(pod, NOW)
    start_all(world)
    world.put_pod(bound(pod, "n2"), NOW)
    world.give_back("uid-a", NOW, NOW + 1)
    assert idle(world) == 3
    world.put_pod(whole("b", 2), NOW)
    world.put_pod(share("c"), NOW)
    assert start_all(world)["b"] == ("n1", (0, 1))
    world.put_pod(share("d"), NOW)
    assert verdict(world, share("d")).by_node == {"n1": "insufficient GPU memory", "n2": "foreign"}


def test_a_pod_that_could_not_be_bound_waits_and_is_tried_again(world: ClusterState) -> None:
    world.put_pod(whole("a", 2), NOW)
    first = start_all(world)
    world.give_back("uid-a", NOW, NOW)
    assert idle(world) == 4
    assert start_all(world) == first


def test_pods_that_are_gone_before_they_are_bound(world: ClusterState) -> None:
    world.put_pod(whole("a", 2), NOW)
    start_all(world)
    world.drop_pod(whole("a", 2), NOW)
    world.give_back("uid-a", NOW, NOW)
    assert idle(world) == 4
    assert not world.assumed


# -- nodes ----------------------------------------------------------------------------------------------


def test_a_state_made_anew_is_the_same(world: ClusterState) -> None:
    world.put_pod(bound(share("a", 6), "n1", 0, charged=3 * GIB, admitted_by="history"), NOW)
    world.put_pod(bound(whole("b"), "n2", 1), NOW)
    world.put_pod(share("c", 12), NOW)
    start_all(world)  # c is being bound
    world.put_pod(whole("d", 2), NOW)
    world.put_pod(bound(whole("x", scheduler="other"), "n2"), NOW)
    before = free(world), idle(world), waiting(world), set(world.assumed)
    world.rebuild(NOW)
    assert (free(world), idle(world), waiting(world), set(world.assumed)) == before


def test_gpus_that_came_are_used(world: ClusterState) -> None:
    world.put_pod(whole("a", 4), NOW)
    assert start_all(world) == {}
    assert world.aside["uid-a"] == "wants 4 GPUs of one node, and none has more than 2"
    world.put_node(node("n3", gpus=4), NOW)
    assert start_all(world) == {"a": ("n3", (0, 1, 2, 3))}


def test_a_node_that_goes_while_a_pod_is_being_bound_there(world: ClusterState) -> None:
    world.put_pod(whole("a"), NOW)
    where, _ = start_all(world)["a"]
    world.drop_node(where)
    assert start_all(world)["a"][0] == {"n1": "n2", "n2": "n1"}[where]
    world.give_back("uid-a", NOW, NOW)  # the word of the first binding
    assert waiting(world) == ["default/a"]


def test_a_cluster_without_gpus(world: ClusterState) -> None:
    for name in ("n1", "n2"):
        world.drop_node(name)
    world.put_pod(whole("a"), NOW)
    world.settle(NOW)
    assert world.engine is None
    assert world.aside == {"uid-a": "no node has GPUs"}
    world.put_pod(bound(whole("b"), "n1", 0), NOW)
    world.put_node(node("n1"), NOW)
    assert start_all(world) == {"a": ("n1", (1,))}


def test_closed_nodes_and_those_that_are_away(world: ClusterState) -> None:
    world.put_node(node("n1", cordoned=True), NOW)
    world.put_node(node("n2", ready=False), NOW)
    world.put_pod(share("a"), NOW)
    assert start_all(world) == {}
    assert verdict(world, share("a")).message() == "0/2 nodes available: 1 cordoned, 1 not ready"
    world.put_node(node("n2"), NOW)
    assert start_all(world) == {"a": ("n2", (0,))}


def test_a_node_takes_no_more_pods_than_it_may(world: ClusterState) -> None:
    world.put_node(node("n2", pods=0), NOW)
    world.put_node(node("n1", pods=3), NOW)
    for number in range(6):
        world.put_pod(share(f"p{number}", 1), NOW)
    assert len(start_all(world)) == 3
    assert start_all(world) == {}


def test_cpus_of_others_count(world: ClusterState) -> None:
    world.put_pod(bound(Pod("x", "default", "x", "other", cpus=15.0), "n1"), NOW)
    world.put_pod(share("a", cpus=2.0), NOW)
    assert start_all(world) == {"a": ("n2", (0,))}
    assert world.hosts.free_on("n1") == (1.0, 64 * GIB)


# -- gangs ----------------------------------------------------------------------------------------------


def member(name: str, size: int = 3, **more: Any) -> Pod:
    return whole(name, gang=Gang("g", size), **more)


def test_a_gang_starts_as_one_and_ends_one_by_one(world: ClusterState) -> None:
    for name in "ab":
        world.put_pod(member(name), NOW)
    assert start_all(world) == {}
    assert set(world.aside.values()) == {"gang g has 2 of 3 members"}
    world.put_pod(member("c"), NOW)
    found = start_all(world)
    assert set(found) == {"a", "b", "c"}
    assert idle(world) == 1
    for name, (where, indices) in found.items():
        world.put_pod(bound(member(name), where, *indices), NOW)
    world.put_pod(bound(member("a"), *found["a"][:1], *found["a"][1], phase="Succeeded"), NOW)
    assert idle(world) == 2


def test_a_member_that_could_not_be_bound_waits_once(world: ClusterState) -> None:
    for name in "abc":
        world.put_pod(member(name), NOW)
    found = start_all(world)
    for name in "ab":
        world.put_pod(bound(member(name), found[name][0], *found[name][1]), NOW)
    world.give_back("uid-c", NOW, NOW)
    world.put_pod(member("c", priority=0.0), NOW)  # told of again, perhaps because of what we wrote on it
    assert len(waiting(world)) == 1
    assert set(start_all(world)) == {"c"}
    assert idle(world) == 1
    assert waiting(world) == []


def test_a_gang_that_lost_a_member_waits(world: ClusterState) -> None:
    for name in "abc":
        world.put_pod(member(name), NOW)
    world.settle(NOW)
    world.drop_pod(member("b"), NOW)
    assert start_all(world) == {}
    assert waiting(world) == []
    world.put_pod(member("d"), NOW)
    assert set(start_all(world)) == {"a", "c", "d"}


def test_members_that_come_later_start_by_themselves(world: ClusterState) -> None:
    for name in "ab":
        world.put_pod(member(name, 2), NOW)
    start_all(world)
    world.put_pod(member("c", 2), NOW)
    assert set(start_all(world)) == {"c"}


def test_a_gang_is_taken_up_again(world: ClusterState) -> None:
    """A scheduler that starts anew finds two of three bound: the third may follow."""
    world.put_pod(bound(member("a"), "n1", 0), NOW)
    world.put_pod(bound(member("b"), "n1", 1), NOW)
    world.put_pod(member("c"), NOW)
    world.rebuild(NOW)
    assert set(start_all(world)) == {"c"}


# -- pods that change -----------------------------------------------------------------------------------


def test_a_pod_that_asks_for_something_else(world: ClusterState) -> None:
    world.put_pod(bound(whole("x", 2), "n1", 0, 1), NOW)
    world.put_pod(bound(whole("y"), "n2", 0), NOW)
    world.put_pod(whole("a", 2), NOW)
    assert start_all(world) == {}
    world.put_pod(whole("a"), NOW)
    assert start_all(world) == {"a": ("n2", (1,))}


def test_a_pod_that_makes_no_sense_any_more_is_put_aside(world: ClusterState) -> None:
    world.put_pod(share("a"), NOW)
    world.put_pod(share("a", gpus=0, trouble="what?"), NOW)
    assert waiting(world) == []
    assert world.aside == {"uid-a": "what?"}
    world.put_pod(share("a"), NOW)
    assert waiting(world)
    assert not world.aside


def test_gates_hold_a_pod(world: ClusterState) -> None:
    world.put_pod(share("a", gated=True), NOW)
    assert start_all(world) == {}
    world.put_pod(share("a"), NOW)
    assert set(start_all(world)) == {"a"}


def test_a_phase_that_is_told_twice(world: ClusterState) -> None:
    pod = bound(whole("a"), "n1", 0, phase="Running", started=NOW)
    world.put_pod(pod, NOW)
    world.put_pod(pod, NOW)
    assert world.state is not None
    row = world.state.row_of[world.job_of["uid-a"]]
    assert world.state.phase[row] is Phase.RUNNING
    world.put_pod(replace(pod, deleting=True), NOW)
    world.put_pod(replace(pod, deleting=True), NOW)
    assert row in world.state.recalled
