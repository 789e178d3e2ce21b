"""Estimates of memory and run time: updated as runs end, applied to new and waiting jobs, with their evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from gpuyard.core.events import Cancelled, Edited, Event, Exited, Preempted, Requeued, Submitted
from gpuyard.core.model import Phase, Request
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.gpu_shares import fitted_share
from gpuyard.daemon.jobs.profiles import epochs_in, is_trial, unwrapped
from gpuyard.daemon.store.reader import Reader, outcome_of, seconds_taken
from gpuyard.daemon.store.views import JobView
from gpuyard.predict.signatures import shown
from gpuyard.predict.similar_runs import LATEST, Errors, Prediction, Run, errors_of, predict, seconds_of
from gpuyard.spec.work import Work
from gpuyard.units import format_size

_MOST = 20_000  # signatures that are kept in memory
_PARTS = 4  # of a GPU: one of these
_SHRINKS = 0.95  # a share that would become but a little smaller stays: to tell thousands of jobs is dear
_BITE = 250  # jobs that are updated in one turn: thousands may wait, and requests must be answered meanwhile
Key = tuple[str, str]  # `signature` or `likeness`, and which


class Estimates:
    """What is expected of jobs. All of it runs in the loop's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runs: dict[Key, list[Run]] = {}
        self._predictions: dict[tuple[str, str, float], Prediction] = {}
        self._waiting: dict[Key, dict[str, None]] = {}
        """Jobs whose memory is still unknown, by key; some may have begun since."""
        self._profiling: dict[str, str] = {}  # the job that tries a signature out
        self._fresh: dict[Key, None] = {}  # of what there is something new
        self._outdated: dict[str, None] = {}  # jobs that something new may concern
        self.forget()

    def forget(self) -> None:
        self._runs, self._predictions, self._waiting, self._profiling, self._outdated = {}, {}, {}, {}, {}
        for view in self._context.store.open.values():
            self._enlist(view.id, view.work)
        self._fresh = dict.fromkeys(self._waiting)  # an earlier daemon may have ended before it updated all

    # -- telling ----------------------------------------------------------------------------------

    @property
    def part(self) -> float:
        """Bytes of a GPU that a job gets at least if only a short trial is known."""
        cluster = self._context.state.cluster
        return min(cluster.gpu_memory, default=cluster.memory) / _PARTS

    def of(self, work: Work) -> Prediction:
        return self._expected(work.signature, work.likeness, epochs_in(work.command))

    def expected(self, signature: str, likeness: str, command: Sequence[str]) -> Prediction:
        return self._expected(signature, likeness, epochs_in(command))

    def _expected(self, signature: str, likeness: str = "", epochs: float = 0.0) -> Prediction:
        key = signature, likeness, epochs
        if key not in self._predictions:
            runs = self._latest("signature", signature)
            alike = self._latest("likeness", likeness) if likeness else []
            self._predictions[key] = predict(runs, alike, epochs, self._context.settings.memory_margin, self.part)
        return self._predictions[key]

    def fitted(self, work: Work, request: Request) -> tuple[Work, Request]:
        """A job with the expected run time, and with the expected share of a GPU if its memory is `auto`."""
        if not work.signature or work.profiles:
            return work, request
        found = self.of(work)
        if work.auto_memory and not work.ooms:
            memory = min(found.memory, self._context.state.cluster.most_memory)
            request = replace(request, memory=memory, compute=0.0 if memory else 100.0)  # who is unknown is alone
            request = fitted_share(self._context, request)
        if found.seconds and not work.estimated:
            request = replace(request, estimate=min(found.seconds, request.limit))
        predicted = (found.memory, found.seconds, found.evidence) if found.evidence else None
        return (work if work.predicted == predicted else replace(work, predicted=predicted)), request

    def refusal(self, work: Work) -> str | None:
        """Why a job with `auto` memory can never run here; None if it can."""
        if not (work.auto_memory and work.signature):
            return None
        found, most = self.of(work), self._context.state.cluster.most_memory
        if found.peak <= most:
            return None
        return f"needs more than a GPU has, which is {format_size(most)} ({found.evidence}); {_forget(work)}"

    def warning(self, work: Work, request: Request) -> str:
        """A warning if similar jobs used more than a job asks for; empty if not."""
        if not work.signature or work.auto_memory or request.whole or not request.memory:
            return ""
        if work.profile:  # there is nothing that a trial could tell
            left = f"{work.name} is not tried out, since it asks for {format_size(request.memory)}"
            return f"{left}; --gpu-memory auto finds out how much it needs"
        found = self.of(work)
        if found.memory <= 0 or found.peak <= request.memory:
            return ""
        few = f"{format_size(request.memory)} of GPU memory may be too little for {work.name}"
        return f"{few}: {found.evidence}; --gpu-memory auto asks for that"

    def is_known(self, signature: str) -> bool:
        return self._expected(signature).memory > 0

    def profiler(self, signature: str) -> str | None:
        job = self._profiling.get(signature)
        row = self._context.state.row_of.get(job or "")
        return job if row is not None and not self._context.state.phase[row].over else None

    def _latest(self, kind: str, key: str) -> list[Run]:
        if (kind, key) not in self._runs:
            if len(self._runs) >= _MOST:
                self._runs, self._predictions = {}, {}
            rows = self._context.store.latest_runs(kind, key, LATEST)
            self._runs[kind, key] = [run_of(row) for row in reversed(rows)]
        return self._runs[kind, key]

    def drop(self, signature: str) -> int:
        """Forget the runs of a signature; returns their number."""
        self._runs, self._predictions = {}, {}
        return self._context.store.forget_runs(signature)

    # -- learning ---------------------------------------------------------------------------------

    def note(self, event: Event, details: Mapping[str, Any]) -> None:
        """Called just before an event happens: learn what runs took, and who waits."""
        if isinstance(event, Submitted | Edited):
            self._enlist(event.job, details.get("work", {}))
        elif isinstance(event, Exited | Preempted | Requeued):
            view = self._context.store.open.get(event.job)
            if view is not None and view.work.get("signature"):
                self._learn(view, event, details)

    def _enlist(self, job: str, work: Mapping[str, Any]) -> None:
        if work.get("profiles"):
            self._profiling[work["profiles"]] = job
        elif work.get("auto_memory"):
            for kind in ("signature", "likeness"):
                if work.get(kind):
                    self._waiting.setdefault((kind, work[kind]), {})[job] = None

    def _learn(self, view: JobView, event: Exited | Preempted | Requeued, details: Mapping[str, Any]) -> None:
        state, work, measured = self._context.state, view.work, details.get("measured", {})
        row = state.row_of[event.job]
        started = float(state.table.started[row])
        if event.attempt != state.attempt[row] or not math.isfinite(started):
            return
        outcome = outcome_of(event, details)
        predicted = work.get("predicted") or (0.0, 0.0)
        run = Run(
            event.at, seconds_taken(view, started, event), outcome, float(measured.get("peak") or 0.0),
            epochs_in(work.get("command", ())), predicted[0], predicted[1], bool(work.get("profiles")),
            settled=measured.get("settled"),
            hopeless=outcome == "oom" and bool(measured.get("alone")) and self._has_the_largest(row),
        )  # fmt: skip
        for key in (("signature", work["signature"]), ("likeness", work.get("likeness", ""))):
            if key in self._runs or key in self._waiting:  # else it is read on demand
                self._runs[key] = [*self._latest(*key), run][-LATEST:]
                self._fresh[key] = None
                self._predictions = {}

    def _has_the_largest(self, row: int) -> bool:
        cluster, gpus = self._context.state.cluster, self._context.state.spot[row].tolist()
        return all((cluster.gpu_memory[gpu] if cluster.gpu_memory else cluster.memory) >= cluster.most_memory
                   for gpu in gpus)  # fmt: skip

    @property
    def has_more(self) -> bool:
        return bool(self._outdated)

    def update_waiting(self, now: float) -> None:
        """Let waiting jobs ask for what is known by now; a part of them per turn, where there are many."""
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            self._outdated |= {
                job: None for key in fresh for job in self._still_waiting(key) if not self._is_current(job)
            }
        for job in list(islice(self._outdated, _BITE)):
            del self._outdated[job]
            if self._waits(job):
                self._update(job, now)

    def _still_waiting(self, key: Key) -> list[str]:
        state = self._context.state
        listed = self._waiting.pop(key, {})
        found = [job for job in listed if job in state.row_of and not state.phase[state.row_of[job]].over]
        if found:
            self._waiting[key] = dict.fromkeys(found)
        return [job for job in found if self._waits(job)]

    def _waits(self, job: str) -> bool:
        state, row = self._context.state, self._context.state.row_of.get(job)
        return row is not None and state.phase[row] in (Phase.QUEUED, Phase.HELD)

    def _is_current(self, job: str) -> bool:
        view, state = self._context.store.open.get(job), self._context.state
        if view is None or not view.work.get("auto_memory") or view.work.get("ooms"):
            return False
        found = self._expected(view.work.get("signature", ""), view.work.get("likeness", ""))
        row, most = state.row_of[job], state.cluster.most_memory
        asks, alone = float(state.table.memory[row]), bool(state.table.compute[row] >= 100)
        if not found.memory:
            return alone and not asks and not self._is_hopeless(view.work.get("signature", ""))
        return not alone and found.peak <= most and _is_near(asks, min(found.memory, most))

    def _update(self, job: str, now: float) -> None:
        context, known = self._context, self._context.description(job)
        if not known[0].auto_memory or known[0].ooms:
            return  # what ran out of memory itself asks for more already
        work, request = self.fitted(*known)
        request = fitted_share(context, request)
        if (refusal := self._hopeless(work) or self.refusal(work)) is not None:
            context.record(Cancelled(now, job), message=f"it can never run here: it {refusal}")
        elif _differs(known[1], request):
            request = replace(request, begin=float(context.state.table.begin[context.state.row_of[job]]))
            size = "a GPU for itself" if request.whole else f"{format_size(request.memory)} of a GPU"
            because = f" ({work.predicted[2]})" if work.predicted else ""
            context.record(
                Edited(now, job, request), work=work.to_json(), message=f"asks for {size} from now on{because}"
            )

    def _hopeless(self, work: Work) -> str | None:
        """Why a job can never run here: similar jobs ran out of memory on the largest GPU."""
        if not self._is_hopeless(work.signature) or self.of(work).memory > 0:
            return None
        most = format_size(self._context.state.cluster.most_memory)
        return f"needs more than a GPU has: its like ran out of memory alone on one of {most}; {_forget(work)}"

    def _is_hopeless(self, signature: str) -> bool:
        runs = self._latest("signature", signature)
        return bool(runs) and runs[-1].hopeless


