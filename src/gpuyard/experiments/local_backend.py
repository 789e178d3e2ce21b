"""Back end on this machine: a private daemon, jobs submitted as they arrive, and their results."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.api.types import Job
from gpuyard.client.client import Client
from gpuyard.config import Settings
from gpuyard.errors import UserError, suggest
from gpuyard.experiments.design import Arrival, Experiment, JobResult, RunResult, Scheduler, Workload, arrivals, asked
from gpuyard.experiments.measures import MEASURED, measure, reported
from gpuyard.experiments.private_daemon import private_daemon
from gpuyard.gpus.base import GpusUnavailable
from gpuyard.gpus.find import open_gpus
from gpuyard.monitor.sources.recorded import Recorded
from gpuyard.monitor.tracks import HELD, to_edges
from gpuyard.policies.resolver import check_passed
from gpuyard.recordings.series import Mark, Recording, Subject, names_of
from gpuyard.spec.notation import absolute

Progress = Callable[[int, int], None]
"""Is told how many jobs of how many are over."""
_RETRIES = 20
"""How often a job that runs out of memory is run again: experiments are to show that, not to end by it."""
_TAIL = 2**18
"""Bytes at the end of a job's output in which its report is looked for."""
_OURS = (
    "data_dir", "socket", "simulate_gpus", "policy", "admission", "record", "record_period", "port", "bind", "page",
)  # fmt: skip
"""Settings that an experiment says in its own words, or that are no business of it."""
_STEPS = 10
_PAGE = 10_000
_LOOK = 1.0
"""Seconds after which it is looked again how many jobs are over."""


class _Fed(NamedTuple):
    """A job that was submitted."""

    arrival: Arrival
    id: str


def run(
    experiment: Experiment,
    scheduler: Scheduler,
    percent: float,
    turn: int,
    *,
    on_progress: Progress | None = None,
    folder: Path | None = None,
    logs: Path | None = None,
) -> tuple[RunResult, Recording]:
    """Run all jobs once under a scheduler; the yard lives in `folder`; `logs` gets the output of those that fail."""
    check(experiment, scheduler)
    settings = daemon_settings(experiment, scheduler)
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-run-") as other,
        private_daemon(folder or Path(other, "yard"), settings) as client,
    ):
        capacity = max(float(gpu["memory_total"] or 0) for gpu in client.gpus()["gpus"])
        simulated = bool(experiment.gpus)
        wishes = {
            one.name: job_options_of(one, scheduler, percent, capacity, simulated) for one in experiment.workloads
        }
        fed = _feed(client, arrivals(experiment, turn), wishes, on_progress or _nobody)
        return _collect(client, experiment, scheduler, RunResult(scheduler.name, percent, turn, 0.0, []), fed, logs)


def check(experiment: Experiment, scheduler: Scheduler) -> None:
    """Refuse what cannot be run for real, before anything is."""
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
    """What the daemon of a scheduler is told; its `options` are settings as in config.toml."""
    known = [field.name for field in fields(Settings) if field.name not in _OURS]
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
    """What a job of a workload asks for."""
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
    """What a job is said to use of simulated GPUs: its memory rises in ten steps."""
    assert workload.behaviour is not None
    behaviour = workload.behaviour
    memory, busy = behaviour.memory or workload.gpu_memory, f";util={behaviour.utilization:g}"
    step = behaviour.ramp / _STEPS
    if step < 0.01:
        return f"{int(memory)}{busy}"
    values = ",".join(str(int(memory * number / _STEPS)) for number in range(1, _STEPS + 1))
    return f"ramp/{step:g}:{values}{busy}"


def _feed(
    client: Client, jobs: Sequence[Arrival], wishes: Mapping[str, Mapping[str, Any]], on_progress: Progress
) -> list[_Fed]:
    """Submit jobs as they come, and wait until all are over."""
    began, fed, left = time.monotonic(), list[_Fed](), len(jobs)
    while left:
        while len(fed) < len(jobs) and jobs[len(fed)].at <= time.monotonic() - began:
            arrival = jobs[len(fed)]
            fed.append(_Fed(arrival, _submit(client, arrival, wishes[arrival.workload.name])))
        still = client.jobs()
        on_progress(len(fed) - len(still), len(jobs))
        left = len(jobs) - len(fed) + len(still)
        if left:
            due = jobs[len(fed)].at - (time.monotonic() - began) if len(fed) < len(jobs) else _LOOK
            _rest(client, still, min(_LOOK, due))
    return fed


