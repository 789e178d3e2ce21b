"""`check_policy`: what is wrong with a policy, before it gets a queue to rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuyard.core.columns import COLUMNS
from gpuyard.core.loops.pool import Floats
from gpuyard.core.policy import Policy, define
from gpuyard.errors import told_by

_EDGES = {
    "wait": (0.0, 1e-9, 1e7),
    "submit": (0.0, 1.7e9),
    "gpus": (1.0, 4096.0),
    "estimate": (0.001, 1e7, np.inf),
    "deadline": (0.0, np.inf),
    "priority": (-10.0, 0.0, 10.0),
    "memory": (0.0, 8e10),
    "compute": (0.0, 100.0),
    "draw": (1e-12, 1.0 - 1e-12),
}
_ZERO_TO_LARGE = (0.0, 1.0, 1e9)
_POSITIVE = ("weight", "tickets")


def check_policy(policy: Any) -> list[str]:
    """What is wrong with a policy, one sentence each; an empty list means that it can be used.

    It is tried on random queues and on the edges: no job has waited yet, one GPU, no deadline, an endless estimate.
    """
    checked = policy if isinstance(policy, Policy) else define(policy)
    if not checked.columns:
        return ["it names no columns, so it cannot tell one job from another"]
    problems: list[str] = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for problem in _problems(checked):
            if problem not in problems:
                problems.append(problem)
    return problems


def _problems(policy: Policy) -> Iterator[str]:
    ordinary = _random_queue(policy, 50)
    before = {name: values.copy() for name, values in ordinary.items()}
    try:
        result = _call(policy, ordinary)
    except BaseException as error:  # the user's own code: anything may come out of it
        yield f"it fails on an ordinary queue: {told_by(error)}"
        return
    if result.shape not in ((50,), ()):
        yield f"it returned an array of shape {result.shape} for 50 jobs; it must return one number per job"
        return
    is_number = result.dtype.kind in "fiub"
    if not is_number or np.isnan(result).all():
        said = "'not a number'" if is_number else f"{result.dtype} values"
        yield f"it fails on an ordinary queue: it returned {said}; it must return one number per job"
        return
    for name, values in before.items():
        if not np.array_equal(values, ordinary[name]):
            yield f"it changes the column '{name}' in place; work on a copy"
            return
    if not np.array_equal(result, _call(policy, ordinary), equal_nan=True):
        yield "it returned different numbers for the same queue; use the column `draw` for seeded randomness"
    yield from _edges(policy)
    yield from _elementwise(policy, ordinary, result)


def _edges(policy: Policy) -> Iterator[str]:
    base = {name: float(values[0]) for name, values in _random_queue(policy, 1).items()}
    for name in policy.columns:
        for value in _EDGES.get(name, (1.0, 1e6) if name in _POSITIVE else _ZERO_TO_LARGE):
            queue = {n: np.array([value if n == name else v]) for n, v in base.items()}
            try:
                result = _call(policy, queue)
            except BaseException as error:  # as above
                yield f"it fails where {name} is {value:g}: {told_by(error)}"
                continue
            if np.isnan(result.astype(np.float64)).any():
                yield f"it returns 'not a number' where {name} is {value:g}"
    try:
        _call(policy, {name: np.empty(0) for name in policy.columns})
    except BaseException as error:  # as above
        yield f"it fails on an empty queue: {told_by(error)}"


def _elementwise(policy: Policy, queue: dict[str, Floats], result: Floats) -> Iterator[str]:
    shuffled = np.random.default_rng(1).permutation(50)
    moved = _call(policy, {name: values[shuffled] for name, values in queue.items()})
    if result.shape and not np.allclose(moved, result[shuffled], rtol=1e-9, equal_nan=True):
        yield "a job's number depends on its place in the array; it may depend on the job's columns only"
    if not result.shape or np.ptp(result) == 0:
        yield "it gives every job the same number, so jobs run in the order of submission"


def _call(policy: Policy, queue: dict[str, Floats]) -> Any:
    return np.asarray(policy(*(queue[name] for name in policy.columns)))


def _random_queue(policy: Policy, n: int) -> dict[str, Floats]:
    rng = np.random.default_rng(0)
    queue = {name: 10.0 ** rng.uniform(0.0, 5.0, n) for name in COLUMNS}
    queue["gpus"] = rng.integers(1, 9, n).astype(np.float64)
    queue["draw"] = rng.uniform(0.0, 1.0, n)
    queue["compute"] = rng.uniform(1.0, 100.0, n)
    return {name: queue[name] for name in policy.columns}
