"""Cluster settings of an experiment file, and the configuration of Kube-Knots' workload generator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.errors import UserError
from gpuyard.experiments import validation
from gpuyard.experiments.design import Experiment
from gpuyard.experiments.validation import Keys
from gpuyard.kubernetes import names

KINDS = ("job", "pod")
ASKED = (names.GPU_MEMORY, names.SEED_MEMORY, names.ALIYUN_MEMORY)
"""How a pod can say how much memory of a GPU it wants."""
PLACEHOLDERS = ("name", "seconds", "overhead", "ramp", "memory", "utilization")
"""What can stand in braces in labels and annotations of a workload; all but the name are of its behaviour."""
_RESTARTS = ("OnFailure", "Never")
_LONGEST = 50
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    namespace: str = ""  # empty: that of the kubeconfig's context
    kind: str = "job"  # `pod` on clusters without the controller of Jobs
    backoff_limit: int = 20
    restart_policy: str = "OnFailure"
    host_ipc: bool = False
    gpu_memory: float = 0.0  # bytes of a GPU, the cap of requests; 0: as the nodes say
    prometheus: str = ""
    speed: float = 1.0  # how many times as fast as the file says jobs come, and are said to run
    pause: float = 5.0  # seconds between the end of a run and the beginning of the next
    limit: float | None = None  # seconds after which a run is aborted; None: never
    forget: bool = True  # whether what the scheduler learned of pods in one run is not to count in the next


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    scheduler_name: str = names.SCHEDULER
    ask: str = names.GPU_MEMORY
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)  # what is merged into its pods as it is


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    container: str
    args: tuple[str, ...] = ()
    memory_gib: int = 0  # whole GiB of `aliyun.com/gpu-mem`, before over-provisioning; 0: what `gpu_memory` comes to
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    cluster: ClusterSettings
    schedulers: Mapping[str, SchedulerSettings]
    workloads: Mapping[str, WorkloadSettings]


def read_settings(experiment: Experiment, file: Path) -> Settings:
    """The cluster settings of an experiment; a `UserError` names the place of a mistake in the file."""
    schedulers = {
        one.name: _scheduler(Keys(one.kubernetes, file, f"schedulers[{number}].kubernetes"))
        for number, one in enumerate(experiment.schedulers, 1)
    }
    workloads = {}
    for number, one in enumerate(experiment.workloads, 1):
        place = f"workloads[{number}]"
        if len(one.name) > _LONGEST:
            raise UserError(f"{file}: {place}.name: on a cluster it has at most {_LONGEST} letters, for it is a label")
        if not one.image:
            raise UserError(
                f"{file}: {place}: on a cluster it needs an image, as in: image: nvcr.io/nvidia/cuda:12.4.0"
            )
        workloads[one.name] = _workload(Keys(one.kubernetes, file, f"{place}.kubernetes"), one.name)
        if one.behaviour is None:
            _check_braces(workloads[one.name], ("name",), f"{file}: {place}: it has no behaviour")
    return Settings(_cluster(Keys(experiment.kubernetes, file, "kubernetes")), schedulers, workloads)


def _cluster(given: Keys) -> ClusterSettings:
    found = ClusterSettings(
        namespace=given.take("namespace", _dns, ""),
        kind=given.take("kind", validation.one_of(KINDS), "job"),
        backoff_limit=given.take("backoff_limit", validation.whole(0, 10**6), 20),
        restart_policy=given.take("restart_policy", validation.one_of(_RESTARTS), "OnFailure"),
        host_ipc=given.take("host_ipc", validation.switch, False),
        gpu_memory=given.take("gpu_memory", validation.size, 0.0),
        prometheus=given.take("prometheus", validation.text, ""),
        speed=given.take("speed", speed, 1.0),
        pause=given.take("pause", validation.duration, 5.0),
        limit=given.take("limit", validation.above_zero, None),
        forget=given.take("forget", validation.switch, True),
    )
    given.done()
    return found


def _scheduler(given: Keys) -> SchedulerSettings:
    found = SchedulerSettings(
        scheduler_name=given.take("scheduler_name", validation.text, names.SCHEDULER),
        ask=given.take("ask", validation.one_of(ASKED), names.GPU_MEMORY),
        labels=given.take("labels", validation.table(validation.text, _word), {}),
        annotations=given.take("annotations", validation.table(validation.text, _word), {}),
        pod=given.take("pod", validation.as_it_is, {}),
    )
    given.done()
    return found


def _workload(given: Keys, name: str) -> WorkloadSettings:
    found = WorkloadSettings(
        container=given.take("container", _dns, dns_name(name, 63)),
        args=given.take("args", validation.words, ()),
        memory_gib=given.take("memory_gib", validation.whole(0, 10**6), 0),
        labels=given.take("labels", validation.table(validation.text, _word), {}),
        annotations=given.take("annotations", validation.table(validation.text, _word), {}),
        pod=given.take("pod", validation.as_it_is, {}),
    )
    given.done()
    _check_braces(found, PLACEHOLDERS, str(given.error("", "")).rstrip(": "))
    return found


def _check_braces(found: WorkloadSettings, known: tuple[str, ...], place: str) -> None:
    for text in (*found.labels.values(), *found.annotations.values()):
        for name in _BRACES.findall(text):
            if name not in known:
                raise UserError(f"{place}: '{{{name}}}' cannot be filled in; there are {', '.join(known)}")


def filled_in(text: str, values: Mapping[str, str]) -> str:
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)


def speed(value: Any) -> float:
    if not 0 < (found := validation.number(value)) <= 10_000:
        raise UserError(f"a number above 0 is expected, as in 20, not {validation.shown(value)}")
    return found


def dns_name(text: str, longest: int) -> str:
    """A valid name in Kubernetes: small letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].strip("-")
    return plain or "x"


