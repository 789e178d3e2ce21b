"""Who goes first: by priority, by waiting, by shares of namespaces, by run time; and what a namespace may have."""

from __future__ import annotations

import time
from pathlib import Path

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import core
from gpuyard.kubernetes.cluster.quantity import moment
from tests.kube.asking import is_bound, message
from tests.kube.cluster import Cluster
from tests.kube.schedulers import Scheduler
from tests.yard import until

SEED = {"lstm": 36, "onnx": 71, "ssd": 89, "matmul": 189}
"""The workloads of Kube-Knots' scheduler for Kubernetes, with their seconds."""


def occupied(cluster: Cluster) -> None:
    """A node whose only GPU one pod has."""
    cluster.node("n1", gpus=1)
    cluster.pod("first", gpus=1)
    cluster.wait_bound(["first"])


def queue(process: Scheduler, count: int) -> list[str]:
    """Those who wait, in the order in which they are to start."""

    def found() -> list[str]:
        pods = [pod for pod in process.json()["pods"] if pod["phase"] == "waiting" and pod["position"]]
        return [pod["name"] for pod in sorted(pods, key=lambda pod: pod["position"])]

    until(lambda: len(found()) == count, f"that {count} wait")
    return found()


def order_of_starts(cluster: Cluster, pods: list[str]) -> list[str]:
    """Let one after another end, and see who follows."""
    started, now = list[str](), "first"

    def following() -> str | None:
        return next((name for name in pods if name not in started and is_bound(cluster, name)), None)

    for _ in pods:
        cluster.delete_pod(now)
        now = until(following, "the next")
        started.append(now)
    return started


def test_priority_classes_go_first_then_who_came_first(cluster: Cluster) -> None:
    cluster.priority_class("high", 1000)
    cluster.priority_class("higher", 2000)
    with cluster.scheduler() as process:
        occupied(cluster)
        for name, priority in (("a", None), ("b", "high"), ("c", "higher"), ("d", "high"), ("e", None)):
            cluster.pod(name, gpus=1, priority_class=priority)
        assert set(queue(process, 5)[:3]) == {"c", "b", "d"}
        assert queue(process, 5)[0] == "c"
        started = order_of_starts(cluster, list("abcde"))
        assert (started[0], set(started[1:3]), set(started[3:])) == ("c", {"b", "d"}, {"a", "e"})


def test_the_shortest_of_the_seeds_workloads_goes_first(cluster: Cluster) -> None:
    with cluster.scheduler("--policy", "sjf", "--default-duration", "80s") as process:
        occupied(cluster)
        for name in ("matmul", "ssd", "onnx", "lstm"):
            cluster.pod(name, gpus=1, annotations={names.DURATION: f"{SEED[name]}s"})
        cluster.pod("unknown", gpus=1)
        expected = ["lstm", "onnx", "unknown", "ssd", "matmul"]  # of which nothing is known is no shorter than that
        assert queue(process, 5) == expected
        assert order_of_starts(cluster, expected[::-1]) == expected


def test_run_times_may_be_in_the_settings(cluster: Cluster, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    rows = "".join(f"  {name}*: {seconds}s\n" for name, seconds in SEED.items())
    settings.write_text(f"policy: sjf\ndefault-duration: 100s\ndurations:\n{rows}")
    with cluster.scheduler("--config", str(settings)) as process:
        occupied(cluster)
        for name in ("matmul-1", "ssd-1", "unknown-1", "onnx-1", "lstm-1"):
            cluster.pod(name, gpus=1)
        cluster.pod("matmul-2", gpus=1, annotations={names.DURATION: "1s"})  # what a pod says itself comes first
        assert queue(process, 6) == ["matmul-2", "lstm-1", "onnx-1", "ssd-1", "unknown-1", "matmul-1"]
        (view,) = (pod for pod in process.json()["pods"] if pod["name"] == "unknown-1")
        assert view["estimate"] == 100


def test_a_namespace_may_have_no_more_than_its_quota(cluster: Cluster) -> None:
    cluster.node("n1", gpus=4)
    cluster.namespace("red", gpu_quota="2")
    with cluster.scheduler():
        for number in range(3):
            cluster.pod(f"r{number}", gpus=1, namespace="red")
        cluster.pod("b", gpus=2, namespace="blue")
        cluster.wait_bound(["b"])
        until(lambda: sum(is_bound(cluster, f"r{n}", "red") for n in range(3)) == 2, "two of red")
        (waits,) = [f"r{number}" for number in range(3) if not is_bound(cluster, f"r{number}", "red")]
        cluster.delete_pod("b", "blue")
        assert "over the quota of namespace red (has 2 of 2 GPUs)" in message(cluster, waits)
        assert not is_bound(cluster, waits, "red")
        cluster.namespace("red", gpu_quota="3")
        until(lambda: is_bound(cluster, waits, "red"), "the third")
        cluster.namespace("red", gpu_quota="lots")
        said = message(cluster, "red", "BadShare")
        assert "makes no sense" in said
        cluster.pod("r3", gpus=1, namespace="red")
        until(lambda: is_bound(cluster, "r3", "red"), "that nonsense is no limit")


def test_who_has_had_less_of_its_share_goes_first(cluster: Cluster) -> None:
    cluster.namespace("red", share="1")
    cluster.namespace("blue", share="3")
    with cluster.scheduler("--policy", "fair") as process:
        cluster.node("n1", gpus=3)
        for space in ("red", "blue"):
            cluster.pod("runs", gpus=1, namespace=space)
        cluster.pod("first", gpus=1)
        until(lambda: all("nodeName" in pod["spec"] for pod in cluster.pods()), "that they have their GPUs")
        for space in ("red", "blue"):
            cluster.set_phase("runs", "Running", space)
        for space in ("red", "blue"):
            cluster.pod(f"{space}-next", gpus=1, namespace=space)
        until(lambda: queue(process, 2) == ["blue-next", "red-next"], "that blue goes first")
        cluster.delete_pod("first")
        until(lambda: is_bound(cluster, "blue-next", "blue"), "that blue has it")
        assert not is_bound(cluster, "red-next", "red")


def test_who_waits_long_goes_before_a_little_more_priority(cluster: Cluster) -> None:
    cluster.priority_class("one", 1)
    cluster.priority_class("many", 1000)
    with cluster.scheduler("--policy", "multifactor:ageing=3600") as process:  # a second counts as 1
        occupied(cluster)
        born = moment(cluster.pod("old", gpus=1)["metadata"]["creationTimestamp"])
        assert born is not None
        until(lambda: time.time() > born + 2.1, "two seconds more")
        cluster.pod("young", gpus=1, priority_class="one")
        cluster.pod("urgent", gpus=1, priority_class="many")
        assert queue(process, 3) == ["urgent", "old", "young"]


def test_policies_without_reservations_and_placements(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    cluster.node("n2", gpus=2)
    with cluster.scheduler("--policy", "fcfs", "--discipline", "skip", "--placement", "spread") as process:
        assert process.json()["policy"] == "fcfs@skip@spread"
        for name in ("a", "b"):
            cluster.pod(name, gpus=1)
            cluster.wait_bound([name])
        assert {pod["spec"]["nodeName"] for pod in cluster.pods()} == {"n1", "n2"}
        cluster.pod("wide", gpus=2)
        message(cluster, "wide")
        cluster.pod("small", gpus=1)
        cluster.wait_bound(["small"])
        assert "nodeName" not in cluster.api.get(core("pods", "default", "wide"))["spec"]
