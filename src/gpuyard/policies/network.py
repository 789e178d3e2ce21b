"""A trained policy: a heuristic's key, and a small network over features that is added to it.

    score = key(job) + linear(features) + sum of v_k * leaky_relu(w_k . features + b_k)

All jobs share the same few weights, so a queue may have any length. With all weights zero it is the heuristic itself.
Written for single numbers and arrays alike, like `features`: it is an ordinary policy, whose function takes its weights
as one array behind its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.core.loops.formulas import ENDLESS
from gpuyard.core.loops.pool import Floats
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import Policy
from gpuyard.errors import UserError, suggest
from gpuyard.policies.features import COLUMNS, HOUR, NAMES, OF_JOBS, features

A = Any  # a number or an array of numbers

BASES = ("fcfs", "sjf", "saf", "f1", "f2", "f3", "f4", "wfp3", "unicep")
"""Heuristics that a network may be added to; their place here is what stands in files."""
SIZES = (0, 4, 8, 32)  # hidden units that a network may have; 0: linear
_fcfs, _sjf, _saf, _f1, _f2, _f3, _f4, _wfp3, _unicep = (POLICIES[name].function for name in BASES)

BASE, HIDDEN, STARVATION, LINEAR = 0, 1, 2, 3
"""Where in the array of weights things stand: some settings, then the linear part, then one unit after another."""
JOB_FEATURES, ALL_FEATURES = len(OF_JOBS), len(NAMES)
UNIT = ALL_FEATURES + 2  # numbers of a hidden unit: its bias, a weight for each feature, and what it counts
LEAK = 0.01
FAR_AHEAD = 1e6  # more than any two scores differ: a starving job is ahead of all others


def key(base: float, estimate: A, gpus: A, submit: A, wait: A) -> A:
    """A heuristic's own number, stretched so that jobs of one queue are about one apart; their order is unchanged."""
    if base == 0:
        return -wait / 3600.0
    if base == 1:
        return np.log(_sjf(estimate))
    if base == 2:
        return np.log(_saf(estimate, gpus))
    if base == 3:
        return _f1(estimate, gpus, submit) / 1e2
    if base == 4:
        return _f2(estimate, gpus, submit) / 1e4
    if base == 5:
        return _f3(estimate, gpus, submit) / 1e6
    if base == 6:
        return _f4(estimate, gpus, submit) / 1e5
    if base == 7:
        return -np.log1p(-_wfp3(wait, estimate, gpus, power=3.0))
    return -np.log1p(-_unicep(wait, estimate, gpus))


def starves(estimate: A, wait: A, opening: A, queue_work: A, capacity: A, bound: float) -> A:
    """Whether a job has waited so long, relative to the waiting work and its own length, that it goes ahead of all."""
    return wait > bound * (queue_work / capacity + opening + estimate + HOUR)


def score(
    estimate: A, gpus: A, submit: A, wait: A, memory: A, usage_share: A, attained: A, opening: A, suitable: A,
    shorter: A, idle: A, hole: A, queue: A, queue_work: A, shadow: A, capacity: A, weights: Floats,
) -> A:  # fmt: skip
    x = features(
        estimate, gpus, submit, wait, memory, usage_share, attained, opening, suitable, shorter, idle, hole, queue,
        queue_work, shadow, capacity,
    )  # fmt: skip
    length = np.minimum(estimate, ENDLESS)
    total = key(weights[BASE], length, gpus, submit, wait)
    # Even and odd features apart: a processor adds two short rows of numbers sooner than one long one.
    other = 0.0
    for j in range(0, JOB_FEATURES, 2):
        total = total + weights[LINEAR + j] * x[j]
        other = other + weights[LINEAR + j + 1] * x[j + 1]
    total = total + other
    at = LINEAR + JOB_FEATURES
    for _ in range(int(weights[HIDDEN])):
        unit, other, shared = weights[at], 0.0, 0.0
        for j in range(0, JOB_FEATURES, 2):
            unit = unit + weights[at + 1 + j] * x[j]
            other = other + weights[at + 2 + j] * x[j + 1]
        for j in range(JOB_FEATURES, ALL_FEATURES):
            shared = shared + weights[at + 1 + j] * x[j]
        unit = unit + other + shared
        total = total + weights[at + 1 + ALL_FEATURES] * np.maximum(unit, LEAK * unit)
        at += UNIT
    starving = 1.0 * starves(length, wait, opening, queue_work, capacity, weights[STARVATION])
    return total - starving * FAR_AHEAD * (1.0 + wait)


