"""Back end of experiments on a cluster: checks, runs, logs and results."""

from __future__ import annotations

import http.client
import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrival, Experiment, JobResult, RunResult, arrivals
from gpuyard.experiments.measures import MEASURED, measure, reported
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.runner import Outcome
from gpuyard.figures.files import write_atomically
from gpuyard.kubernetes.api_client import Api, ApiError, Object, core
from gpuyard.kubernetes.cluster.cluster_nodes import node_of
from gpuyard.kubernetes.cluster.pods import pod_of
from gpuyard.kubernetes.experiment.cluster_settings import Settings, dns_name
from gpuyard.kubernetes.experiment.gpu_recorder import Recorder, write_metrics
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, ManifestBuilder
from gpuyard.kubernetes.experiment.pod_follower import Follower, PodHistory, job_result
from gpuyard.kubernetes.experiment.pod_lifecycle import StallWarnings, clear, cleared, submit
from gpuyard.kubernetes.kubeconfig import Connection
from gpuyard.monitor.sources.source import Source
from gpuyard.recordings.series import Mark, Recording, Subject, names_of
from gpuyard.units import format_duration, format_number


class ClusterGpus(NamedTuple):
    """The nodes with GPUs."""

    nodes: tuple[str, ...]
    capacity: float
    """Bytes of the largest GPU; infinity: no node says so."""
    known: bool = True
    """Whether we may look at nodes."""


def look_at(api: Api, namespace: str) -> ClusterGpus:
    """The nodes with GPUs; a `UserError` if there is no such namespace."""
    try:
        api.get(core("namespaces", name=namespace))
    except ApiError as error:
        if error.missing:
            raise UserError(
                f"there is no namespace '{namespace}'; kubectl create namespace {namespace} makes it"
            ) from None
        if error.status != 403:  # who may not look at namespaces may still make pods in one
            raise
    objects = _allowed(api, core("nodes"))
    if objects is None:
        return ClusterGpus((), math.inf, known=False)
    found = [node for node in map(node_of, objects) if node.gpus]
    sizes = [node.gpu_memory for node in found if node.gpu_memory]
    return ClusterGpus(tuple(node.name for node in found), max(sizes, default=math.inf))


def others(api: Api) -> int:
    """How many pods hold GPUs that are not of an experiment of ours, as far as we may see them."""
    running = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    there = _allowed(api, core("pods"), fieldSelector=running) or []
    return sum(pod_of(one).gpus > 0 for one in there if EXPERIMENT not in (one["metadata"].get("labels") or {}))


def _allowed(api: Api, path: str, **params: str) -> list[Object] | None:
    """What there is; None if we may not look."""
    try:
        return api.list(path, **params).items
    except ApiError as error:
        if error.status != 403:
            raise
        return None


_TIMEOUT = 10.0
_SIZE, _LINES = 2**18, 500


def tail(connection: Connection, namespace: str, pod: str) -> bytes:
    """The last lines of a pod's output; nothing where its machine is gone, or we may not read it."""
    link: http.client.HTTPConnection
    if connection.tls:
        link = http.client.HTTPSConnection(
            connection.host, connection.port, timeout=_TIMEOUT, context=connection.context
        )
    else:
        link = http.client.HTTPConnection(connection.host, connection.port, timeout=_TIMEOUT)
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
"""What is made now, for whoever has to delete it after we were killed."""
_LOOK = 1.0


