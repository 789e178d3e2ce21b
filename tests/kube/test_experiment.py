"""Experiments on a real API server, with our scheduler, a hollow kubelet and a real Prometheus.

The whole of the published experiment takes a quarter of an hour: `python -m tests.kube.published`. Here it is a quarter
of it, in time that passes a hundred times as fast.
"""

from __future__ import annotations

import csv
import json
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes.api_client import Api, Object, core, group
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT
from tests.kube.cluster import Cluster
from tests.kube.experimenting import EXAMPLE, at_work, begun, ended, run
from tests.yard import until

METRICS = ("utilization", "memory_used", "power", "temperature")


def written(folder: Path, **change: Any) -> Path:
    """The example with changes: `replicas` of its workload, and top keys."""
    said = yaml.safe_load(EXAMPLE.read_text())
    said["workloads"][0]["replicas"] = change.pop("replicas", 3)
    said["kubernetes"] |= {"pause": "0s", **change.pop("kubernetes", {})}
    path = folder / "e.yaml"
    path.write_text(yaml.safe_dump({**said, **change}))
    return path


def jobs_of(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "jobs.csv").read_text().splitlines()))


def ours(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.pods(labelSelector=EXPERIMENT)]


def test_three_ways_to_share_a_gpu_are_compared_by_one_command(cluster: Cluster, tmp_path: Path) -> None:
    path, out = written(tmp_path, replicas=8, over_provisioning=[150]), tmp_path / "out"
    with at_work(cluster, tmp_path, every="100ms") as (hollow, prometheus):  # several samples in a pod's second
        done = run(cluster, "experiment", path, "--speed", "120", "--out", out, "--json", prometheus=prometheus.url)
        assert done.code == 0, done.err
        assert (hollow.ooms, hollow.restarts, hollow.violations, ours(cluster)) == ([], [], [], [])
    told = json.loads(done.out)
    rows = {row["scheduler"]: row for row in told["rows"]}
    assert [(row["jobs"], row["succeeded"], row["restarts"], row["ooms"]) for row in rows.values()] == [
        (8, 8, 0, 0)
    ] * 3
    assert rows["exclusive"]["duration"] >= 8 * 1.1
    assert rows["usage"]["speedup"] > 1.8 > 1.1 > rows["requests"]["speedup"]
    assert rows["usage"]["by_history"] + rows["usage"]["by_cbp"] + rows["usage"]["by_pp"] >= 4
    assert 6_000 < rows["exclusive"]["memory_used"] / 2**20 < 7_000
    assert rows["usage"]["memory_used"] > 1.5 * rows["exclusive"]["memory_used"]
    _check_files(out)


def _check_files(out: Path) -> None:
    jobs = jobs_of(out)
    assert len(jobs) == 24
    assert {job["where"] for job in jobs} == {"gpu-1:0"}
    for job in jobs:
        assert float(job["arrived"]) <= float(job["bound"]) <= float(job["started"]) <= float(job["ended"])
    for name in ("exclusive-150-1", "requests-150-1", "usage-150-1"):
        for metric in METRICS:
            samples = (out / "metrics" / name / f"{metric}.csv").read_text().splitlines()
            assert samples[0] == "second,value"
            assert samples[1].startswith("0,")  # what there was at the beginning is kept
    plots = out / "plots"
    folders = {"overlay-150", "stacked-150", "each-exclusive-150", "each-requests-150", "each-usage-150"}
    assert {path.parent.name for path in plots.glob("*/*.png")} == folders
    assert {path.stem for path in (plots / "each-usage-150").iterdir()} == set(METRICS)
    assert "TIMES AS FAST AS exclusive" in (out / "table.txt").read_text()
    assert json.loads((out / "results.json").read_text())["speed"] == 120


