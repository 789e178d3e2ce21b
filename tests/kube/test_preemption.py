"""Pods of a higher PriorityClass evict others, as far as those and their budgets allow."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.kubernetes import names
from tests.kube import books
from tests.kube.asking import is_bound, message
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow
from tests.yard import until


@pytest.fixture
def classes(cluster: Cluster) -> None:
    """Two priorities."""
    cluster.priority_class("high", 1000)
    cluster.priority_class("low", 10)
    cluster.priority_class("polite", 1000, preemptionPolicy="Never")


def run(cluster: Cluster, count: int, **more: Any) -> list[str]:
    """Pods of low priority that run on all GPUs."""
    made = [f"low{number}" for number in range(count)]
    for name in made:
        cluster.pod(name, **{"gpus": 1, "priority_class": "low", **more})
    cluster.wait_bound(made)
    until(lambda: all(pod["status"]["phase"] == "Running" for pod in cluster.pods()), "that they run")
    return made


def left(cluster: Cluster, pods: list[str]) -> list[str]:
    """Those that nobody asked to end."""
    there = {pod["metadata"]["name"]: pod for pod in cluster.pods()}
    return [name for name in pods if name in there and "deletionTimestamp" not in there[name]["metadata"]]


@pytest.mark.usefixtures("classes")
def test_as_many_are_evicted_as_needed_and_told_why(cluster: Cluster) -> None:
    for number in range(2):
        cluster.node(f"n{number}", gpus=2)
    with Hollow(cluster.api) as kubelet, cluster.scheduler() as process:
        low = run(cluster, 4, hollow={"stop-seconds": 0.5})
        cluster.pod("urgent", gpus=2, priority_class="high")
        node, gpus = books.place(cluster.wait_bound(["urgent"])["urgent"])
        assert gpus == (0, 1)
        rest = left(cluster, low)
        assert len(rest) == 2
        assert {books.place(cluster.get_pod(name))[0] for name in rest} == {"n0", "n1"} - {node}
        for name in set(low) - set(rest):
            assert message(cluster, name, "Preempted") == "Preempted: evicted for default/urgent"
        assert len(cluster.events("Preempted")) == 2
        assert "gpuyard_kubernetes_evictions_total 2.0" in process.get("/metrics")
        assert not kubelet.violations
        cluster.pod("calm", gpus=1, priority_class="low")  # who evicts nobody
        message(cluster, "calm")
        assert left(cluster, rest) == rest
        until(lambda: cluster.get_pod("urgent")["status"].get("nominatedNodeName") == node, "the nomination")


@pytest.mark.usefixtures("classes")
def test_of_those_who_share_only_as_many_as_needed_go(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1, gpu_memory="16Gi")
    with Hollow(cluster.api) as kubelet, cluster.scheduler():
        low = run(cluster, 4, gpus=None, gpu_memory="4Gi")
        cluster.pod("urgent", gpu_memory="6Gi", priority_class="high")
        cluster.wait_bound(["urgent"])
        assert len(left(cluster, low)) == 2
        books.check(cluster)
        assert not kubelet.violations


@pytest.mark.usefixtures("classes")
def test_budgets_are_respected_and_others_chosen(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    with Hollow(cluster.api), cluster.scheduler() as process:
        # the youngest would go first; its owner does not allow it
        run(cluster, 1)
        cluster.pod("kept", gpus=1, priority_class="low", labels={"app": "kept"})
        cluster.budget("kept", {"app": "kept"}, allowed=0)
        cluster.wait_bound(["kept"])
        until(lambda: cluster.get_pod("kept")["status"]["phase"] == "Running", "that it runs")
        cluster.pod("urgent", gpus=1, priority_class="high")
        cluster.wait_bound(["urgent"])
        assert left(cluster, ["low0", "kept"]) == ["kept"]
        cluster.pod("second", gpus=1, priority_class="high")
        message(cluster, "second")
        until(lambda: "evictions_refused_total 1.0" in process.get("/metrics"), "a refusal")
        assert not is_bound(cluster, "second")
        assert left(cluster, ["kept"]) == ["kept"]
        cluster.delete_pod("kept")
        cluster.wait_bound(["second"])
    assert "could not be evicted: Cannot evict pod" in process.log()


@pytest.mark.usefixtures("classes")
def test_nobody_goes_who_may_not_or_for_whom_nobody_may(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    with Hollow(cluster.api), cluster.scheduler():
        cluster.pod("firm", gpus=1, priority_class="low", annotations={names.PREEMPTIBLE: "false"})
        cluster.pod("low", gpus=1, priority_class="low")
        cluster.wait_bound(["firm", "low"])
        until(lambda: all(pod["status"]["phase"] == "Running" for pod in cluster.pods()), "that they run")
        cluster.pod("polite", gpus=1, priority_class="polite")
        message(cluster, "polite")
        assert left(cluster, ["firm", "low"]) == ["firm", "low"]
        cluster.pod("wide", gpus=2, priority_class="high")
        message(cluster, "wide")
        assert left(cluster, ["firm", "low"]) == ["firm", "low"]
        cluster.delete_pod("wide")
        cluster.delete_pod("polite")
        cluster.pod("urgent", gpus=1, priority_class="high")
        cluster.wait_bound(["urgent"])
        assert left(cluster, ["firm", "low"]) == ["firm"]


@pytest.mark.usefixtures("classes")
def test_gangs_evict_as_well(cluster: Cluster) -> None:
    for number in range(2):
        cluster.node(f"n{number}", gpus=2)
    said = {names.GANG: "g", names.GANG_SIZE: "2"}
    with Hollow(cluster.api) as kubelet, cluster.scheduler():
        low = run(cluster, 4)
        for name in ("g0", "g1"):
            cluster.pod(name, gpus=2, priority_class="high", annotations=said)
        cluster.wait_bound(["g0", "g1"])
        assert left(cluster, low) == []
        assert not kubelet.violations


@pytest.mark.usefixtures("classes")
def test_it_can_be_turned_off(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1)
    with Hollow(cluster.api), cluster.scheduler("--no-preemption"):
        low = run(cluster, 1)
        cluster.pod("urgent", gpus=1, priority_class="high")
        message(cluster, "urgent")
        assert left(cluster, low) == low
        cluster.delete_pod("low0")
        cluster.wait_bound(["urgent"])


@pytest.mark.usefixtures("classes")
def test_a_preemptor_that_goes_leaves_what_was_cleared_for_it(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1)
    with Hollow(cluster.api), cluster.scheduler():
        run(cluster, 1, hollow={"stop-seconds": 1.5})
        cluster.pod("urgent", gpus=1, priority_class="high")
        until(lambda: left(cluster, ["low0"]) == [], "the eviction")
        cluster.pod("next", gpus=1, priority_class="low")
        cluster.delete_pod("urgent")
        cluster.wait_bound(["next"])


@pytest.mark.usefixtures("classes")
def test_the_gpus_that_were_cleared_are_kept_over_a_restart(cluster: Cluster) -> None:
    """Another scheduler finds a victim that is still ending, and evicts nobody else."""
    cluster.node("n1", gpus=2)
    with Hollow(cluster.api):
        with cluster.scheduler("--no-leader-elect") as process:
            low = run(cluster, 2, hollow={"stop-seconds": 2})
            cluster.pod("urgent", gpus=1, priority_class="high")
            until(lambda: len(left(cluster, low)) == 1, "the eviction")
            until(lambda: cluster.get_pod("urgent")["status"].get("nominatedNodeName"), "that it is told where")
            process.kill()
        with cluster.scheduler("--no-leader-elect"):
            cluster.wait_bound(["urgent"])
            assert len(left(cluster, low)) == 1


@pytest.mark.usefixtures("classes")
def test_gangs_that_share_a_gpu_evict_as_well(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1, gpu_memory="16Gi")
    said = {names.GANG: "g", names.GANG_SIZE: "3"}
    with Hollow(cluster.api) as kubelet, cluster.scheduler():
        low = run(cluster, 2, gpus=None, gpu_memory="8Gi", hollow={"stop-seconds": 0.5})
        for name in ("g0", "g1", "g2"):
            cluster.pod(name, gpu_memory="5Gi", priority_class="high", annotations=said)
        cluster.wait_bound(["g0", "g1", "g2"])
        assert left(cluster, low) == []
        books.check(cluster)
        assert not kubelet.violations
