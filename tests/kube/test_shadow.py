"""Decisions that nobody obeys: what is told, and that nothing is written."""

from __future__ import annotations

import re

from gpuyard.kubernetes.api_client import core, group
from tests.kube.asking import is_bound
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow
from tests.kube.schedulers import Scheduler
from tests.kube.server import KubeServer
from tests.yard import until


def shadow(process: Scheduler) -> dict[str, float]:
    """What is counted of decisions."""
    found = re.findall(
        r'^gpuyard_kubernetes_shadow_total\{what="(\w+)"\} (\S+)$', process.get("/metrics"), re.MULTILINE
    )
    return {what: float(count) for what, count in found}


def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    cluster.priority_class("high", 1000)
    cluster.node("n1", gpus=2)
    with Hollow(cluster.api):
        with cluster.scheduler():
            for name in ("a", "b"):
                cluster.pod(name, gpus=1)
            cluster.wait_bound(["a", "b"])
            until(lambda: all(pod["status"]["phase"] == "Running" for pod in cluster.pods()), "that they run")
        for event in cluster.events():
            cluster.api.delete(core("events", "default", event["metadata"]["name"]))
        with cluster.scheduler("--dry-run") as process:
            cluster.node("n2", gpus=1)
            cluster.pod("c", gpu_memory="4Gi")
            cluster.pod("never", gpus=8)
            cluster.pod("urgent", gpus=2, priority_class="high")
            until(lambda: shadow(process).get("decided"), "a decision")
            until(lambda: shadow(process).get("evicted") == 2, "evictions")
            until(lambda: "with fewer than 8 GPUs" in str(process.json()["pods"]), "why another waits")
            said = process.log()
        assert "would have: Successfully assigned default/c to n2 (GPU 0) by fit: 4G asked for" in said
        assert "nothing is written" in said
        assert not is_bound(cluster, "c")
        assert not cluster.events()
        assert "conditions" not in cluster.get_pod("never")["status"]
        assert all("deletionTimestamp" not in pod["metadata"] for pod in cluster.pods())


def test_a_dry_run_holds_no_lease(cluster: Cluster) -> None:
    with cluster.scheduler("--dry-run"):
        assert not cluster.api.list(group("coordination.k8s.io/v1", "leases")).items


def test_beside_the_scheduler_of_kubernetes(cluster: Cluster, kube_server: KubeServer) -> None:
    cluster.node("n1", gpus=2)
    with cluster.scheduler("--shadow") as process:
        cluster.pod("only", gpus=2, scheduler="default-scheduler")  # there is one place for it
        until(lambda: shadow(process).get("decided") == 1, "a decision")
        cluster.pod("plain", scheduler="default-scheduler")
        until(lambda: shadow(process).get("decided") == 2, "another")
        cluster.pod("ours", gpus=1)  # which is not theirs
        with kube_server.kube_scheduler():
            cluster.wait_bound(["only", "plain"])
            until(lambda: shadow(process) == {"decided": 2, "agreed": 2}, "the comparison")
        cluster.node("n2", gpus=0)
        cluster.pod("wide", gpus=8, scheduler="default-scheduler")  # which nobody can have, but somebody gives it
        until(lambda: "with fewer than 8 GPUs" in str(process.json()["pods"]), "that it waits")
        cluster.bind("wide", "n2")
        until(lambda: shadow(process).get("undecided") == 1, "that the other went on")
        cluster.pod("free", cpus=1, scheduler="default-scheduler")
        until(lambda: shadow(process).get("decided") == 3, "a decision")
        cluster.bind("free", "n1" if "would have: Successfully assigned default/free to n2" in process.log() else "n2")
        until(lambda: shadow(process).get("differed") == 1, "that the other did otherwise")
        assert not is_bound(cluster, "ours")
    assert "default-scheduler" in process.log()
    ours = [event for event in cluster.events() if event.get("source", {}).get("component") == "gpuyard"]
    assert not ours
