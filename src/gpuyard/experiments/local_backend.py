"""Back end on this machine: a private daemon for each run, jobs submitted as they arrive, and their results."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuyard.api.types import Job
from gpuyard.client.client import Client
from gpuyard.config import Settings
from gpuyard.errors import UserError, suggest
from gpuyard.experiments.design import Arrival, Experiment, JobResult, RunResult, Scheduler, Workload, arrivals, asked
from gpuyard.experiments.measures import MEASURED
from gpuyard.experiments.private_daemon import clear_remains, private_daemon
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.runner import EndedJob, Progress, measured, run_result, submit_all
from gpuyard.gpus import open_gpus
from gpuyard.gpus.base import GpusUnavailable
from gpuyard.monitor.sources.recorded import Recorded
from gpuyard.monitor.summaries import events_of, seconds
from gpuyard.monitor.tracks import HELD, to_edges
from gpuyard.policies.resolver import check_passed
from gpuyard.recordings.series import Recording, Subject, names_of
from gpuyard.spec.notation import absolute

_RETRIES = 20  # how often a job that runs out of memory is run again: experiments count that, and go on
_TAIL = 2**18  # bytes at the end of a job's output that may have its report
_OURS = (
    "data_dir", "socket", "simulate_gpus", "policy", "admission", "record", "record_period", "port", "bind", "page",
)  # fmt: skip
"""Settings that an experiment sets itself, or may not change."""
_STEPS = 10


class LocalBackend:
    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Refuse what cannot be run for real, before anything is."""
        for run in runs:
            _check(experiment, run.scheduler)

    def clear(self, results: Results) -> None:
        clear_remains(results.yard)

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Progress
    ) -> tuple[RunResult, Recording]:
        """One run; the output of jobs that fail goes to `logs` in the folder of results."""
        settings = daemon_settings(experiment, run.scheduler)
        with private_daemon(results.yard, settings) as client:
            capacity = max(float(gpu["memory_total"] or 0) for gpu in client.gpus()["gpus"])
            simulated = bool(experiment.gpus)
            options = {
                one.name: job_options_of(one, run.scheduler, run.percent, capacity, simulated)
                for one in experiment.workloads
            }
            submissions = _Submissions(client, options)
            submit_all(arrivals(experiment, run.turn), submissions, on_progress)
            return _collected(client, experiment, run, submissions.ids, results.folder / "logs" / run.name)


