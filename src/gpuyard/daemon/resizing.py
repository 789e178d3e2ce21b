"""How much of a GPU a job is given after it ran out of memory. Pure: what is known goes in, what to try next comes out.

A share grows by what was used or tried for, then the job gets a GPU for itself, then a larger one; each of these counts
as a retry. Who kept to its share and died because others did not is not to blame: it gets the same again, uncounted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.core.model import Request
from gpuyard.daemon.views import Work
from gpuyard.units import format_size

TOLERANCE = 64 * 2.0**20
"""Bytes beyond its share that nobody is blamed for."""
BLAMELESS = 5
"""How often a job that kept to its share is run again without that being counted."""
_STEP = 64 * 2**20
_MORE, _GROWTH = 1.25, 1.5


class Shortage(NamedTuple):
    """What is known of an attempt that ran out of GPU memory."""

    needed: float
    """Bytes on one GPU that it had or tried to get; 0 where nobody knows."""
    full: bool
    """Whether the GPU had none left; else something else limited it, such as a cap."""
    died_on: float
    """Bytes of the smallest of its GPUs."""
    stopped: bool = False
    """Whether it was stopped for exceeding its share, before the GPU had none left."""


class Share(NamedTuple):
    """What a job gets next."""

    memory: float
    """Bytes on each GPU; of one that is alone there, how large the GPUs must be (0: any)."""
    alone: bool
    counted: bool = True


def next_share(shortage: Shortage, request: Request, work: Work, sizes: Sequence[float], buffer: float) -> Share | None:
    """What to try next, on GPUs of these sizes, of which as many bytes are kept free; None if nothing is left."""
    largest = sorted(sizes, reverse=True)[request.gpus - 1]  # a job on several GPUs needs as many
    if request.whole:
        if not shares(request, work) or work.ooms >= work.oom_retries or largest <= shortage.died_on:
            return None
        return _alone(max(_MORE * shortage.needed, shortage.died_on + 1), sizes, largest)
    if blameless(shortage, request) and work.blameless < BLAMELESS:
        return Share(request.memory, alone=False, counted=False)
    if work.ooms >= work.oom_retries:
        return None
    size = math.ceil(max(_MORE * shortage.needed, _GROWTH * request.memory) / _STEP) * float(_STEP)
    if work.ooms + 1 == work.oom_retries or size + buffer > largest:
        return _alone(size, sizes, largest)
    return Share(size, alone=False)


def shares(request: Request, work: Work) -> bool:
    """Whether a job is meant to share GPUs, even if it has them for itself by now."""
    return not request.whole or bool(request.memory or work.asked_memory or work.auto_memory)


def blameless(shortage: Shortage, request: Request) -> bool:
    """Whether a job kept to its share as far as is known, and had too little because of others."""
    known = 0 < shortage.needed <= request.memory + TOLERANCE
    return known and shortage.full and not shortage.stopped and not request.whole


def _alone(size: float, sizes: Sequence[float], largest: float) -> Share:
    """GPUs for itself: such that are large enough if there are any, else the largest."""
    too_small = [one for one in sizes if one < min(size, largest)]
    return Share(max(too_small, default=-1.0) + 1.0, alone=True)


def told(shortage: Shortage, request: Request) -> str:
    """What happened, with numbers."""
    verb = "used" if shortage.stopped else "wanted"  # who ran out did not get all of it
    used = f"{verb} {format_size(shortage.needed)}" if shortage.needed else ""
    if request.whole:
        return "ran out of GPU memory" + (f": {used} of {format_size(shortage.died_on)}" if used else "")
    promised = f"{format_size(request.memory)} were promised"
    if shortage.stopped:
        return f"was stopped for using more GPU memory than promised: {used}, {promised}"
    if blameless(shortage, request):
        return f"ran out of GPU memory, though it kept to the {format_size(request.memory)} that were promised"
    return f"ran out of GPU memory: {used + ', ' if used else ''}{promised}"


def told_of_retry(share: Share, work: Work) -> str:
    """What is done about it."""
    if not share.counted:
        return "retried as it was"
    count = f"({work.ooms + 1} of {work.oom_retries})"
    if share.alone:
        least = f" larger than {format_size(share.memory)}" if share.memory else ""
        return f"retried alone on a GPU{least} {count}"
    return f"retried with {format_size(share.memory)} {count}"


def told_of_end(request: Request, work: Work) -> str:
    """Why nothing is left to try; empty where that goes without saying."""
    if not shares(request, work):
        return ""
    if work.oom_retries and work.ooms >= work.oom_retries:
        return f"all {work.oom_retries} retries with more are used up"
    return "no GPU here is larger" if request.whole else ""
