"""What the scheduler tells who asks: metrics, signs of life, the cluster; `explain`; and what it says to bad flags."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpuyard.kubernetes import names
from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.yard import until


def metrics(text: str) -> dict[str, float]:
    """All samples, by name."""
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_what_is_served(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2, labels={names.NODE_GPU_MODEL: "NVIDIA-A100"})
    with cluster.scheduler("--identity", "me") as process:
        cluster.pod("share", gpu_memory="6994Mi")
        cluster.pod("whole", gpus=1)
        cluster.wait_bound(["share", "whole"])
        cluster.pod("waits", gpus=1)
        cluster.pod("never", gpus=3)
        for name in ("waits", "never"):
            message(cluster, name)
        until(lambda: metrics(process.get("/metrics"))["gpuyard_kubernetes_bindings_in_flight"] == 0, "quiet")
        found = metrics(process.get("/metrics"))
        expected = {
            "bindings_total": 2, "binding_conflicts_total": 0, "binding_failures_total": 0, "evictions_total": 0,
            "leader": 1, "pending_pods": 1, "aside_pods": 1, "placed_pods": 2, "nodes": 1, "gpus": 2, "gpus_idle": 0,
            "prometheus_up": 1,
        }  # fmt: skip
        assert {name: found[f"gpuyard_kubernetes_{name}"] for name in expected} == expected
        assert found["gpuyard_kubernetes_plans_total"] >= 2
        assert 0 < found["gpuyard_kubernetes_plan_seconds"] < 1
        assert found["process_resident_memory_bytes"] < 300 * 2**20
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/livez", 200), ("/", 404), ("/cluster?x", 200)):
            assert process.status(path) == status, path
        _check_view(process.json())


def _check_view(view: dict[str, Any]) -> None:
    assert (view["policy"], view["leader"], view["admission"]) == ("multifactor@easy@pack", "me", "requests")
    (node,) = view["nodes"]
    assert (node["name"], node["model"], node["ready"], node["cordoned"]) == ("n1", "NVIDIA-A100", True, False)
    whole, share = sorted(node["gpus"], key=lambda gpu: gpu["pods"] == ["default/share"])
    assert (whole["pods"], share["pods"]) == (["default/whole"], ["default/share"])
    assert (whole["memory_charged"], share["memory_charged"]) == (32510 * 2**20, 6994 * 2**20)
    pods = {pod["name"]: pod for pod in view["pods"]}
    assert (pods["waits"]["position"], pods["waits"]["reason"]) == (1, "0/1 nodes available: 1 insufficient GPUs")
    assert (pods["never"]["position"], pods["share"]["position"]) == (None, None)
    assert pods["share"]["gpus"] == [share["index"]]


def test_pods_are_explained(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1)
    cluster.node("n2", gpus=1, taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}])
    with cluster.scheduler("--policy", "fcfs"):
        cluster.pod("runs", gpu_memory="30Gi", annotations={names.DURATION: "90s"})
        cluster.wait_bound(["runs"])
        cluster.pod("waits", gpu_memory="4Gi", namespace="team")
        said = message(cluster, "waits")
        text = cluster.gpuyard("kubernetes", "explain", "pod/runs")
        assert (text.code, text.err) == (0, "")
        assert "on n1, GPU 0, let in by fit" in text.out
        assert "about 1m 30s" in text.out
        assert "Scheduled: Successfully assigned default/runs to n1 (GPU 0) by fit: 30G asked for" in text.out
        text = cluster.gpuyard("kubernetes", "explain", "waits", "-n", "team")
        assert said in text.out
        assert "n2  had the taint team=red" in text.out
        found = json.loads(cluster.gpuyard("kubernetes", "explain", "pod/waits", "-n", "team", "--json").out)
        assert (found["reason"], found["policy"]) == (said, "fcfs@easy@pack")
        assert found["nodes"] == {"n1": "insufficient GPU memory", "n2": "had the taint team=red"}
        assert [event["reason"] for event in found["events"]] == ["FailedScheduling"]
        for words, why in (
            (("pod/nobody",), "there is no pod nobody in namespace default; -n names another"),
            (("node/n1",), "'node/n1' is no pod; write pod/NAME"),
        ):
            done = cluster.gpuyard("kubernetes", "explain", *words)
            assert (done.code, done.out) == (2, "")
            assert why in done.err
        cluster.pod("theirs", gpus=1, scheduler="default-scheduler")
        assert "is not ours" in cluster.gpuyard("kubernetes", "explain", "pod/theirs").out
    done = cluster.gpuyard("kubernetes", "explain", "pod/waits", "-n", "team")  # nobody need run for that
    assert said in done.out


def test_where_nobody_can_listen(cluster: Cluster) -> None:
    with cluster.scheduler() as process:
        address = process.url.removeprefix("http://")
        for place, why in ((address, f"cannot listen at {address}"), ("nowhere", "'nowhere' is no address")):
            done = cluster.gpuyard("kubernetes", "scheduler", "--listen", place, "--identity", "other")
            assert (done.code, done.out) == (2, "")
            assert why in done.err
