"""Seed 000's tabular Q-learning: learn, for one given set of processes, in which order to run them on one processor.

The state is the last process, the action the next one, and the reward is minus waiting and turnaround. What this does
not do: the table knows these processes by name and nothing else, so what is learned says nothing about any other set;
and neither who has run already nor the time is part of the state, so that it is no Markov decision process and need not
come to the best order. The shortest first needs no learning, and is never worse when all have arrived. It is kept as
the baseline that it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuyard.sim.trace import Floats

ALPHA, GAMMA = 0.1, 0.9
EPSILON, DECAY, LEAST_EPSILON = 0.8, 0.995, 0.01
EPISODES = 1000


class Process(NamedTuple):
    burst: float
    arrival: float = 0.0


class Outcome(NamedTuple):
    order: tuple[int, ...]
    wait: float
    turnaround: float


def run_in(order: Sequence[int], processes: Sequence[Process]) -> Outcome:
    """Run processes in this order, one after another; the machine waits for those that have not arrived yet."""
    now = wait = turnaround = 0.0
    for i in order:
        began = max(now, processes[i].arrival)
        now = began + processes[i].burst
        wait += began - processes[i].arrival
        turnaround += now - processes[i].arrival
    return Outcome(tuple(order), wait / len(order), turnaround / len(order))


def first_come(processes: Sequence[Process]) -> Outcome:
    return run_in(sorted(range(len(processes)), key=lambda i: processes[i].arrival), processes)


def shortest_first(processes: Sequence[Process]) -> Outcome:
    """SJF, not preemptive: of the processes that have arrived, the shortest."""
    left, order, now = set(range(len(processes))), list[int](), 0.0
    while left:
        here = [i for i in left if processes[i].arrival <= now]
        if not here:
            now = min(processes[i].arrival for i in left)
            continue
        chosen = min(here, key=lambda i: (processes[i].burst, processes[i].arrival, i))
        now += processes[chosen].burst
        order.append(chosen)
        left.remove(chosen)
    return run_in(order, processes)


def learn_order(processes: Sequence[Process], seed: int = 0, episodes: int = EPISODES) -> Outcome:
    """The order that the table has learned; the same seed learns the same."""
    n = len(processes)
    table = np.zeros((n + 1, n))  # the last row: no process has run yet
    rng = np.random.default_rng(seed)
    epsilon = EPSILON
    for _ in range(episodes):
        _episode(table, processes, epsilon, rng)
        epsilon = max(LEAST_EPSILON, epsilon * DECAY)
    return run_in(_episode(table, processes, 0.0, rng, learns=False), processes)


def _episode(
    table: Floats, processes: Sequence[Process], epsilon: float, rng: np.random.Generator, learns: bool = True
) -> list[int]:
    """Run every process once, the table's best or a random one, and learn from each choice."""
    last, now, order = len(processes), 0.0, list[int]()
    left = list(range(len(processes)))
    while left:
        explores = rng.random() < epsilon
        chosen = int(rng.choice(left)) if explores else max(left, key=lambda i: table[last, i])
        left.remove(chosen)
        order.append(chosen)
        began = max(now, processes[chosen].arrival)
        now = began + processes[chosen].burst
        reward = -(began - processes[chosen].arrival) - (now - processes[chosen].arrival)
        if learns:
            best = max(table[chosen, i] for i in left) if left else 0.0
            table[last, chosen] += ALPHA * (reward + GAMMA * best - table[last, chosen])
        last = chosen
    return order
