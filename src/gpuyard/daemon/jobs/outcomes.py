"""What becomes of jobs: reports of the engine become events, retries, and the end of jobs that can never start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.core.events import Cancelled, Edited, Exited, JobEvent, Placed, Released, Requeued, Started, Submitted
from gpuyard.core.model import Phase, Request
from gpuyard.core.state import State
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.measurements import Seen
from gpuyard.daemon.devices.simulation import Declared
from gpuyard.daemon.jobs.oom import KernelKills, Ooms
from gpuyard.daemon.jobs.stops import CROWDED, OOM, PREEMPTED, REQUEUED, Stops
from gpuyard.engines.base import Abandoned, Ended, NeverBegan, Report, Running
from gpuyard.engines.local import processes, stored_attempts, wrapper
from gpuyard.engines.local.accounts import name_of
from gpuyard.spec.notation import AFTER
from gpuyard.spec.times import format_when
from gpuyard.spec.work import Work

log = logging.getLogger("gpuyard")

ENDED = {
    Phase.SUCCEEDED: "succeeded",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "was cancelled",
    Phase.TIMEOUT: "ran out of time",
    Phase.OOM: "ran out of GPU memory",
    Phase.INTERRUPTED: "was interrupted",
}


_LONGEST_DELAY = 3600.0  # seconds between two attempts, at most


def doom_of(state: State, row: int) -> str:
    """Why a job can never start: which job it follows, and how that one ended."""
    how, _, job = state.doomed[row].partition(":")
    phase = state.phase[state.row_of[job]]
    return f"job {job}, which it was to follow ({AFTER[how]}), {ENDED.get(phase, str(phase))}"


def dated(reports: list[Report], now: float) -> list[tuple[float, Report]]:
    """Reports with their times; one on an attempt whose beginning was not reported says first that it began."""
    found: list[tuple[float, Report]] = []
    for report in reports:
        if isinstance(report, Ended) and report.began is not None:
            found.append((report.began, Running(report.job, report.attempt, report.began, "")))
        found.append((now if isinstance(report, NeverBegan) else report.at, report))
    return found


class Outcomes:
    def __init__(self, context: Context, stops: Stops, ooms: Ooms, declared: Declared) -> None:
        self._context, self._stops, self._ooms, self._declared = context, stops, ooms, declared
        self._times, self._kills = context.times, KernelKills()

    def note(self, report: Report, now: float) -> None:
        state = self._context.state
        row = state.row_of.get(report.job, -1)
        if isinstance(report, Abandoned):
            if row >= 0 and state.phase[row] in (Phase.QUEUED, Phase.HELD):
                self._context.record(Cancelled(now, report.job), message=report.message)
            return
        if row < 0 or state.attempt[row] != report.attempt:
            return  # an attempt that is over
        phase = state.phase[row]
        if phase not in (Phase.PLACED, Phase.RUNNING):
            return
        if isinstance(report, NeverBegan):
            self._never_began(row, report, now)
            return
        if phase is Phase.PLACED:
            seen = report.at if isinstance(report, Running) else report.began or report.at
            handle = {"handle": report.handle} if isinstance(report, Running) and report.handle else {}
            began = self._times.began(report.job, seen, now)
            self._context.record(Started(began, report.job, report.attempt), **handle)
            self._stops.watch_limit(row)
            self._kills.began(report.job, report.attempt)
        if isinstance(report, Ended):
            self._ended(row, report, now)

    def _never_began(self, row: int, report: NeverBegan, now: float) -> None:
        """The job waits again; unless it was told to end before it began."""
        cause = self._context.state.recalled.get(row)
        if cause in (None, PREEMPTED, CROWDED, REQUEUED):
            self._context.record(Requeued(now, report.job, report.attempt), message=report.message)
        else:
            self._context.record(Exited(now, report.job, report.attempt, None, cause), message="ended before it began")

    def _ended(self, row: int, report: Ended, now: float) -> None:
        state = self._context.state
        at = self._times.ended(report.job, report.at, now)
        self._context.machine.left(state.spot[row].tolist())
        killed = self._kills.ended(report.job, report.attempt, report.code)
        cause = state.recalled.get(row, "interrupted" if report.interrupted else "")
        if cause == PREEMPTED:
            if report.asked or report.interrupted:
                self._stops.preempted(row, report, at, self._measured(row, report, at))
                return
            cause = ""  # it had ended before it was asked to
        measured = self._measured(row, report, at)
        if cause == REQUEUED:  # however it ended: a script may ask for it, and end by itself
            message = "requeued, and waits again"
            self._context.record(Requeued(at, report.job, report.attempt), message=message, measured=measured)
            return
        if cause == CROWDED:
            if report.asked or report.interrupted:
                self._crowded_out(report, at, measured)
                return
            cause = ""
        shortage = self._ooms.of(row, report, cause, measured)
        if shortage is not None:
            what = self._ooms.requeue(report, shortage, at, measured=measured)
            if what and not self._retry(report, at, what, measured):
                exited = Exited(at, report.job, report.attempt, report.code, OOM)
                self._context.record(exited, message=what, measured=measured)
            return
        cause = "" if cause == OOM else cause  # it had done its work before it was asked to end
        if cause == "interrupted" and self._context.work_of(report.job).requeue:
            message = "interrupted, and waits again"
            self._context.record(Requeued(at, report.job, report.attempt), message=message, measured=measured)
            return
        if not cause and self._retry(report, at, killed, measured):
            return
        message = report.message or ("" if cause else killed)
        details = {"message": message} if message else {}
        self._context.record(Exited(at, report.job, report.attempt, report.code, cause), **details, measured=measured)

    def _crowded_out(self, report: Ended, at: float, measured: dict[str, Any]) -> None:
        """It had memory that others asked for: it waits again, and is charged with all that it asked for."""
        context, attempt = self._context, report.attempt
        why = context.store.recalled(report.job, attempt).get("message", "others want the memory that it was given")
        message = f"stopped, since {why}; waits again"
        context.record(Requeued(at, report.job, attempt), message=message, measured=measured)
        work, request = context.description(report.job)
        request = replace(request, begin=float(context.state.table.begin[context.state.row_of[report.job]]))
        context.record(Edited(at, report.job, request), work=replace(work, crowded=work.crowded + 1).to_json())

    def _measured(self, row: int, report: Ended, at: float) -> dict[str, Any]:
        """What an attempt used; of simulated GPUs that is known up to its last instant."""
        context, state = self._context, self._context.state
        began, gpus = float(state.table.started[row]), state.spot[row].tolist()
        others = {gpu for other in state.running.array.tolist() if other != row for gpu in state.spot[other].tolist()}
        use = None
        if context.machine.gpus.simulated and state.recalled.get(row) != "oom" and not report.interrupted:
            use = self._declared.of(context.store.open[report.job], report.attempt)
        uses = dict.fromkeys(gpus, use.at(at - began)) if use else None
        last = Seen(report.job, report.attempt, began, uses, None, others.isdisjoint(gpus))
        measured = context.measures.take(report.job, report.attempt, began, at, last)
        work = context.store.open[report.job].work
        return {**measured, "gpu_seconds": context.measures.gpu_seconds(work, len(gpus), measured["seconds"])}

    def _retry(self, report: Ended, at: float, why: str, measured: dict[str, Any]) -> bool:
        """Requeue a job that failed by itself, if it has retries left; `why` says more than its exit code."""
        failures, work = self._context.store.open[report.job].failures, self._context.work_of(report.job)
        if (report.code == 0 and not why) or failures >= work.retries:
            return False
        begin = at + min(work.retry_delay * 2**failures, _LONGEST_DELAY)
        unknown = "failed, and its exit code is not known"
        how = why or (unknown if report.code is None else f"failed with exit code {report.code}")
        message = f"{how}; retry {failures + 1} of {work.retries} at {format_when(begin, at)}"
        requeued = Requeued(at, report.job, report.attempt, begin)
        self._context.record(requeued, failed=True, message=message, measured=measured)
        return True

    def refused(self, placed: Placed, message: str, now: float) -> None:
        self._context.record(Exited(now, placed.job, placed.attempt, None), message=message)

    def postponed(self, placed: Placed, message: str, now: float) -> None:
        self._context.record(Requeued(now, placed.job, placed.attempt), message=message)

    def end_lease(self, job: str, now: float, message: str, **details: Any) -> None:
        state = self._context.state
        row = state.row_of[job]
        attempt = state.attempt[row]
        if state.phase[row] in (Phase.PLACED, Phase.RUNNING):
            self.note(Ended(job, attempt, now, 0, message=message), now)
        else:
            self._context.record(Cancelled(now, job), message=message, **details)
        self._stops.ask(job, attempt, 0.0)  # so that its process is not watched any more

    def give_up_doomed(self, now: float) -> None:
        """Cancel jobs whose dependency can never be met, and those that follow them, and so on."""
        state = self._context.state
        while state.doomed:
            for row in list(state.doomed):
                self._context.record(Cancelled(now, state.ids[row]), message=doom_of(state, row))


# Jobs that the store has lost, rebuilt from what their folders and their processes tell: a folder has the claim and the
# exit code of each attempt; the processes of a job that runs tell its command, directory and GPUs. What only the store
# knew is gone: jobs that waited, and of the others their limits and options.

REBUILT = "rebuilt from its folder, since the store had lost it"
UNKNOWN = "(unknown)"


class LostJob(NamedTuple):
    job: str
    attempt: int
    began: float
    user: str
    command: tuple[str, ...] = (UNKNOWN,)
    directory: str = "/"
    gpus: tuple[int, ...] = ()  # empty: not known, or it does not run


def lost_jobs(context: Context) -> Iterator[LostJob]:
    """Jobs that have begun, and that the store does not know."""
    directory = context.settings.jobs_dir
    for job in stored_attempts.begun_after(directory, 0):
        if context.store.standing(1, id=job):
            continue
        attempts = [int(name) for name in os.listdir(directory / job) if name.isdecimal()]
        for attempt in sorted(attempts, reverse=True):
            claim = wrapper.read_claim(directory / job / str(attempt))
            if isinstance(claim, wrapper.Claim):
                yield _described(directory, job, attempt, claim)
                break


def _described(directory: Path, job: str, attempt: int, claim: wrapper.Claim) -> LostJob:
    user = name_of(os.geteuid() if claim.uid is None else claim.uid)
    lost = LostJob(job, attempt, claim.at, user)
    for pid in stored_attempts.processes_below(directory, job, attempt):
        command = (processes.read_proc(pid, "cmdline") or b"").split(b"\0")[:-1]
        gpus = processes.variable_of(pid, "GPUYARD_GPUS") or ""
        with suppress(OSError, ValueError):  # it ended just now, or hides its environment
            found = tuple(int(gpu) for gpu in gpus.split(",") if gpu)
            words = tuple(os.fsdecode(word) for word in command)
            return lost._replace(command=words, directory=os.readlink(f"/proc/{pid}/cwd"), gpus=found)
    return lost


def salvaged(context: Context, *, over: bool) -> list[tuple[float, Callable[[], None]]]:
    """What makes lost jobs the queue's again, with the time at which each step of that happened.

    Those that run, as after `restore --force`: their GPUs are not to be given twice. And those that are `over`.
    """
    state, directory = context.state, context.settings.jobs_dir

    def is_known(job: str, attempt: int) -> bool:
        if (row := state.row_of.get(job, -1)) >= 0:
            return state.phase[row] not in (Phase.QUEUED, Phase.HELD) or state.attempt[row] >= attempt
        return bool(context.store.standing(1, id=job))

    steps: list[tuple[float, Callable[[], None]]] = []
    found = lost_jobs(context) if over else running_jobs(directory, is_known)
    jobs = [(lost, context.engine.adopt(lost.job, lost.attempt)) for lost in found]
    begun = {lost.job: lost for lost, report in jobs if not isinstance(report, NeverBegan)}
    steps += [(lost.began, partial(_begin, context, lost)) for lost in begun.values()]
    reports = [*(report for _, report in jobs), *context.engine.observe()]
    ends = {report.job: report for report in reports if isinstance(report, Ended) and report.job in begun}
    for job, report in ends.items():  # where files were copied, their times tell nothing
        steps.append((max(report.at, begun[job].began), partial(_end, context, report)))
    if jobs or over:
        log.warning("the folders tell of %d jobs that the store has lost, %d of them over", len(jobs), len(ends))
    return steps


def running_jobs(
    directory: Path, is_known: Callable[[str, int], bool] = lambda job, attempt: False
) -> Iterator[LostJob]:
    """Jobs whose processes live, without the attempts that are known."""
    for job, attempt in sorted(stored_attempts.living(directory)):  # users can forge marks, not claims
        if is_known(job, attempt):
            continue
        claim = wrapper.read_claim(directory / job / str(attempt))
        if isinstance(claim, wrapper.Claim) and stored_attempts.processes_below(directory, job, attempt):
            yield _described(directory, job, attempt, claim)


def beginning(state: State, lost: LostJob, at: float) -> Iterator[tuple[JobEvent, dict[str, Any]]]:
    """What must have happened to a job that runs: each event is to be applied before the next is asked for."""
    row = state.row_of.get(lost.job, -1)
    phase = state.phase[row] if row >= 0 else None
    if phase is None:
        array = lost.job.partition("_")[0] if "_" in lost.job else ""
        request = Request(gpus=max(1, len(lost.gpus)), user=lost.user, array=array, preemptible=False)
        name = os.path.basename(lost.command[0])
        work = Work(lost.command, lost.directory, name=name, comment=REBUILT, estimated=False)
        yield Submitted(at, lost.job, request), {"work": work.to_json()}
    elif phase.over or state.attempt[row] >= lost.attempt:
        return
    elif phase is Phase.HELD:
        yield Released(at, lost.job), {}
    elif phase is not Phase.QUEUED:
        yield Requeued(at, lost.job, state.attempt[row]), {}
    free = all(gpu < state.cluster.gpus and not state.pool.tenants[gpu] for gpu in lost.gpus)
    yield Placed(at, lost.job, lost.attempt, lost.gpus if free else ()), {}
    yield Started(at, lost.job, lost.attempt), {}


def _begin(context: Context, lost: LostJob) -> None:
    for event, details in beginning(context.state, lost, lost.began):
        context.record(event, **details)


def _end(context: Context, ended: Ended) -> None:
    cause = "interrupted" if ended.interrupted else ""
    context.record(Exited(ended.at, ended.job, ended.attempt, ended.code, cause), message=ended.message or REBUILT)
