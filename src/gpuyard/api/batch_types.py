"""Batches as JSON has them, and what a batch achieved."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict, TypeVar

from gpuyard.api.types import Job


class RefusedRow(TypedDict):
    """A row that can never run here."""

    row: int
    reason: str


class Taken(TypedDict):
    """What became of jobs that were submitted as a batch."""

    ids: list[str]
    """Of those that were taken, in their order."""
    batch: str | None
    """What they are called together: the id of the first; none if all were refused."""
    refused: list[RefusedRow]
    open: bool
    """Whether this is a batch that was there before, with the same key, and nothing was submitted."""
    warnings: NotRequired[list[str]]


class RowOutcome(TypedDict):
    """How a row of a batch stands, or ended."""

    id: str
    row: int
    wave: int
    name: str
    state: str
    reason: str | None
    exit_code: int | None
    attempt: int
    gpus: list[int]
    started_at: str | None
    ended_at: str | None
    seconds: float | None
    """What its last attempt took."""
    gpu_memory: int | None
    """What it was promised of each GPU; null if it had them whole."""
    peak: int | None
    """What it used of one GPU at most; null if that was not measured."""
    ooms: int


class BatchSummary(TypedDict):
    """A batch in short."""

    batch: str
    name: str
    user: str
    state: Literal["open", "over"]
    rows: int
    """All rows of its file, those that were refused as well."""
    states: dict[str, int]
    """How many of its jobs are in each state."""
    refused: int
    submitted_at: str
    ended_at: str | None


class BatchStanding(BatchSummary):
    """A batch as it stands."""

    wave: int | None
    """The wave that is on; null if it is over."""
    waves: int
    running: list[Job]
    ended: list[RowOutcome]
    """Rows that are over, in the order in which they ended."""
    refusals: list[RefusedRow]


class Batches(TypedDict):
    """Batches, the newest first."""

    batches: list[BatchSummary]


class Wave(TypedDict):
    """Rows of a batch that start together."""

    wave: int
    rows: int
    started_at: str | None
    ended_at: str | None
    """Null while some of them are not over."""


class BatchReport(TypedDict):
    """What a batch achieved, beside running its rows one after another."""

    batch: str
    name: str
    state: Literal["open", "over"]
    rows: int
    succeeded: int
    failed: int
    """Rows that ended otherwise."""
    refused: int
    waves: list[Wave]
    makespan: float
    """Seconds from its first start to its last end."""
    sequential: float
    """Seconds that its rows take one after another."""
    speedup: float | None
    gpu_hours: float
    """Time during which GPUs had at least one of its rows on them."""
    gpu_hours_sequential: float
    gpu_hours_saved: float
    most_at_once: int
    ooms: int
    retries: int
    profiles: int
    """Jobs that tried rows out first; what they took counts as the batch's."""
    evidence: str
    """Where the times of single rows come from."""


_HOUR = 3600.0
Key = TypeVar("Key", bound=Hashable)


class Span(NamedTuple):
    """An attempt on its GPUs."""

    gpus: tuple[int, ...]
    begin: float
    end: float


class Cost(NamedTuple):
    """What a row costs when it runs alone."""

    seconds: float
    gpus: int
    alone: bool
    """Whether that was measured without other jobs on its GPUs."""


class Achieved(NamedTuple):
    """Results of a batch, in seconds and GPU-hours."""

    makespan: float
    sequential: float
    """All rows one after another."""
    speedup: float | None
    gpu_hours: float
    """Time during which GPUs had at least one row on them."""
    gpu_hours_sequential: float
    gpu_hours_saved: float
    most_at_once: int
    alone: int
    """Rows whose own time was measured without other jobs on their GPUs."""


def achieved(spans: Sequence[Span], costs: Sequence[Cost]) -> Achieved:
    """Compare a batch's attempts with the costs of its rows when run alone."""
    makespan = max((s.end for s in spans), default=0.0) - min((s.begin for s in spans), default=0.0)
    sequential = sum(cost.seconds for cost in costs)
    used, alone = busy(spans) / _HOUR, sum(cost.seconds * cost.gpus for cost in costs) / _HOUR
    speedup = sequential / makespan if makespan > 0 and costs else None
    many = sum(cost.alone for cost in costs)
    return Achieved(makespan, sequential, speedup, used, alone, alone - used, most_at_once(spans), many)


def busy(spans: Iterable[Span]) -> float:
    """GPU-seconds with at least one attempt on them."""
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for span in spans:
        for gpu in span.gpus:
            by_gpu.setdefault(gpu, []).append((span.begin, span.end))
    return sum(map(_union, by_gpu.values()))


def _union(times: list[tuple[float, float]]) -> float:
    total, until = 0.0, float("-inf")
    for begin, end in sorted(times):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def most_at_once(spans: Iterable[Span]) -> int:
    """The most attempts at the same time; one that begins as another ends does not overlap it."""
    changes = [change for span in spans for change in ((span.begin, 1), (span.end, -1))]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def by_themselves(spans: Mapping[Key, Span]) -> set[Key]:
    """Keys of the spans that never shared a GPU with another."""
    by_gpu: dict[int, list[Key]] = {}
    for key, span in spans.items():
        for gpu in span.gpus:
            by_gpu.setdefault(gpu, []).append(key)
    beside: set[Key] = set()
    for keys in by_gpu.values():
        last: Key | None = None  # the earlier span that ends last
        for key in sorted(keys, key=lambda key: spans[key].begin):
            if last is not None and spans[key].begin < spans[last].end:
                beside |= {key, last}
            if last is None or spans[key].end > spans[last].end:
                last = key
    return spans.keys() - beside