def test_what_was_interrupted_is_deleted_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    path = written(tmp_path, replicas=3, arrivals={"process": "at-once"}, over_provisioning=[0])
    words = ("experiment", path, "--only", "usage", "--no-plots", "--out", tmp_path / "out")
    cluster.pod("foreign", scheduler="another")
    with at_work(cluster, tmp_path) as (_, prometheus):
        with begun(cluster, *words, "--speed", "1") as process:
            until(lambda: len(ours(cluster)) == 3, "three pods")
            process.send_signal(signal.SIGTERM)
            done = ended(process)
        assert "the same command goes on with what is missing" in done.err
        assert (done.code, ours(cluster)) == (130, [])
        with begun(cluster, *words, "--speed", "1") as process:
            until(lambda: len(ours(cluster)) == 3, "three pods")
            process.kill()
            ended(process)
        assert len(ours(cluster)) == 3
        done = run(cluster, *words, "--speed", "100", prometheus=prometheus.url)
        assert done.code == 0, done.err
        assert ours(cluster) == []
    jobs = jobs_of(tmp_path / "out")
    assert [job["state"] for job in jobs] == ["succeeded"] * 3
    assert not (tmp_path / "out" / "cluster-run.json").exists()
    assert cluster.get_pod("foreign")["status"]["phase"] == "Pending"
    again = run(cluster, *words, "--speed", "100")
    assert "1 run had been done before" in again.err
    other = run(cluster, *words, "--speed", "50")
    assert (other.code, "--fresh throws them away" in other.err) == (2, True)


def test_a_second_interrupt_does_not_wait_for_pods(cluster: Cluster, tmp_path: Path) -> None:
    """There is no kubelet here, so a pod that has a node is never gone."""
    cluster.node("gpu-1", gpus=1)
    path = written(tmp_path, replicas=2, arrivals={"process": "at-once"}, over_provisioning=[0])
    with begun(cluster, "experiment", path, "--only", "exclusive", "--out", tmp_path / "out") as process:
        names = until(lambda: found if len(found := ours(cluster)) == 2 else [], "two pods")
        cluster.bind(names[0], "gpu-1", "0")
        process.send_signal(signal.SIGTERM)
        until(lambda: ours(cluster) == [names[0]], "the other pod to be gone")
        process.send_signal(signal.SIGTERM)
        done = ended(process)
    assert done.code == 130
    assert "1 of its pods is still ending; kubectl delete jobs,pods -n default -l gpuyard.dev/experiment=" in done.err
    assert (tmp_path / "out" / "cluster-run.json").exists()


class JobController(threading.Thread):
    """What makes pods of jobs, and tells how those ended: the least that Kubernetes' own does."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster, self._ended = cluster, threading.Event()

    def __enter__(self) -> JobController:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def _listed(self, api: Api, path: str) -> list[Object]:
        with suppress(GpuyardError):  # the server is away
            return api.list(path).items
        return []

    def run(self) -> None:
        api, jobs = self._cluster.api, group("batch/v1", "jobs", "default")
        while not self._ended.wait(0.05):
            for job in self._listed(api, jobs):
                name, template = job["metadata"]["name"], job["spec"]["template"]
                with suppress(GpuyardError):  # it is there already
                    api.post(core("pods", "default"), {"metadata": {**template["metadata"], "name": f"{name}-x"},
                                                       "spec": template["spec"]})  # fmt: skip
                with suppress(GpuyardError):  # it is gone
                    phase = api.get(core("pods", "default", f"{name}-x"))["status"]["phase"]
                    if phase in ("Succeeded", "Failed"):
                        kind = "Complete" if phase == "Succeeded" else "Failed"
                        status = {"conditions": [{"type": kind, "status": "True"}]}
                        api.patch(f"{jobs}/{name}/status", {"status": status})


def test_jobs_and_an_api_server_that_is_away(cluster: Cluster, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        replicas=4,
        over_provisioning=[0],
        kubernetes={"kind": "job"},
        arrivals={"process": "fixed", "every": 30},
    )
    with at_work(cluster, tmp_path) as (_, prometheus), JobController(cluster):
        words = ("--only", "requests", "--speed", "20", "--no-plots", "--out", tmp_path / "out")
        with begun(cluster, "experiment", path, *words, prometheus=prometheus.url) as process:
            until(lambda: len(ours(cluster)) >= 2, "two pods")
            cluster.server.restart_api()
            done = ended(process)
        assert done.code == 0, done.err
        assert ours(cluster) == []
        assert cluster.api.list(group("batch/v1", "jobs", "default")).items == []
    assert "gpuyard: warning:" in done.err
    jobs = jobs_of(tmp_path / "out")
    assert [(job["state"], job["restarts"]) for job in jobs] == [("succeeded", "0")] * 4
    assert any(float(job["run"]) > 5 for job in jobs)  # who begins and ends while the server is away is seen once


WORKLOAD = """
apiVersion: v1
kind: Pod
metadata:
  name: onnx
  annotations: {gpuyard.dev/gpu-memory: 872Mi, hollow.dev/run-seconds: "2", hollow.dev/utilization: "24"}