def _dns(value: Any) -> str:
    if not _DNS.fullmatch(found := validation.text(value)):
        raise UserError(f"'{found}' is no name of Kubernetes: take small letters, digits and dashes")
    return found


def _word(value: Any) -> str:
    """A value of a label or an annotation: Kubernetes wants texts, so `true` and `20` become such."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else validation.text(value)


_REST: dict[str, Any] = {
    "arrivals": {"process": "uniform", "min": "20s", "max": "40s", "seed": 2020, "shuffle": True},
    "over_provisioning": [0, 50, 100, 150, 200, 250],
    "schedulers": [
        {"name": "exclusive", "sharing": "exclusive"},
        {"name": "requests", "sharing": "requests", "kubernetes": {"ask": names.ALIYUN_MEMORY}},
        {"name": "usage", "sharing": "usage", "kubernetes": {"ask": names.SEED_MEMORY}},
    ],
    "kubernetes": {"host_ipc": True},
}
_EXPECTED = "it looks like [{model: ssd-mobilenet, container_name: ..., image_name: ..., list: [{queries: 1024, ...}]}]"


def experiment_of(given: list[Any], file: Path) -> dict[str, Any]:
    models = Keys({"models": given}, file).several("models", _EXPECTED)
    return {"name": file.stem, **_REST, "workloads": [found for one in models for found in _workloads(one)]}


def _workloads(given: Keys) -> list[dict[str, Any]]:
    backend, model, scenario = (given.need(key, validation.text, _EXPECTED) for key in ("backend", "model", "scenario"))
    container = given.take("container_name", validation.text, f"{backend}-{model}")
    image = given.need("image_name", validation.text, _EXPECTED)
    memory = given.need(
        "memory_request_MiB", validation.whole(1, 10**7), "the memory of a GPU that it asks for, in MiB"
    )
    gib = given.take("memory_request_GB", validation.whole(1, 10**4), 0)
    folders = {key: text for key in ("MODEL_DIR", "DATA_DIR") if (text := given.take(key, validation.text, ""))}
    found = []
    for one in given.several("list", "how often with how many queries, as in: list: [{queries: 1024, replicas: 30}]"):
        queries = one.need("queries", validation.whole(1, 10**9), "how many queries it makes")
        replicas = one.take("replicas", validation.whole(0, 10**5), 1)
        one.done()
        if replicas:
            found.append({
                "name": f"{dns_name(container, 40)}-{queries}", "replicas": replicas, "image": image,
                "gpu_memory": f"{memory}M", "environment": folders,
                "kubernetes": {
                    "container": dns_name(container, 63), "memory_gib": gib, "pod": _mounted(folders),
                    "args": ["./run_local.sh", backend, model, "gpu", "--scenario", scenario, "--count", str(queries)],
                },
            })  # fmt: skip
    given.done()
    return found


def _mounted(folders: dict[str, str]) -> dict[str, Any]:
    if not folders:
        return {}
    named = [(key.lower().replace("_", "-"), path) for key, path in folders.items()]
    mounts = [{"name": name, "mountPath": path} for name, path in named]
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in named]
    return {"spec": {"volumes": volumes, "containers": [{"volumeMounts": mounts}]}}
