"""`python -m gpuyard.cli.simulator.comparison_process REQUEST`: a comparison for the page, in a process of its own.

The request is JSON, the trace comes by standard input, and the results go to standard output as lines of JSON:
progress, then the table, the curves, and a Gantt chart of each policy, thinned out so that a browser can show them.
The request comes from viewers of the page, so nothing in it can name a file.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuyard.cli.simulator.simulation_options import Setup
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.sim.compare import Comparison
    from gpuyard.sim.parallel import Task
    from gpuyard.sim.result import Result
    from gpuyard.sim.summary import Summary
    from gpuyard.sim.trace import Trace

MOST_MEMORY = 4 * 2**30  # bytes of address space: what a trace unpacks to is not known before
MOST_JOBS = 1_000_000
MOST_GPUS = 100_000
ROWS = 64  # GPUs that a Gantt chart shows
MOST_BARS = 3_000
_DIGITS = 7
_NICENESS = 10
_NAME = 60
_NODES = re.compile(r"\d{1,6}x\d{1,6}(,\d{1,6}x\d{1,6}){0,20}")
_STEP = 0.25  # seconds between two words on how far it is


def main(arguments: list[str]) -> int:
    request = json.loads(arguments[0])
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)  # not os.nice: the page is nice as well
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        compare(request, tell)
    except GpuyardError as error:
        tell({"error": str(error)})
        return 2
    except MemoryError:
        tell({"error": "there is not enough memory for that; take fewer jobs, or use gpuyard compare in a shell"})
        return 2
    return 0


def tell(said: dict[str, Any]) -> None:
    """Write one line for the page; without a reader there is nothing left to do."""
    try:
        sys.stdout.write(json.dumps(said, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def compare(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    from gpuyard.sim.compare import compare as run

    policies = checked_policies(request["policies"])
    setup = Setup(**checked_setup(request["setup"]))
    trace, cluster, options = setup.prepare(lenient=True, made=_maker(request.get("workload")))
    if len(trace) > MOST_JOBS or cluster.gpus > MOST_GPUS:
        raise UserError(f"the page simulates {MOST_JOBS:,} jobs on {MOST_GPUS:,} GPUs at most; take fewer")
    tell({"begun": {"jobs": len(trace), "gpus": cluster.gpus, "dropped": trace.dropped}})
    charts: dict[str, dict[str, Any]] = {}

    def keep(task: Task, result: Result, metrics: dict[str, Any]) -> Summary:
        from gpuyard.sim.summary import summarise

        charts[task.policy] = chart(result)
        return summarise(result, metrics)

    clock = _Clock(float(request["limit"]), tell)
    found = run(trace, cluster, policies, options, jobs=1, progress=clock.at, keep=keep)
    _send_results(found, trace, charts, tell)


def _send_results(
    found: Comparison, trace: Trace, charts: dict[str, dict[str, Any]], tell: Callable[[dict[str, Any]], None]
) -> None:
    if not found.summaries:
        policy, why = next(iter(found.failures.items()))
        raise UserError(f"no policy could be simulated; {policy}: {why}")
    best = found.summaries[0]
    tell(
        {
            "table": {
                "jobs": len(trace), "gpus": found.cluster.gpus, "nodes": _nodes(found.cluster.nodes),
                "dropped": trace.dropped, "results": found.rows, "examples": best.rejected,
                "errors": [{"policy": policy, "error": why} for policy, why in found.failures.items()],
            }
        }
    )  # fmt: skip
    tell({"curves": [_curves(summary) for summary in found.summaries]})
    for number, summary in enumerate(found.summaries):
        tell({"chart": charts[summary.policy], "number": number})
    tell({"done": True})


def _nodes(nodes: tuple[int, ...]) -> str:
    return f"{len(nodes):,} node{'s' * (len(nodes) != 1)}"


@dataclass
class _Clock:
    """Reports progress, and stops what takes too long; what is done by then is kept."""

    limit: float
    tell: Callable[[dict[str, Any]], None]
    sent: float = 0.0

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    def at(self, done: float, total: int) -> None:
        now = time.monotonic()
        if now - self.sent >= _STEP or done >= total:
            self.sent = now
            self.tell({"progress": [round(done, 3), total]})
        # At a whole number a policy is done, and there is nothing to stop.
        if now - self.began > self.limit and done != int(done):
            raise UserError("it was not done in time; take fewer jobs, or use gpuyard compare in a shell")


def checked_policies(names: list[str]) -> list[str]:
    """Policies that come with gpuyard; a user's file is a program, which the page does not run."""
    from gpuyard.policies.resolver import resolve

    for name in names:
        if ".py" in name or "/" in name:
            raise UserError(f"{name}: the page simulates policies that come with gpuyard; try yours in a shell")
        resolve(name)
    if not names:
        raise UserError("choose at least one policy")
    return list(dict.fromkeys(names))


