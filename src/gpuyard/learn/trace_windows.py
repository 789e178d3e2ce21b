"""Training problems: a trace split in time for training, validation and test, and windows of jobs drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.simulate import default_estimate, estimates
from gpuyard.sim.trace import Floats, Ints, Trace

REMEMBERED = 2  # latest jobs of a user whose mean is the prediction


def predicted_run_times(trace: Trace) -> Floats:
    """Expected run times, knowing only jobs that were submitted before; jobs are in the order of arrival.

    A job is known from its submission and its run time on: as if it had not waited; when it ran is not known here.
    A new user gets the median of all ended runs, and the very first job an hour.
    """
    known: dict[tuple[str, int], list[float]] = {}
    all_runs: list[float] = []
    ends = trace.submit + trace.run
    by_end = np.argsort(ends, kind="stable")
    guesses = np.empty(len(trace))
    ended, usual = 0, 3600.0
    for row in range(len(trace)):
        while ended < len(trace) and ends[by_end[ended]] <= trace.submit[row]:
            other = int(by_end[ended])
            known.setdefault((trace.users[other], int(trace.gpus[other])), []).append(float(trace.run[other]))
            all_runs.append(float(trace.run[other]))
            ended += 1
            if ended & (ended - 1) == 0:  # at powers of two: a median need not be of this very minute
                usual = float(np.median(all_runs))
        past = known.get((trace.users[row], int(trace.gpus[row])), [])
        guesses[row] = float(np.mean(past[-REMEMBERED:])) if past else usual
    asked = np.where(np.isnan(trace.requested), np.inf, trace.requested)
    return np.maximum(np.minimum(guesses, asked), 1.0)


TRAINED, VALIDATED = 0.5, 0.6  # ends of the training and validation parts, by arrival; the rest is held out
LEAST = 50  # jobs without which nothing can be learned, nor judged
BUSY = 1.0  # the load that a cluster is made for, where its size is unknown


@dataclass(frozen=True, slots=True)
class Span:
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Problem:
    trace: Trace
    cluster: Cluster
    estimates: Floats
    estimate: str  # what that is: actual, requested, noisy:S, or predicted
    discipline: str
    placement: str
    sized: bool  # whether the cluster was made to fit the jobs, since its size is unknown

    @property
    def name(self) -> str:
        """The trace's file name, without folders, which differ between machines."""
        return self.trace.source.rpartition("/")[2]

    @property
    def training(self) -> Span:
        return Span(0, int(len(self.trace) * TRAINED))

    @property
    def validation(self) -> Span:
        return Span(int(len(self.trace) * TRAINED), int(len(self.trace) * VALIDATED))

    @property
    def held_out(self) -> Span:
        return Span(int(len(self.trace) * VALIDATED), len(self.trace))

    @property
    def load(self) -> float:
        trace = self.trace
        span = float(trace.submit[-1] - trace.submit[0])
        return float((trace.run * trace.gpus).sum()) / (self.cluster.gpus * max(span, 1.0))


def make_problem(
    trace: Trace,
    cluster: Cluster | None = None,
    *,
    discipline: str = "easy",
    placement: str = "first",
    estimate: str | None = None,
) -> Problem:
    """A problem from a trace; jobs count with whole GPUs, and those that can never run are left out."""
    source = trace.source
    trace = trace.with_gpus().by_arrival()
    _check_size(trace, source)
    sized = cluster is None and trace.capacity is None
    if cluster is None:
        cluster = Cluster((trace.capacity or _fitting_size(trace),))
    trace = _on_whole_gpus(trace, cluster)
    _check_size(trace, source)
    kind = estimate or default_estimate(trace)
    known = predicted_run_times(trace) if kind == "predicted" else estimates(trace, kind)
    return Problem(trace, cluster, known, kind, discipline, placement, sized)


def _check_size(trace: Trace, source: str) -> None:
    if len(trace) < LEAST:
        found = "one job" if len(trace) == 1 else f"{len(trace)} jobs"
        raise UserError(
            f"{source} has {found} that could be learned from; at least {LEAST} are needed, and a few thousand are "
            "better: give a longer trace, or gpuyard workload generate one"
        )


def _on_whole_gpus(trace: Trace, cluster: Cluster) -> Trace:
    """The jobs that fit on the cluster; shares, models, CPUs and host memory are ignored in learning."""
    most = cluster.gpus
    fits = np.flatnonzero(trace.gpus <= most)
    trace = trace if len(fits) == len(trace) else trace.take(fits)
    n = len(trace)
    return replace(
        trace, compute=np.full(n, 100.0), gpu_types=[""] * n, cpus=np.zeros(n), host_memory=np.zeros(n),
        preemptible=np.ones(n, dtype=np.bool_), in_order=True,
    )  # fmt: skip


def _fitting_size(trace: Trace) -> int:
    """As many GPUs as jobs that arrive would find in use, on average, if there were any number; enough for the largest.

    Not what all jobs want over the whole time: a trace may begin with a quiet month.
    """
    ends = np.sort(trace.submit + trace.run)
    of_ends = np.cumsum(trace.gpus[np.argsort(trace.submit + trace.run)])
    gone = np.searchsorted(ends, trace.submit, side="right")
    in_use = np.cumsum(trace.gpus) - np.where(gone > 0, of_ends[np.maximum(gone - 1, 0)], 0)
    return max(round(float(in_use.mean()) / BUSY), int(trace.gpus.max()), 1)


