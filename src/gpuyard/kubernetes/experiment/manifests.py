"""Pods and jobs of an experiment, made from templates; reading the file and writing the manifests."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpuyard.errors import UserError
from gpuyard.experiments import validation
from gpuyard.experiments.design import Arrival, Experiment, Scheduler, Workload, arrivals, asked
from gpuyard.experiments.experiment_file import parse_experiment, read_experiment
from gpuyard.experiments.results_folder import Run
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Object
from gpuyard.kubernetes.experiment.cluster_settings import (
    ClusterSettings,
    Settings,
    WorkloadSettings,
    dns_name,
    experiment_of,
    filled_in,
    read_settings,
)
from gpuyard.units import format_number

EXPERIMENT = f"{names.DOMAIN}/experiment"  # the label by which everything that a run makes is found again, and deleted
JOB = f"{names.DOMAIN}/experiment-job"  # which of the run's jobs a pod is of
MIB, GIB = 2**20, 2**30
_LONGEST = 63 - 7  # letters of a name: those of jobs are labels as well, and our own ending follows


@dataclass(frozen=True, slots=True)
class ManifestBuilder:
    settings: Settings
    scheduler: Scheduler
    percent: float
    capacity: float  # bytes of the largest GPU; infinity: not known
    run: str  # what everything of the run is labelled with; its last six letters end the names

    def object(self, arrival: Arrival) -> Object:
        pod, cluster = self.pod(arrival), self.settings.cluster
        if cluster.kind == "pod":
            return {"apiVersion": "v1", "kind": "Pod", **pod}
        labels = {name: pod["metadata"]["labels"][name] for name in (EXPERIMENT, JOB)}
        template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
        return {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": pod["metadata"]["name"], "labels": labels},
            "spec": {"backoffLimit": cluster.backoff_limit, "template": template},
        }  # fmt: skip

    def pod(self, arrival: Arrival) -> Object:
        """A pod, without its kind."""
        workload, cluster = arrival.workload, self.settings.cluster
        said, chosen = self.settings.workloads[workload.name], self.settings.schedulers[self.scheduler.name]
        labels, annotations, limits = self._gpu_request(workload, said)
        values = _values(arrival, cluster.speed)
        own = {EXPERIMENT: self.run, JOB: arrival.name}
        if cluster.forget:
            own[names.WORKLOAD] = f"{dns_name(workload.name, 50)}-{self.run[-6:]}"
        if workload.estimate is not None:
            annotations[names.DURATION] = f"{format_number(round(workload.estimate / cluster.speed, 3))}s"
        meta = {
            "name": f"{dns_name(arrival.name, _LONGEST)}-{self.run[-6:]}",
            "labels": {**labels, **chosen.labels, **_filled(said.labels, values), **own},
            "annotations": {**annotations, **chosen.annotations, **_filled(said.annotations, values)},
        }
        spec = {
            "schedulerName": chosen.scheduler_name, "restartPolicy": cluster.restart_policy,
            **({"hostIPC": True} if cluster.host_ipc else {}),
            "containers": [self._container(workload, said, limits, sees=chosen.scheduler_name == names.SCHEDULER)],
        }  # fmt: skip
        found: Object = {"metadata": meta, "spec": spec}
        for more in (chosen.pod, said.pod):
            found = merged(found, more)
        return found

    def _gpu_request(self, workload: Workload, said: WorkloadSettings) -> tuple[dict[str, str], dict[str, str], Object]:
        """How a pod asks for GPUs: labels, annotations, limits."""
        memory = int(asked(workload, self.percent, self.capacity) // MIB)
        if self.scheduler.sharing == "exclusive" or not memory:
            return {}, {}, {names.GPU: str(workload.gpus)}
        labels, limits = dict[str, str](), {}
        annotations = {names.ADMISSION: "usage" if self.scheduler.sharing == "usage" else "requests"}
        if workload.gpus > 1:
            annotations[names.GPU_COUNT] = str(workload.gpus)
        ask = self.settings.schedulers[self.scheduler.name].ask
        if ask == names.ALIYUN_MEMORY:
            limits[ask] = str(asked_gib(workload, said.memory_gib, self.percent, self.capacity))
        elif ask == names.SEED_MEMORY:
            labels[ask] = str(memory)
        else:
            annotations[ask] = f"{memory}Mi"
        return labels, annotations, limits

    def _container(self, workload: Workload, said: WorkloadSettings, limits: Object, *, sees: bool) -> Object:
        """`sees`: our scheduler annotates the pod with its GPUs, and the container gets them as a variable."""
        variables: list[Object] = [{"name": name, "value": value} for name, value in workload.environment.items()]
        if sees and names.GPU not in limits:
            path = f"metadata.annotations['{names.INDICES}']"
            variables.append({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}})
        return {
            "name": said.container, "image": workload.image,
            **({"command": list(workload.command)} if workload.command else {}),
            **({"args": list(said.args)} if said.args else {}),
            **({"env": variables} if variables else {}),
            **({"resources": {"limits": limits}} if limits else {}),
            "terminationMessagePolicy": "FallbackToLogsOnError",  # so that who ran out of memory can be told
        }  # fmt: skip


def asked_gib(workload: Workload, given: int, percent: float, capacity: float) -> int:
    """Whole GiB that a pod asks for with over-provisioning, rounded down, and at most what a GPU has."""
    whole = given or math.ceil(workload.gpu_memory / GIB)
    more = math.floor(round(whole * (100 + percent) / 100, 6))
    return more if math.isinf(capacity) else min(more, int(capacity // GIB))


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A deep merge. Containers are merged in their order, `env` is appended, other lists and values are replaced."""
    found = dict(base)
    for key, value in more.items():
        former = found.get(key)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            found[key] = merged(former, value)
        elif key == "containers" and isinstance(former, list) and isinstance(value, list):
            pairs = [merged(one, other) for one, other in zip(former, value, strict=False)]
            found[key] = [*pairs, *former[len(pairs) :], *value[len(pairs) :]]
        elif key == "env" and isinstance(former, list) and isinstance(value, list):
            found[key] = [*former, *value]
        else:
            found[key] = value
    return found


