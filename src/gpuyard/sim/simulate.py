"""One call from a trace to a schedule with its metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from gpuyard.core.events import Event
from gpuyard.core.model import Cluster
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.errors import UserError
from gpuyard.policyfile import make_planner
from gpuyard.sim.engines import choose, drive
from gpuyard.sim.estimates import default_estimate, estimates
from gpuyard.sim.metrics import Power, measure
from gpuyard.sim.pools import Pools, replay_pools
from gpuyard.sim.replay import Progress, in_rounds
from gpuyard.sim.restarts import RestartCost, format_restart_cost, restart_costs
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Floats, Trace


@dataclass(frozen=True, slots=True)
class Options:
    """What, besides the trace, the cluster and the policy, decides a schedule."""

    discipline: str | None = None
    placement: str = "first"
    estimate: str | None = None
    quantum: float | None = None
    restart_cost: RestartCost = 0.0
    round_length: float = 0.0
    """Plans are made at multiples of this many seconds; 0: whenever something happens."""
    seed: int = 0
    power: Power = field(default_factory=Power)
    lenient: bool = False
    """Leave out a discipline that a preemptive policy cannot have, instead of refusing it."""
    engine: str = "auto"
    """Who simulates: kernel, replay, or whichever is quicker."""
    pools: Pools | None = None
    """Every pool is a cluster of its own; `simulate` is then given the cluster of all pools (`Pools.cluster`)."""


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: str = "fcfs",
    options: Options | None = None,
    *,
    log: list[Event] | None = None,
    progress: Progress | None = None,
) -> tuple[Result, dict[str, Any]]:
    """Run a trace under a policy; returns the schedule and its metrics."""
    options = options or Options()
    trace = trace.with_gpus().by_arrival()
    planner = make_planner(
        policy,
        discipline=options.discipline,
        placement=options.placement,
        quantum=options.quantum,
        lenient=options.lenient,
    )
    planner = in_rounds(planner, options.round_length)
    kind = options.estimate or default_estimate(trace)
    engine = choose(options.engine, trace, cluster, planner, log)
    began = time.perf_counter()
    result, parts = _schedule(trace, cluster, planner, options, kind, engine, log, progress)
    metrics = measure(result, options.power)
    seconds = time.perf_counter() - began
    settings = _settings(planner, options, kind)
    result = replace(result, policy=policy.strip(), settings=settings, wall_seconds=seconds)
    facts = {
        "policy": result.policy,
        "discipline": planner.discipline,
        "placement": planner.placement,
        "gpus": cluster.gpus,
        **settings,
        "engine": engine,
    }
    metrics["jobs_per_second"] = len(trace) / seconds if seconds else None
    if parts:
        metrics["pools"] = {
            name: {"gpus": part.cluster.gpus, **measure(part, options.power)} for name, part in parts.items()
        }
    return result, facts | metrics


def _schedule(
    trace: Trace,
    cluster: Cluster,
    planner: OrderedPlanner,
    options: Options,
    kind: str,
    engine: str,
    log: list[Event] | None,
    progress: Progress | None,
) -> tuple[Result, dict[str, Result]]:
    """The schedule and, where there are pools, that of each."""

    def run(jobs: Trace, where: Cluster, known: Floats, costs: Floats, report: Progress | None) -> Result:
        # A planner of its own for each pool: what can never fit is remembered, and differs from cluster to cluster.
        fresh = ordered(planner.policy, planner.discipline, planner.placement)
        return drive(
            engine, jobs, where, fresh, estimates=known, restart_cost=costs,
            round_length=options.round_length, seed=options.seed, log=log, progress=report,
        )  # fmt: skip

    known = estimates(trace, kind, options.seed)
    costs = restart_costs(trace.gpus, options.restart_cost)
    if options.pools is None:
        return run(trace, cluster, known, costs, progress), {}
    if log is not None:
        raise UserError("an event log is of one cluster; leave out the log or the pools")
    return replay_pools(run, trace, options.pools, known, costs, progress)


def _settings(planner: OrderedPlanner, options: Options, kind: str) -> dict[str, Any]:
    cost = options.restart_cost
    settings: dict[str, Any] = {
        "estimate": kind,
        "quantum": planner.policy.quantum if planner.policy.preemptive else None,
        "restart_cost": format_restart_cost(cost) if isinstance(cost, tuple) else cost,
        "seed": options.seed,
    }
    return settings | ({"round": options.round_length} if options.round_length else {})
