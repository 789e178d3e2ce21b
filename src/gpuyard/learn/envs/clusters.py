"""Simulated clusters behind the queue environments: jobs of an episode, arrays of the fleet, compiled steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuyard.core.loops import backfill, placement, pool
from gpuyard.core.loops.backfill import new_starts
from gpuyard.core.model import Cluster, Request
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.errors import UserError, suggest
from gpuyard.learn.envs import fleet as loops_of_fleet
from gpuyard.learn.envs.fleet import (
    BEGIN,
    CHOOSE,
    CLUSTER_FEATURES,
    COMMIT,
    EASY,
    EASY_SHADOW,
    HEAD,
    JOB_FEATURES,
    LEAVE,
    Fleet,
    Rules,
    Scratch,
)
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.kernel import compiler, schedule
from gpuyard.sim.kernel.driver import why_not
from gpuyard.sim.metrics import SHORT
from gpuyard.sim.simulate import default_estimate, estimates
from gpuyard.sim.trace import Flags, Floats, Ints, Trace
from gpuyard.sim.traces import read
from gpuyard.sim.workload import POISSON_SIZES, generate_poisson

WINDOW, GPUS, LOAD = 256, 64, 1.0


class Jobs(NamedTuple):
    submit: Floats
    run: Floats
    estimate: Floats
    gpus: Ints


class Source:
    cluster: Cluster
    size: int  # jobs of an episode
    most_gpus: int  # the largest sum of GPUs of an episode's jobs
    left_out: int  # jobs of the trace that can never run on the cluster

    def draw(self, rng: np.random.Generator, start: int | None = None) -> Jobs:
        raise NotImplementedError


class Windows(Source):
    """Windows of a trace: consecutive jobs, from any position."""

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
    """A planner of that discipline and placement; the environment orders the queue."""
    if placement == "random":
        raise UserError("placement random draws at every plan, which environments do not; take first, pack or spread")
    return make_planner("fcfs", discipline=discipline, placement=placement)


MAX_QUEUE = 128
DISCIPLINES = {"commit": COMMIT, "easy-shadow": EASY_SHADOW, "easy": EASY}
OBJECTIVES = ("slowdown", "jct", "wait")
_MODULES = (pool, placement, backfill, schedule, loops_of_fleet)

Observations = npt.NDArray[np.float32]


@cache
def loops() -> ModuleType:
    """The compiled loops; imports numba."""
    return compiler.load("fleet", compiler.merged_source(_MODULES, "advance_fleet", (("RANDOM", False),)))


def width_of(max_queue: int) -> int:
    return max_queue * len(JOB_FEATURES) + len(CLUSTER_FEATURES)


class Clusters:
    def __init__(
        self,
        count: int,
        trace: str | Path | Trace | None = None,
        gpus: int | Cluster | None = None,
        window: int = WINDOW,
        discipline: str = "easy-shadow",
        objective: str = "slowdown",
        max_queue: int = MAX_QUEUE,
        placement: str = "first",
        estimate: str | None = None,
        load: float = LOAD,
        may_idle: bool = True,
    ) -> None:
        for name, value, known in (("discipline", discipline, DISCIPLINES), ("objective", objective, OBJECTIVES)):
            if value not in known:
                raise UserError(f"unknown {name} '{value}'{suggest(value, known)} ({', '.join(known)})")
        if max_queue < 1:
            raise UserError(f"at least 1 job must be in view, not {max_queue}")
        planner = planner_for(discipline, placement)
        self.source = new_source(trace, gpus, planner, window, load, estimate)
        self.objective, self.visible = objective, max_queue
        least = 1.0 if objective == "slowdown" else 0.0
        self.rules = Rules(DISCIPLINES[discipline], planner.code, least, may_idle)
        self.fleet = _new_fleet(count, self.source.size, self.source.cluster, self.source.most_gpus)
        most = self.source.cluster.gpus
        found = np.empty(max(self.source.size, 1), dtype=np.int64)
        self.scratch = Scratch(new_starts(most + 1, 2 * most + 1), found, np.empty_like(self.fleet.idle[0]))
        self.seen = np.zeros((count, width_of(max_queue)), dtype=np.float32)
        self.masks = np.ones((count, max_queue + 1), dtype=np.bool_)
        self.what = np.zeros(count, dtype=np.int64)
        self.rewards, self.over = np.zeros(count), np.zeros(count, dtype=np.bool_)

    def begin(self, b: int, rng: np.random.Generator, start: int | None = None) -> None:
        jobs = self.source.draw(rng, start)
        _clear(self.fleet, b, self.source.cluster)
        _load(self.fleet, b, jobs, self.objective)
        self.what[:] = LEAVE
        self.what[b] = BEGIN
        self._advance(np.zeros(len(self.what), dtype=np.int64))

    def step(self, actions: npt.NDArray[np.int64], active: Flags) -> None:
        """Decide for each active cluster; results are in `seen`, `masks`, `rewards` and `over`."""
        self.rewards[~active] = 0.0
        self.over[~active] = False
        self.what[:] = np.where(active, CHOOSE, LEAVE)
        self._advance(actions)

    def _advance(self, actions: npt.NDArray[np.int64]) -> None:
        loops().advance_fleet(
            self.fleet, actions, self.what, self.rules, self.scratch, self.visible, self.seen, self.masks, self.rewards,
            self.over,
        )  # fmt: skip

    def starts(self, b: int) -> Floats:
        """Start times of the jobs of a cluster's episode, by submission; NaN before."""
        found: Floats = self.fleet.start[b].copy()
        return found

    def metrics(self, b: int) -> dict[str, float]:
        """Metrics of an episode whose jobs have all started, as `gpuyard simulate` defines them."""
        of = self.fleet
        submit, run, start = of.submit[b], of.run[b], of.start[b]
        jct = start + run - submit
        makespan = float((start + run).max() - submit.min())
        return {
            "jobs": float(len(run)),
            "slowdown": float(np.maximum(jct / np.maximum(run, SHORT), 1.0).mean()),
            "jct": float(jct.mean()),
            "wait": float((start - submit).mean()),
            "makespan": makespan,
            "utilization": float(run @ of.gpus[b]) / (makespan * self.source.cluster.gpus),
        }


