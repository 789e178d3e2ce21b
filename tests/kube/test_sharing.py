"""Several pods on a GPU, by what they ask for: never more than it has, however it is asked for and told."""

from __future__ import annotations

import random

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import core
from gpuyard.kubernetes.cluster.quantity import amount
from tests.kube import books
from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.yard import until

MIB = 2**20


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
