"""One parameter varied: how a metric depends on load, on the number of GPUs, or on a setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.core.model import Cluster
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import Policy, Spec
from gpuyard.errors import UserError, suggest
from gpuyard.policies.resolver import resolve
from gpuyard.sim.compare import is_random, means
from gpuyard.sim.parallel import Failure, Task, Watch, run_all
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, parse_restart_cost, simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.nodes import read_cluster
from gpuyard.units import format_number, parse_duration

MOST_POINTS = 1000
MOST_SEEDS = 1000
Value = float | str


@dataclass(frozen=True, slots=True)
class Axis:
    name: str  # `load`, `gpus`, `nodes`, an option of the simulation, or a policy's setting: `power`, or `las.queues`
    texts: tuple[str, ...]  # the values as they were written

    @property
    def values(self) -> tuple[Value, ...]:
        """Numbers where all values are numbers, else their texts."""
        try:
            return tuple(float(text) for text in self.texts)
        except ValueError:
            return self.texts


@dataclass(frozen=True, slots=True)
class Sweep:
    axis: Axis
    policies: list[str]
    rows: list[dict[str, Any]]  # in the order of the values, then of the policies; `value` is the axis' value
    failures: list[tuple[Value, str, str]]  # value, policy, and why it could not be simulated


def parse_axis(text: str) -> Axis:
    """`load=0.5:1.5:0.1` (both ends are in), `gpus=64,128,256`, `las.queues=100/1000,3250/7200`."""
    name, equals, rest = (part.strip() for part in text.partition("="))
    texts = [value.strip() for value in rest.split(",") if value.strip()]
    if not name or not equals or not texts:
        raise UserError(f"--vary takes NAME=VALUES, as load=0.5:1.5:0.1 or gpus=64,128, not '{text}'")
    ranged = [value for part in texts for value in (_range(part, text) if part.count(":") == 2 else [part])]
    found = Axis(name, tuple(dict.fromkeys(ranged)))
    if len(found.texts) > MOST_POINTS:
        raise UserError(f"--vary {text} asks for {len(found.texts):,} values; {MOST_POINTS:,} at most")
    return found


def _range(part: str, text: str) -> list[str]:
    try:
        low, high, step = (float(number) for number in part.split(":"))
        count = math.floor((high - low) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError):
        count = 0
    if not 1 <= count <= MOST_POINTS:
        raise UserError(f"--vary {text}: a range is FIRST:LAST:STEP with at most {MOST_POINTS:,} values, not '{part}'")
    # By counting and not by adding up, and to ten digits, so that 0.1 steps read as such.
    return [format_number(float(f"{low + step * k:.10g}")) for k in range(count)]


def sweep(
    trace: Trace,
    cluster: Cluster,
    axis: Axis,
    policies: Sequence[str],
    options: Options | None = None,
    *,
    seeds: int = 1,
    jobs: int | None = None,
    progress: Watch | None = None,
) -> Sweep:
    """Simulate every policy at every value, `jobs` at a time; what is random is repeated with `seeds` seeds."""
    options = options or Options()
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"--seeds must be at least 1 (and at most {MOST_SEEDS:,}), not {seeds}")
    _check_axis(axis, policies, options)
    points = {
        (value, policy): _repeats(_point(axis, text, Task(policy, cluster, options)), seeds)
        for value, text in zip(axis.values, axis.texts, strict=True)
        for policy in policies
    }
    tasks = list(dict.fromkeys(task for repeats in points.values() for task in repeats))
    found = dict(zip(tasks, run_all(trace, tasks, metrics_of, jobs=jobs, progress=progress), strict=True))
    rows: list[dict[str, Any]] = []
    failures: list[tuple[Value, str, str]] = []
    for (value, policy), repeats in points.items():
        answers = [found[task] for task in repeats]
        good = [answer for answer in answers if not isinstance(answer, Failure)]
        failures += [(value, policy, answer.message) for answer in answers if isinstance(answer, Failure)][:1]
        if len(good) == len(answers):
            merged = good[0] if len(good) == 1 else means(good, len(good))
            rows.append({"value": value, **merged, "policy": policy})
    return Sweep(axis, list(policies), rows, failures)


def metrics_of(task: Task, result: Result, metrics: dict[str, Any]) -> dict[str, Any]:
    return metrics


def check_metric(name: str) -> str:
    none = simulate(Trace.of([], [], []), Cluster((1,)))[1]
    known = [
        key for key, value in none.items() if not isinstance(value, str) and key not in ("gpus", "quantum", "seed")
    ]
    if name not in known:
        raise UserError(f"there is no metric '{name}'{suggest(name, known)} ({', '.join(known)})")
    return name


def _repeats(task: Task, seeds: int) -> list[Task]:
    if seeds == 1 or not is_random(task.policy, task.options):
        return [task]
    return [replace(task, options=replace(task.options, seed=task.options.seed + k)) for k in range(seeds)]


def _point(axis: Axis, text: str, task: Task) -> Task:
    """The task at one value of the axis; where the axis does not concern the policy, the task itself."""
    if not _concerns(axis.name, task.policy):
        return task
    if axis.name in _WHERE:
        return _WHERE[axis.name](task, text)
    if axis.name in _HOW:
        return replace(task, options=_HOW[axis.name](task.options, text))
    return replace(task, policy=_with_setting(task.policy, axis.name.rpartition(".")[2], text))


def _at_load(task: Task, text: str) -> Task:
    load = _number(text, "load")
    if not 0 < load < math.inf:
        raise UserError(f"--vary load takes numbers above 0, not {text}")
    return replace(task, load=load)


def _on_gpus(task: Task, text: str) -> Task:
    count = _number(text, "gpus")
    if not count.is_integer() or count < 1:
        raise UserError(f"--vary gpus takes whole numbers from 1 on, not {text}")
    return replace(task, cluster=Cluster((int(count),), task.cluster.memory))


_WHERE: dict[str, Callable[[Task, str], Task]] = {
    "load": _at_load,
    "gpus": _on_gpus,
    "nodes": lambda task, text: replace(task, cluster=read_cluster(text.replace("+", ","), task.cluster.memory)),
}
_HOW: dict[str, Callable[[Options, str], Options]] = {
    "quantum": lambda options, text: replace(options, quantum=parse_duration(text)),
    "restart-cost": lambda options, text: replace(options, restart_cost=parse_restart_cost(text)),
    "round": lambda options, text: replace(options, round_length=parse_duration(text)),
    "estimate": lambda options, text: replace(options, estimate=text),
}
_PREEMPTIVE = ("quantum", "restart-cost")


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--vary {name} takes numbers, not '{text}'") from None


def _setting(name: str, policy: Policy, spec: Spec) -> str | None:
    known = [*policy.defaults, *(["quantum"] if policy.preemptive else [])]
    owner, dot, key = name.rpartition(".")
    if dot and owner not in (spec.name, policy.name):
        return None
    return key if key in known else None


def _with_setting(text: str, key: str, value: str) -> str:
    main, at, rest = text.strip().partition("@")
    _, spec = resolve(text)
    settings = {**spec.settings, key: value}
    file, dot_py, tail = main.partition(".py:")
    name = f"{file}.py:{tail.partition(':')[0]}" if dot_py else main.partition(":")[0]
    return f"{name}:" + ",".join(f"{k}={v}" for k, v in settings.items()) + at + rest


def _check_axis(axis: Axis, policies: Sequence[str], options: Options) -> None:
    """Refuse an axis that varies nothing, before anything is simulated."""
    if options.pools is not None and axis.name in ("gpus", "nodes"):
        raise UserError(f"--vary {axis.name} needs one cluster, and --pools has several; vary something else")
    task = Task("fcfs", Cluster((1,)), options)
    for text in axis.texts:
        if axis.name in _WHERE:
            _WHERE[axis.name](task, text)
        elif axis.name in _HOW:
            _HOW[axis.name](options, text)
        else:
            for policy in policies:
                resolve(_point(axis, text, replace(task, policy=policy)).policy)
    if any(_concerns(axis.name, policy) for policy in policies):
        return
    if axis.name in _PREEMPTIVE:
        raise UserError(f"--vary {axis.name}: none of the policies preempts; add one that does, as srtf, rr or las")
    owner = axis.name.rpartition(".")[0]
    if owner in POLICIES and owner not in {resolve(policy)[0].name for policy in policies}:
        raise UserError(f"--vary {axis.name}: {owner} is not among the policies; add it to --policies")
    settings = [key for policy in policies for key in resolve(policy)[0].defaults]
    known = [*_WHERE, *_HOW, *settings]
    raise UserError(
        f"--vary {axis.name}: none of the policies has such a setting{suggest(axis.name, known)} ({', '.join(known)})"
    )


def _concerns(name: str, text: str) -> bool:
    policy, spec = resolve(text)
    if name in _WHERE or name in _HOW:
        return policy.preemptive or name not in _PREEMPTIVE
    return _setting(name, policy, spec) is not None