spec:
  schedulerName: gpuyard
  restartPolicy: OnFailure
  containers: [{name: main, image: onnx, command: [run]}]
"""


def test_a_single_workload_is_monitored(cluster: Cluster, tmp_path: Path) -> None:
    path, out = tmp_path / "onnx.yaml", tmp_path / "out"
    path.write_text(WORKLOAD)
    metrics = "dcgm_gpu_utilization,dcgm_mem_copy_utilization,dcgm_power_usage,dcgm_gpu_temp"
    words = ("monitor", path, "--metrics", metrics)
    with at_work(cluster, tmp_path) as (_, prometheus):
        done = run(cluster, *words, "--out", out, "--json", prometheus=prometheus.url)
        assert done.code == 0, done.err
        assert cluster.pods() == []

        path.write_text(f"{WORKLOAD.replace('onnx', 'bad').replace('OnFailure', 'Never')}---{WORKLOAD}")
        text = path.read_text().replace("hollow.dev/utilization", "hollow.dev/exit-code", 1).replace('"24"', '"3"', 1)
        path.write_text(text)
        both = run(cluster, *words, "--out", tmp_path / "both", "--no-plots", "--keep", prometheus=prometheus.url)
        assert (both.code, sorted(ours(cluster))) == (1, ["bad", "onnx"])
        assert "failed" in both.out
        there = run(cluster, *words, "--out", tmp_path / "there", prometheus=prometheus.url)
        assert (there.code, "already exists" in there.err) == (2, True)
        assert sorted(ours(cluster)) == ["bad", "onnx"]
    told = json.loads(done.out)
    assert (told["workloads"][0]["state"], told["workloads"][0]["where"]) == ("succeeded", "gpu-1:0")
    busy = told["metrics"][0]
    assert (busy["name"], busy["unit"], busy["peak"]) == ("dcgm_gpu_utilization", "%", 24.0)
    assert busy["mean"] == pytest.approx(24.0, abs=6.0)  # it may be seen before it is at work
    for name in metrics.split(","):
        lines = (out / f"{name}.csv").read_text().splitlines()
        assert lines[0] == "second,value"
        assert float(lines[1].split(",")[0]) < 0.5
        assert len(lines) > 4
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    again = run(cluster, *words, "--out", out)
    assert (again.code, "from an earlier run" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("experiment", "none.yaml"), "there is no file none.yaml"),
        (("experiment", EXAMPLE, "-n", "nowhere"), "there is no namespace 'nowhere'; kubectl create namespace nowhere"),
        (("experiment", EXAMPLE, "--speed", "0"), "--speed: a number above 0 is expected"),
        (("experiment", EXAMPLE, "--only", "usages"), "there is no scheduler 'usages'; did you mean 'usage'?"),
        (("monitor", "none.yaml"), "there is no file none.yaml"),
        (("monitor", EXAMPLE, "--metrics", "heat"), "there is no metric 'heat'"),
    ],
)
def test_mistakes_are_told(cluster: Cluster, words: tuple[str | Path, ...], said: str) -> None:
    done = run(cluster, *words)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