def _new_fleet(count: int, jobs: int, cluster: Cluster, most: int) -> Fleet:
    full = State(cluster, 0).pool
    gpus, size = cluster.gpus + 1, len(full.size)
    span = 2 * gpus + 4
    shapes: dict[str, tuple[Any, Any]] = dict.fromkeys(
        ("submit", "run", "estimate", "pace", "lump", "start", "end"), (jobs, float)
    )
    shapes |= dict.fromkeys(("gpus", "end_place", "queue"), (jobs, np.int64))
    shapes |= dict.fromkeys(("spots", "nodes"), (most, np.int64))
    shapes |= dict.fromkeys(("free", "end_size", "done"), (1, np.int64))
    shapes |= dict.fromkeys(("end_row", "finished"), (gpus, np.int64))
    shapes |= dict.fromkeys(("expected_rows", "expected_begins", "expected_ends"), (span, np.int64))
    shapes |= dict.fromkeys(("expected_until", "expected_late"), (span, float))
    shapes |= {
        "rejected": (jobs, np.bool_), "idle": (size, np.int64), "tenants": (gpus - 1, np.int64),
        "lowest": (size, np.int64), "end_time": (gpus, float), "offset": (jobs + 1, np.int64),
        "counts": (3, np.int64), "due": (1, float), "expected_span": (2, np.int64), "numbers": (4, float),
        "marks": (3, np.int64),
    }  # fmt: skip
    same = {name: np.asarray(getattr(full, name), dtype=np.int64) for name in ("size", "first", "node")}
    own: dict[str, Any] = {name: np.zeros((count, length), kind) for name, (length, kind) in shapes.items()}
    return Fleet(**(own | same))


def _clear(fleet: Fleet, b: int, cluster: Cluster) -> None:
    fleet.idle[b] = fleet.size
    fleet.lowest[b] = fleet.first[:-1]
    fleet.free[b] = cluster.gpus
    fleet.end_place[b] = -1
    fleet.start[b] = fleet.end[b] = np.nan
    fleet.due[b] = np.inf
    fleet.expected_span[b] = cluster.gpus + 1
    fleet.tenants[b] = fleet.end_size[b] = fleet.done[b] = fleet.counts[b] = fleet.marks[b] = 0
    fleet.numbers[b] = 0.0
    fleet.marks[b, HEAD] = -1


def _load(fleet: Fleet, b: int, jobs: Jobs, objective: str) -> None:
    fleet.submit[b], fleet.run[b], fleet.estimate[b], fleet.gpus[b] = jobs
    fleet.offset[b, 1:] = np.cumsum(jobs.gpus)
    length = np.maximum(jobs.run, SHORT) if objective == "slowdown" else np.ones(len(jobs.run))
    fleet.pace[b] = 1.0 / length
    fleet.lump[b] = 0.0 if objective == "wait" else jobs.run / length