def _rest(client: Client, still: Sequence[Job], seconds: float) -> None:
    """Wait so long, or until the first of the open jobs is over."""
    if seconds > 0 and still:
        client.job(still[0]["id"], wait=seconds)
    elif seconds > 0:
        time.sleep(seconds)


def _submit(client: Client, arrival: Arrival, wishes: Mapping[str, Any]) -> str:
    workload = arrival.workload
    try:
        return client.submit(workload.command, variables=workload.environment, name=arrival.name, **wishes)
    except UserError as error:
        raise UserError(f"job {arrival.name} was refused: {error}") from error


def _collect(
    client: Client,
    experiment: Experiment,
    scheduler: Scheduler,
    result: RunResult,
    fed: Sequence[_Fed],
    logs: Path | None,
) -> tuple[RunResult, Recording]:
    """What became of the jobs, and what the GPUs did meanwhile."""
    events = defaultdict[str, list[dict[str, Any]]](list)
    for event in _events(client):
        if event["job"]:
            events[event["job"]].append(event)
    jobs = {job["id"]: job for job in client.jobs(all=True)}
    by_usage = scheduler.sharing == "usage"
    begin, warnings = _seconds(jobs[fed[0].id]["submitted_at"]), list[str]()
    for one in fed:
        output = client.log(one.id, -_TAIL, size=_TAIL).data
        numbers, complaints = reported(output, f"job {one.arrival.name}")
        warnings += complaints
        found = job_result(one.arrival, jobs[one.id], events[one.id], begin, by_usage=by_usage)
        result.jobs.append(replace(found, reported=numbers))
        if found.state != "succeeded" and logs is not None:
            warnings.append(f"job {found.name} ended as {found.state}; its output is in {_keep(logs, found, output)}")
    result.duration = max(job.ended or 0.0 for job in result.jobs)
    metrics = names_of([*experiment.metrics, *MEASURED])
    end = begin + result.duration
    seen = Recorded(client.recording).read(metrics, begin - HELD, end, step=experiment.period)
    recording = to_edges(seen, begin, end)
    recording.marks, recording.warnings = _marks(result, jobs, fed, begin), [*recording.warnings, *warnings]
    result.simulated = recording.simulated
    return measure(result, recording), recording


def _keep(logs: Path, job: JobResult, output: bytes) -> Path:
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{job.name}.log"
    path.write_bytes(output)
    return path


def job_result(
    arrival: Arrival, job: Job, events: Sequence[Mapping[str, Any]], begin: float, *, by_usage: bool
) -> JobResult:
    """What became of a job, in seconds since the run began; `by_usage`: whether it was told who is let in by what."""
    starts = [_seconds(event["at"]) for event in events if event["kind"] == "Started"]
    ended = _seconds(job["ended_at"]) if job["ended_at"] else None
    admission = job["admission"]["by"] if job["admission"] else "fit"
    return JobResult(
        arrival.name,
        arrival.workload.name,
        arrived=round(_seconds(job["submitted_at"]) - begin, 3),
        started=round(starts[0] - begin, 3) if starts else None,
        ended=None if ended is None else round(ended - begin, 3),
        ran=round(max(0.0, ended - starts[-1]), 3) if starts and ended is not None else 0.0,
        restarts=max(0, len(starts) - 1),
        ooms=job["ooms"],
        state=job["state"],
        admitted_by=admission if starts and by_usage else "",
    )


def _marks(result: RunResult, jobs: Mapping[str, Job], fed: Sequence[_Fed], begin: float) -> list[Mark]:
    """When jobs ran, for plots."""
    found = []
    for one, job in zip(fed, result.jobs, strict=True):
        if job.started is not None and job.ended is not None:
            gpus = jobs[one.id]["gpus"]
            subject = Subject(gpus[0], job=job.name) if gpus else None
            found.append(Mark(begin + job.started, job.name, begin + job.ended, subject))
    return found


def _events(client: Client) -> Iterator[dict[str, Any]]:
    after = 0
    while page := client.events(after, limit=_PAGE)["events"]:
        yield from page
        after = page[-1]["seq"]


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nobody(done: int, total: int) -> None:
    """Is told of progress, and does not care."""
