"""Pods of ours on a real API server: where they go, what they are told, and what becomes of the GPUs after them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import pytest

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api import core
from gpuyard.kubernetes.quantity import amount
from tests.kube import books
from tests.kube.asking import bound_after, conflicts, message
from tests.kube.cluster import Cluster
from tests.kube.statuses import condition
from tests.yard import until

MIB = 2**20


# -- pods that are bound --------------------------------------------------------------------------------


def test_pods_are_bound_within_a_second_and_told_why(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    cluster.node("n2", gpus=2)
    took = []
    with cluster.scheduler() as process:
        for number in range(8):
            cluster.pod(f"share{number}", gpu_memory="6994Mi")
            took.append(bound_after(cluster, f"share{number}"))
        for number in range(2):
            cluster.pod(f"whole{number}", gpus=1)
            took.append(bound_after(cluster, f"whole{number}"))
        assert median(took) < 1.0, took
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


def test_never_more_than_a_gpu_has(cluster: Cluster) -> None:
    draw = random.Random(5)
    for number in range(3):
        cluster.node(f"n{number}", gpus=2, gpu_memory=f"{8 + 8 * number}Gi")
    with cluster.scheduler():
        for number in range(60):
            if number % 6 == 5:
                cluster.pod(f"p{number}", gpus=draw.choice([1, 2]))
            else:
                more = {names.GPU_COUNT: "2"} if number % 7 == 0 else {}
                cluster.pod(f"p{number}", gpu_memory=f"{draw.randint(500, 9000)}Mi", annotations=more)
        for _ in range(12):
            books.check(cluster)
            placed = [pod["metadata"]["name"] for pod in cluster.pods() if pod["spec"].get("nodeName")]
            for name in draw.sample(placed, min(5, len(placed))):
                cluster.delete_pod(name)
        until(lambda: len(cluster.pods()) < 60)
        books.check(cluster)


def test_gpus_of_several_are_those_of_one_node(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    cluster.node("n2", gpus=2)
    with cluster.scheduler():
        cluster.pod("one", gpus=1)
        cluster.wait_bound(["one"])
        cluster.pod("two", gpus=2)
        cluster.pod("wide", gpu_memory="1Gi", annotations={names.GPU_COUNT: "2"})
        found = cluster.wait_bound(["two"])
        assert books.place(found["two"])[1] == (0, 1)
        assert message(cluster, "wide") == (
            "0/2 nodes available: 2 insufficient GPU memory; "
            "wants 1G on each of 2 GPUs, at most 0 are left on each of 2 GPUs (node n1)"
        )
        cluster.delete_pod("two")
        assert books.place(cluster.wait_bound(["wide"])["wide"])[1] == (0, 1)
        assert cluster.get_pod("wide")["metadata"]["annotations"][names.CHARGED] == str(2**30)


def test_the_three_ways_to_ask_for_memory(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1, gpu_memory="40Gi")
    with cluster.scheduler():
        cluster.pod("annotation", gpu_memory="6994Mi")
        cluster.pod("label", labels={names.GPU_MEMORY: "6994Mi"})
        cluster.pod("seed", labels={names.SEED_MEMORY: "6994"})
        cluster.pod("aliyun", limits={names.ALIYUN_MEMORY: "7"})
        found = cluster.wait_bound(["annotation", "label", "seed", "aliyun"])
        charged = {name: amount(pod["metadata"]["annotations"][names.CHARGED]) for name, pod in found.items()}
        assert charged == {**dict.fromkeys(("annotation", "label", "seed"), 6994 * MIB), "aliyun": 7 * 2**30}
        books.check(cluster)


def test_nodes_tell_their_memory_in_several_ways_or_not_at_all(cluster: Cluster) -> None:
    cluster.node("mute", gpus=1, gpu_memory=None)
    with cluster.scheduler():
        cluster.pod("share", gpu_memory="6994Mi")
        assert message(cluster, "share").startswith("0/1 nodes available: 1 GPU memory unknown")
        cluster.pod("whole", gpus=1)  # which needs to know nothing
        cluster.wait_bound(["whole"])
        cluster.node("labelled", gpus=1, gpu_memory=None, labels={names.NODE_GPU_MEMORY: "16384"})
        assert books.place(cluster.wait_bound(["share"])["share"]) == ("labelled", (0,))
    cluster.delete_pod("whole")
    with cluster.scheduler("--gpu-memory", "8G"):
        cluster.pod("told", gpu_memory="7Gi", node_selector={"kubernetes.io/hostname": "mute"})
        cluster.wait_bound(["told"])


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


# -- where pods may be ----------------------------------------------------------------------------------


def _affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_pods_are_where_they_may_be(cluster: Cluster) -> None:
    taint = {"key": "team", "value": "red", "effect": "NoSchedule"}
    cluster.node("a", labels={"zone": "a", "generation": "7"})
    cluster.node("b", labels={"zone": "b", "generation": "9", "nvlink": "yes"})
    cluster.node("c", labels={"zone": "c", "generation": "9"}, taints=[taint])
    tolerant = [{"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}]
    wishes: dict[str, tuple[str, dict[str, Any]]] = {
        "selected": ("b", {"node_selector": {"zone": "b"}}),
        "listed": ("a", {"affinity": _affinity({"key": "zone", "operator": "In", "values": ["a", "x"]})}),
        "avoids": ("b", {"affinity": _affinity({"key": "zone", "operator": "NotIn", "values": ["a", "c"]})}),
        "has": ("b", {"affinity": _affinity({"key": "nvlink", "operator": "Exists"})}),
        "hasnot": ("a", {"affinity": _affinity({"key": "nvlink", "operator": "DoesNotExist"})}),
        "newer": ("b", {"affinity": _affinity({"key": "generation", "operator": "Gt", "values": ["8"]})}),
        "tolerates": ("c", {"tolerations": tolerant, "node_selector": {"zone": "c"}}),
        "anything": ("c", {"tolerations": [{"operator": "Exists"}], "node_selector": {"zone": "c"}}),
    }
    with cluster.scheduler():
        for name, (_, wish) in wishes.items():
            cluster.pod(name, gpu_memory="1Gi", **wish)
        found = cluster.wait_bound(list(wishes))
        assert {name: pod["spec"]["nodeName"] for name, pod in found.items()} == {
            name: node for name, (node, _) in wishes.items()
        }
        cluster.pod("intolerant", gpus=1, node_selector={"zone": "c"})
        cluster.pod("nowhere", gpus=1, affinity=_affinity({"key": "zone", "operator": "In", "values": ["x"]}))
        cluster.pod("apart", gpus=1, affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]}})  # fmt: skip
        assert message(cluster, "intolerant") == (
            "0/3 nodes available: 2 did not match the node selector, 1 had the taint team=red"
        )
        assert message(cluster, "nowhere") == "0/3 nodes available: 3 did not match the node affinity"
        assert message(cluster, "apart") == "required pod anti-affinity is not supported by gpuyard"


def test_nodes_come_change_and_go(cluster: Cluster) -> None:
    def cordon(name: str, closed: bool) -> None:
        cluster.api.patch(core("nodes", name=name), {"spec": {"unschedulable": closed}})

    def tell_ready(name: str, ready: bool) -> None:
        status = {"conditions": [condition("Ready", ready)]}
        cluster.api.patch(f"{core('nodes', name=name)}/status", {"status": status})

    with cluster.scheduler() as process:
        cluster.pod("first", gpus=1)
        assert message(cluster, "first") == "0/0 nodes available: there are none"
        cluster.node("n1", gpus=2)
        cluster.wait_bound(["first"])
        cluster.pod("labelled", gpu_memory="1Gi", node_selector={"zone": "a"})
        assert message(cluster, "labelled") == "0/1 nodes available: 1 did not match the node selector"
        cluster.api.patch(core("nodes", name="n1"), {"metadata": {"labels": {"zone": "a"}}})
        cluster.wait_bound(["labelled"])
        cordon("n1", True)
        cluster.pod("barred", gpu_memory="1Gi")
        assert message(cluster, "barred") == "0/1 nodes available: 1 cordoned"
        cordon("n1", False)
        cluster.wait_bound(["barred"])
        tell_ready("n1", False)
        cluster.pod("unready", gpu_memory="1Gi")
        assert message(cluster, "unready") == "0/1 nodes available: 1 not ready"
        tell_ready("n1", True)
        cluster.wait_bound(["unready"])
        cluster.pod("wide", gpus=4)
        assert message(cluster, "wide").startswith("0/1 nodes available: 1 with fewer than 4 GPUs")
        cluster.node("n2", gpus=4)
        assert books.place(cluster.wait_bound(["wide"])["wide"]) == ("n2", (0, 1, 2, 3))
        cluster.api.delete(core("nodes", name="n1"))
        cluster.pod("later", gpu_memory="1Gi")
        assert message(cluster, "later").startswith("0/1 nodes available: 1 insufficient GPU memory")
        cluster.api.delete(core("nodes", name="n2"))
        cluster.node("n1", gpus=2)
        assert books.place(cluster.wait_bound(["later"])["later"])[0] == "n1"  # beside those who were there before
        assert len(process.json()["nodes"]) == 1
        books.check(cluster)


def test_the_taint_of_a_node_goes(cluster: Cluster) -> None:
    cluster.node("n1", taints=[{"key": "team", "value": "red", "effect": "NoExecute"}])
    with cluster.scheduler():
        cluster.pod("a", gpus=1)
        assert message(cluster, "a") == "0/1 nodes available: 1 had the taint team=red"
        cluster.api.patch(core("nodes", name="n1"), {"spec": {"taints": None}})
        cluster.wait_bound(["a"])


def test_cpus_and_memory_of_ours_and_of_others_count(cluster: Cluster) -> None:
    cluster.node("n1", cpus=8, memory="16Gi")
    cluster.pod("theirs", cpus=2, memory="4Gi", scheduler="default-scheduler")
    cluster.bind("theirs", "n1")
    with cluster.scheduler():
        cluster.pod("ours", gpu_memory="1Gi", cpus=3, memory="4Gi")
        cluster.wait_bound(["ours"])
        cluster.pod("cpu", gpu_memory="1Gi", cpus=4)
        cluster.pod("memory", gpu_memory="1Gi", memory="9Gi")
        assert message(cluster, "cpu") == "0/1 nodes available: 1 insufficient cpu"
        assert message(cluster, "memory") == "0/1 nodes available: 1 insufficient memory"
        cluster.pod("fits", gpu_memory="1Gi", cpus="2500m", memory="4Gi")
        cluster.wait_bound(["fits"])
        cluster.set_phase("ours", "Succeeded")
        cluster.delete_pod("fits")
        cluster.wait_bound(["cpu"])
        cluster.set_phase("theirs", "Failed")
        cluster.wait_bound(["memory"])


def test_a_node_takes_no_more_pods_than_it_may(cluster: Cluster) -> None:
    cluster.node("n1", pods=4)
    cluster.pod("theirs", scheduler="default-scheduler")
    cluster.bind("theirs", "n1")
    for number in range(6):
        cluster.pod(f"p{number}", gpu_memory="1Gi")
    with cluster.scheduler():
        until(lambda: len(cluster.events("FailedScheduling")) == 3, "that three wait")
        assert len([pod for pod in cluster.pods() if pod["spec"].get("nodeName")]) == 4
        assert {event["message"] for event in cluster.events("FailedScheduling")} == {
            "0/1 nodes available: 1 has as many pods as it may"
        }
        cluster.set_phase("theirs", "Succeeded")
        until(lambda: sum("nodeName" in pod["spec"] for pod in cluster.pods()) == 5, "one more")


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
def test_what_a_pod_had_is_free_within_a_second(cluster: Cluster, share: bool) -> None:
    cluster.node("n1", gpus=1)
    ends: list[Callable[[Cluster, str], None]] = [_succeed, _fail, Cluster.delete_pod, _evict]
    asks: dict[str, Any] = {"gpu_memory": "20Gi"} if share else {"gpus": 1}
    took = []
    with cluster.scheduler():
        cluster.pod("p0", **asks)
        cluster.wait_bound(["p0"])
        for number, end in enumerate(ends, 1):
            cluster.pod(f"p{number}", **asks, namespace="default")
            message(cluster, f"p{number}")  # so that nothing but the end of the other lets it start
            began = time.monotonic()
            end(cluster, f"p{number - 1}")
            took.append(bound_after(cluster, f"p{number}", began))
            books.check(cluster)
    assert median(took) < 1.0, took


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


def test_what_a_pod_asks_for_may_change_while_it_waits(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1, gpu_memory="16Gi")
    with cluster.scheduler():
        cluster.pod("a", gpu_memory="12Gi")
        cluster.wait_bound(["a"])
        cluster.pod("b", gpu_memory="8Gi")
        cluster.pod("c", gpu_memory="9Gi")
        message(cluster, "c")
        cluster.api.patch(core("pods", "default", "c"), {"metadata": {"annotations": {names.GPU_MEMORY: None}}})
        cluster.wait_bound(["c"])  # it wants no GPU any more
        cluster.api.patch(core("pods", "default", "b"), {"metadata": {"annotations": {names.GPU_MEMORY: "2Gi"}}})
        cluster.wait_bound(["b"])
        cluster.delete_pod("a")
        cluster.pod("d", gpu_memory="14Gi")
        cluster.wait_bound(["d"])
        assert names.INDICES not in cluster.get_pod("c")["metadata"].get("annotations", {})


def test_a_node_that_says_nonsense_harms_nobody(cluster: Cluster) -> None:
    cluster.node("odd", gpu_memory="plenty")
    cluster.node("good", gpus=1)
    with cluster.scheduler():
        cluster.pod("a", gpu_memory="1Gi")
        assert books.place(cluster.wait_bound(["a"])["a"])[0] == "good"
        cluster.pod("b", gpus=2)
        assert message(cluster, "b").startswith("0/2 nodes available: ")
