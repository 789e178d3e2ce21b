"""What is learned from: a trace as a cluster would see it, cut in time into parts to train on and to be judged by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.estimates import default_estimate, estimates
from gpuyard.sim.trace import Floats, Trace

TRAINED, VALIDATED = 0.5, 0.6
"""Where, among the jobs by arrival, the part to train on ends, and the part to choose by; the rest is held out."""
LEAST = 50
"""Jobs without which nothing can be learned, nor judged."""
BUSY = 1.0
"""The load that a cluster is made for, where nobody says how large it was."""


@dataclass(frozen=True, slots=True)
class Span:
    """Jobs from one position to another."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Problem:
    """Jobs in the order of arrival, the cluster that they ran on, and what is known of their lengths."""

    trace: Trace
    cluster: Cluster
    estimates: Floats
    estimate: str
    """What that is: actual, requested, noisy:S, or predicted."""
    discipline: str
    placement: str
    sized: bool
    """Whether the cluster was made to fit the jobs, since nobody says how large it was."""

    @property
    def name(self) -> str:
        """The trace's file, without its folders: files are named alike on all machines."""
        return self.trace.source.rpartition("/")[2]

    @property
    def training(self) -> Span:
        """What is trained on."""
        return Span(0, int(len(self.trace) * TRAINED))

    @property
    def validation(self) -> Span:
        """What the best of a training is chosen by."""
        return Span(int(len(self.trace) * TRAINED), int(len(self.trace) * VALIDATED))

    @property
    def held_out(self) -> Span:
        """What nothing is chosen by."""
        return Span(int(len(self.trace) * VALIDATED), len(self.trace))

    @property
    def load(self) -> float:
        """The GPU time that jobs ask for, relative to what there is while they come."""
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
    seed: int = 0,
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
    if kind == "predicted":
        from gpuyard.learn.predicted import predicted

        known = predicted(trace)
    else:
        known = estimates(trace, kind, seed)
    return Problem(trace, cluster, known, kind, discipline, placement, sized)


def _check_size(trace: Trace, source: str) -> None:
    if len(trace) < LEAST:
        found = "one job" if len(trace) == 1 else f"{len(trace)} jobs"
        raise UserError(
            f"{source} has {found} that could be learned from; at least {LEAST} are needed, and a few thousand are "
            "better: give a longer trace, or gpuyard workload generate one"
        )


def _on_whole_gpus(trace: Trace, cluster: Cluster) -> Trace:
    """The jobs that fit on the cluster; shares, models, CPUs and host memory are not looked at while learning."""
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
