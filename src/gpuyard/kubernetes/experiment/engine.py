"""The runs of an experiment on a cluster: pods as they come, followed to their end, and deleted, whatever happens."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gpuyard.errors import UserError
from gpuyard.experiments.arrivals import Arrival, arrivals
from gpuyard.experiments.measures import MEASURED, measure
from gpuyard.experiments.model import Experiment, JobResult, RunResult
from gpuyard.experiments.reported import reported
from gpuyard.experiments.results import Results, Run
from gpuyard.kubernetes.api import Api
from gpuyard.kubernetes.experiment.clearing import clear, cleared
from gpuyard.kubernetes.experiment.cluster import Machines, look_at, others
from gpuyard.kubernetes.experiment.following import Follower
from gpuyard.kubernetes.experiment.logs import tail
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, Maker
from gpuyard.kubernetes.experiment.metrics import write_metrics
from gpuyard.kubernetes.experiment.recording import Recorder
from gpuyard.kubernetes.experiment.settings import Settings, dns_name
from gpuyard.kubernetes.experiment.story import PodStory, job_result
from gpuyard.kubernetes.experiment.submitting import Patience, submit
from gpuyard.monitor.source import Source
from gpuyard.recordings.series import Mark, Recording, Subject, names_of
from gpuyard.units import format_duration, format_number

_UNDER_WAY = "cluster-run.json"
"""What is made now, for whoever has to delete it after we were killed."""
_LOOK = 1.0


@dataclass(slots=True)
class ClusterEngine:
    """Runs on a cluster."""

    api: Api
    settings: Settings
    source: Source
    warn: Callable[[str], None]
    namespace: str
    machines: Machines = field(default_factory=lambda: Machines((), 0.0))
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
            maker = Maker(self.settings, run.scheduler, run.percent, self.capacity, name)
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
        self, jobs: Sequence[Arrival], maker: Maker, follower: Follower, on_progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        """Submit jobs as they come, and wait until all are over; when each was made."""
        began, arrived, patience = time.monotonic(), dict[str, float](), Patience(self.api, self.namespace, self.warn)
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

    def _said(self, pods: Sequence[PodStory]) -> bytes:
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