class _Submissions:
    def __init__(self, client: Client, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._client, self._options = client, options
        self._open: Sequence[Job] = ()
        self.ids: list[tuple[Arrival, str]] = []

    def submit(self, arrival: Arrival) -> None:
        workload = arrival.workload
        try:
            id = self._client.submit(
                workload.command, variables=workload.environment, name=arrival.name, **self._options[workload.name]
            )
        except UserError as error:
            raise UserError(f"job {arrival.name} was refused: {error}") from error
        self.ids.append((arrival, id))

    def ended(self) -> int:
        self._open = self._client.jobs()
        return len(self.ids) - len(self._open)

    def wait(self, timeout: float) -> None:
        if timeout > 0 and self._open:
            self._client.job(self._open[0]["id"], wait=timeout)
        elif timeout > 0:
            time.sleep(timeout)


def _check(experiment: Experiment, scheduler: Scheduler) -> None:
    if scheduler.engine != "local":
        raise UserError(
            f"scheduler '{scheduler.name}' is one of {scheduler.engine}: gpuyard {scheduler.engine} experiment FILE "
            "runs it, or add --simulate"
        )
    for one in experiment.workloads:
        if not one.command:
            raise UserError(f"workload '{one.name}' has no command, so it can only be simulated: add --simulate")
    daemon_settings(experiment, scheduler)
    if not scheduler.options.get("force_policy"):
        check_passed(scheduler.policy)
    if not experiment.gpus:
        try:
            open_gpus().close()
        except GpusUnavailable as error:
            reason = str(error).partition(";")[0]
            raise UserError(
                f"{reason}; write gpus: 4x16G in the file to have simulated ones, or add --simulate"
            ) from None


def daemon_settings(experiment: Experiment, scheduler: Scheduler) -> dict[str, str]:
    """The settings of a scheduler's daemon; its `options` are settings as in config.toml."""
    known = [name for name in Settings._fields if name not in _OURS]
    for name in scheduler.options:
        if name not in known:
            near = suggest(name, known)
            raise UserError(f"scheduler '{scheduler.name}': its options are settings, and there is no '{name}'{near}")
    return {
        **{name: _setting(value) for name, value in scheduler.options.items()},
        "simulate_gpus": experiment.gpus,
        "policy": absolute(scheduler.policy),
        "admission": "usage" if scheduler.sharing == "usage" else "requests",
        "record_period": str(experiment.period),
    }


def job_options_of(
    workload: Workload, scheduler: Scheduler, percent: float, capacity: float, simulated: bool
) -> dict[str, Any]:
    """What a job of a workload asks for, as options of `submit`."""
    found: dict[str, Any] = {"gpus": workload.gpus, "priority": workload.priority, "oom_retries": _RETRIES}
    memory = asked(workload, percent, capacity)
    if memory and scheduler.sharing != "exclusive":
        found["gpu_memory"] = int(memory)
    if workload.estimate is not None:
        found["estimate"] = workload.estimate
    if simulated and workload.behaviour is not None:
        found["simulate_use"] = use_of(workload)
    return found


def use_of(workload: Workload) -> str:
    """`simulate_use` of a job: its memory rises in ten steps."""
    assert workload.behaviour is not None
    behaviour = workload.behaviour
    memory, busy = behaviour.memory or workload.gpu_memory, f";util={behaviour.utilization:g}"
    step = behaviour.ramp / _STEPS
    if step < 0.01:
        return f"{int(memory)}{busy}"
    values = ",".join(str(int(memory * number / _STEPS)) for number in range(1, _STEPS + 1))
    return f"ramp/{step:g}:{values}{busy}"


def _collected(
    client: Client, experiment: Experiment, run: Run, ids: Sequence[tuple[Arrival, str]], logs: Path
) -> tuple[RunResult, Recording]:
    events = defaultdict[str, list[dict[str, Any]]](list)
    for event in events_of(client):
        if event["job"]:
            events[event["job"]].append(event)
    jobs = {job["id"]: job for job in client.jobs(all=True)}
    begin = seconds(jobs[ids[0][1]]["submitted_at"])

    def ended() -> Iterator[EndedJob]:
        for arrival, id in ids:
            output, gpus = client.log(id, -_TAIL, size=_TAIL).data, jobs[id]["gpus"]
            found = job_result(arrival, jobs[id], events[id], begin, by_usage=run.scheduler.sharing == "usage")
            details = f"; its output is in {_keep(logs, found, output)}" if found.state != "succeeded" else ""
            yield EndedJob(found, output, details, Subject(gpus[0], job=found.name) if gpus else None)

    result, marks, warnings = run_result(run, ended(), begin)
    end, metrics = begin + result.duration, names_of([*experiment.metrics, *MEASURED])
    seen = Recorded(client.recording).read(metrics, begin - HELD, end, step=experiment.period)
    return measured(result, to_edges(seen, begin, end), marks, warnings)


def _keep(logs: Path, job: JobResult, output: bytes) -> Path:
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{job.name}.log"
    path.write_bytes(output)
    return path


def job_result(
    arrival: Arrival, job: Job, events: Sequence[Mapping[str, Any]], begin: float, *, by_usage: bool
) -> JobResult:
    """The course of a job; `by_usage`: jobs are admitted by usage, so it is known by which rule."""
    starts = [seconds(event["at"]) for event in events if event["kind"] == "Started"]
    ended = seconds(job["ended_at"]) if job["ended_at"] else None
    admission = job["admission"]["by"] if job["admission"] else "fit"
    return JobResult.since(
        begin,
        arrival,
        arrived=seconds(job["submitted_at"]),
        started=starts[0] if starts else None,
        ended=ended,
        ran=round(max(0.0, ended - starts[-1]), 3) if starts and ended is not None else 0.0,
        restarts=max(0, len(starts) - 1),
        ooms=job["ooms"],
        state=job["state"],
        admitted_by=admission if starts and by_usage else "",
    )


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
