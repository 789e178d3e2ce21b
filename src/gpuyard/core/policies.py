"""The policies that come with gpuyard. Each returns a number per job; the smallest runs first.

Ties go to the job submitted first, then to the lower id. Policies are orderings only: what may overtake is the
discipline's business, and where a job goes is the placement's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.policy import Policy, policy
from gpuyard.errors import UserError

A = Any  # a number or an array of numbers, as in all of numpy


@policy
def fcfs(submit: A) -> A:
    """First come, first served."""
    return submit


@policy
def sjf(estimate: A) -> A:
    """Shortest job first, by estimate (Conway, Maxwell & Miller 1967)."""
    return estimate


@policy
def ljf(estimate: A) -> A:
    """Longest job first, by estimate; fills machines well, and keeps people waiting."""
    return -estimate


@policy(preemptive=True, improves=True)
def srtf(remaining: A) -> A:
    """Shortest remaining time first, preemptive (Schrage 1968)."""
    return remaining


@policy(preemptive=True, improves=True)
def srsf(remaining: A, gpus: A) -> A:
    """Shortest remaining service first: remaining time times GPUs, preemptive (Tiresias, NSDI'19)."""
    return remaining * gpus


def _check_arrivals(arrivals: str) -> None:
    if arrivals not in ("first", "last"):
        raise UserError(f"policy rr: setting 'arrivals' takes first or last, not '{arrivals}'")


@policy(preemptive=True, quantum=10.0, sliced=True, check=_check_arrivals)
def rr(turn: A, requeued: A, *, arrivals: str = "last") -> A:
    """Round robin in slices of `quantum` seconds (Kleinrock 1964); arrivals=first is the textbook's queue."""
    return requeued if arrivals == "first" else turn


@policy
def priority(priority: A, submit: A, *, ageing: float = 1.0) -> A:
    """Highest priority first; each hour of waiting counts as `ageing` more (ageing=0 turns that off)."""
    # Everybody ages at the same pace, so the order of two jobs never changes, and `submit` can stand for the wait.
    return submit * (ageing / 3600.0) - priority


@policy
def multifactor(
    priority: A, submit: A, user_usage: A, weight: A, *, ageing: float = 1.0, fairness: float = 1.0
) -> A:  # fmt: skip
    """Priority first; an hour of waiting adds `ageing` to it, a GPU-hour that the user had takes `fairness` away."""
    return submit * (ageing / 3600.0) - priority + user_usage * (fairness / 3600.0) / weight


@policy
def lottery(draw: A, tickets: A) -> A:
    """A seeded draw in which each job holds its tickets (Waldspurger & Weihl, OSDI'94)."""
    return -np.log(draw) / tickets


@policy
def wfq(virtual_finish: A) -> A:
    """Weighted fair queueing: max(V, own last finish) + length / weight (Demers, Keshav & Shenker 1989)."""
    return virtual_finish


@policy
def fair(user_usage: A, weight: A) -> A:
    """The user who has had the fewest GPU-seconds for their weight goes first (Kay & Lauder 1988)."""
    return user_usage / weight


def _attained(service: A) -> A:
    # A job that is woken to drop must be found to have dropped, whatever the rounding of its clock.
    return service + 1e-6


def _check_queues(queues: tuple[float, ...]) -> None:
    if list(queues) != sorted(queues):
        raise UserError(f"policy las: setting 'queues' takes ascending numbers, not {'/'.join(map(str, queues))}")


@policy(name="las", preemptive=True, check=_check_queues)
def _las(service: A, *, queues: tuple[float, ...] = (3250.0, 7200.0, 18000.0)) -> A:
    """Least attained service in discrete queues of GPU-seconds, preemptive (Tiresias' 2D-LAS, NSDI'19)."""
    level = 0.0 * service
    for edge in queues:
        level = level + (_attained(service) >= edge)
    return level


def _las_drops_in(service: A, gpus: A, *, queues: tuple[float, ...] = ()) -> A:
    """Seconds until a running job drops to the next queue."""
    next_edge = np.inf + service
    for edge in queues:
        next_edge = np.where((_attained(service) < edge) & (next_edge == np.inf), edge, next_edge)
    return (next_edge - service) / gpus


las = _las.when_changed(_las_drops_in)


@policy
def edf(deadline: A) -> A:
    """Earliest deadline first; jobs without one come last (Liu & Layland 1973)."""
    return deadline


@policy
def saf(estimate: A, gpus: A) -> A:
    """Smallest area first: estimate times GPUs."""
    return estimate * gpus


def _log10(value: A) -> A:
    # RLScheduler's convention: zero counts as 0.1.
    return np.log10(np.where(value > 0, value, 0.1))


@policy
def f1(estimate: A, gpus: A, submit: A) -> A:
    """log10(estimate) x GPUs + 870 log10(submit) (Carastan-Santos & de Camargo, SC'17)."""
    return _log10(estimate) * gpus + 870.0 * _log10(submit)


@policy
def f2(estimate: A, gpus: A, submit: A) -> A:
    """sqrt(estimate) x GPUs + 25,600 log10(submit) (Carastan-Santos & de Camargo, SC'17)."""
    return np.sqrt(estimate) * gpus + 25_600.0 * _log10(submit)


@policy
def f3(estimate: A, gpus: A, submit: A) -> A:
    """estimate x GPUs + 6,860,000 log10(submit) (Carastan-Santos & de Camargo, SC'17)."""
    return estimate * gpus + 6_860_000.0 * _log10(submit)


@policy
def f4(estimate: A, gpus: A, submit: A) -> A:
    """estimate x sqrt(GPUs) + 530,000 log10(submit) (Carastan-Santos & de Camargo, SC'17)."""
    return estimate * np.sqrt(gpus) + 530_000.0 * _log10(submit)


@policy(one_way=True)
def wfp3(wait: A, estimate: A, gpus: A, *, power: float = 3.0) -> A:
    """Long waiters first, relative to their length; wide jobs favoured (Tang et al., Cluster'09)."""
    return -((wait / estimate) ** power) * gpus


@policy(one_way=True)
def unicep(wait: A, estimate: A, gpus: A) -> A:
    """Long waiters first; narrow, short jobs favoured (Tang et al., Cluster'09)."""
    # log2(1) is 0: the tiny term lets one-GPU jobs go first, as the formula means, without a division by zero.
    return -(wait + 1e-15) / (np.log2(gpus + 1e-15) * estimate)


@policy
def largest_memory(memory: A) -> A:
    """Largest GPU memory request first (Kube-Knots, Cluster'19)."""
    return -memory


@policy
def random(draw: A) -> A:
    """A seeded random order: the baseline that any policy should beat."""
    return draw


POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        fcfs, sjf, ljf, srtf, srsf, rr, priority, multifactor, lottery, wfq, fair, las, edf, saf, f1, f2, f3, f4, wfp3,
        unicep, largest_memory, random,
    )
}  # fmt: skip

ALIASES: dict[str, tuple[str, str]] = {
    "fifo": ("fcfs", "first come, first served, by its other name"),
    "least-loaded": ("fcfs@skip@spread", "whatever fits, on the emptiest GPU"),
    "best-fit": ("fcfs@skip@pack", "whatever fits, on the fullest GPU that has room"),
}
"""Names that people know: what they stand for, and what that means."""
