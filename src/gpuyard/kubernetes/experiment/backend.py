"""Back end of experiments on a cluster: checks, runs, logs and results."""

from __future__ import annotations

import http.client
import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrival, Experiment, JobResult, RunResult, arrivals
from gpuyard.experiments.measures import MEASURED
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.runner import EndedJob, Outcome, Progress, measured, run_result, submit_all
from gpuyard.files import write_atomically
from gpuyard.kubernetes.api_client import Api, ApiError, core, open_link
from gpuyard.kubernetes.cluster.cluster_nodes import node_of
from gpuyard.kubernetes.cluster.pods import pod_of
from gpuyard.kubernetes.experiment.cluster_settings import Settings, dns_name
from gpuyard.kubernetes.experiment.gpu_recorder import Recorder, write_metrics
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, ManifestBuilder
from gpuyard.kubernetes.experiment.pod_follower import Follower, PodHistory, job_result
from gpuyard.kubernetes.experiment.pod_lifecycle import PodSubmissions, allowed, clear, cleared
from gpuyard.kubernetes.kubeconfig import Connection
from gpuyard.monitor.sources import Source
from gpuyard.recordings.series import Recording, Subject, names_of
from gpuyard.units import format_duration, format_number


class ClusterGpus(NamedTuple):
    nodes: tuple[str, ...]
    capacity: float  # bytes of the largest GPU; infinity: not known
    known: bool = True  # whether we may list nodes


def look_at(api: Api, namespace: str) -> ClusterGpus:
    """The nodes with GPUs; a `UserError` if there is no such namespace."""
    try:
        api.get(core("namespaces", name=namespace))
    except ApiError as error:
        if error.missing:
            raise UserError(
                f"there is no namespace '{namespace}'; kubectl create namespace {namespace} makes it"
            ) from None
        if error.status != 403:  # without the right to see namespaces one may create pods
            raise
    objects = allowed(api, core("nodes"))
    if objects is None:
        return ClusterGpus((), math.inf, known=False)
    found = [node for node in map(node_of, objects) if node.gpus]
    sizes = [node.gpu_memory for node in found if node.gpu_memory]
    return ClusterGpus(tuple(node.name for node in found), max(sizes, default=math.inf))


def others(api: Api) -> int:
    running = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    there = allowed(api, core("pods"), fieldSelector=running) or []
    return sum(pod_of(one).gpus > 0 for one in there if EXPERIMENT not in (one["metadata"].get("labels") or {}))


_TIMEOUT = 10.0
_SIZE, _LINES = 2**18, 500


def tail(connection: Connection, namespace: str, pod: str) -> bytes:
    """The last lines of a pod's output; nothing if its node is gone, or reading is forbidden."""
    link = open_link(connection, _TIMEOUT)
    authorization = connection.authorization()
    path = f"{connection.path}{core('pods', namespace, pod, 'log')}?limitBytes={_SIZE}&tailLines={_LINES}"
    try:
        link.request("GET", path, headers={"Authorization": authorization} if authorization else {})
        answer = link.getresponse()
        return answer.read(_SIZE) if answer.status == 200 else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        link.close()


_UNDER_WAY = "cluster-run.json"
"""The run under way, so that a later experiment can delete its pods if this one is killed."""