def score_queue(columns: Sequence[Floats], found: Sequence[Floats], weights: Floats) -> Floats:
    """The same as `score`, to the last digit, for a whole queue whose features are known: units side by side.

    For the daemon, which has no compiler: it takes little more than half as long. The order of additions is the same;
    features that are the same for all jobs are multiplied once.
    """
    of = dict(zip(COLUMNS, columns, strict=True))
    length = np.minimum(of["estimate"], ENDLESS)
    total: Floats = key(weights[BASE], length, of["gpus"], of["submit"], of["wait"])
    other = np.zeros(len(length))
    for j in range(0, JOB_FEATURES, 2):
        total += weights[LINEAR + j] * found[j]
        other += weights[LINEAR + j + 1] * found[j + 1]
    total += other
    units = weights[LINEAR + JOB_FEATURES :].reshape(-1, UNIT)
    sums = np.repeat(units[:, :1], len(length), axis=1)
    odd, product = np.zeros_like(sums), np.empty_like(sums)
    for j in range(0, JOB_FEATURES, 2):
        sums += np.multiply(units[:, j + 1, None], found[j], out=product)
        odd += np.multiply(units[:, j + 2, None], found[j + 1], out=product)
    shared = np.zeros((len(units), 1))
    for j in range(JOB_FEATURES, ALL_FEATURES):
        shared += units[:, j + 1, None] * found[j][:1]
    sums += odd
    sums += shared
    np.maximum(sums, np.multiply(LEAK, sums, out=product), out=sums)
    for unit, said in zip(units, sums, strict=True):
        total += unit[-1] * said
    starving = 1.0 * starves(length, of["wait"], of["opening"], of["queue_work"], of["capacity"], weights[STARVATION])
    total -= starving * FAR_AHEAD * (1.0 + of["wait"])
    return total


@dataclass(frozen=True, slots=True)
class Network:
    base: str
    hidden: int
    starvation: float
    parameters: Floats  # what is trained: the linear part, then the hidden units one after another

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise UserError(f"a policy cannot be trained on top of '{self.base}'{suggest(self.base, BASES)}")
        if len(self.parameters) != parameter_count(self.hidden):
            count = parameter_count(self.hidden)
            raise UserError(f"a network with {self.hidden} units has {count} weights, not {len(self.parameters)}")

    @property
    def weights(self) -> Floats:
        settings = (float(BASES.index(self.base)), float(self.hidden), self.starvation)
        return np.concatenate((np.array(settings), self.parameters))

    def policy(self, source: str = "learned", discipline: str = "") -> Policy:
        return Policy("learned", score, COLUMNS, {}, weights=self.weights, source=source, discipline=discipline)


def parameter_count(hidden: int) -> int:
    return JOB_FEATURES + hidden * UNIT


def untrained(base: str, hidden: int, starvation: float, rng: np.random.Generator) -> Network:
    """A network that ranks exactly as its heuristic: its units do not count yet."""
    parameters = np.zeros(parameter_count(hidden))
    for k in range(hidden):
        at = JOB_FEATURES + k * UNIT
        parameters[at : at + UNIT - 1] = rng.normal(0.0, 0.5, UNIT - 1)
    return Network(base, hidden, starvation, parameters)
