"""What there was no answer for while series were read: as times of metrics, and as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpuyard.monitor.joining import Hole
from gpuyard.times import format_when


class Lost(NamedTuple):
    """A question about a metric that there was no answer for."""

    start: float
    end: float
    why: str
    metric: str
    peaks: bool = False
    """Whether only the least or the most of each span is not known, while the mean is."""


def times_of(lost: Iterable[Lost]) -> dict[str, list[Hole]]:
    """When nothing is known of each metric, because nobody answered."""
    found: dict[str, list[Hole]] = {}
    for one in lost:
        if not one.peaks:
            found.setdefault(one.metric, []).append(Hole(one.start, one.end))
    return {metric: _merged(times) for metric, times in found.items()}


def sentences(lost: Sequence[Lost], asked: Iterable[str], start: float, end: float) -> Iterator[str]:
    """What is not known between two instants, of those metrics that were asked for, and why."""
    everything = set(asked)
    for peaks in (False, True):
        groups: dict[tuple[Hole, ...], set[str]] = {}
        some = [one for one in lost if one.peaks == peaks]
        for metric, times in times_of(one._replace(peaks=False) for one in some).items():
            groups.setdefault(tuple(times), set()).add(metric)
        for spans, metrics in groups.items():
            about = "" if metrics >= everything else f" of {', '.join(sorted(metrics))}"
            what = f"the least and the most{about} are not known" if peaks else f"nothing is known{about}"
            for span in spans:
                why = next(one.why for one in some if one.metric in metrics and one.start == span.start)
                yield f"{why}: {what} {between(max(span.start, start), min(span.end, end))}"


def between(start: float, end: float) -> str:
    """`from 14:00 to 15:00`."""
    return f"from {format_when(start, end)} to {format_when(end, end)}"


def _merged(times: Iterable[Hole]) -> list[Hole]:
    """Times that follow each other as one."""
    found: list[Hole] = []
    for time in sorted(times):
        if found and time.start <= found[-1].end:
            found[-1] = Hole(found[-1].start, max(found[-1].end, time.end))
        else:
            found.append(time)
    return found