@dataclass(slots=True)
class ClusterBackend:
    api: Api
    settings: Settings
    source: Source
    warn: Callable[[str], None]
    namespace: str
    machines: ClusterGpus = field(default_factory=lambda: ClusterGpus((), 0.0))
    _runs: int = 0

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Refuse what the cluster can never run."""
        self.machines = look_at(self.api, self.namespace)
        if not self.machines.nodes and self.machines.known:
            self.warn("no node offers nvidia.com/gpu, so pods may wait forever")
        if math.isinf(self.capacity):
            self.warn("nobody says how much memory a GPU has, so requests are not capped at that")
        capacity = self.capacity
        for one in experiment.workloads:
            if one.gpu_memory > capacity:
                size = format_number(capacity // 2**20)
                raise UserError(f"workload '{one.name}' asks for more than a GPU has ({size} MiB)")
        for run in runs:
            if run.scheduler.policy != "fcfs":
                self.warn(
                    f"scheduler '{run.scheduler.name}': the policy is that of the scheduler which runs on the cluster"
                )
        now = time.time()
        found = self.source.read(_metrics(experiment), now - 30.0, now)
        for text in found.warnings if not found.series else ():
            self.warn(text)

    @property
    def capacity(self) -> float:
        """Bytes of a GPU: requests are capped at that."""
        return self.settings.cluster.gpu_memory or self.machines.capacity

    def clear(self, results: Results) -> None:
        path = results.folder / _UNDER_WAY
        if not path.is_file():
            return
        try:
            left = json.loads(path.read_text())
            server, namespace, run = left["server"], left["namespace"], left["run"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path} is no file of gpuyard's; move it away, or choose another --out") from None
        if server != self.api.connection.server:
            raise UserError(
                f"a run on {server} was killed in {results.folder}, and its pods are perhaps still there: use that "
                f"cluster's kubeconfig, or delete them (label {EXPERIMENT}={run}) and {path}"
            )
        if clear(self.api, namespace, run, self.warn):
            path.unlink()

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Progress
    ) -> tuple[RunResult, Recording]:
        self._begin()
        name = f"{dns_name(f'{experiment.name}-{run.name}', 50)}-{secrets.token_hex(3)}"
        mark = results.folder / _UNDER_WAY
        mark.write_text(
            json.dumps({"server": self.api.connection.server, "namespace": self.namespace, "run": name}) + "\n"
        )
        cluster = self.settings.cluster
        with cleared(self.api, self.namespace, name, self.warn, mark.unlink):
            builder = ManifestBuilder(self.settings, run.scheduler, run.percent, self.capacity, name)
            follower = Follower(self.api, self.namespace, name, jobs=cluster.kind == "job", warn=self.warn)
            jobs = [one._replace(at=one.at / cluster.speed) for one in arrivals(experiment, run.turn)]
            with Recorder(self.source, _metrics(experiment), self.warn) as recorder, follower:
                arrived = self._submit(jobs, builder, follower, on_progress)
                begin = arrived[jobs[0].name]
                ended = (self._ended(job, arrived[job.name], follower, begin) for job in jobs)
                result, marks, warnings = run_result(run, ended, begin)
                result.duration = result.duration or time.time() - begin
                recording = recorder.recording(begin, begin + result.duration, self.machines.nodes)
        result, recording = measured(result, recording, marks, warnings)
        write_metrics(results.folder / "metrics" / run.name, recording, experiment.metrics)
        return result, recording

    def _begin(self) -> None:
        """Pause since the last run, and warn of other pods with GPUs."""
        if self._runs:
            time.sleep(self.settings.cluster.pause)
        elif count := others(self.api):
            self.warn(f"{count} other pods hold GPUs; what is measured is theirs as well")
        self._runs += 1

    def _submit(
        self, jobs: Sequence[Arrival], builder: ManifestBuilder, follower: Follower, on_progress: Progress
    ) -> dict[str, float]:
        """Submit jobs as they arrive, and wait until all are over; when each was created."""
        began, limit = time.monotonic(), self.settings.cluster.limit
        submissions = PodSubmissions(self.api, self.namespace, follower, builder.object, self.warn)
        ended = submit_all(jobs, submissions, on_progress, limit=limit)
        if ended < len(jobs):
            passed = format_duration(time.monotonic() - began)
            self.warn(f"the run is given up after {passed}; {len(jobs) - ended} jobs were not over")
        return {job.name: submissions.arrived.get(job.name, time.time()) for job in jobs}

    def _ended(self, job: Arrival, arrived: float, follower: Follower, begin: float) -> EndedJob:
        pods, over = follower.of(job.name), follower.over.get(job.name)
        result = job_result(job, arrived, pods, begin, failed=over is not None and over.failed)
        why = next((pod.message for pod in reversed(pods) if pod.message), over.why if over else "")
        return EndedJob(result, self._output(pods), f": {why.strip()[-200:]}" if why else "", _subject(result))

    def _output(self, pods: Sequence[PodHistory]) -> bytes:
        for pod in reversed(pods):
            if "GPUYARD_RESULT" in pod.message:
                return pod.message.encode()
            if pod.phase == "Succeeded" and not pod.gone:
                return tail(self.api.connection, self.namespace, pod.name)
        return b""


def _metrics(experiment: Experiment) -> list[str]:
    return names_of([*experiment.metrics, *MEASURED])


def _subject(job: JobResult) -> Subject | None:
    node, _, gpus = job.where.partition(":")
    return Subject(int(gpus.partition(",")[0]), job=job.name, host=node) if gpus else None


RESULTS = "results.json"


def write_results(folder: Path, experiment: Experiment, outcome: Outcome, server: str) -> Path:
    path, found = folder / RESULTS, as_json(experiment, outcome, server)
    write_atomically(path, (json.dumps(found, indent=1, allow_nan=False) + "\n").encode())
    return path


def as_json(experiment: Experiment, outcome: Outcome, server: str) -> dict[str, Any]:
    """The outcome as plain values. Times are seconds as they passed, so `speed` times as many of the file's."""
    return {
        "experiment": experiment.name,
        "server": server,
        "speed": experiment.kubernetes.get("speed", 1.0),
        "rows": outcome.rows,
        "runs": [asdict(result) for result in outcome.results],
    }