def _values(arrival: Arrival, speed: float) -> dict[str, str]:
    found = {"name": arrival.name}
    if (behaviour := arrival.workload.behaviour) is not None:
        times = {"seconds": behaviour.seconds, "overhead": behaviour.overhead, "ramp": behaviour.ramp}
        found |= {key: format_number(round(value / speed, 3)) for key, value in times.items()}
        memory = behaviour.memory or arrival.workload.gpu_memory
        found |= {"memory": f"{int(memory // MIB)}Mi", "utilization": format_number(behaviour.utilization)}
    return found


def _filled(said: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {key: filled_in(text, values) for key, text in said.items()}


class ClusterExperiment(NamedTuple):
    experiment: Experiment
    settings: Settings


def read_file(path: str | Path, **given: Any) -> ClusterExperiment:
    """The experiment of a file, of ours or of Kube-Knots' generator; `given` goes before what it says of the cluster.

    What results depend on besides is made a part of the experiment, so that those of other clusters are not mixed in.
    """
    file = Path(path)
    found = validation.load(file) if file.suffix.lower() == ".json" else None
    experiment = (
        parse_experiment(experiment_of(found, file), file) if isinstance(found, list) else read_experiment(file)
    )
    settings = read_settings(experiment, file)
    wanted = {key: value for key, value in given.items() if value is not None}
    settings = replace(settings, cluster=replace(settings.cluster, **wanted))
    return ClusterExperiment(replace(experiment, kubernetes=_kept(settings.cluster)), settings)


def _kept(cluster: ClusterSettings) -> dict[str, Any]:
    """The settings that results depend on; not where Prometheus is, nor pauses and limits."""
    ignored = ("prometheus", "pause", "limit")
    return {"engine": "kubernetes", **{key: value for key, value in asdict(cluster).items() if key not in ignored}}


def write_manifests(found: ClusterExperiment, runs: Sequence[Run], capacity: float, out: Path) -> list[Path]:
    """Write the manifests of the first repetition, a folder for each run, with the times; `out` must be empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty; name another folder by --generate, or move it away")
    written = []
    for run in (run for run in runs if run.turn == 1):
        name = f"{run.scheduler.name}-{format_number(run.percent)}"
        folder = out / name
        folder.mkdir(parents=True)
        label = f"{dns_name(f'{found.experiment.name}-{name}', 50)}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
        maker = ManifestBuilder(found.settings, run.scheduler, run.percent, capacity, label)
        times = ["second,name"]
        for arrival in arrivals(found.experiment):
            body = maker.object(arrival)
            path = folder / f"{body['metadata']['name']}.yaml"
            path.write_text(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))
            times.append(f"{format_number(round(arrival.at / found.settings.cluster.speed, 3))},{path.stem}")
            written.append(path)
        (folder / "arrivals.csv").write_text("\n".join(times) + "\n")
    return written