def checked_setup(given: dict[str, Any]) -> dict[str, Any]:
    """Options of the comparison; none of them names a file but standard input."""
    known = ("gpus", "nodes", "gpu_memory", "discipline", "placement", "estimate", "quantum", "restart_cost", "seed",
             "format", "where", "since", "until", "slice_")  # fmt: skip
    if unknown := set(given) - set(known):
        raise UserError(f"the page has no option {', '.join(sorted(unknown))}")
    if given.get("nodes") is not None and not _NODES.fullmatch(given["nodes"]):
        raise UserError(f"'{given['nodes']}' is no list of nodes; write 4x8, or 4x8,2x4")
    return {"trace": "-", **{name: value for name, value in given.items() if value is not None}}


def _maker(workload: dict[str, Any] | None) -> Callable[[], Trace] | None:
    if workload is None:
        return None
    from gpuyard.sim.workload import generate_poisson, generate_tasks

    jobs, seed = workload["jobs"], workload["seed"]
    if jobs is not None and jobs > MOST_JOBS:
        raise UserError(f"the page makes up {MOST_JOBS:,} jobs at most")
    if workload["kind"] == "poisson":
        return lambda: generate_poisson(seed, jobs=jobs, gpus=workload["gpus"], load=workload["load"])
    return lambda: generate_tasks(seed, jobs=jobs, gpu_memory=workload["gpu_memory"])


def _curves(summary: Summary) -> dict[str, Any]:
    found = summary.plain()
    return {name: found[name] for name in ("policy", "utilisation", "queue", "jct", "wait", "slowdown")}


def chart(result: Result) -> dict[str, Any]:
    """Which job held which GPU when, thinned out to be drawn; columns, because there are thousands of bars."""
    from gpuyard.sim.result import first_submit, shown_bars, stack_bars

    part = shown_bars(result, ROWS, MOST_BARS)
    bars = stack_bars(part.segments, result.share, first_submit(result))
    ids, users = result.trace.ids, result.trace.users
    jobs = list(dict.fromkeys(bars.job.tolist()))
    place = {job: number for number, job in enumerate(jobs)}
    labels = result.cluster.labels()[: part.gpus] if len(result.cluster.nodes) > 1 else []
    return {
        "policy": result.policy,
        "gpus": part.gpus,
        "of_gpus": result.cluster.gpus,
        "labels": labels or [f"GPU {gpu}" for gpu in range(part.gpus)],
        "since": _short(part.since),
        "until": _short(part.until),
        "last": _short(part.last),
        "jobs": [ids[job][:_NAME] for job in jobs],
        "users": [users[job][:_NAME] for job in jobs],
        "submitted": [_short(result.trace.submit[job] - first_submit(result)) for job in jobs],
        "job": [place[job] for job in bars.job.tolist()],
        "gpu": bars.gpu.tolist(),
        "start": [_short(value) for value in bars.start.tolist()],
        "end": [_short(value) for value in bars.end.tolist()],
        "low": [_short(value) for value in bars.low.tolist()],
        "height": [_short(value) for value in bars.height.tolist()],
    }


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a policy that was ended for want of time may still be at work in a thread
