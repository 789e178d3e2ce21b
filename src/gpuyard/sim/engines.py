"""Which of the two drivers runs a simulation: the compiled kernel, or the readable replay."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from gpuyard.core.events import Event
from gpuyard.core.model import Cluster
from gpuyard.core.planner import OrderedPlanner
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
) -> tuple[Result, str]:
    """Simulate a trace that is in the order of arrival; returns the schedule and which engine made it."""
    common: dict[str, Any] = {
        "estimates": estimates, "restart_cost": restart_cost, "round_length": round_length, "seed": seed,
        "progress": progress,
    }  # fmt: skip
    if _wants_kernel(engine, trace, cluster, planner, log):
        from gpuyard.sim.kernel.drive import drive as compiled

        try:
            return compiled(trace, cluster, planner, **common), "kernel"
        except _cannot_compile() as error:
            reason = str(error).strip().splitlines()[0]
            _say(f"policy {planner.policy.name} cannot be compiled ({reason}): replay runs it instead")
    return replay(trace, cluster, planner, log=log, **common), "replay"


def _wants_kernel(
    engine: str, trace: Trace, cluster: Cluster, planner: OrderedPlanner, log: list[Event] | None
) -> bool:
    """Whether the kernel is to run this; says so where it was expected to and will not, or must be compiled first."""
    if check_engine(engine) == "replay" or (engine == "auto" and (len(trace) < MANY or log is not None)):
        return False
    reason = _why_not(trace, cluster, planner, log)
    if reason is not None:
        if engine == "kernel" or len(trace) >= VERY_MANY:
            _say(f"the kernel does not do this ({reason}): replay runs it instead")
        return False
    from gpuyard.sim.kernel.drive import is_compiled

    if not is_compiled(planner):
        if engine == "auto" and len(trace) < VERY_MANY:
            return False
        _say("compiling the kernel, which takes a minute or so; the next run will find it done ...")
    return True


def _why_not(trace: Trace, cluster: Cluster, planner: OrderedPlanner, log: list[Event] | None) -> str | None:
    if log is not None:
        return "it keeps no log of events"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    from gpuyard.sim.kernel.drive import why_not

    return why_not(trace, cluster, planner)


def _cannot_compile() -> type[Exception]:
    from numba.core.errors import NumbaError

    error: type[Exception] = NumbaError
    return error


def _say(message: str) -> None:
    print(message, file=sys.stderr)
