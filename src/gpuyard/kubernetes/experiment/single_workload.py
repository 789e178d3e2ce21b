"""One workload from its manifest: created, followed, recorded and deleted."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrival, JobResult, Workload
from gpuyard.experiments.runner import submit_all
from gpuyard.kubernetes.api_client import Api, Object
from gpuyard.kubernetes.experiment.cluster_settings import dns_name
from gpuyard.kubernetes.experiment.gpu_recorder import Recorder, Wanted
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, JOB
from gpuyard.kubernetes.experiment.pod_follower import Follower, PodHistory, job_result
from gpuyard.kubernetes.experiment.pod_lifecycle import PodSubmissions, cleared
from gpuyard.monitor.sources import Source
from gpuyard.monitor.summaries import mean, most
from gpuyard.recordings.series import Mark, Recording, Subject

_KINDS = {"Pod": "v1", "Job": "batch/v1"}


@dataclass(frozen=True, slots=True)
class Manifest:
    objects: tuple[Object, ...]
    namespace: str  # empty: the file does not say


@dataclass(slots=True)
class WorkloadRun:
    begin: float
    jobs: list[JobResult] = field(default_factory=list)
    recording: Recording = field(default_factory=lambda: Recording(0.0, 0.0))
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        return self.recording.end - self.begin


def read_manifest(path: Path) -> Manifest:
    try:
        found = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not found:
        raise UserError(f"{path} is empty; it has to hold a Pod or a Job")
    for number, one in enumerate(found, 1):
        _check(one, f"{path}, document {number}" if len(found) > 1 else str(path))
    places = {one["metadata"].get("namespace") for one in found} - {None}
    if len(places) > 1:
        raise UserError(f"{path}: its objects are in several namespaces ({', '.join(sorted(places))}); take one")
    return Manifest(tuple(found), places.pop() if places else "")


def _check(one: Any, place: str) -> None:
    if not isinstance(one, dict) or not isinstance(kind := one.get("kind"), str):
        raise UserError(f"{place} is no manifest of Kubernetes: it has no kind")
    if _KINDS.get(kind) != one.get("apiVersion"):
        what = f"{kind} ({one.get('apiVersion')})"
        raise UserError(f"{place}: {what} cannot be monitored; a Pod (v1) or a Job (batch/v1) can, apply others before")
    meta = one.get("metadata")
    if not isinstance(meta, dict) or not (meta.get("name") or meta.get("generateName")):
        raise UserError(f"{place}: metadata.name is missing")
    if not isinstance(one.get("spec"), dict):
        raise UserError(f"{place}: spec is missing")


def labelled(one: Object, run: str, job: str) -> Object:
    found, labels = copy.deepcopy(one), {EXPERIMENT: run, JOB: job}
    parts = [found] + ([found["spec"].setdefault("template", {})] if found["kind"] == "Job" else [])
    for part in parts:
        meta = part.setdefault("metadata", {})
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
    return found


def watch(
    api: Api, namespace: str, manifest: Manifest, recorder: Recorder, warn: Callable[[str], None], *, keep: bool = False
) -> WorkloadRun:
    """Create the objects of a manifest, wait for their end or an interrupt, and delete them, unless they are kept."""
    run = f"monitor-{dns_name(_name(manifest.objects[0]), 40)}-{secrets.token_hex(3)}"
    objects = dict(zip(_distinct([_name(one) for one in manifest.objects]), manifest.objects, strict=True))
    jobs = [Arrival(0.0, name, Workload(name)) for name in objects]
    with ExitStack() as stack:
        if not keep:
            stack.enter_context(cleared(api, namespace, run, warn))
        stack.enter_context(recorder)
        by_jobs = any(one["kind"] == "Job" for one in manifest.objects)
        follower = stack.enter_context(Follower(api, namespace, run, jobs=by_jobs, warn=warn))
        submissions = PodSubmissions(
            api, namespace, follower, lambda job: labelled(objects[job.name], run, job.name), warn
        )
        begin = time.time()
        found = WorkloadRun(begin)
        try:
            submit_all(jobs, submissions, lambda done, total: None)
        except KeyboardInterrupt:
            found.interrupted = True
        ended = time.time()
        for job in jobs:
            over = follower.over.get(job.name)
            failed = over is not None and over.failed
            found.jobs.append(job_result(job, begin, follower.of(job.name), begin, failed=failed))
        last = max((job.ended for job in found.jobs if job.ended is not None), default=0.0)
        end = ended if found.interrupted or not last else begin + last
        pods = [pod for name in objects for pod in follower.of(name)]
        found.recording = _theirs(recorder.recording(begin, end, {pod.node for pod in pods}, edges=False), pods)
        found.recording.marks += [_mark(pod, end) for pod in pods if pod.started is not None]
    return found


def _theirs(recording: Recording, pods: Sequence[PodHistory]) -> Recording:
    """The series of the GPUs that pods had, if their scheduler says which; else of all GPUs of their nodes."""
    had = {int(index) for pod in pods for index in pod.gpus.split(",") if index.isdecimal()}
    if had and all(pod.gpus for pod in pods if pod.node) and len({pod.node for pod in pods if pod.node}) == 1:
        recording.series = [one for one in recording.series if one.subject.gpu in had] or recording.series
    return recording


def _mark(pod: PodHistory, end: float) -> Mark:
    assert pod.started is not None
    gpu = pod.gpus.partition(",")[0]
    subject = Subject(int(gpu), job=pod.name) if gpu.isdecimal() else None
    return Mark(pod.started, pod.name, end if pod.ended is None else pod.ended, subject)


def _name(one: Object) -> str:
    return str(one["metadata"].get("name") or one["metadata"]["generateName"].rstrip("-."))


def _distinct(names: Sequence[str]) -> list[str]:
    """Distinct names: a pod and a Job may have the same."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}-{len(found)}")
    return found


def summary(found: WorkloadRun, source: Source, asked: Sequence[Wanted]) -> dict[str, Any]:
    """The numbers of a run; times in seconds."""
    metrics = []
    for one in asked:
        series = [each for each in found.recording.of(one.metric) if not each.subject.job]
        means = [value for each in series if (value := mean(each)) is not None]
        peaks = [value for each in series if (value := most(each)) is not None]
        metrics.append(
            {
                "name": one.name,
                "unit": one.unit,
                "mean": round(sum(means) / len(means) / one.factor, 3) if means else None,
                "peak": round(max(peaks) / one.factor, 3) if peaks else None,
            }
        )
    return {
        "seconds": round(found.seconds, 3),
        "interrupted": found.interrupted,
        "simulated": found.recording.simulated,
        "source": source.name,
        "workloads": [asdict(job) for job in found.jobs],
        "metrics": metrics,
        "warnings": found.recording.warnings,
    }
