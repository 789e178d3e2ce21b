"""The hollow kubelet on a real API server: what it says of pods, whom it kills, and what Prometheus hears of it."""

from __future__ import annotations

import math
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gpuyard.kubernetes.api_client import Object
from tests.conftest import REPOSITORY
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow, Kill
from tests.kube.machines import MIB, Machine, Refused, Task, behaviour
from tests.kube.server import KubeServer
from tests.prometheus import RealPrometheus
from tests.yard import until


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get_pod(name)["status"]["phase"])


def container(pod: Object) -> Object:
    found: Object = pod["status"]["containerStatuses"][0]
    return found


def in_phase(cluster: Cluster, name: str, wanted: str) -> Object:
    until(lambda: phase(cluster, name) == wanted, f"{name} being {wanted}")
    return cluster.get_pod(name)


def test_a_pod_goes_through_its_phases(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.pod("runs", gpu_memory="8Gi", hollow={"gpu-memory": "6994Mi"})
    cluster.pod("good", gpus=1, hollow={"run-seconds": 5})
    cluster.pod("bad", gpus=1, hollow={"run-seconds": 5, "exit-code": 3})
    cluster.pod("unbound", gpus=1)
    with Hollow(cluster.api, speed=20) as hollow:
        for name, gpu in (("runs", "2"), ("good", "1"), ("bad", "3")):
            cluster.bind(name, "n1", gpu)
        running = in_phase(cluster, "runs", "Running")
        assert running["status"]["startTime"]
        assert container(running)["state"]["running"]["startedAt"]
        assert {one["type"]: one["status"] for one in running["status"]["conditions"]}["Ready"] == "True"
        until(lambda: hollow.used("n1", 2) == 6994 * MIB, "the memory in use")
        assert container(in_phase(cluster, "good", "Succeeded"))["state"]["terminated"]["reason"] == "Completed"
        assert container(in_phase(cluster, "bad", "Failed"))["state"]["terminated"]["exitCode"] == 3
        cluster.set_phase("runs", "Failed")
        until(lambda: not hollow.used("n1", 2), "the end of a pod that somebody said is over")
        assert (hollow.peak("n1", 2), hollow.peak("n1", 0)) == (6994 * MIB, 0)
    assert phase(cluster, "unbound") == "Pending"
    assert (hollow.ooms, hollow.restarts, hollow.violations) == ([], [], [])


def test_the_pod_that_wants_too_much_dies_and_starts_over(cluster: Cluster) -> None:
    """What it grows beyond is taken by another one, which stays; when that has gone, there is room."""
    cluster.node("n1", gpus=1, gpu_memory="10000Mi")
    cluster.pod("first", gpu_memory="1Gi", hollow={"gpu-memory": "6000Mi"})
    cluster.pod("grows", gpu_memory="1Gi", restartPolicy="OnFailure",
                hollow={"run-seconds": 10, "profile": "0:500,5:6000"})  # fmt: skip
    cluster.pod("never", gpu_memory="1Gi", hollow={"gpu-memory": "20000Mi"})
    with Hollow(cluster.api, speed=20) as hollow:
        cluster.bind("first", "n1", "0")
        until(lambda: hollow.used("n1", 0), "the memory of the first one")
        cluster.bind("never", "n1", "0")
        ended = container(in_phase(cluster, "never", "Failed"))["state"]["terminated"]
        assert (ended["reason"], ended["exitCode"], ended["message"]) == ("Error", 1, "CUDA out of memory")
        cluster.bind("grows", "n1", "0")
        in_phase(cluster, "grows", "Running")
        until(lambda: container(cluster.get_pod("grows"))["restartCount"], "a restart")
        assert container(cluster.get_pod("grows"))["lastState"]["terminated"]["message"] == "CUDA out of memory"
        cluster.delete_pod("first")
        in_phase(cluster, "grows", "Succeeded")
        assert hollow.ooms[0] == Kill("default/never", "n1", 0)
        assert {kill.pod for kill in hollow.ooms[1:]} == {"default/grows"} == set(hollow.restarts)
        assert hollow.peak("n1", 0) <= 10000 * MIB
        assert container(cluster.get_pod("grows"))["restartCount"] == len(hollow.restarts)


def test_deleted_and_evicted_pods_let_go_of_their_memory(cluster: Cluster) -> None:
    cluster.node("n1")
    for name in ("forced", "asked", "evicted", "slow"):
        cluster.pod(name, gpu_memory="1Gi", hollow={"stop-seconds": 2} if name == "slow" else {})
        cluster.bind(name, "n1", "0")
    with Hollow(cluster.api) as hollow:
        until(lambda: hollow.used("n1", 0) == 4 * 2**30, "the memory of all four")
        cluster.delete_pod("forced")
        cluster.delete_pod("asked", grace=30)
        cluster.evict("evicted")
        until(lambda: hollow.used("n1", 0) == 2**30, "the end of three")
        until(lambda: [pod["metadata"]["name"] for pod in cluster.pods()] == ["slow"], "three pods less")
        cluster.delete_pod("slow", grace=30)
        until(lambda: "deletionTimestamp" in cluster.get_pod("slow")["metadata"], "a pod that is about to go")
        assert hollow.used("n1", 0) == 2**30
        until(lambda: not cluster.pods(), "the end of all pods")
        assert hollow.used("n1", 0) == 0


def test_whole_gpus_are_given_as_by_the_device_plugin(cluster: Cluster) -> None:
    cluster.node("n1", gpus=2)
    cluster.pod("shared", gpu_memory="1Gi")
    for name in ("whole", "clash", "none"):
        cluster.pod(name, gpus=1, scheduler="other")
    with Hollow(cluster.api) as hollow:
        cluster.bind("shared", "n1", "0")
        in_phase(cluster, "shared", "Running")
        cluster.bind("whole", "n1")
        in_phase(cluster, "whole", "Running")
        assert hollow.violations == []
        cluster.bind("clash", "n1")
        in_phase(cluster, "clash", "Running")
        shared = "shares GPU 0, which one has for itself, with default/shared"
        assert hollow.violations == [f"default/clash on n1 {shared}"]
        cluster.bind("none", "n1")
        refused = in_phase(cluster, "none", "Failed")["status"]
        assert refused["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 1, Available: 0" in refused["message"]


def test_what_does_not_fit_on_a_node_is_refused(cluster: Cluster) -> None:
    cluster.node("n1", cpus=2, memory="4Gi")
    for name, cpus, memory in (("fits", "1500m", "1Gi"), ("cpus", 1, "1Gi"), ("memory", "500m", "3073Mi")):
        cluster.pod(name, cpus=cpus, memory=memory)
    with Hollow(cluster.api) as hollow:
        cluster.bind("fits", "n1")
        in_phase(cluster, "fits", "Running")
        for name, reason in (("cpus", "OutOfcpu"), ("memory", "OutOfmemory")):
            cluster.bind(name, "n1")
            assert in_phase(cluster, name, "Failed")["status"]["reason"] == reason
        assert [line.split(",")[0] for line in hollow.violations] == [
            f"default/{name} on n1: Node didn't have enough resource: {resource}"
            for name, resource in (("cpus", "cpu"), ("memory", "memory"))
        ]


def test_prometheus_hears_of_the_gpus(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node("n1", gpus=2, labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"})
    cluster.node("n2", gpus=1, gpu_memory=None, labels={"nvidia.com/gpu.memory": "16160"})
    cluster.pod("a", gpu_memory="8Gi", hollow={"gpu-memory": "6994Mi", "utilization": 70})
    cluster.pod("big", gpu_memory="8Gi", hollow={"gpu-memory": "64Gi"})
    with Hollow(cluster.api) as hollow:
        prometheus = RealPrometheus(tmp_path / "prometheus", [hollow.target], interval="200ms")
        prometheus.start()
        try:
            cluster.bind("a", "n1", "1")
            cluster.bind("big", "n1", "0")

            def values(metric: str) -> dict[tuple[str, str], float]:
                found = prometheus.query(metric)
                return {(one["metric"]["Hostname"], one["metric"]["gpu"]): float(one["value"][1]) for one in found}

            used = {("n1", "0"): 3.0, ("n1", "1"): 6997.0, ("n2", "0"): 3.0}
            until(lambda: values("DCGM_FI_DEV_FB_USED") == used, "the memory that is used, in Prometheus")
            assert values("DCGM_FI_DEV_FB_FREE")["n2", "0"] == 16157
            assert values("DCGM_FI_DEV_GPU_UTIL")["n1", "1"] == 70
            for metric in ("DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"):
                assert len(values(metric)) == 3
            model = prometheus.query('DCGM_FI_DEV_GPU_UTIL{UUID="GPU-n1-1"}')[0]["metric"]["modelName"]
            assert model == "Tesla-V100-SXM2-32GB"
            assert [one["value"][1] for one in prometheus.query("hollow_oom_kills_total")] == ["1"]
            cluster.delete_pod("a")
            until(lambda: values("DCGM_FI_DEV_FB_USED")["n1", "1"] == 3, "the memory being free, in Prometheus")
        finally:
            prometheus.stop()


def test_it_goes_on_after_the_server_was_away(cluster: Cluster, kube_server: KubeServer) -> None:
    cluster.node("n1")
    for name in ("a", "b"):
        cluster.pod(name, gpus=1, hollow={"run-seconds": 1})
    with Hollow(cluster.api) as hollow:
        cluster.bind("a", "n1")
        until(lambda: phase(cluster, "a") != "Pending", "the start of a pod")
        kube_server.restart_api()
        cluster.bind("b", "n1")
        for name in ("a", "b"):
            in_phase(cluster, name, "Succeeded")
        assert hollow.restarts == []


def test_it_runs_as_a_program(cluster: Cluster, kube_server: KubeServer) -> None:
    cluster.node("n1")
    cluster.node("n2")
    for name, node in (("ours", "n1"), ("theirs", "n2")):
        cluster.pod(name, gpus=1, hollow={"run-seconds": 3600})
        cluster.bind(name, node)
    command = [sys.executable, "-m", "tests.kube.hollow", "--kubeconfig", str(kube_server.kubeconfig()),
               "--speed", "10000", "--nodes", "n1"]  # fmt: skip
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            in_phase(cluster, "ours", "Succeeded")
            with urllib.request.urlopen(url) as answer:
                assert b'Hostname="n1"' in answer.read()
        finally:
            process.terminate()
        assert process.wait() == 0
    assert phase(cluster, "theirs") == "Pending"


# -- without a server


def test_memory_follows_the_profile() -> None:
    ramp = behaviour({"hollow.dev/gpu-memory": "1000Mi", "hollow.dev/ramp-seconds": "4"})
    assert [ramp.memory_at(second) / MIB for second in (0, 2, 4, 9)] == [0, 500, 1000, 1000]
    steps = behaviour({"hollow.dev/profile": "0:100,5:100,5:300", "gpuyard.dev/gpu-memory": "9Gi"})
    assert [steps.memory_at(second) / MIB for second in (0, 4.9, 5, 9)] == [100, 100, 300, 300]
    assert behaviour({"gpuyard.dev/gpu-memory": "9Gi"}).memory_at(math.inf) == 9 * 2**30


def test_pods_on_one_gpu_slow_each_other_down() -> None:
    machine = Machine("n1", 2, 100 * MIB)
    said = {"hollow.dev/contention": "0.5", "hollow.dev/run-seconds": "10"}
    tasks = [Task(name, behaviour(said)) for name in ("a", "b", "alone")]
    for task, gpu in zip(tasks, (0, 0, 1), strict=True):
        machine.place(task, [gpu])
        task.start()
    assert machine.advance(6) == []
    assert [round(task.progress, 6) for task in tasks] == [4, 4, 6]
    assert [(end.task.name, end.code) for end in machine.advance(6)] == [("alone", 0)]


def test_what_a_scheduler_did_wrong_is_noted() -> None:
    machine = Machine("n1", 2, 100 * MIB)
    machine.place(Task("beyond", behaviour({})), [2])
    machine.place(Task("twice", behaviour({}), whole=2), [0, 0])
    assert [line.split(" on ")[0] for line in machine.violations] == ["beyond", "twice", "twice"]
    with pytest.raises(Refused, match="Available: 1"):
        machine.place(Task("third", behaviour({}), whole=2), None)
