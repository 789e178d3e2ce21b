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
        return _as_it_is(problem, begin, min(size, span.end - begin), min(warm, begin - span.begin))
    n = min(size + warm, len(span))
    jobs, gaps = _pieces(span, n, rng), _pieces(span, n, rng)
    cluster, load = _another_size(problem, jobs, rng), float(np.exp(rng.uniform(*np.log(LOADS))))
    between = np.diff(problem.trace.submit, prepend=problem.trace.submit[0])[gaps]
    between[0] = 0.0
    faster = load * problem.cluster.gpus / cluster.gpus
    submit = problem.trace.submit[span.begin] + np.cumsum(between) / faster
    known = problem.estimates[jobs]
    if rng.random() < 0.5:
        known = known * rng.lognormal(0.0, rng.uniform(0.0, NOISE), n)
    return _of(problem, jobs, submit, known, cluster, n - min(size, n), begin)


def _as_it_is(problem: Problem, begin: int, size: int, warm: int) -> Window:
    jobs = np.arange(max(begin - warm, 0), begin + size)
    trace = problem.trace
    return _of(problem, jobs, trace.submit[jobs], problem.estimates[jobs], problem.cluster, len(jobs) - size, begin)


def _of(problem: Problem, jobs: Ints, submit: Floats, known: Floats, cluster: Cluster, warm: int, begin: int) -> Window:
    ids = [str(i) for i in range(len(jobs))]  # a job may be there more than once
    trace = replace(problem.trace.take(jobs), ids=ids, submit=submit, in_order=True)
    altered = replace(problem, trace=trace, estimates=known, cluster=cluster)
    return Window(altered, np.arange(warm, len(jobs)), begin)


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
