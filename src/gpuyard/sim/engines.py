"""Which of the two drivers runs a simulation: the compiled kernel, or the readable replay."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import numpy as np

from gpuyard.core.events import Event
from gpuyard.core.model import Cluster
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.errors import UserError, suggest
from gpuyard.sim.replay import Progress, replay
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Floats, Trace

ENGINES = {
    "auto": "the kernel where it is worth it and can do it, else replay",
    "kernel": "the compiled driver; what it cannot do, replay does",
    "replay": "the readable driver, event by event",
}
MANY = 2_000
"""From so many jobs on, the kernel is quicker than replay even with the time to load it."""
VERY_MANY = 20_000
"""From so many jobs on, it is quicker even if it must be compiled first."""


def check_engine(name: str) -> str:
    """The name as given, if there is such an engine."""
    if name not in ENGINES:
        raise UserError(f"unknown engine '{name}'{suggest(name, ENGINES)} ({', '.join(ENGINES)})")
    return name


def choose(engine: str, trace: Trace, cluster: Cluster, planner: OrderedPlanner, log: list[Event] | None = None) -> str:
    """Which engine runs this, ready to run; says so where the kernel was asked for and will not do it."""
    if check_engine(engine) == "replay" or (engine == "auto" and (len(trace) < MANY or log is not None)):
        return "replay"
    reason = _why_not(trace, cluster, planner, log)
    if reason is None and engine == "auto" and len(trace) < VERY_MANY and not _is_compiled(planner):
        return "replay"
    if reason is None:
        reason = _made_ready(planner)
    if reason is None:
        return "kernel"
    if engine == "kernel" or len(trace) >= VERY_MANY:
        _say(f"the kernel does not do this ({reason}): replay runs it instead")
    return "replay"


def drive(
    engine: str,
    trace: Trace,
    cluster: Cluster,
    planner: OrderedPlanner,
    *,
    estimates: Floats,
    restart_cost: Floats,
    round_length: float,
    seed: int,
    log: list[Event] | None,
    progress: Progress | None,
) -> Result:
    """Simulate a trace with the engine that was chosen."""
    if engine == "replay":
        return replay(
            trace, cluster, planner, estimates=estimates, restart_cost=restart_cost, round_length=round_length,
            seed=seed, log=log, progress=progress,
        )  # fmt: skip
    from gpuyard.sim.kernel import drive as kernel

    return kernel.drive(
        trace, cluster, planner, estimates=estimates, restart_cost=restart_cost, round_length=round_length,
        seed=seed, progress=progress,
    )  # fmt: skip


_READY: dict[tuple[str, str], str | None] = {}


def _made_ready(planner: OrderedPlanner) -> str | None:
    """Load the kernel for a planner, or compile it, by simulating one job; returns why that cannot be done."""
    from numba.core.errors import NumbaError

    from gpuyard.sim.kernel import drive as kernel

    key = kernel.entry_for(planner), planner.policy.text
    if key not in _READY:
        if not kernel.is_compiled(planner):
            _say("compiling the kernel, which takes a minute or two; the next run will find it done ...")
        one = replace(Trace.of([0.0], [1.0], [1]), in_order=True)
        try:
            fresh = ordered(planner.policy, planner.discipline, planner.placement)
            kernel.drive(one, Cluster((1,)), fresh, estimates=one.run, restart_cost=np.zeros(1))
            _READY[key] = None
        except NumbaError as error:
            _READY[key] = f"policy {planner.policy.name} cannot be compiled: {_first_line(error)}"
    return _READY[key]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith("Failed in nopython")), "unknown")


def _is_compiled(planner: OrderedPlanner) -> bool:
    from gpuyard.sim.kernel.drive import is_compiled

    return is_compiled(planner)


def _why_not(trace: Trace, cluster: Cluster, planner: OrderedPlanner, log: list[Event] | None) -> str | None:
    if log is not None:
        return "it keeps no log of events"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    from gpuyard.sim.kernel.drive import why_not

    return why_not(trace, cluster, planner)


def _say(message: str) -> None:
    print(message, file=sys.stderr)
