"""Many simulations of one trace in several processes.

Workers get the trace once, when they start, and give back what `keep` makes of a schedule: a summary of some kilobytes,
never the schedule itself. Where processes can be forked they inherit all that is loaded, and start in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from gpuyard.core.columns import ALWAYS
from gpuyard.core.model import Cluster
from gpuyard.errors import GpuyardError, UserError
from gpuyard.policies.resolver import resolve
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

T = TypeVar("T")

Watch = Callable[[float, int], None]
"""Called several times a second with how many simulations are done (parts of one count), and of how many."""
_LOOK = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    policy: str
    cluster: Cluster
    options: Options
    since: float = -np.inf
    until: float = np.inf  # only jobs submitted from `since` on and before `until`
    load: float = 1.0  # how many times faster jobs arrive than in the trace

    def trace(self, whole: Trace) -> Trace:
        part = whole
        if self.since > -np.inf or self.until < np.inf:
            part = whole.take(np.flatnonzero((whole.submit >= self.since) & (whole.submit < self.until)))
        return part if self.load == 1.0 else part.at_load(self.load)


@dataclass(frozen=True, slots=True)
class Failure:
    message: str


Keep = Callable[[Task, Result, dict[str, Any]], T]
"""What to keep of a schedule and its metrics; a function of a module, so that another process can find it."""


class _Worker(Generic[T]):
    def __init__(self, trace: Trace, tasks: Sequence[Task], keep: Keep[T], done: Any) -> None:
        self.trace, self.tasks, self.keep, self.done = trace, tasks, keep, done

    def run(self, number: int) -> T | Failure:
        """Run one task; an error is an answer like any other, so that the others go on."""
        task = self.tasks[number]
        try:
            trace = task.trace(self.trace)
            return self.keep(task, *simulate(trace, task.cluster, task.policy, task.options, progress=self._at(number)))
        except GpuyardError as error:
            return Failure(str(error))
        except Exception as error:  # a bug, or a policy of a user's own; the other policies are none the worse for it
            return Failure(f"{type(error).__name__}: {error}")

    def _at(self, number: int) -> Callable[[int, int], None]:
        def update(done: int, total: int) -> None:
            self.done[number] = done / max(total, 1)

        return update


_worker: _Worker[Any] | None = None


def _begin(trace: Trace, tasks: Sequence[Task], keep: Keep[Any], done: Any) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; the parent has one
    _worker = _Worker(trace, tasks, keep, done)


def _run(number: int) -> Any:
    assert _worker is not None
    return _worker.run(number)


def run_all(
    trace: Trace, tasks: Sequence[Task], keep: Keep[T], *, jobs: int | None = None, progress: Watch | None = None
) -> list[T | Failure]:
    """Run every task, at most `jobs` (all CPUs) at a time; the answers are in the order of the tasks."""
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {jobs}")
    processes = min(jobs or available_cpus(), len(tasks))
    if processes <= 1:
        return _run_here(trace, tasks, keep, progress)
    method = start_method()
    context = multiprocessing.get_context(method)
    if method == "fork" and len(trace):
        _warm(trace, tasks[0])
    done = context.RawArray("d", len(tasks))
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, _begin, (trace, tasks, keep, done))
    try:
        futures = _submit(pool, tasks)
        _watch(futures, done, progress)
        return [futures[number].result() for number in range(len(tasks))]
    except BrokenProcessPool:
        raise UserError("a simulating process was killed, perhaps for want of memory; try --jobs 1") from None
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:  # their answers are not needed any more
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, tasks: Sequence[Task]) -> dict[int, Future[Any]]:
    # All processes are forked here, at the first submit, before the pool or a progress bar have any thread. Python 3.12
    # still warns of threads, if numpy's linear algebra has some; those are made to be forked.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
        return {number: pool.submit(_run, number) for number in _longest_first(tasks)}


def start_method() -> str:
    """Fork on Linux; elsewhere that is not safe, and processes start from nothing."""
    return "fork" if sys.platform == "linux" else "spawn"


def available_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_here(trace: Trace, tasks: Sequence[Task], keep: Keep[T], progress: Watch | None) -> list[T | Failure]:
    answers: list[T | Failure] = []
    for number in range(len(tasks)):
        shown = _Shown(number, len(tasks), progress)
        answers.append(_Worker(trace, tasks, keep, shown).run(number))
        shown[number] = 1.0
    return answers


class _Shown:
    def __init__(self, before: int, count: int, progress: Watch | None) -> None:
        self.before, self.count, self.progress = before, count, progress

    def __setitem__(self, number: int, part: float) -> None:
        if self.progress is not None:
            self.progress(self.before + part, self.count)


def _watch(futures: dict[int, Future[Any]], done: Any, progress: Watch | None) -> None:
    pending = set(futures.values())
    while pending:
        over, pending = wait(pending, timeout=_LOOK if progress else None, return_when=FIRST_COMPLETED)
        for future in over:
            future.result()  # a broken pool fails at once
        if progress is not None:
            parts = (1.0 if future.done() else done[number] for number, future in futures.items())
            progress(sum(parts), len(futures))


def _warm(trace: Trace, task: Task) -> None:
    """Load what simulations load, so that forked processes find it in place."""
    _Worker(trace.take(slice(0, 1)), [Task(task.policy, task.cluster, task.options)], lambda *_: None, [0.0]).run(0)


def _longest_first(tasks: Sequence[Task]) -> list[int]:
    """Tasks that are likely to take long come first, so that no process is left with one at the end."""

    def effort(number: int) -> int:
        policy, _ = resolve(tasks[number].policy)
        return 3 if policy.sliced else 2 if policy.preemptive else 1 if policy.changes == ALWAYS else 0

    return sorted(range(len(tasks)), key=effort, reverse=True)
