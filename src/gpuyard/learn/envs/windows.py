"""Where the jobs of an episode come from: a stretch of a trace, or a workload that is made up for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuyard.core.model import Cluster, Request
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.errors import UserError
from gpuyard.policyfile import make_planner
from gpuyard.sim.estimates import default_estimate, estimates
from gpuyard.sim.kernel.drive import why_not
from gpuyard.sim.trace import Floats, Ints, Trace
from gpuyard.sim.traces import read
from gpuyard.sim.workload import POISSON_SIZES, generate_poisson

WINDOW, GPUS, LOAD = 256, 64, 1.0


class Jobs(NamedTuple):
    """The jobs of an episode, by submission."""

    submit: Floats
    run: Floats
    estimate: Floats
    gpus: Ints


class Source:
    """Gives the jobs of one episode after another."""

    cluster: Cluster
    size: int
    """Jobs of an episode."""
    most_gpus: int
    """What all jobs of an episode ask for together, at most."""
    left_out: int
    """Jobs of the trace that can never run on the cluster."""

    def draw(self, rng: np.random.Generator, start: int | None = None) -> Jobs:
        """The jobs of the next episode."""
        raise NotImplementedError


class Windows(Source):
    """Stretches of a trace: so many jobs in a row, from anywhere."""

    def __init__(self, trace: Trace, cluster: Cluster, planner: OrderedPlanner, window: int, estimate: str | None):
        if reason := why_not(trace, cluster, planner):
            raise UserError(f"{trace.source} cannot be an environment: {reason}")
        sizes, state = np.unique(trace.gpus), State(cluster, 0)
        never = [size for size in sizes.tolist() if planner.refuses(state, Request(gpus=size)) is not None]
        kept = np.flatnonzero(~np.isin(trace.gpus, never))
        if not len(kept):
            raise UserError(f"no job of {trace.source} can run on {cluster.gpus} GPUs")
        self.cluster, self.left_out = cluster, len(trace) - len(kept)
        self.trace = trace.take(kept)
        self.size = min(window, len(kept))
        self.known = estimates(self.trace, estimate or default_estimate(self.trace))
        total = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.trace.gpus)))
        self.most_gpus = int((total[self.size :] - total[: -self.size]).max())

    def draw(self, rng: np.random.Generator, start: int | None = None) -> Jobs:
        """The jobs from a random position on, or from `start`."""
        last = len(self.trace) - self.size
        begin = int(rng.integers(last + 1)) if start is None else start
        if not 0 <= begin <= last:
            raise UserError(f"windows of {self.size} jobs start at 0 to {last}, not at {begin}")
        rows = slice(begin, begin + self.size)
        trace = self.trace
        return Jobs(trace.submit[rows], trace.run[rows], self.known[rows], trace.gpus[rows])


class Workloads(Source):
    """Poisson arrivals and log-normal run times, drawn anew for each episode."""

    def __init__(self, cluster: Cluster, window: int, load: float, estimate: str | None):
        self.cluster, self.size, self.load, self.estimate, self.left_out = cluster, window, load, estimate, 0
        self.most_gpus = window * max(size for size in POISSON_SIZES if size <= cluster.gpus)

    def draw(self, rng: np.random.Generator, start: int | None = None) -> Jobs:
        """The jobs of a seed: `start`, or a random one."""
        seed = int(rng.integers(2**31)) if start is None else start
        trace = generate_poisson(seed, jobs=self.size, gpus=self.cluster.gpus, load=self.load)
        return Jobs(trace.submit, trace.run, estimates(trace, self.estimate, seed), trace.gpus)


def new_source(
    trace: str | Path | Trace | None, gpus: int | Cluster | None, planner: OrderedPlanner, window: int, load: float,
    estimate: str | None,
) -> Source:  # fmt: skip
    """The source that is meant."""
    if window < 1:
        raise UserError(f"an episode has at least 1 job, not {window}")
    jobs = None if trace is None else (trace if isinstance(trace, Trace) else read(trace)).with_gpus().by_arrival()
    if isinstance(gpus, Cluster):
        cluster = gpus
    elif gpus is not None or jobs is None:
        cluster = Cluster((GPUS if gpus is None else gpus,))
    elif jobs.capacity is None:
        raise UserError(f"{jobs.source} does not say how many GPUs there were; say so: gpus=64")
    else:
        cluster = Cluster((jobs.capacity,))
    return (
        Workloads(cluster, window, load, estimate)
        if jobs is None
        else Windows(jobs, cluster, planner, window, estimate)
    )


def planner_for(discipline: str, placement: str) -> OrderedPlanner:
    """A planner of that discipline and placement; who is next is not its business here."""
    if placement == "random":
        raise UserError("placement random draws at every plan, which environments do not; take first, pack or spread")
    return make_planner("fcfs", discipline=discipline, placement=placement)
