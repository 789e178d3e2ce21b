"""Schedulers that are killed, started again, and several at once: every pod is bound once, and nothing is forgotten."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import ApiError, core, group
from gpuyard.kubernetes.settings import Settings
from tests.kube import books
from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.kube.schedulers import Scheduler
from tests.kube.server import KubeServer
from tests.yard import until

LEASE = group("coordination.k8s.io/v1", "leases", "kube-system", names.LEASE)


def create(server: KubeServer, wanted: list[str]) -> Thread:
    """Make shares, as quickly as it goes, while something else happens."""
    api = server.api()

    def work() -> None:
        for name in wanted:
            container = {"name": "main", "image": "train:1"}
            meta = {"name": name, "annotations": {names.GPU_MEMORY: "4Gi"}}
            spec = {"schedulerName": names.SCHEDULER, "containers": [container]}
            api.post(core("pods", "default"), {"metadata": meta, "spec": spec})

    thread = Thread(target=work)
    thread.start()
    return thread


def bound(cluster: Cluster) -> int:
    """How many pods have a node."""
    return len(cluster.pods(fieldSelector="spec.nodeName!="))


def holder(cluster: Cluster) -> str:
    """Who leads; nobody: empty."""
    try:
        return str(cluster.api.get(LEASE)["spec"].get("holderIdentity") or "")
    except ApiError as error:
        if error.missing:
            return ""
        raise


def bindings(process: Scheduler) -> int:
    """How many pods a scheduler has bound."""
    found = re.search(r"^gpuyard_kubernetes_bindings_total (\S+)$", process.get("/metrics"), re.MULTILINE)
    assert found
    return int(float(found[1]))


@contextmanager
def replicas(cluster: Cluster, *flags: str) -> Iterator[dict[str, Scheduler]]:
    """Two of them, by what they are called; `a` leads."""
    with cluster.scheduler("--identity", "a", *flags) as a:
        until(lambda: holder(cluster) == "a", "a leader")
        with cluster.scheduler("--identity", "b", *flags) as b:
            yield {"a": a, "b": b}


def test_a_restart_in_the_middle_of_300_pods(cluster: Cluster, kube_server: KubeServer) -> None:
    for number in range(10):
        cluster.node(f"n{number}", gpus=8, gpu_memory="16Gi")  # 320 pods of 4Gi
    wanted = [f"p{number}" for number in range(300)]
    seen = dict[str, tuple[str, tuple[int, ...]]]()
    with cluster.scheduler("--no-leader-elect") as first:
        thread = create(kube_server, wanted)
        until(lambda: bound(cluster) > 60, "that it has begun")
        first.process.kill()
        first.process.wait()
    for pod in cluster.pods(fieldSelector="spec.nodeName!="):
        seen[pod["metadata"]["name"]] = books.place(pod)
    assert 60 < len(seen) < 300
    books.check(cluster)
    with cluster.scheduler("--no-leader-elect") as second:
        found = cluster.wait_bound(wanted)
        thread.join()
        books.check(cluster)
        assert {name: books.place(found[name]) for name in seen} == seen, "something moved"
        assert bindings(second) == 300 - len(seen)
        assert "could not be bound" not in second.log()
        cluster.pod("room", gpu_memory="4Gi")
        cluster.wait_bound(["room"])
        cluster.pod("whole", gpus=8)  # 19 places of 4Gi are left, perhaps on one node, but no node is empty
        cluster.pod("large", gpu_memory="15Gi")
        until(lambda: {"whole", "large"} <= {pod["name"] for pod in second.json()["pods"]}, "that they are known")
        books.check(cluster)
    scheduled = Counter(event["involvedObject"]["name"] for event in cluster.events("Scheduled"))
    assert max(scheduled.values()) == 1


def test_the_state_is_rebuilt_to_the_byte(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2, gpu_memory="16Gi", cpus=8)
    cluster.pod("theirs", cpus=1, scheduler="default-scheduler")
    cluster.bind("theirs", "n1")
    with cluster.scheduler() as first:
        cluster.pod("a", gpu_memory="10Gi", cpus=2)
        cluster.pod("b", gpu_memory="9Gi", cpus=2)
        cluster.wait_bound(["a", "b"])
        before = until(lambda: _nodes(first), "the view")
    with cluster.scheduler() as second:
        until(lambda: _nodes(second) == before, "the same view")
        cluster.pod("fits", gpu_memory="7Gi")
        assert books.place(cluster.wait_bound(["fits"])["fits"]) == books.place(cluster.get_pod("b"))
        cluster.pod("not", gpu_memory="7Gi")
        assert "at most 6G are left" in message(cluster, "not")
        cluster.pod("busy", gpu_memory="1Gi", cpus=4)
        assert "1 insufficient cpu" in message(cluster, "busy")


def _nodes(process: Scheduler) -> object:
    view = process.json()
    if any(pod["phase"] == "waiting" for pod in view["pods"]):
        return None
    return view["nodes"], [{**pod, "estimate": 0} for pod in view["pods"]]


def test_one_of_two_leads_and_the_other_follows(cluster: Cluster, kube_server: KubeServer) -> None:
    assert Settings().lease * 1.25 < 15  # seconds until the other one notices; bench/kubernetes.py takes the time
    for number in range(4):
        cluster.node(f"n{number}", gpus=8, gpu_memory="16Gi")
    wanted = [f"p{number}" for number in range(80)]
    with replicas(cluster) as both:
        thread = create(kube_server, wanted[:40])
        cluster.wait_bound(wanted[:20])
        assert (bindings(both["b"]), holder(cluster)) == (0, "a")
        assert both["b"].status("/readyz") == 200  # it knows as much, and may be asked
        assert len(both["b"].json()["nodes"]) == 4
        thread.join()
        both["a"].process.kill()
        create(kube_server, wanted[40:]).join()
        found = cluster.wait_bound(wanted)
        books.check(cluster)
        assert holder(cluster) == "b"
        scheduled = Counter(event["involvedObject"]["name"] for event in cluster.events("Scheduled"))
        assert max(scheduled.values()) == 1
        assert len(found) == 80


def test_who_ends_in_order_hands_over_at_once(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1)
    with replicas(cluster) as both:
        os.kill(both["b"].pid, signal.SIGSTOP)
        assert both["a"].stop() == 0
        assert holder(cluster) == ""  # it is for anybody to take, and need not run out first
        os.kill(both["b"].pid, signal.SIGCONT)
        cluster.pod("a", gpus=1)
        cluster.wait_bound(["a"])
        assert holder(cluster) == "b"
        assert "b leads now" in both["b"].log()


def test_who_is_not_heard_of_for_long_writes_nothing_when_it_is_back(cluster: Cluster) -> None:
    """A leader that was frozen may believe that it leads: by then it knows better."""
    cluster.node("n1", gpus=8)
    settings = cluster.folder / "quick.yaml"
    settings.write_text("lease: 2s\n")
    with replicas(cluster, "--config", str(settings)) as both:
        os.kill(both["a"].pid, signal.SIGSTOP)
        until(lambda: holder(cluster) == "b", "another leader")
        for number in range(4):
            cluster.pod(f"p{number}", gpus=1)
        cluster.wait_bound([f"p{number}" for number in range(4)])
        os.kill(both["a"].pid, signal.SIGCONT)
        for number in range(4, 8):
            cluster.pod(f"p{number}", gpus=1)
        cluster.wait_bound([f"p{number}" for number in range(8)])
        until(lambda: "does not lead any more" in both["a"].log(), "that it gives in")
        assert (bindings(both["a"]), bindings(both["b"])) == (0, 8)
        books.check(cluster)


def test_killed_again_and_again(cluster: Cluster, kube_server: KubeServer) -> None:
    for number in range(4):
        cluster.node(f"n{number}", gpus=8, gpu_memory="16Gi")
    wanted = [f"p{number}" for number in range(120)]
    thread = create(kube_server, wanted)
    for least in (20, 40, 60):
        with cluster.scheduler("--no-leader-elect", ready=False) as process:
            until(partial(_more_than, cluster, least), "some more")
            process.process.kill()
            process.process.wait()
        books.check(cluster)
    with cluster.scheduler("--no-leader-elect"):
        cluster.wait_bound(wanted)
        thread.join()
        books.check(cluster)


def _more_than(cluster: Cluster, count: int) -> bool:
    return bound(cluster) > count
