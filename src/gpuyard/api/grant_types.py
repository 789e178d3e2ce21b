"""Grants, reports and recordings as JSON has them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class GrantChange(TypedDict):
    """Something that changed for a running job: what it has from then on, and why."""

    number: int
    """The next one has a larger one."""
    kind: str
    """`extend` or `shrink`: its time; `up` or `down`: its GPUs; `preempt`: it was told to end."""
    at: float
    budget: float | None
    """Seconds that it may run in all; None: as long as it likes."""
    deadline: float | None
    """When that is over; after `preempt`: when it is killed."""
    gpus: list[str]
    """All that it may use, as CUDA_VISIBLE_DEVICES has them."""
    indices: list[int]
    """The same, by index."""
    grace: float
    """Seconds that it has to obey `down` and `preempt`."""
    why: str


class Grant(TypedDict):
    """What a running job has, and what changed."""

    job: str
    attempt: int
    state: str
    last: int
    """The number of the last change that this tells of: ask for those after it next time."""
    budget: float | None
    deadline: float | None
    grace: float
    gpus: list[str]
    indices: list[int]
    granted: list[int]
    """Which of these are lent to it."""
    events: list[GrantChange]


class JobReport(TypedDict, total=False):
    """What a job that adapts tells of itself; all of it may be left out."""

    step_seconds: float | None
    """What one step takes now."""
    gain_per_second: float | None
    """Accuracy (1 is all) that one more second of one more GPU is expected to bring; 0: none."""
    noise: float | None
    """How sure that is: a gain per second that is not above this counts as none."""
    accuracy: float | None
    parameters: int | None
    """Of its network, as it is now."""
    decision: str | None
    """What it has decided: recorded, and shown to people."""
    reason: str | None
    """Why."""
    accepted: bool | None
    """Whether it uses what it was offered; false gives that back."""
    parameters_before: int | None
    cost_ratio: float | None
    """How many times as long steps take after what was decided."""
    predicted_gain: float | None
    """Accuracy that it expects of that."""


class Lent(TypedDict):
    """A GPU that a job was lent."""

    gpu: int
    since: float
    until: float | None
    """When it was free again; None: it is still lent."""
    why: str
    """Why it was given to this job."""
    told: NotRequired[float]
    """When the job was told to leave it, if it was."""
    ended: NotRequired[str]
    """Why it was taken back, or given back."""


class Decided(TypedDict):
    """What a job decided."""

    at: float
    decision: str
    reason: str
    accepted: bool | None
    parameters_before: int | None
    parameters: int | None
    cost_ratio: float | None
    predicted_gain: float | None


class Reported(TypedDict):
    """What a job told last of how it does."""

    at: float
    step_seconds: float | None
    gain_per_second: float | None
    noise: float | None
    accuracy: float | None
    parameters: int | None


class TimeSet(TypedDict):
    """That a running job's time was changed."""

    at: float
    before: float | None
    after: float | None


class Adaptation(TypedDict):
    """How a job adapts: what it was given, and what it made of that."""

    job: str
    adaptive: bool
    budget: float | None
    deadline: float | None
    grace: float
    granted: list[int]
    """GPUs that it is lent now."""
    grants: list[Lent]
    """All that it was lent, the oldest first."""
    decisions: list[Decided]
    times: list[TimeSet]
    """How its budget was changed while it ran."""
    report: Reported | None
    """None: nothing that is known by now."""
    standing: str
    """How it stands with offers, in a sentence; empty: there is nothing to say."""


class RecordedValues(TypedDict):
    """One metric, value by value; None is a gap."""

    mean: list[float | None]
    min: list[float | None] | None
    """The least of each span; None where every value is a single look."""
    max: list[float | None] | None


class RecordedGpu(TypedDict):
    """What one GPU did."""

    index: int
    uuid: str
    name: str
    memory_total: int | None
    at: list[float]
    """When each value was, in seconds since the epoch, the oldest first; of a span, when it began."""
    metrics: dict[str, RecordedValues]


class RecordedJob(TypedDict):
    """What one attempt of a job used of one GPU."""

    id: str
    attempt: int
    gpu: int
    at: list[float]
    metrics: dict[str, RecordedValues]


class RecordedMark(TypedDict):
    """An instant, or a span, that is worth a line: a job on a GPU, or an error of one."""

    at: float
    until: float | None
    """None for an instant, and for a job that still runs."""
    label: str
    gpu: int | None
    job: str | None


_Bounds = TypedDict("_Bounds", {"from": str, "to": str})


class Recorded(_Bounds):
    """What GPUs did in a span of time, and jobs on them."""

    start: float
    """When the span begins, in seconds since the epoch."""
    end: float
    period: float
    """Seconds from one value to the next, about; of an idle GPU there may be fewer."""
    level: Literal["samples", "minutes", "hours"]
    """How fine that is still kept."""
    simulated: bool
    """Whether these GPUs, their power and all else, exist in a program only."""
    gpus: list[RecordedGpu]
    jobs: list[RecordedJob]
    marks: list[RecordedMark]
    energy_wh: float | None
    """What these GPUs drew; of a job, its own part of it. None where power is not told."""
    gpu_hours: float
    """For how long jobs had these GPUs, each counted once; of a job, what it had."""
    warnings: list[str]
    """What could not be had, and why."""
