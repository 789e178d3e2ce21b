"""Pods of ours on a real API server: where they go, what they are told, and what becomes of the GPUs after them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import core
from gpuyard.kubernetes.settings import Settings
from tests.kube import books
from tests.kube.asking import conflicts, message
from tests.kube.cluster import Cluster
from tests.yard import PATIENCE, until

MIB = 2**20


# -- pods that are bound --------------------------------------------------------------------------------


def test_pods_are_bound_and_told_why(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    cluster.node("n2", gpus=2)
    with cluster.scheduler() as process:
        for number in range(8):
            cluster.pod(f"share{number}", gpu_memory="6994Mi")
            cluster.wait_bound([f"share{number}"])
        for number in range(2):
            cluster.pod(f"whole{number}", gpus=1)
            cluster.wait_bound([f"whole{number}"])
        given = books.check(cluster)
        assert sorted(given.values()) == [4 * 6994 * MIB] * 2 + [32510 * MIB] * 2  # the fullest that fits is taken
        share, all_of_it = cluster.get_pod("share0")["metadata"], cluster.get_pod("whole1")
        assert share["annotations"][names.CHARGED] == str(6994 * MIB)
        assert share["annotations"][names.ADMITTED] == "fit"
        assert names.CHARGED not in all_of_it["metadata"]["annotations"]
        where, (index,) = books.place(all_of_it)
        said = message(cluster, "whole1", "Scheduled")
        assert said == f"Successfully assigned default/whole1 to {where} (GPU {index}) by fit: 1 GPU asked for, 1 idle on the node"  # noqa: E501  # fmt: skip
        assert message(cluster, "share1", "Scheduled").endswith("by fit: 6.83G asked for, 24.92G left")
        event = cluster.events("Scheduled", "share1")[0]
        assert (event["type"], event["source"]["component"]) == ("Normal", "gpuyard")
        assert event["involvedObject"]["uid"] == cluster.get_pod("share1")["metadata"]["uid"]
    assert "WARNING" not in process.log().partition("leads now")[2], process.log()


# -- others ---------------------------------------------------------------------------------------------


def test_pods_and_gpus_of_others_are_left_alone(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    cluster.pod("theirs", gpus=1, scheduler="default-scheduler")
    cluster.pod("waits", gpus=1, scheduler="somebody-else")
    cluster.bind("theirs", "n1")
    with cluster.scheduler():
        cluster.pod("whole", gpus=1)
        cluster.wait_bound(["whole"])
        cluster.pod("second", gpus=1)
        cluster.pod("share", gpu_memory="1Gi")
        for name in ("second", "share"):
            assert message(cluster, name) == "0/1 nodes available: 1 foreign"
        assert {"nodeName", "nominatedNodeName"}.isdisjoint(cluster.get_pod("waits")["spec"])
        assert not cluster.events(pod="waits")
        assert not cluster.events(pod="theirs")
        cluster.set_phase("theirs", "Succeeded")
        cluster.wait_bound(["second"])
        assert {index for name in ("whole", "second") for index in books.indices(cluster.get_pod(name))} == {0, 1}


def test_other_names_for_ourselves(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    with cluster.scheduler("--scheduler-name", "gpus"):
        cluster.pod("a", gpus=1, scheduler="gpus")
        cluster.pod("b", gpus=1)
        cluster.wait_bound(["a"])
        assert "nodeName" not in cluster.get_pod("b")["spec"]


def test_pods_that_somebody_else_binds_meanwhile(cluster: Cluster) -> None:
    """Another scheduler, or a person, takes the same pods: each has one node, and what they hold is known."""
    for number in range(4):
        cluster.node(f"n{number}", gpus=8)
    stolen = list[str]()
    with cluster.scheduler() as process:
        for number in range(60):
            name = f"p{number}"
            cluster.pod(name, gpu_memory="8Gi")
            if not conflicts(partial(cluster.bind, name, f"n{number % 4}", gpus=None if number % 2 else "7")):
                stolen.append(name)
        found = cluster.wait_bound([f"p{number}" for number in range(60)])
        assert stolen, "no race was won"
        for name in stolen:
            assert books.place(found[name])[0] == f"n{int(name[1:]) % 4}"
        until(lambda: process.json()["counts"]["waiting"] == 0, "an empty queue")
        metrics = process.get("/metrics")
        assert "gpuyard_kubernetes_bindings_in_flight 0.0" in metrics
        view = {pod["name"]: pod for pod in process.json()["pods"]}
        assert {name: pod["node"] for name, pod in view.items()} == {
            name: pod["spec"]["nodeName"] for name, pod in found.items()
        }
        assert not [pod for pod in view.values() if pod["phase"] == "waiting"]
        # whoever has GPUs that nobody knows keeps everybody else from sharing on that node
        for name in found:
            cluster.delete_pod(name)
        cluster.pod("after", gpus=8)
        cluster.wait_bound(["after"])


# -- why pods wait --------------------------------------------------------------------------------------


def test_why_a_pod_waits_node_by_node(cluster: Cluster) -> None:
    taint = {"key": "team", "value": "other", "effect": "NoSchedule"}
    cluster.node("bare", gpus=0)
    cluster.node("closed")
    cluster.api.patch(core("nodes", name="closed"), {"spec": {"unschedulable": True}})
    cluster.node("away", ready=False)
    cluster.node("tainted", taints=[taint], labels={"zone": "a"})
    cluster.node("elsewhere", labels={"zone": "b"})
    cluster.node("theirs", gpus=1, labels={"zone": "a"})
    cluster.pod("foreign", gpus=1, scheduler="default-scheduler")
    cluster.bind("foreign", "theirs")
    cluster.node("small", gpu_memory="8Gi", labels={"zone": "a"})
    cluster.node("small2", gpu_memory="8Gi", labels={"zone": "a"})
    cluster.node("busy", cpus=2, labels={"zone": "a"})
    cluster.node("lean", memory="1Gi", labels={"zone": "a"})
    cluster.node("mute", gpu_memory=None, labels={"zone": "a"})
    with cluster.scheduler() as process:
        cluster.pod("share", gpu_memory="16Gi", cpus=4, memory="8Gi", node_selector={"zone": "a"})
        said = message(cluster, "share")
        assert said == (
            "0/11 nodes available: 2 insufficient GPU memory, 1 GPU memory unknown, 1 cordoned, 1 did not match the "
            "node selector, 1 foreign, 1 had the taint team=other, 1 insufficient cpu, 1 insufficient memory, "
            "1 not ready, 1 without GPUs; wants 16G, at most 8G are left (node small, GPU 0)"
        )
        status = until(lambda: cluster.get_pod("share")["status"].get("conditions"), "a condition")[0]
        assert (status["type"], status["status"], status["reason"]) == ("PodScheduled", "False", "Unschedulable")
        assert status["message"] == said
        told = cluster.gpuyard("kubernetes", "explain", "pod/share")
        assert (told.code, told.err) == (0, "")
        assert said in told.out
        for line in ("busy       insufficient cpu", "lean       insufficient memory", "closed     cordoned"):
            assert line in told.out, told.out
        assert {pod["name"]: pod["reason"] for pod in process.json()["pods"]}["share"] == said


# -- pods that end --------------------------------------------------------------------------------------


def _fail(cluster: Cluster, name: str) -> None:
    cluster.set_phase(name, "Failed")


def _succeed(cluster: Cluster, name: str) -> None:
    cluster.set_phase(name, "Succeeded")


def _evict(cluster: Cluster, name: str) -> None:
    cluster.set_phase(name, "Running")
    cluster.evict(name)
    cluster.delete_pod(name)  # as its kubelet does once the containers have stopped


@pytest.mark.parametrize("share", [True, False])
def test_what_a_pod_had_is_free_as_soon_as_that_is_heard(cluster: Cluster, share: bool) -> None:
    cluster.node("n1", gpus=1)
    ends: list[Callable[[Cluster, str], None]] = [_succeed, _fail, Cluster.delete_pod, _evict]
    asks: dict[str, Any] = {"gpu_memory": "20Gi"} if share else {"gpus": 1}
    assert Settings().resync > 2 * PATIENCE  # so it does not wait for everything to be listed again
    with cluster.scheduler():
        cluster.pod("p0", **asks)
        cluster.wait_bound(["p0"])
        for number, end in enumerate(ends, 1):
            cluster.pod(f"p{number}", **asks, namespace="default")
            message(cluster, f"p{number}")  # so that nothing but the end of the other lets it start
            end(cluster, f"p{number - 1}")
            cluster.wait_bound([f"p{number}"])
            books.check(cluster)


def test_a_pod_that_takes_time_to_stop_keeps_its_gpu_until_then(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1)
    with cluster.scheduler():
        cluster.pod("a", gpus=1)
        cluster.wait_bound(["a"])
        cluster.set_phase("a", "Running")
        cluster.delete_pod("a", grace=30)
        cluster.pod("b", gpus=1)
        assert message(cluster, "b") == "0/1 nodes available: 1 insufficient GPUs"
        cluster.delete_pod("a")
        cluster.wait_bound(["b"])


def test_pods_that_are_deleted_while_they_wait_are_forgotten(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1)
    with cluster.scheduler() as process:
        cluster.pod("a", gpus=1)
        cluster.wait_bound(["a"])
        for name in ("b", "c"):
            cluster.pod(name, gpus=1)
        until(lambda: process.json()["counts"]["waiting"] == 2, "that two wait")
        cluster.delete_pod("b")
        cluster.pod("b", gpu_memory="1Gi", annotations={"again": "yes"})  # another one of the same name
        until(lambda: process.json()["counts"]["waiting"] == 2, "that two wait")
        cluster.delete_pod("c")
        cluster.delete_pod("a")
        found = cluster.wait_bound(["b"])["b"]
        assert found["metadata"]["annotations"]["again"] == "yes"
        until(lambda: process.json()["counts"]["waiting"] == 0, "that nobody waits")


def test_namespaces_do_not_matter_for_names(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    with cluster.scheduler():
        for space in ("red", "blue"):
            cluster.pod("same", gpus=1, namespace=space)
        until(lambda: all("nodeName" in pod["spec"] for pod in cluster.pods()), "both")
        assert sorted(books.indices(pod) for pod in cluster.pods()) == [(0,), (1,)]
        assert {event["metadata"]["namespace"] for event in cluster.events("Scheduled")} <= {"red", "blue"}


# -- what makes no sense --------------------------------------------------------------------------------


def test_bad_values_are_told_and_can_be_mended(cluster: Cluster) -> None:
    cluster.node("n1", gpus=4)
    share = {names.GPU_MEMORY: "1Gi"}
    bad: dict[str, tuple[dict[str, str], str, dict[str, str | None]]] = {
        "lots": ({names.GPU_MEMORY: "lots"}, "'lots' is no quantity", {names.GPU_MEMORY: "1Gi"}),
        "none": ({names.GPU_MEMORY: "0"}, "'0' is no amount of memory", {names.GPU_MEMORY: "1Gi"}),
        "gang": ({**share, names.GANG: "g", names.GANG_SIZE: "x"}, "a number of members, 1 or more, not x",
                 {names.GANG_SIZE: "1"}),
        "count": ({**share, names.GPU_COUNT: "two"}, "a number of GPUs, 1 or more, not two", {names.GPU_COUNT: "2"}),
        "time": ({**share, names.DURATION: "soon"}, "soon", {names.DURATION: "90s"}),
        "way": ({**share, names.ADMISSION: "luck"}, "is requests or usage, not luck", {names.ADMISSION: None}),
        "maybe": ({**share, names.PREEMPTIBLE: "maybe"}, "is true or false, not maybe", {names.PREEMPTIBLE: "true"}),
    }  # fmt: skip
    with cluster.scheduler() as process:
        for name, (annotations, _, _) in bad.items():
            cluster.pod(name, annotations=annotations)
        cluster.pod("nothing")  # asks for no GPU at all, and is bound like any pod
        cluster.pod("good", gpu_memory="1Gi")
        cluster.wait_bound(["good", "nothing"])
        for name, (_, why, _) in bad.items():
            assert why in message(cluster, name), name
        assert names.INDICES not in cluster.get_pod("nothing")["metadata"].get("annotations", {})
        for name, (_, _, mended) in bad.items():
            cluster.api.patch(core("pods", "default", name), {"metadata": {"annotations": mended}})
        cluster.wait_bound(list(bad))
        assert {pod["name"] for pod in process.json()["pods"] if pod["phase"] != "bound"} == set()
        books.check(cluster)