@dataclass(slots=True)
class ClusterBackend:
    """Runs on a cluster."""

    api: Api
    settings: Settings
    source: Source
    warn: Callable[[str], None]
    namespace: str
    machines: ClusterGpus = field(default_factory=lambda: ClusterGpus((), 0.0))
    _runs: int = 0

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Look at the cluster, and refuse what it can never run."""
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
        """Bytes that nobody asks for more than."""
        return self.settings.cluster.gpu_memory or self.machines.capacity

    def clear(self, results: Results) -> None:
        """Delete what was left by one who was killed."""
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
        self, experiment: Experiment, run: Run, results: Results, on_progress: Callable[[int, int], None]
    ) -> tuple[RunResult, Recording]:
        """One run: its jobs, and what GPUs did meanwhile."""
        self._begin()
        name = f"{dns_name(f'{experiment.name}-{run.name}', 50)}-{secrets.token_hex(3)}"
        mark = results.folder / _UNDER_WAY
        mark.write_text(
            json.dumps({"server": self.api.connection.server, "namespace": self.namespace, "run": name}) + "\n"
        )
        cluster = self.settings.cluster
        with cleared(self.api, self.namespace, name, self.warn, mark.unlink):
            maker = ManifestBuilder(self.settings, run.scheduler, run.percent, self.capacity, name)
            follower = Follower(self.api, self.namespace, name, jobs=cluster.kind == "job", warn=self.warn)
            jobs = [one._replace(at=one.at / cluster.speed) for one in arrivals(experiment, run.turn)]
            with Recorder(self.source, _metrics(experiment), self.warn) as recorder, follower:
                arrived = self._feed(jobs, maker, follower, on_progress)
                begin = arrived[jobs[0].name]
                result, warnings = self._collected(run, jobs, arrived, follower, begin)
                recording = recorder.recording(begin, begin + result.duration, self.machines.nodes)
        recording.warnings += warnings
        recording.marks = _marks(result, begin)
        result.simulated = recording.simulated
        write_metrics(results.folder / "metrics" / run.name, recording, experiment.metrics)
        return measure(result, recording), recording

    def _begin(self) -> None:
        """Let some time pass since the last run, and tell who else is there."""
        if self._runs:
            time.sleep(self.settings.cluster.pause)
        elif count := others(self.api):
            self.warn(f"{count} other pods hold GPUs; what is measured is theirs as well")
        self._runs += 1

    def _feed(
        self,
        jobs: Sequence[Arrival],
        maker: ManifestBuilder,
        follower: Follower,
        on_progress: Callable[[int, int], None],
    ) -> dict[str, float]:
        """Submit jobs as they come, and wait until all are over; when each was made."""
        began, arrived, patience = (
            time.monotonic(),
            dict[str, float](),
            StallWarnings(self.api, self.namespace, self.warn),
        )
        limit = self.settings.cluster.limit
        while True:
            now = time.monotonic() - began
            for one in jobs[len(arrived) :]:
                if one.at > now:
                    break
                submit(self.api, self.namespace, maker.object(one), self.warn)
                arrived[one.name] = time.time()
            with follower.news:
                done = sum(follower.is_over(name) for name in arrived)
                if done < len(jobs):
                    due = jobs[len(arrived)].at - (time.monotonic() - began) if len(arrived) < len(jobs) else _LOOK
                    follower.news.wait(min(_LOOK, max(0.0, due)))
            on_progress(done, len(jobs))
            if done == len(jobs):
                return arrived
            patience.look(follower)
            if limit is not None and now > limit:
                self.warn(f"the run is given up after {format_duration(now)}; {len(jobs) - done} jobs were not over")
                return {one.name: arrived.get(one.name, time.time()) for one in jobs}

    def _collected(
        self, run: Run, jobs: Sequence[Arrival], arrived: dict[str, float], follower: Follower, begin: float
    ) -> tuple[RunResult, list[str]]:
        """What became of the jobs."""
        result, warnings = RunResult(run.scheduler.name, run.percent, run.turn, 0.0, []), list[str]()
        for one in jobs:
            pods = follower.of(one.name)
            over = follower.over.get(one.name)
            found = job_result(one, arrived[one.name], pods, begin, failed=over is not None and over.failed)
            numbers, complaints = reported(self._said(pods), f"job {one.name}")
            warnings += complaints
            result.jobs.append(replace(found, reported=numbers))
            if found.state != "succeeded":
                why = next((pod.message for pod in reversed(pods) if pod.message), over.why if over else "")
                warnings.append(f"job {one.name} ended as {found.state}" + (f": {why.strip()[-200:]}" if why else ""))
        result.duration = max((job.ended or 0.0 for job in result.jobs), default=0.0) or time.time() - begin
        return result, warnings

    def _said(self, pods: Sequence[PodHistory]) -> bytes:
        """The end of what a job printed, where the cluster keeps that: its report may be in it."""
        for pod in reversed(pods):
            if "GPUYARD_RESULT" in pod.message:
                return pod.message.encode()
            if pod.phase == "Succeeded" and not pod.gone:
                return tail(self.api.connection, self.namespace, pod.name)
        return b""


def _metrics(experiment: Experiment) -> list[str]:
    return names_of([*experiment.metrics, *MEASURED])


def _marks(result: RunResult, begin: float) -> list[Mark]:
    """When jobs ran, for plots."""
    return [
        Mark(begin + job.started, job.name, begin + job.ended, _subject(job))
        for job in result.jobs
        if job.started is not None and job.ended is not None
    ]


def _subject(job: JobResult) -> Subject | None:
    node, _, gpus = job.where.partition(":")
    return Subject(int(gpus.partition(",")[0]), job=job.name, host=node) if gpus else None


RESULTS = "results.json"


def write_results(folder: Path, experiment: Experiment, outcome: Outcome, server: str) -> Path:
    """`results.json`: the table, and every job of every run."""
    said = as_json(experiment, outcome, server)
    path = folder / RESULTS
    write_atomically(path, (json.dumps(said, indent=1, allow_nan=False) + "\n").encode())
    return path


def as_json(experiment: Experiment, outcome: Outcome, server: str) -> dict[str, Any]:
    """All of it as plain values. Times are seconds as they passed, so `speed` times as many of the file's."""
    return {
        "experiment": experiment.name,
        "server": server,
        "speed": experiment.kubernetes.get("speed", 1.0),
        "rows": outcome.rows,
        "runs": [asdict(result) for result in outcome.results],
    }
