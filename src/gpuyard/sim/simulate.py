"""One call from a trace to a schedule with its metrics: estimates, restart costs, and the kernel or the replay."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuyard.core.events import Event
from gpuyard.core.model import Cluster
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.errors import UserError, suggest
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.metrics import Power, measure
from gpuyard.sim.replay import Progress, in_rounds, replay
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Floats, Ints, Trace
from gpuyard.sim.virtual_clusters import Pools, replay_pools
from gpuyard.units import format_number, parse_duration

if TYPE_CHECKING:
    from gpuyard.sim.kernel.compilation import Compilation


def default_estimate(trace: Trace) -> str:
    return "actual" if np.isnan(trace.requested).all() else "requested"


def estimates(trace: Trace, kind: str | None = None, seed: int = 0) -> Floats:
    """Expected run times, parallel to the trace: `actual`, `requested`, or `noisy:S`.

    `noisy:S` multiplies the true run time by a seeded log-normal factor with sigma S and median 1.
    """
    kind = kind or default_estimate(trace)
    if kind == "actual":
        return trace.run
    if kind == "requested":
        if np.isnan(trace.requested).all():
            raise UserError(f"{trace.source} has no requested times; use --estimate actual or noisy:S")
        return np.where(np.isnan(trace.requested), trace.run, trace.requested)
    name, _, number = kind.partition(":")
    try:
        sigma = float(number)
    except ValueError:
        sigma = math.nan
    if name != "noisy" or not 0 <= sigma < math.inf:
        raise UserError(f"--estimate takes actual, requested or noisy:S (S a number, such as 0.5), not '{kind}'")
    return trace.run * np.random.default_rng(seed).lognormal(0.0, sigma, len(trace))


NODE = 8  # jobs of at most this many GPUs count as jobs of one machine, whatever the simulated nodes are

RestartCost = float | tuple[float, float, float]
"""Seconds for every job; or for jobs of one GPU, of at most a machine (`NODE`), and of more."""


def parse_restart_cost(text: str) -> RestartCost:
    """`7` for all jobs, or `7/30/60`: one GPU, up to 8 GPUs, more."""
    parts = [parse_duration(part) for part in text.split("/")]
    if len(parts) not in (1, 3):
        raise UserError(
            f"--restart-cost takes one time, or three as in 7/30/60 (one GPU, up to {NODE} GPUs, more), not '{text}'"
        )
    if min(parts) < 0:
        raise UserError(f"--restart-cost must be 0 or more, not {text}")
    return parts[0] if len(parts) == 1 else (parts[0], parts[1], parts[2])


def format_restart_cost(cost: RestartCost) -> str:
    return "/".join(format_number(part) for part in (cost if isinstance(cost, tuple) else (cost,)))


def restart_costs(gpus: Ints, cost: RestartCost) -> Floats:
    if not isinstance(cost, tuple):
        return np.full(len(gpus), float(cost))
    return np.asarray(np.select([gpus <= 1, gpus <= NODE], cost[:2], default=cost[2]), dtype=np.float64)


ENGINES = {
    "auto": "the kernel where it is worth it and can do it, else replay",
    "kernel": "the compiled driver; what it cannot do, replay does",
    "replay": "the readable driver, event by event",
}
MANY = 2_000  # number of jobs from which the kernel is faster than replay even with the time to load it


def check_engine(name: str) -> str:
    if name not in ENGINES:
        raise UserError(f"unknown engine '{name}'{suggest(name, ENGINES)} ({', '.join(ENGINES)})")
    return name


def choose_engine(
    engine: str, trace: Trace, cluster: Cluster, planner: OrderedPlanner, log: list[Event] | None = None
) -> str:
    """The engine for this simulation, ready to run; logs a message where the kernel was asked for and cannot do it.

    `cold` stands for the kernel where it must be compiled first, so that replay may be done sooner.
    """
    if check_engine(engine) == "replay" or (engine == "auto" and (len(trace) < MANY or log is not None)):
        return "replay"
    if log is not None:
        reason: str | None = "it keeps no log of events"
    elif importlib.util.find_spec("numba") is None:
        reason = "numba is not installed"
    else:
        from gpuyard.sim.kernel import driver as kernel

        reason = kernel.why_not(trace, cluster, planner)
        if reason is None:
            return "cold" if engine == "auto" and not kernel.is_compiled(planner) else _kernel(planner)
    if engine == "kernel" or len(trace) >= 10 * MANY:
        _say(f"the kernel does not do this ({reason}): replay runs it instead")
    return "replay"


_READY: dict[tuple[Any, ...], str | None] = {}


def _kernel(planner: OrderedPlanner) -> str:
    """Load the kernel for a planner, or compile it; `replay` where a policy cannot be compiled."""
    if planner.policy.function.__module__.startswith("gpuyard."):
        _pass_over_scipy()
    from numba.core.errors import NumbaError

    from gpuyard.sim.kernel import driver as kernel

    key = *kernel.variant_for(planner), planner.policy.text
    if key not in _READY:
        try:
            kernel.compile_for(planner, _show_compilation(planner.text))
            _READY[key] = None
        except NumbaError as error:
            _READY[key] = f"policy {planner.policy.name} cannot be compiled: {_first_line(error)}"
    if _READY[key] is None:
        return "kernel"
    _say(f"the kernel does not do this ({_READY[key]}): replay runs it instead")
    return "replay"


def _pass_over_scipy() -> None:
    """Keep numba from importing scipy, where there is one: no policy of ours multiplies matrices, and it takes long."""
    if "numba.np.arraymath" in sys.modules or "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg.cython_blas"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg.cython_blas"]


_EVERY = 3.0  # seconds between two messages on how far a compilation is


def _show_compilation(what: str) -> Callable[[Compilation], None]:
    told = -_EVERY

    def show(compilation: Compilation) -> None:
        nonlocal told
        if compilation.seconds < told + _EVERY:
            return
        told = compilation.seconds
        done = f"{len(compilation.done())} of {compilation.total} functions"
        left = f"{told:.0f} s, about {compilation.left():.0f} s left"
        _say(f"compiling the kernel for {what}: {done}, {left} (now {compilation.now})")

    return show


_LOOK_AFTER = 0.3  # seconds of replay that tell how long all of it will take


class _CompilingIsSooner(Exception):
    """Replay would take longer than compiling the kernel."""


def _while_sooner(planner: OrderedPlanner, progress: Progress | None) -> Progress:
    """Progress of a replay that goes on for as long as it will be done sooner than the kernel is compiled."""
    from gpuyard.sim.kernel import driver as kernel

    limit = kernel.compilation(planner).expected
    _say(
        f"the kernel for {planner.text} is not compiled on this machine yet, which takes about {limit:.0f} s: "
        "replay starts, in case it is done sooner"
    )
    began = time.perf_counter()

    def report(done: int, total: int) -> None:
        seconds = time.perf_counter() - began
        left = seconds * (total - done) / done
        if seconds > _LOOK_AFTER and left > limit:
            _say(f"replay would take another {left:.0f} s, so the kernel is compiled now")
            raise _CompilingIsSooner
        if progress is not None:
            progress(done, total)

    return report


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith("Failed in nopython")), "unknown")


def _say(message: str) -> None:
    print(message, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Options:
    discipline: str | None = None
    placement: str = "first"
    estimate: str | None = None
    quantum: float | None = None
    restart_cost: RestartCost = 0.0
    round_length: float = 0.0  # plans are made at multiples of this many seconds; 0: whenever something happens
    seed: int = 0
    power: Power = field(default_factory=Power)
    lenient: bool = False  # leave out a discipline that a preemptive policy cannot have, instead of refusing it
    engine: str = "auto"  # kernel, replay, or auto: the faster one
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
    engine = choose_engine(options.engine, trace, cluster, planner, log)
    began = time.perf_counter()
    report = progress
    if engine == "cold":
        engine, report = "replay", _while_sooner(planner, progress)
    try:
        result, parts = _schedule(trace, cluster, planner, options, kind, engine, log, report)
    except _CompilingIsSooner:
        engine, began = _kernel(planner), time.perf_counter()
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

    def run(jobs: Trace, where: Cluster, known: Floats, costs: Floats, report: Progress | None) -> Result:
        # A planner of its own for each pool: what can never fit is remembered, and differs from cluster to cluster.
        fresh = ordered(planner.policy, planner.discipline, planner.placement)
        settings: dict[str, Any] = {
            "estimates": known, "restart_cost": costs, "round_length": options.round_length, "seed": options.seed,
            "progress": report,
        }  # fmt: skip
        if engine == "replay":
            return replay(jobs, where, fresh, log=log, **settings)
        from gpuyard.sim.kernel import driver as kernel

        return kernel.drive(jobs, where, fresh, **settings)

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
