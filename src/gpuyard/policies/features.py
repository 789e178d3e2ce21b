"""Features of a job that a trained policy sees: columns of the queue, comparable between jobs, clusters and traces."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.loops.formulas import ENDLESS

A = Any  # a number or an array of numbers

VERSION = 1  # of the features: a policy that was trained on others is refused

COLUMNS = (
    "estimate", "gpus", "submit", "wait", "memory", "usage_share", "attained", "opening", "suitable", "shorter",
    "idle", "hole", "queue", "queue_work", "shadow", "capacity",
)  # fmt: skip
"""The columns that features are made of, in the order in which they are passed."""

OF_JOBS = {
    "length": "how long it is expected to run (log)",
    "width": "how many GPUs it wants (log)",
    "part": "the part of the cluster that it wants",
    "patience": "how long it has waited, relative to its own length",
    "standing": "how long it has waited, relative to the work that waits",
    "memory": "memory wanted on each GPU",
    "usage": "its user's share of the GPU time so far",
    "attained": "how much of it is done already",
    "fits": "whether enough GPUs are idle for it now",
    "delay": "how long until they are, relative to its own length",
    "far": "how long until they are",
    "area": "GPU-seconds that it wants, relative to the queue's mean",
    "shorter": "the share of the queue that is shorter",
    "suitable": "idle GPUs of a kind that will do, as a part of the cluster",
}
"""Features that tell one job from another."""
OF_ALL = {
    "idle": "the part of the cluster that is idle",
    "fragmentation": "the part of the idle GPUs that is not on the node that has most of them",
    "queue": "how many jobs wait",
    "drain": "how long the cluster would take for all that waits",
    "shadow": "how long until the job that was submitted first could start",
}
"""Features that are the same for all waiting jobs: they only matter together with the others."""
NAMES = (*OF_JOBS, *OF_ALL)

MINUTE, HOUR = 60.0, 3600.0
GIB = 2.0**30


def features(
    estimate: A, gpus: A, submit: A, wait: A, memory: A, usage_share: A, attained: A, opening: A, suitable: A,
    shorter: A, idle: A, hole: A, queue: A, queue_work: A, shadow: A, capacity: A,
) -> tuple[A, ...]:  # fmt: skip
    length = np.minimum(estimate, ENDLESS)
    drain = queue_work / capacity
    area = length * gpus
    mean_area = queue_work / np.maximum(queue, 1.0)
    return (
        (np.log(length) - 7.0) / 3.0,
        np.log(gpus) / 6.0,
        gpus / capacity,
        wait / (wait + length + MINUTE),
        wait / (wait + drain + 10.0 * MINUTE),
        memory / (memory + 16.0 * GIB),
        usage_share,
        attained / (attained + length),
        1.0 * (opening <= 0.0),
        opening / (opening + length + 10.0),
        opening / (opening + HOUR),
        area / (area + mean_area + 1.0),
        shorter,
        suitable / capacity,
        idle / capacity,
        1.0 - hole / np.maximum(idle, 1.0),
        queue / (queue + 30.0),
        drain / (drain + 10.0 * HOUR),
        shadow / (shadow + HOUR),
    )
