"""Sharing by what is used: a hollow kubelet, a real Prometheus that scrapes it, and a scheduler that looks there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import ApiError, core
from tests.kube import books
from tests.kube.asking import is_bound, message
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow
from tests.kube.processes import free_port
from tests.kube.schedulers import Scheduler
from tests.prometheus import RealPrometheus
from tests.yard import until

MIB = 2**20
SEED: dict[str, Any] = {"gpu_memory": "24479Mi", "hollow": {"gpu-memory": "6994Mi", "ramp-seconds": "0.3"}}
"""A pod of the experiment that asks for 250 % of what it uses."""


class Watched(NamedTuple):
    """What runs beside the API server."""

    kubelet: Hollow
    scheduler: Scheduler


class Eyes:
    """A Prometheus for several tests, since it takes five seconds to find out whom to scrape; their nodes differ."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.prometheus = RealPrometheus(folder, [f"127.0.0.1:{self.port}"], "100ms")

    def kubelet(self, cluster: Cluster, **more: Any) -> Hollow:
        """A kubelet that it scrapes."""
        return Hollow(cluster.api, metrics_port=self.port, **more)

    @contextmanager
    def scheduler(self, cluster: Cluster, node: str, *flags: str) -> Iterator[Scheduler]:
        """One that asks it five times a second, once there is something to tell of a node."""
        until(lambda: self.prometheus.query(f'DCGM_FI_DEV_FB_USED{{Hostname="{node}"}}'), "a sample")
        url = ("--prometheus", self.prometheus.url, "--sample-period", "0.2s")
        with cluster.scheduler("--admission", "usage", *url, *flags) as process:
            yield process

    @contextmanager
    def on(self, cluster: Cluster, node: str, *flags: str, **more: Any) -> Iterator[Watched]:
        """Both of them."""
        with self.kubelet(cluster, **more) as kubelet, self.scheduler(cluster, node, *flags) as process:
            yield Watched(kubelet, process)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eyes]:
    """A Prometheus."""
    found = Eyes(tmp_path_factory.mktemp("prometheus"))
    yield found
    found.prometheus.stop()


@pytest.fixture
def eyes(one: Eyes) -> Eyes:
    """One that runs, whatever a test before did to it."""
    if not one.prometheus.query("vector(1)"):
        one.prometheus.stop()
        one.prometheus.start()
    return one


def pods(cluster: Cluster, first: int, last: int, **more: Any) -> list[str]:
    """Several alike."""
    made = [f"p{number}" for number in range(first, last)]
    for name in made:
        cluster.pod(name, **{**SEED, **more})
    return made


def running(cluster: Cluster, wanted: Sequence[str]) -> list[str]:
    """Which of these have a node, and are not over."""
    there = {pod["metadata"]["name"]: pod for pod in cluster.pods(fieldSelector="spec.nodeName!=")}
    return [name for name in wanted if name in there and there[name]["status"]["phase"] in ("Pending", "Running")]


def charged(cluster: Cluster, name: str) -> int:
    """What a pod was counted with when it was let in."""
    return int(cluster.get_pod(name)["metadata"]["annotations"][names.CHARGED])


