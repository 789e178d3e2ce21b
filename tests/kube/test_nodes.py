"""Which nodes pods go to: what they say of each other, what nodes have, and nodes that come, change and go."""

from __future__ import annotations

from typing import Any

from gpuyard.kubernetes.api_client import core
from tests.kube import books
from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.kube.statuses import condition
from tests.yard import until


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
    with cluster.scheduler() as process:
        # pods and nodes come by streams of their own: a pod that comes first would be bound

        def cordon(name: str, closed: bool) -> None:
            cluster.api.patch(core("nodes", name=name), {"spec": {"unschedulable": closed}})
            until(lambda: process.json()["nodes"][0]["cordoned"] is closed)

        def tell_ready(name: str, ready: bool) -> None:
            status = {"conditions": [condition("Ready", ready)]}
            cluster.api.patch(f"{core('nodes', name=name)}/status", {"status": status})
            until(lambda: process.json()["nodes"][0]["ready"] is ready)

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
        until(lambda: [node["name"] for node in process.json()["nodes"]] == ["n2"])
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


def test_a_node_that_says_nonsense_harms_nobody(cluster: Cluster) -> None:
    cluster.node("odd", gpu_memory="plenty")
    cluster.node("good", gpus=1)
    with cluster.scheduler():
        cluster.pod("a", gpu_memory="1Gi")
        assert books.place(cluster.wait_bound(["a"])["a"])[0] == "good"
        cluster.pod("b", gpus=2)
        assert message(cluster, "b").startswith("0/2 nodes available: ")


def test_pods_that_want_no_gpu_go_where_cpus_are_free(cluster: Cluster) -> None:
    cluster.node("gpus", gpus=2, cpus=8)
    cluster.node("bare", gpus=0, cpus=4)
    with cluster.scheduler() as process:
        for name in ("a", "b", "c"):
            cluster.pod(name, cpus=2)
            cluster.wait_bound([name])
        found = {pod["metadata"]["name"]: pod for pod in cluster.pods()}
        assert [found[name]["spec"]["nodeName"] for name in "abc"] == ["bare", "bare", "gpus"]
        assert message(cluster, "a", "Scheduled") == "Successfully assigned default/a to bare"
        cluster.pod("large", cpus=7)
        assert message(cluster, "large") == "0/2 nodes available: 2 insufficient cpu"
        cluster.pod("gpu", gpus=1, cpus=7)
        assert message(cluster, "gpu") == "0/2 nodes available: 1 insufficient cpu, 1 without GPUs"
        cluster.delete_pod("c")
        until(lambda: len(cluster.pods(fieldSelector="spec.nodeName=gpus")) == 1, "that one of them has it")
        until(lambda: process.json()["counts"]["waiting"] == 1, "that the other waits")