def _forget(work: Work) -> str:
    """For a change that a signature does not cover: the environment, or a file that the script reads."""
    return f"if that is so no longer, gpuyard estimates forget {work.signature}"


def _differs(before: Request, after: Request) -> bool:
    if before.whole != after.whole:
        return True
    return not _is_near(before.memory, after.memory)


def _is_near(before: float, after: float) -> bool:
    return _SHRINKS * before <= after <= before


def run_of(row: tuple[Any, ...]) -> Run:
    """A row of the table `runs` with the columns `RUN_EVIDENCE`."""
    at, seconds, outcome, peak, command, predicted_peak, predicted_seconds, settled = row
    epochs, trial = _run_of_row(command)
    return Run(
        at, seconds, outcome, float(peak or 0), epochs, predicted_peak or 0.0, predicted_seconds or 0.0, trial, settled
    )  # fmt: skip


@lru_cache(maxsize=50_000)
def _run_of_row(command: str) -> tuple[float, bool]:
    words = json.loads(command)
    return epochs_in(words), is_trial(words)


class KnownSignature(NamedTuple):
    signature: str
    command: str
    name: str
    user: str
    runs: int
    last: float
    expected: Prediction
    seconds: float
    per_epoch: bool
    memory_error: Errors | None
    time_error: Errors | None