PIECE = 32  # jobs that stay together when a window is composed: a user's series is mostly shorter
LOADS = (0.7, 1.5)
SIZES = (0.75, 1.35)
NOISE = 0.5


@dataclass(frozen=True, slots=True)
class Window:
    problem: Problem  # with just these jobs, as they are altered
    counted: Ints  # which of them count
    start: int  # position in the trace of the first that counts


def cut(problem: Problem, span: Span, size: int, warm: int, phase: int = 0) -> list[Window]:
    """Windows of `size` jobs each that cover a span from its `phase`-th job on; earlier jobs warm each up."""
    begins = range(span.begin + phase, span.end - size + 1, size)
    return [_as_it_is(problem, begin, size, warm) for begin in begins]


def draw(problem: Problem, span: Span, size: int, warm: int, rng: np.random.Generator, alter: bool = True) -> Window:
    """A window from anywhere in the span; altered or not."""
    begin = int(rng.integers(span.begin, max(span.end - size, span.begin) + 1))
    if not alter:
        return _as_it_is(problem, begin, min(size, span.end - begin), warm, span.begin)
    n = min(size + warm, len(span))
    jobs, gaps = _pieces(span, n, rng), _pieces(span, n, rng)
    cluster, load = _another_size(problem, jobs, rng), float(np.exp(rng.uniform(*np.log(LOADS))))
    between = np.diff(problem.trace.submit, prepend=problem.trace.submit[0])[gaps]
    between[0] = 0.0
    faster = load * problem.cluster.gpus / cluster.gpus
    submit = problem.trace.submit[span.begin] + np.cumsum(between) / faster
    there, left = _residents(problem, span, round(min(load, 1.0) * cluster.gpus), rng)
    jobs = np.concatenate((there, jobs))
    submit = np.concatenate((np.full(len(there), submit[0]), submit))
    known = problem.estimates[jobs]
    if rng.random() < 0.5:
        known = known * rng.lognormal(0.0, rng.uniform(0.0, NOISE), len(jobs))
    return _of(problem, jobs, submit, known, cluster, begin, min(size, n), np.append(left, np.ones(n)))


def _as_it_is(problem: Problem, begin: int, size: int, warm: int, since: int = 0) -> Window:
    """Jobs as they came, after the last few before them and those that would still be running."""
    trace = problem.trace
    recent = max(begin - warm, since)
    before = np.arange(since, recent)
    going_on = before[trace.submit[before] + trace.run[before] > trace.submit[recent]] if len(before) else before
    room = np.cumsum(trace.gpus[going_on][::-1])[::-1] <= problem.cluster.gpus  # the latest first
    jobs = np.concatenate((going_on[room], np.arange(recent, begin + size)))
    return _of(problem, jobs, trace.submit[jobs], problem.estimates[jobs], problem.cluster, begin, size)


def _residents(problem: Problem, span: Span, gpus: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Jobs that run on a busy cluster of `gpus` GPUs at a random time, and the fraction of each that is left.

    A long job is met more often than a short one, and anywhere between its start and its end.
    """
    trace = problem.trace
    held = (trace.run * trace.gpus)[span.begin : span.end]
    found = span.begin + rng.choice(len(span), min(gpus, len(span)), p=held / held.sum())
    found = found[np.cumsum(trace.gpus[found]) <= gpus]
    return found, rng.uniform(0.0, 1.0, len(found))


def _of(
    problem: Problem, jobs: Ints, submit: Floats, known: Floats, cluster: Cluster, begin: int, size: int,
    left: Floats | None = None,
) -> Window:  # fmt: skip
    """A window in which the last `size` of these jobs count; `left` is their remaining work."""
    part = np.ones(len(jobs)) if left is None else left
    ids = [str(i) for i in range(len(jobs))]  # a job may be there more than once
    taken = problem.trace.take(jobs)
    trace = replace(taken, ids=ids, submit=submit, run=np.maximum(taken.run * part, 1.0), in_order=True)
    altered = replace(problem, trace=trace, estimates=np.maximum(known * part, 1.0), cluster=cluster)
    return Window(altered, np.arange(len(jobs) - size, len(jobs)), begin)


def _pieces(span: Span, n: int, rng: np.random.Generator) -> Ints:
    """Positions of n jobs: stretches of the span, one behind the other."""
    piece = min(PIECE, len(span))
    begins = rng.integers(span.begin, span.end - piece + 1, -(-n // piece))
    return (begins[:, None] + np.arange(piece)[None, :]).ravel()[:n]


def _another_size(problem: Problem, jobs: Ints, rng: np.random.Generator) -> Cluster:
    cluster, least = problem.cluster, int(problem.trace.gpus[jobs].max())
    factor = float(np.exp(rng.uniform(*np.log(SIZES))))
    if rng.random() < 0.5:
        return cluster
    if len(cluster.nodes) == 1:
        return replace(cluster, nodes=(max(round(cluster.gpus * factor), least),), gpu_memory=())
    count = max(round(len(cluster.nodes) * factor), 1)
    nodes = (cluster.nodes * 2)[:count]
    return Cluster(nodes, cluster.memory) if sum(nodes) >= least else cluster
