"""The API server goes and comes back: the scheduler waits and goes on, from what is so then."""

from __future__ import annotations

import os
import signal
from collections import Counter

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import core
from tests.kube import books
from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.kube.server import KubeServer
from tests.yard import until


def shares(cluster: Cluster, first: int, last: int) -> list[str]:
    """Pods that are to be had."""
    made = [f"p{number}" for number in range(first, last)]
    for name in made:
        cluster.pod(name, gpu_memory="4Gi")
    return made


def test_a_server_that_restarts_while_pods_are_being_bound(cluster: Cluster, kube_server: KubeServer) -> None:
    for number in range(4):
        cluster.node(f"n{number}", gpus=4, gpu_memory="16Gi")
    with cluster.scheduler() as process:
        cluster.wait_bound(shares(cluster, 0, 2))
        os.kill(process.pid, signal.SIGSTOP)  # so that it has all of them at once when the server goes
        shares(cluster, 2, 42)
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: len(cluster.pods(fieldSelector="spec.nodeName!=")) > 4, "that some are bound")
        kube_server.restart_api(0.5)
        cluster.wait_bound([f"p{number}" for number in range(42)])
        given = books.check(cluster)
        assert sum(given.values()) == 42 * 4 * 2**30
        until(lambda: process.json()["counts"]["waiting"] == 0, "an empty queue")
        view = process.json()
        charged = sum(gpu["memory_charged"] for node in view["nodes"] for gpu in node["gpus"])
        assert charged == sum(given.values())
        assert "gpuyard_kubernetes_bindings_in_flight 0.0" in process.get("/metrics")
        for name in ("p0", "p41"):
            cluster.delete_pod(name)
        cluster.wait_bound(shares(cluster, 42, 44))
        assert (process.status("/healthz"), process.status("/readyz")) == (200, 200)
    scheduled = Counter(event["involvedObject"]["name"] for event in cluster.events("Scheduled"))
    assert max(scheduled.values()) == 1
    assert "are not heard of" in process.log()
    assert "are heard of again" in process.log()


def test_what_happened_while_nobody_listened(cluster: Cluster, kube_server: KubeServer) -> None:
    """A server that was restarted does not remember that far back (410): all of it is listed again."""
    cluster.node("n1", gpus=4, gpu_memory="16Gi")
    cluster.node("n2", gpus=4, gpu_memory="16Gi")
    with cluster.scheduler() as process:
        cluster.wait_bound(shares(cluster, 0, 8))
        cluster.pod("waits", gpu_memory="20Gi")
        message(cluster, "waits")
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(7):
            cluster.delete_pod(f"p{number}")
        cluster.delete_pod("waits")
        for number in range(30):  # versions pass
            cluster.api.patch(core("nodes", name="n1"), {"metadata": {"labels": {"n": str(number)}}})
        cluster.api.delete(core("nodes", name="n2"))
        cluster.pod("whole", gpus=3, node_selector={"n": "29"})
        kube_server.restart_api()
        os.kill(process.pid, signal.SIGCONT)
        assert books.place(cluster.wait_bound(["whole"])["whole"])[0] == "n1"
        view = process.json()
        assert [node["name"] for node in view["nodes"]] == ["n1"]
        assert {pod["name"] for pod in view["pods"]} == {"p7", "whole"}


def test_everything_is_listed_again_from_time_to_time(cluster: Cluster) -> None:
    settings = cluster.folder / "resync.yaml"
    settings.write_text("resync: 1s\n")
    cluster.node("n1", gpus=2)
    with cluster.scheduler("--config", str(settings)) as process:
        for number in range(4):
            cluster.pod(f"w{number}", gpus=1)
            cluster.wait_bound([f"w{number}"])
            until(lambda: process.json()["counts"]["waiting"] == 0, "an empty queue")
            cluster.set_phase(f"w{number}", "Succeeded")
        assert len(cluster.events("Scheduled")) == 4


def test_a_server_that_is_not_there_yet(cluster: Cluster, kube_server: KubeServer) -> None:
    """Who starts without a server is told in a sentence; who has started waits for it."""
    kube_server.stop_api()
    done = cluster.gpuyard("kubernetes", "scheduler", "--kubeconfig", kube_server.folder / "admin.kubeconfig")
    assert (done.code, done.out) == (1, "")
    assert "does not answer" in done.err
    assert "Traceback" not in done.err
    kube_server.start_api()


def test_a_lease_that_somebody_deletes(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{names.LEASE}"
    settings = cluster.folder / "quick.yaml"
    settings.write_text("lease: 1s\n")
    with cluster.scheduler("--config", str(settings), "--identity", "me") as process:
        until(lambda: "leads now" in process.log(), "a leader")
        cluster.api.delete(path)
        until(lambda: cluster.api.list("/apis/coordination.k8s.io/v1/leases").items, "another lease")
        cluster.pod("a", gpus=1)
        cluster.wait_bound(["a"])
