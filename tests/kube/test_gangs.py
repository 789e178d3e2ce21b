"""Gangs on a real API server: all members or none, and a large one is not kept waiting by a stream of small pods."""

from __future__ import annotations

from typing import Any

from gpuyard.kubernetes import names
from tests.kube import books
from tests.kube.asking import is_bound, message
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow
from tests.yard import until


def members(cluster: Cluster, gang: str, count: int, size: int | None = None, **more: Any) -> list[str]:
    """So many pods of a gang."""
    made = [f"{gang}{number}" for number in range(count)]
    said = {names.GANG: gang, names.GANG_SIZE: str(size or count), **more.pop("annotations", {})}
    for name in made:
        cluster.pod(name, annotations=said, **more)
    return made


def placed(cluster: Cluster, pods: list[str]) -> int:
    """How many of these have a node."""
    return sum(is_bound(cluster, name) for name in pods)


def test_all_members_or_none(cluster: Cluster) -> None:
    for number in range(4):
        cluster.node(f"n{number}", gpus=2)
    with cluster.scheduler() as process:
        cluster.pod("other", gpus=1)
        cluster.wait_bound(["other"])
        gang = members(cluster, "train", 4, gpus=2)
        assert "too little room for the whole gang" in message(cluster, gang[3])
        assert placed(cluster, gang) == 0
        assert process.json()["counts"]["waiting"] == 4
        cluster.delete_pod("other")
        found = cluster.wait_bound(gang)
        assert sorted(books.place(pod) for pod in found.values()) == [(f"n{n}", (0, 1)) for n in range(4)]
        books.check(cluster)
        for name in gang[:2]:  # they end one by one
            cluster.set_phase(name, "Succeeded")
        cluster.pod("next", gpus=2)
        cluster.wait_bound(["next"])


def test_an_incomplete_gang_waits_and_says_so(cluster: Cluster) -> None:
    cluster.node("n1", gpus=4)
    with cluster.scheduler():
        gang = members(cluster, "g", 2, size=3, gpus=1, annotations={names.GANG_TIMEOUT: "1s"})
        cluster.pod("single", gpus=1)
        cluster.wait_bound(["single"])
        until(lambda: message(cluster, "g0") == "waits: gang g has 2 of 3 members", "that it is told of both")
        assert message(cluster, "g0", "GangIncomplete") == "gang g has been incomplete for 1 s"
        assert message(cluster, "g1", "GangIncomplete")
        assert placed(cluster, gang) == 0
        cluster.delete_pod("g1")  # before it ever started
        for name in ("g2", "g3"):
            cluster.pod(name, gpus=1, annotations={names.GANG: "g", names.GANG_SIZE: "3"})
        cluster.wait_bound(["g0", "g2", "g3"])
        books.check(cluster)


def test_a_member_that_is_gone_stops_the_others_from_starting(cluster: Cluster) -> None:
    cluster.node("n1", gpus=4)
    with cluster.scheduler() as process:
        cluster.pod("other", gpus=1)
        cluster.wait_bound(["other"])
        gang = members(cluster, "g", 4, gpus=1)
        until(lambda: process.json()["counts"]["waiting"] == 4, "that they wait")
        cluster.delete_pod("g3")
        cluster.delete_pod("other")
        until(lambda: "waits: gang g has 3 of 4 members" in str(process.json()["pods"]), "that one is missing")
        assert placed(cluster, gang[:3]) == 0
        cluster.pod("g4", gpus=1, annotations={names.GANG: "g", names.GANG_SIZE: "4"})
        cluster.wait_bound(["g0", "g1", "g2", "g4"])


def test_gangs_share_gpus_as_well(cluster: Cluster) -> None:
    for number in range(2):
        cluster.node(f"n{number}", gpus=1, gpu_memory="16Gi")
    with cluster.scheduler():
        gang = members(cluster, "g", 3, gpu_memory="8Gi")
        cluster.wait_bound(gang)
        second = members(cluster, "h", 2, gpu_memory="8Gi")
        message(cluster, "h0")
        assert placed(cluster, second) == 0
        cluster.delete_pod("g0")
        cluster.wait_bound(second)
        books.check(cluster)


def test_gangs_of_the_same_name_in_two_namespaces_are_two(cluster: Cluster) -> None:
    cluster.node("n1", gpus=4)
    with cluster.scheduler():
        for space in ("red", "blue"):
            members(cluster, "g", 1, size=2, gpus=1, namespace=space)
        until(lambda: len(cluster.events("FailedScheduling")) == 2, "that both wait")
        cluster.pod("more", gpus=1, namespace="red", annotations={names.GANG: "g", names.GANG_SIZE: "2"})
        until(lambda: is_bound(cluster, "g0", "red") and is_bound(cluster, "more", "red"), "the red ones")
        assert not is_bound(cluster, "g0", "blue")


def test_a_large_gang_is_not_starved_and_short_pods_fill_in(cluster: Cluster) -> None:
    """EASY: whoever would delay the gang at the head waits; who ends before it can start does not."""
    for number in range(2):
        cluster.node(f"n{number}", gpus=2)
    with Hollow(cluster.api) as kubelet, cluster.scheduler():
        cluster.pod("first", gpus=1, annotations={names.DURATION: "4s"}, hollow={"run-seconds": 4})
        cluster.wait_bound(["first"])
        until(lambda: cluster.get_pod("first")["status"]["phase"] == "Running", "that it runs")
        gang = members(cluster, "g", 2, gpus=2, annotations={names.DURATION: "60s"}, hollow={"run-seconds": 60})
        message(cluster, "g0")
        for number in range(8):
            cluster.pod(f"long{number}", gpus=1, annotations={names.DURATION: "600s"}, hollow={"run-seconds": 600})
        cluster.pod("short", gpus=1, annotations={names.DURATION: "1s"}, hollow={"run-seconds": 1})
        cluster.wait_bound(["short"])  # it is over before the gang can start
        said = until(lambda: message(cluster, "long7"), "why a long one waits")
        assert "reserved for gang default/g" in said
        assert placed(cluster, [f"long{number}" for number in range(8)]) == 0
        cluster.wait_bound(gang)
        assert placed(cluster, [f"long{number}" for number in range(8)]) == 0
        assert not kubelet.violations
        for name in gang:
            cluster.delete_pod(name)
        until(lambda: placed(cluster, [f"long{number}" for number in range(8)]) == 4, "that long ones follow")


def test_a_stream_of_small_pods_does_not_keep_a_gang_waiting(cluster: Cluster) -> None:
    cluster.node("n1", gpus=4)
    with Hollow(cluster.api), cluster.scheduler():
        short: dict[str, Any] = {"annotations": {names.DURATION: "1s"}, "hollow": {"run-seconds": 1}}
        for number in range(12):
            cluster.pod(f"s{number}", gpus=1, **short)
        gang = members(cluster, "g", 2, gpus=2, annotations={names.DURATION: "60s"})
        made = 12

        def another() -> bool:
            nonlocal made
            if len(cluster.pods(fieldSelector="spec.nodeName=")) < 10:  # there are always some who could go before it
                cluster.pod(f"s{made}", gpus=1, **short)
                made += 1
            return placed(cluster, gang) > 0

        until(another, "the start of the gang")
        cluster.wait_bound(gang)
        assert not all(is_bound(cluster, f"s{number}") for number in range(made)), "the gang came last"
