"""Windows of a trace: some jobs that count, and some before them that only make the cluster warm.

Windows to be judged by are the trace as it is, one behind the other. Windows to train on are drawn at random, and most
are altered: another load, another size of the cluster, worse estimates, or jobs and gaps between them put together
anew from pieces, so that a policy learns to schedule and not this trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.learn.problem import Problem, Span
from gpuyard.sim.trace import Floats, Ints

PIECE = 32
"""Jobs that stay together where others are put together anew: a user's series is mostly shorter."""
LOADS = (0.7, 1.5)
SIZES = (0.75, 1.35)
NOISE = 0.5


@dataclass(frozen=True, slots=True)
class Window:
    """Some jobs of a problem, as they come to a cluster that is empty at first."""

    problem: Problem
    """With just these jobs, as they are altered."""
    counted: Ints
    """Which of them count."""
    start: int
    """Where in the trace those begin that count."""


def cut(problem: Problem, span: Span, size: int, warm: int, phase: int = 0) -> list[Window]:
    """Windows of `size` jobs each that cover a span from its `phase`-th job on; those before each make it warm."""
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
    """Jobs as they came, behind the last few before them and behind those that would still be running."""
    trace = problem.trace
    recent = max(begin - warm, since)
    before = np.arange(since, recent)
    going_on = before[trace.submit[before] + trace.run[before] > trace.submit[recent]] if len(before) else before
    room = np.cumsum(trace.gpus[going_on][::-1])[::-1] <= problem.cluster.gpus  # the latest first
    jobs = np.concatenate((going_on[room], np.arange(recent, begin + size)))
    return _of(problem, jobs, trace.submit[jobs], problem.estimates[jobs], problem.cluster, begin, size)


def _residents(problem: Problem, span: Span, gpus: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Jobs that a busy cluster is found with, on so many GPUs; and the part of each that is left to do.

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
    """A window in which the last `size` of these jobs count, of each of which so much is left to do."""
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
    """The cluster, or one that is smaller or larger; of nodes as they are."""
    cluster, least = problem.cluster, int(problem.trace.gpus[jobs].max())
    factor = float(np.exp(rng.uniform(*np.log(SIZES))))
    if rng.random() < 0.5:
        return cluster
    if len(cluster.nodes) == 1:
        return replace(cluster, nodes=(max(round(cluster.gpus * factor), least),), gpu_memory=())
    count = max(round(len(cluster.nodes) * factor), 1)
    nodes = (cluster.nodes * 2)[:count]
    return Cluster(nodes, cluster.memory) if sum(nodes) >= least else cluster