def all_known(reader: Reader, user: str, limit: int, few: float, part: float) -> Iterator[KnownSignature]:
    for signature, whose, name, command, count, last in reader.signatures(user, limit):
        runs = [run_of(row) for row in reversed(reader.latest_runs("signature", signature, LATEST))]
        expected = predict(runs, [], 0.0, few, part)
        per_epoch = seconds_of(runs, 1.0)[0] if any(run.epochs for run in runs) else 0.0
        yield KnownSignature(
            signature, title(json.loads(command)), name, whose, count, last, expected, per_epoch or expected.seconds,
            per_epoch > 0, _memory_errors(runs), _time_errors(runs),
        )  # fmt: skip


def expected_of(
    reader: Reader, signature: str, likeness: str, epochs: float, few: float, part: float
) -> tuple[Prediction, list[dict[str, Any]]]:
    runs, alike = (
        reader.latest_runs(kind, key, LATEST) for kind, key in (("signature", signature), ("likeness", likeness))
    )
    known, similar = ([run_of(row) for row in reversed(rows)] for rows in (runs, alike))
    found = predict(known, similar, epochs, few, part)
    kind, key = ("signature", signature) if runs else ("likeness", likeness)
    return found, reader.past_runs(kind, key, LATEST)


def title(command: Sequence[str]) -> str:
    return " ".join(shown(unwrapped(command)))


def _memory_errors(runs: Sequence[Run]) -> Errors | None:
    return errors_of([(run.predicted_peak, run.peak) for run in runs if run.outcome in ("succeeded", "oom")])


def _time_errors(runs: Sequence[Run]) -> Errors | None:
    return errors_of([(run.predicted_seconds, run.seconds) for run in runs if run.outcome == "succeeded"])
