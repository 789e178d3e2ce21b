"""What whoever chooses gets to see of a cluster, as numbers from 0 to 1, and the calls for a whole fleet.

Loops in numba's subset.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.pool import Flags, Floats, Ints
from gpuyard.learn.envs.fleet import (
    COST,
    NOW,
    OVER,
    WAITING,
    Copy,
    Fleet,
    Rules,
    Scratch,
    can_wait,
    choose_job,
    copy_at,
    until_asked,
)

JOB_FEATURES = ("present", "wait", "estimate", "gpus", "fits", "waited_per_second", "area", "width")
CLUSTER_FEATURES = (
    "free",
    "visible",
    "waiting",
    "running",
    "next_end",
    "free_in_minutes",
    "free_in_an_hour",
    "free_in_hours",
)
_JOB = 8
LEAVE, CHOOSE, BEGIN = range(3)
_LONG = 18.0
"""About the logarithm of two years in seconds: what is longer looks no longer."""
_SOON = (600.0, 3600.0, 21600.0)


def level(value: float, most: float) -> float:
    """A number of any size, 0 or more, as one from 0 to 1 by its logarithm."""
    return float(min(np.log1p(max(value, 0.0)) / most, 1.0))


def see_jobs(copy: Copy, visible: int, seen: Floats) -> None:
    """Write the features of the first jobs of the queue; what is beyond them is 0."""
    gpus, estimate, submit = copy.site.demand.gpus, copy.site.demand.estimate, copy.work.submit
    now, free, total = copy.numbers[NOW], copy.yard.free[0], len(copy.yard.pool.tenants)
    seen[: visible * _JOB] = 0.0
    for i in range(min(copy.marks[WAITING], visible)):
        row, at = copy.queue[i], i * _JOB
        wait = now - submit[row]
        seen[at] = 1.0
        seen[at + 1] = level(wait, _LONG)
        seen[at + 2] = level(estimate[row], _LONG)
        seen[at + 3] = gpus[row] / total
        seen[at + 4] = 1.0 if gpus[row] <= free else 0.0
        seen[at + 5] = level(wait / max(estimate[row], 10.0), 12.0)
        seen[at + 6] = level(estimate[row] * gpus[row], 2 * _LONG)
        seen[at + 7] = np.log1p(float(gpus[row])) / np.log1p(float(total))


def see_cluster(copy: Copy, visible: int, seen: Floats) -> None:
    """Write the features of the cluster, by what is expected of running jobs."""
    now, total = copy.numbers[NOW], len(copy.yard.pool.tenants)
    waiting = copy.marks[WAITING]
    first, last = copy.expected.span[0], copy.expected.span[1]
    seen[0] = copy.yard.free[0] / total
    seen[1] = min(waiting, visible) / visible
    seen[2] = level(float(waiting), 12.0)
    seen[3] = (last - first) / total
    seen[4] = level(copy.expected.until[first] - now, _LONG) if first < last else 1.0
    for s in range(3):
        free = copy.yard.free[0]
        for i in range(first, last):
            if copy.expected.until[i] <= now + _SOON[s]:
                free += copy.expected.ends[i] - copy.expected.begins[i]
        seen[5 + s] = free / total


def see(copy: Copy, visible: int, may_idle: bool, seen: Floats, mask: Flags) -> None:
    """Write an observation, and which actions are possible."""
    see_jobs(copy, visible, seen)
    see_cluster(copy, visible, seen[visible * _JOB :])
    for i in range(visible):
        mask[i] = i < copy.marks[WAITING]
    mask[visible] = can_wait(copy, visible, may_idle)


def go_on(
    fleet: Fleet, actions: Ints, what: Ints, rules: Rules, scratch: Scratch, visible: int, seen: Floats, masks: Flags,
    rewards: Floats, over: Flags,
) -> None:  # fmt: skip
    """Go on to each cluster's next decision: by doing what was chosen, or from the beginning; or leave it (`what`)."""
    for b in range(len(actions)):
        if what[b] == LEAVE:
            continue
        copy = copy_at(fleet, b, rules.code)
        copy.numbers[COST] = 0.0
        if what[b] == BEGIN:
            until_asked(copy, rules, scratch)
        else:
            choose_job(copy, actions[b], visible, rules, scratch)
        rewards[b] = -copy.numbers[COST] / len(copy.work.submit)
        over[b] = copy.marks[OVER] == 1
        see(copy, visible, rules.may_idle, seen[b], masks[b])
