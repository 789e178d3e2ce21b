"""One call from a trace to a schedule with its metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from gpuyard.core.events import Event
from gpuyard.core.model import Cluster
from gpuyard.policyfile import make_planner
from gpuyard.sim.estimates import default_estimate, estimates
from gpuyard.sim.metrics import Power, measure
from gpuyard.sim.replay import Progress, replay
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Options:
    """What, besides the trace, the cluster and the policy, decides a schedule."""

    discipline: str | None = None
    placement: str = "first"
    estimate: str | None = None
    quantum: float | None = None
    restart_cost: float = 0.0
    seed: int = 0
    power: Power = field(default_factory=Power)
    lenient: bool = False
    """Leave out a discipline that a preemptive policy cannot have, instead of refusing it."""


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
    trace = trace.with_gpus()
    planner = make_planner(
        policy,
        discipline=options.discipline,
        placement=options.placement,
        quantum=options.quantum,
        lenient=options.lenient,
    )
    kind = options.estimate or default_estimate(trace)
    known = estimates(trace, kind, options.seed)
    began = time.perf_counter()
    result = replay(
        trace,
        cluster,
        planner,
        estimates=known,
        restart_cost=options.restart_cost,
        seed=options.seed,
        log=log,
        progress=progress,
    )
    metrics = measure(result, options.power)
    seconds = time.perf_counter() - began
    settings = {
        "estimate": kind,
        "quantum": planner.policy.quantum if planner.policy.preemptive else None,
        "restart_cost": options.restart_cost,
        "seed": options.seed,
    }
    result = replace(result, policy=policy.strip(), settings=settings, wall_seconds=seconds)
    facts = {
        "policy": result.policy,
        "discipline": planner.discipline,
        "placement": planner.placement,
        "gpus": cluster.gpus,
        **settings,
    }
    return result, facts | metrics | {"jobs_per_second": len(trace) / seconds if seconds else None}