def test_more_pods_share_a_gpu_than_ask_for_it(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("more", gpus=1)
    with eyes.on(cluster, "more") as beside:
        cluster.wait_bound(pods(cluster, 0, 1))
        more = pods(cluster, 1, 6)
        assert "insufficient GPU memory" in message(cluster, "p1")  # of the first one nothing is known yet
        until(lambda: _sharing(cluster) == {4}, "that it is known what they need")
        name = running(cluster, more)[0]
        said = message(cluster, name, "Scheduled")
        assert " by history: 7.175G needed (pod default/p0 has used 6.833G for " in said
        assert cluster.get_pod(name)["metadata"]["annotations"][names.ADMITTED] == "history"
        assert charged(cluster, name) == pytest.approx(1.05 * 6994 * MIB, rel=0.01)
        until(lambda: beside.kubelet.peak("more", 0) >= 4 * 6994 * MIB, "that all of them use it")
        first = running(cluster, ["p0", *more])
        for there in first[:2]:
            beside.kubelet.finish(f"default/{there}")
        cluster.wait_bound([other for other in more if other not in first])
        assert beside.kubelet.ooms == []
        assert beside.kubelet.violations == []


def _sharing(cluster: Cluster) -> set[int]:
    return {len(found) for found in books.tenants(cluster.pods()).values()}


def test_memory_that_is_free_all_the_time_is_given_away(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("steady", gpus=1)
    with eyes.on(cluster, "steady") as beside:
        cluster.pod("wide", gpu_memory="31998Mi", hollow={"gpu-memory": "16000Mi"})
        cluster.wait_bound(["wide"])
        cluster.pod("guest", gpu_memory="15500Mi", image="other:1")  # only the margin of the other keeps that
        cluster.wait_bound(["guest"])
        said = message(cluster, "guest", "Scheduled")
        assert " by CBP: " in said
        assert "free in 80 % of " in said
        assert beside.kubelet.ooms == []


def test_memory_that_follows_a_pattern_is_foreseen(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("wavy", gpus=1)
    busy = ",".join(f"{t}:20,{t + 5}:20,{t + 5.4}:31000,{t + 11.6}:31000" for t in range(0, 60, 12))
    with eyes.on(cluster, "wavy") as beside:
        cluster.pod("wave", gpu_memory="31998Mi", hollow={"profile": busy})
        cluster.wait_bound(["wave"])
        cluster.pod("small", gpu_memory="700Mi", image="other:1")
        cluster.wait_bound(["small"])
        assert " by PP: " in message(cluster, "small", "Scheduled")
        assert beside.kubelet.ooms == []


def test_without_prometheus_only_what_is_asked_for_counts(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("blind", gpus=2)
    with eyes.on(cluster, "blind") as beside:
        cluster.wait_bound(pods(cluster, 0, 1))
        cluster.wait_bound(pods(cluster, 1, 2))
        until(lambda: _learned(beside.scheduler, cluster), "that their need is known")
        eyes.prometheus.stop()
        said = message(cluster, names.LEASE, "PrometheusUnavailable")
        assert "only what pods ask for counts" in said
        event = cluster.events("PrometheusUnavailable")[0]
        assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "Lease")
        assert "gpuyard_kubernetes_prometheus_up 0.0" in beside.scheduler.get("/metrics")
        until(lambda: beside.scheduler.json()["prometheus"] != "ok", "that the view tells it")
        late = pods(cluster, 2, 5)
        cluster.pod("fits", gpu_memory="4Gi", image="other:1")
        cluster.wait_bound(["fits"])
        assert message(cluster, "fits", "Scheduled").partition(" by ")[2].startswith("fit: ")
        assert "insufficient GPU memory" in message(cluster, "p2")
        assert running(cluster, late) == []
        eyes.prometheus.start()
        cluster.wait_bound(late)
        assert message(cluster, names.LEASE, "PrometheusAvailable")
        assert beside.kubelet.ooms == []


def _learned(scheduler: Scheduler, cluster: Cluster) -> bool:
    """Whether pods are counted with less than they asked for."""
    counted = [pod["charged"] for pod in scheduler.json()["pods"] if pod["node"]]
    return bool(counted) and max(counted) < 8000 * MIB


def test_what_was_learned_is_kept(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("wise", gpus=1)
    namespace = "kube-system"

    def kept() -> Any:
        try:
            return json.loads(cluster.api.get(core("configmaps", namespace, "gpuyard-peaks"))["data"]["runs.json"])
        except ApiError as error:
            if error.missing:
                return None
            raise

    with eyes.kubelet(cluster) as kubelet:
        with eyes.scheduler(cluster, "wise") as process:
            cluster.wait_bound(pods(cluster, 0, 1))
            until(lambda: _learned(process, cluster), "that its need is known")
            kubelet.finish("default/p0")
            ((_, ((_, took, outcome, peak),)),) = until(kept, "that it is written down").items()
            assert outcome == "succeeded"
            assert took > 0
            assert peak == pytest.approx(6994 * MIB, rel=0.02)
        with eyes.scheduler(cluster, "wise") as process:
            cluster.wait_bound(pods(cluster, 1, 5))  # all at once, though nothing runs
            assert kubelet.ooms == []
            assert " by history: " in message(cluster, "p4", "Scheduled")
            assert process.json()["pods"][0]["estimate"] < 2 * took  # seconds, as the first one took


def test_who_wants_what_it_asked_for_gets_it(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("firm", gpus=1)
    with eyes.on(cluster, "firm") as beside:
        cluster.wait_bound(pods(cluster, 0, 1))
        until(lambda: _learned(beside.scheduler, cluster), "that its need is known")
        cluster.pod("firm", gpu_memory="27Gi", image="other:1", annotations={names.ADMISSION: "requests"})
        message(cluster, "firm")
        assert not is_bound(cluster, "firm")
        cluster.delete_pod("p0")
        cluster.wait_bound(["firm"])
        assert charged(cluster, "firm") == 27 * 2**30
        cluster.pod("beside", **{**SEED, "gpu_memory": "8Gi"})
        message(cluster, "beside")
        assert not is_bound(cluster, "beside"), "what it asked for is its own"


def test_a_crowded_gpu_is_relieved(cluster: Cluster, eyes: Eyes) -> None:
    """One that was given others' memory goes when they want it, if somebody makes it anew."""
    cluster.node("crowded", gpus=1)
    with eyes.on(cluster, "crowded", "--gpu-buffer", "10G") as beside:
        cluster.pod("grows", **{**SEED, "gpu_memory": "26Gi", "image": "grows:1"})
        cluster.wait_bound(["grows"])
        until(lambda: _learned(beside.scheduler, cluster), "that its need seems to be known")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
        body = cluster.pod("guest", scheduler="nobody", **{**SEED, "gpu_memory": "14Gi"})
        cluster.delete_pod("guest")
        body["metadata"] = {
            "name": "guest", "annotations": body["metadata"]["annotations"], "ownerReferences": [owner],
        }  # fmt: skip
        body["spec"]["schedulerName"] = names.SCHEDULER
        cluster.api.post(core("pods", "default"), body)
        cluster.wait_bound(["guest"])
        assert cluster.get_pod("guest")["metadata"]["annotations"][names.ADMITTED] == "history"
        beside.kubelet.grow("default/grows", 26000 * MIB, 20)
        assert "others on GPU 0 want what they asked for" in message(cluster, "guest", "Preempted")
        until(lambda: running(cluster, ["guest"]) == [], "that it is gone")
        assert beside.kubelet.ooms == []


def test_nodes_whose_memory_only_their_exporter_tells(cluster: Cluster, eyes: Eyes) -> None:
    cluster.node("mute", gpus=1, gpu_memory=None)
    with eyes.on(cluster, "mute", gpu_memory="16Gi") as beside:
        cluster.pod("a", gpu_memory="10Gi")
        cluster.wait_bound(["a"])
        (node,) = beside.scheduler.json()["nodes"]
        assert node["gpus"][0]["memory_total"] == pytest.approx(16 * 2**30, rel=0.02)
        until(lambda: beside.scheduler.json()["nodes"][0]["gpus"][0]["memory_used"], "what is used")
        assert beside.scheduler.json()["prometheus"] == "ok"
