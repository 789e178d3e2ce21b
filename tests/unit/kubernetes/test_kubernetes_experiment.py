"""Experiments on clusters: what their files say, and the pods and jobs that these stand for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrival, Workload
from gpuyard.experiments.results_folder import planned
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Object
from gpuyard.kubernetes.cluster.pods import pod_of
from gpuyard.kubernetes.experiment.manifests import (
    EXPERIMENT,
    JOB,
    ClusterExperiment,
    ManifestBuilder,
    asked_gib,
    merged,
    read_file,
    write_manifests,
)

MIB, GIB = 2.0**20, 2.0**30
V100 = 32510 * MIB
EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes" / "kube-knots.yaml"
GOOD: dict[str, Any] = {
    "arrivals": {"process": "fixed", "every": 30},
    "over_provisioning": [0, 250],
    "schedulers": [
        {"name": "exclusive", "sharing": "exclusive"},
        {"name": "requests", "sharing": "requests"},
        {"name": "usage", "sharing": "usage"},
        {"name": "alibaba", "kubernetes": {"ask": "aliyun.com/gpu-mem", "scheduler_name": "default-scheduler"}},
        {"name": "knots", "sharing": "usage", "kubernetes": {"ask": "GPU_MEM_REQ"}},
    ],
    "kubernetes": {"gpu_memory": "32510M"},
    "workloads": [
        {
            "name": "SSD_1", "replicas": 2, "gpu_memory": "6994M", "image": "ssd:1", "command": ["run"],
            "estimate": 100, "environment": {"A": "1"}, "behaviour": {"seconds": 133, "ramp": 20},
            "kubernetes": {
                "args": ["--count", "9"], "labels": {"team": "x"}, "annotations": {"t/s": "{seconds} s, {name}"},
                "pod": {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"stdin": True}]}},
            },
        }
    ],
}  # fmt: skip


def described(folder: Path, change: dict[str, Any] | None = None, **given: Any) -> ClusterExperiment:
    path = folder / "e.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **(change or {})}))
    return read_file(path, **given)


def made(found: ClusterExperiment, scheduler: str, percent: float = 0.0, capacity: float = V100) -> Object:
    run = next(run for run in planned(found.experiment, 1) if run.scheduler.name == scheduler)
    maker = ManifestBuilder(found.settings, run.scheduler, percent, capacity, "e-run-abcdef")
    return maker.object(Arrival(0.0, "SSD_1-1", found.experiment.workloads[0]))


def pod(found: ClusterExperiment, scheduler: str, percent: float = 0.0, capacity: float = V100) -> Object:
    return dict(made(found, scheduler, percent, capacity)["spec"]["template"])


def test_a_whole_gpu_for_each_pod(tmp_path: Path) -> None:
    found = pod(described(tmp_path), "exclusive", 250)
    assert found["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert found["spec"]["schedulerName"] == "gpuyard"
    assert not [name for name in found["metadata"]["annotations"] if "memory" in name]
    assert "NVIDIA_VISIBLE_DEVICES" not in str(found)  # the device plugin tells them


@pytest.mark.parametrize(("scheduler", "admission"), [("requests", "requests"), ("usage", "usage")])
def test_memory_that_is_asked_for(tmp_path: Path, scheduler: str, admission: str) -> None:
    found = pod(described(tmp_path), scheduler, 250)
    said = found["metadata"]["annotations"]
    assert (said[names.GPU_MEMORY], said[names.ADMISSION]) == ("24479Mi", admission)
    assert "resources" not in found["spec"]["containers"][0]
    seen = {"name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpuyard.dev/gpu-indices']"}}}  # fmt: skip
    assert seen in found["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(("percent", "gib"), [(0, 7), (50, 10), (100, 14), (150, 17), (200, 21), (250, 24), (500, 31)])
def test_gigabytes_for_alibabas_extender(tmp_path: Path, percent: float, gib: int) -> None:
    found = pod(described(tmp_path), "alibaba", percent)
    assert found["spec"]["containers"][0]["resources"] == {"limits": {"aliyun.com/gpu-mem": str(gib)}}
    assert found["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(("percent", "mib"), [(0, "6994"), (150, "17485"), (250, "24479"), (400, "32510")])
def test_the_label_of_kube_knots(tmp_path: Path, percent: float, mib: str) -> None:
    assert pod(described(tmp_path), "knots", percent)["metadata"]["labels"]["GPU_MEM_REQ"] == mib


def test_nothing_is_capped_where_nobody_knows_how_much_a_gpu_has() -> None:
    assert asked_gib(Workload("a", gpu_memory=6994 * MIB), 0, 900, math.inf) == 70
    assert asked_gib(Workload("a", gpu_memory=6994 * MIB), 8, 0, V100) == 8


def test_our_scheduler_reads_what_the_generator_writes(tmp_path: Path) -> None:
    found = described(tmp_path, {"kubernetes": {"kind": "pod"}})
    for scheduler, percent, memory in (("usage", 150, 17485), ("knots", 150, 17485), ("alibaba", 150, 17 * 1024)):
        body = made(found, scheduler, percent)
        body["metadata"] |= {"uid": "1", "namespace": "default"}
        read = pod_of(body)
        assert (read.gpu_memory, read.gpus, read.whole, read.trouble) == (memory * MIB, 1, False, "")
        assert read.usage == (scheduler != "alibaba")
    whole = made(found, "exclusive", 150)
    whole["metadata"] |= {"uid": "1", "namespace": "default"}
    assert (pod_of(whole).gpus, pod_of(whole).whole, pod_of(whole).duration) == (1, True, 100)


def test_a_job_is_what_a_cluster_expects(tmp_path: Path) -> None:
    found = made(described(tmp_path), "usage")
    assert (found["apiVersion"], found["kind"], found["spec"]["backoffLimit"]) == ("batch/v1", "Job", 20)
    assert found["metadata"]["name"] == "ssd-1-1-abcdef"
    for part in (found, found["spec"]["template"]):
        assert part["metadata"]["labels"][EXPERIMENT] == "e-run-abcdef"
        assert part["metadata"]["labels"][JOB] == "SSD_1-1"
    spec = found["spec"]["template"]["spec"]
    assert (spec["restartPolicy"], spec["nodeSelector"], spec.get("hostIPC")) == ("OnFailure", {"a": "b"}, None)
    container = spec["containers"][0]
    assert (container["name"], container["image"], container["stdin"]) == ("ssd-1", "ssd:1", True)
    assert (container["command"], container["args"]) == (["run"], ["--count", "9"])
    assert {"name": "A", "value": "1"} in container["env"]


def test_what_only_a_run_knows_is_filled_in(tmp_path: Path) -> None:
    found = pod(described(tmp_path, speed=20.0), "usage")["metadata"]
    assert found["annotations"]["t/s"] == "6.65 s, SSD_1-1"
    assert found["annotations"][names.DURATION] == "5s"
    assert (found["labels"]["team"], found["labels"][names.WORKLOAD]) == ("x", "ssd-1-abcdef")
    kept = pod(described(tmp_path, {"kubernetes": {"forget": False}}), "usage")["metadata"]
    assert names.WORKLOAD not in kept["labels"]


def test_merging() -> None:
    base = {"a": {"b": 1, "c": [1]}, "containers": [{"name": "x", "env": [1]}, {"name": "y"}]}
    more = {"a": {"c": [2], "d": 3}, "containers": [{"env": [2]}]}
    assert merged(base, more) == {
        "a": {"b": 1, "c": [2], "d": 3}, "containers": [{"name": "x", "env": [1, 2]}, {"name": "y"}],
    }  # fmt: skip


def test_manifests_are_written_and_never_over_others(tmp_path: Path) -> None:
    found, out = described(tmp_path, speed=10.0), tmp_path / "out"
    written = write_manifests(found, planned(found.experiment, 2), V100, out)
    assert len(written) == 5 * 2 * 2
    assert sorted(path.name for path in out.iterdir())[:2] == ["alibaba-0", "alibaba-250"]
    bodies = [yaml.safe_load(path.read_text()) for path in written]
    assert len({body["metadata"]["name"] for body in bodies}) == len(bodies)
    times = (out / "usage-250" / "arrivals.csv").read_text().split()
    assert times[0] == "second,name"
    assert [line.split(",")[0] for line in times[1:]] == ["0", "3"]
    with pytest.raises(UserError, match="is not empty"):
        write_manifests(found, planned(found.experiment, 1), V100, out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kubernetes": {"kind": "deployment"}}, "kubernetes.kind: one of job, pod is expected"),
        ({"kubernetes": {"knid": "pod"}}, "kubernetes.knid: there is no such key; did you mean 'kind'?"),
        ({"kubernetes": {"speed": 0}}, "kubernetes.speed: a number above 0 is expected"),
        ({"kubernetes": {"namespace": "My Space"}}, "kubernetes.namespace: 'My Space' is no name of Kubernetes"),
        ({"kubernetes": {"gpu_memory": 32510}}, "kubernetes.gpu_memory: a size is expected"),
        ({"kubernetes": {"restart_policy": "Always"}}, "kubernetes.restart_policy: one of OnFailure, Never"),
        (
            {"schedulers": [{"name": "x", "kubernetes": {"ask": "GPU_MEM"}}]},
            "schedulers[1].kubernetes.ask: one of gpuyard.dev/gpu-memory, GPU_MEM_REQ, aliyun.com/gpu-mem is expected",
        ),
        ({"workloads": [{"name": "x" * 51, "image": "y"}]}, "workloads[1].name: on a cluster it has at most 50"),
        ({"workloads": [{"name": "x", "command": "y"}]}, "workloads[1]: on a cluster it needs an image"),
        (
            {"workloads": [{"name": "x", "image": "y", "kubernetes": {"annotations": {"a": "{seconds}"}}}]},
            "workloads[1]: it has no behaviour: '{seconds}' cannot be filled in",
        ),
        (
            {"workloads": [{**GOOD["workloads"][0], "kubernetes": {"annotations": {"a": "{secs}"}}}]},
            "workloads[1].kubernetes: '{secs}' cannot be filled in; there are name, seconds,",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        described(tmp_path, change)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "e.yaml"))


SEED = [
    {
        "MODEL_DIR": "/m", "DATA_DIR": "/d", "backend": "tf", "model": "ssd-mobilenet", "scenario": "SingleStream",
        "container_name": "tf-ssdmobilenet", "image_name": "mlperf:1", "memory_request_GB": 7,
        "memory_request_MiB": 6994, "list": [{"queries": 1024, "replicas": 30}, {"queries": 64, "replicas": 2}],
    }
]  # fmt: skip


def test_the_configuration_of_kube_knots_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SEED))
    found = read_file(path)
    experiment = found.experiment
    assert [(one.name, one.replicas) for one in experiment.workloads] == [
        ("tf-ssdmobilenet-1024", 30), ("tf-ssdmobilenet-64", 2),
    ]  # fmt: skip
    assert experiment.over_provisioning == (0, 50, 100, 150, 200, 250)
    assert (experiment.arrivals.low, experiment.arrivals.high, experiment.arrivals.seed) == (20, 40, 2020)
    maker = {
        run.scheduler.name: ManifestBuilder(found.settings, run.scheduler, 250, V100, "r-abcdef")
        for run in planned(experiment, 1)
    }
    arrival = Arrival(0.0, "tf-ssdmobilenet-1024-01", experiment.workloads[0])
    usage = maker["usage"].object(arrival)["spec"]["template"]
    assert usage["metadata"]["labels"]["GPU_MEM_REQ"] == "24479"
    assert usage["spec"]["hostIPC"] is True
    container = usage["spec"]["containers"][0]
    assert (container["name"], container["args"][-1]) == ("tf-ssdmobilenet", "1024")
    assert container["volumeMounts"][0] == {"name": "model-dir", "mountPath": "/m"}
    limits = maker["requests"].object(arrival)["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"aliyun.com/gpu-mem": "24"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image_name": None}, "models[1]: image_name is missing"),
        ({"memory_request_MiB": "many"}, "models[1].memory_request_MiB: a number is expected"),
        ({"list": []}, "models[1].list: a list of at least one is expected"),
        ({"list": [{"replicas": 3}]}, "models[1].list[1]: queries is missing"),
        ({"modle": "x"}, "models[1].modle: there is no such key; did you mean 'model'?"),
    ],
)
def test_mistakes_in_it_are_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps([{**SEED[0], **change}]))
    with pytest.raises(UserError) as caught:
        read_file(path)
    assert said in str(caught.value)


def test_the_example_is_the_published_experiment() -> None:
    found = read_file(EXAMPLE)
    assert [one.sharing for one in found.experiment.schedulers] == ["exclusive", "requests", "usage"]
    assert set(found.experiment.over_provisioning) == {0, 150}
    ssd = found.experiment.workloads[0]
    assert (ssd.replicas, ssd.gpu_memory, found.experiment.arrivals.seed) == (30, 6994 * MIB, 2020)


def test_results_of_another_speed_or_cluster_are_not_the_same(tmp_path: Path) -> None:
    usual, fast = described(tmp_path).experiment, described(tmp_path, speed=20.0).experiment
    elsewhere = described(tmp_path, prometheus="http://p:9090").experiment
    assert usual.kubernetes != fast.kubernetes
    assert usual.kubernetes == elsewhere.kubernetes
    assert usual.kubernetes["engine"] == "kubernetes"
