"""A recording that covers a span of time from one end to the other, where values hold until there are others.

The daemon writes down an idle GPU every ten seconds, since nothing changes. So what was last seen before a span, or in
it, was so at its beginning, or until its end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuyard.recordings.series import Floats, Recording, Series

HELD = 15.0
"""Seconds for which a value of the daemon's recordings holds."""


def to_edges(recording: Recording, start: float, end: float, held: float = HELD) -> Recording:
    """What a recording tells of a span, with GPUs known at both ends; what is of a job keeps to the time it had."""
    series = [_cut(one, start, end, held) for one in recording.series]
    marks = [mark for mark in recording.marks if mark.at <= end and (mark.until or mark.at) >= start]
    known = [one for one in series if len(one.at)]
    return Recording(start, end, known, marks, recording.warnings, recording.simulated)


def _cut(one: Series, start: float, end: float, held: float) -> Series:
    places: list[int] = np.flatnonzero((one.at >= start) & (one.at <= end)).tolist()
    times = one.at[places]
    if not one.subject.job:
        before = int(np.searchsorted(one.at, start)) - 1
        if before >= 0 and start - one.at[before] < held and (not len(times) or times[0] > start):
            places, times = [before, *places], np.append(start, times)
        if places and 0 < end - times[-1] < held:
            places, times = [*places, places[-1]], np.append(times, end)
    return replace(one, at=times, mean=one.mean[places], low=_at(one.low, places), high=_at(one.high, places))


def _at(values: Floats | None, places: list[int]) -> Floats | None:
    return None if values is None else values[places]
