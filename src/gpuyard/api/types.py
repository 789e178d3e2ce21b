"""Jobs, GPUs and listings as JSON has them; times are ISO-8601, durations seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict


class GpuProcess(TypedDict):
    """A process on a GPU; on a simulated one, a job in the place of its processes."""

    pid: int | None
    """None on a simulated GPU."""
    user: str | None
    """Whose it is; None if that cannot be told, as of one that has just ended."""
    name: str | None
    """What it is called, without its arguments, which may hold secrets."""
    memory: int
    """Bytes on this GPU; 0 where that is not known."""
    job: str | None
    """The job or the lease that it belongs to; None: it is foreign."""
    graphics: bool
    """Whether it only draws, as a desktop does; a little of that does not make a GPU foreign."""


class Gpu(TypedDict):
    """A GPU and who is on it."""

    index: int
    uuid: str
    name: str
    state: str
    memory_total: int | None
    memory_used: int | None
    utilization: float | None
    temperature: float | None
    power: float | None
    jobs: list[str]
    why: str | None
    processes: list[GpuProcess]
    """The largest first."""
    simulated: bool
    drained: bool
    reservation: str | None
    """The name of the reservation that it is in, or will be in next."""
    reserved_from: str | None
    reserved_until: str | None
    memory_promised: int
    """Bytes that jobs were promised; all of it, if one has it for itself; more than that, where usage counts."""
    memory_buffer: int
    """Bytes that are kept free beside jobs that share it."""
    memory_others: int
    """Bytes in use by others than our jobs, as far as that keeps shares from being started."""
    memory_left: int
    """Bytes for another job that shares it; 0 if none may be started."""
    granted: str | None
    """The job that has it on loan, until somebody needs it."""


class Machine(TypedDict):
    """The GPUs, and whether they are made up."""

    simulated: bool
    gpus: list[Gpu]


class GpuSamples(TypedDict):
    """What one GPU did, at the times that `Samples` tells; None where that is not known, as while it was lost."""

    index: int
    utilization: list[int | None]
    memory_used: list[int | None]
    """Bytes, to within a ten-millionth."""
    temperature: list[int | None]
    power: list[int | None]


class Samples(TypedDict):
    """What the GPUs did lately."""

    period: float
    """Seconds from one to the next, about."""
    at: list[float]
    """When each was taken, in seconds since the epoch, the oldest first; of a minute, when it began."""
    gpus: list[GpuSamples]


class Spans(TypedDict):
    """Who was on GPUs, a list for each column; times are seconds since the epoch."""

    job: list[str]
    name: list[str]
    user: list[str]
    kind: list[str]
    """`job` or `lease`; `grant`: the job has them on loan."""
    gpu: list[list[int]]
    begin: list[float]
    end: list[float | None]
    """None: it is still there."""
    state: list[str]
    """The job's, of its last attempt; of others how they ended: `failed`, `preempted` or `requeued`."""
    attempt: list[int]


class Usage(TypedDict):
    """Who was on which GPU when, in a span of time; those that began last come first."""

    since: float
    until: float
    gpus: int
    """How many there are."""
    more: bool
    """Whether there were more than `limit`, which are left out; the oldest are."""
    columns: Spans


OVER = frozenset(("succeeded", "failed", "cancelled", "timeout", "oom", "interrupted"))
"""The states in which a job has ended."""
SILENT = frozenset(("Renewed", "Chosen", "Unpromised"))
"""Kinds of events that people are not shown."""


class Progress(TypedDict):
    """How far a running job is, by its own account; `remaining` in seconds, where that can be told and is not over."""

    done: float
    total: float
    fraction: float
    remaining: float | None


class Measured(TypedDict):
    """What an attempt used: bytes on one GPU, seconds, percent; None where that is not known."""

    peak: int | None
    mean: float | None
    samples: int
    period: float
    """Seconds from one sample to the next, about."""
    seconds: float
    utilization: float | None
    alone: bool
    """Whether it had its GPUs for itself all the time."""
    settled: float
    """For how many of these seconds its peak has not risen any more."""
    energy_wh: NotRequired[float | None]
    """Watt-hours that its GPUs drew for it; on simulated ones by a model."""
    gpu_seconds: NotRequired[float]
    """Seconds of whole GPUs that it had; of shares their part."""
    current: NotRequired[int | None]
    """While it runs: what it takes now."""


class Prediction(TypedDict):
    """What a job was expected to use: bytes on each GPU, margin included, and seconds; None where nothing is known."""

    memory: float | None
    seconds: float | None
    evidence: str


class BatchRow(TypedDict):
    """Where a job of a batch stands in its file."""

    number: int
    wave: int
    epochs: float
    priority: float


class Admission(TypedDict):
    """By what a job was given its share of a GPU; sizes in bytes."""

    admitted: bool
    by: str
    """`fit`, `history`, `cbp` or `pp`."""
    why: str
    request: float
    available: float
    """What nobody else asked for; below 0 where more was asked for than there is."""
    need: float | None
    """What it is expected to need itself."""
    bound: float | None
    """What is left if all the others come to what is expected of them."""
    harvested: float
    forecast: float
    variation: float
    autocorrelation: float
    samples: int


class Job(TypedDict):
    """A job, as the daemon tells of it; times are ISO-8601, durations seconds, sizes bytes."""

    id: str
    name: str | None
    user: str
    state: str
    reason: str | None
    attempt: int
    gpus: list[int]
    exit_code: int | None
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    ran_before: float
    """Seconds that earlier attempts ran whose work it goes on with: those that were preempted."""
    expected_end_at: str | None
    """Of a running job; never in the past."""
    expected_by: str | None
    """By what: `progress estimate runs` (of similar jobs) or `limit`, at the latest; `overdue`: it takes longer."""
    gpu_count: int
    gpu_memory: int | None
    priority: float
    command: list[str]
    directory: str
    tags: list[str]
    comment: str | None
    """A note for people."""
    estimate: float | None
    time_limit: float | None
    message: str | None
    array: str | None
    """The array that it is a task of."""
    task: int | None
    """Its number there."""
    begin_at: str | None
    deadline_at: str | None
    dependency: str | None
    retries: int
    failures: int
    """Attempts that failed and were followed by a retry."""
    retry_delay: float
    output: str | None
    """The file that its output goes to; None: the daemon keeps it."""
    error: str | None
    open_mode: str | None
    among: list[int] | None
    """Only GPUs with these indices."""
    grace: float
    requeue: bool
    signal: str
    """What asks it to stop."""
    notice: float | None
    """Seconds from that signal to its end, if that was said."""
    tasks: NotRequired[dict[str, int]]
    """Of an array as one: how many of its tasks are in each state."""
    preemptible: bool
    preemptions: int
    adaptive: bool
    """Whether it adapts to what it is granted, and may be lent idle GPUs."""
    granted: list[int]
    """GPUs that it has on loan."""
    notify: list[str]
    """Who is told of it, if that was said; `url` stands for one that was given with the job."""
    notify_on: list[str]
    """Of what, if that was said."""
    gpu_memory_asked: int | str | None
    """What its submitter asked for: bytes, or `auto`."""
    measured: Measured | None
    """What it uses, or its last attempt used."""
    admission: Admission | None
    """By what it was let in on its GPUs, where usage counts."""
    energy_wh: float | None
    """Watt-hours that its GPUs drew for it, in all attempts; None where their power is not told."""
    gpu_hours: float
    """Hours of whole GPUs that it had, in all attempts; of shares their part."""
    prediction: Prediction | None
    ooms: int
    """How often it ran out of GPU memory."""
    oom_retries: int
    cap: bool
    alone: bool
    """Whether it gets its GPUs for itself; also if it asked for memory, and that leaves no room for others."""
    mps: bool
    thread_percentage: float | None
    simulate_use: str | None
    profile: str | None
    batch: str | None
    """The batch that it is of."""
    row: BatchRow | None
    kind: str
    pid: NotRequired[int]
    """Of a lease: who holds it."""
    progress: Progress | None


class Event(TypedDict):
    """Something that happened; what else there is to tell depends on its kind."""

    seq: int
    """Its number: the next one has a larger one."""
    at: str
    kind: str
    job: str | None
    attempt: int | None


class Columns(TypedDict):
    """What a table shows of jobs, a list for each column; times are seconds since the epoch."""

    id: list[str]
    name: list[str]
    user: list[str]
    state: list[str]
    reason: list[str | None]
    gpus: list[list[int]]
    gpu_count: list[int]
    gpu_memory: list[int | None]
    submitted: list[float]
    waiting_since: list[float]
    """When each began to wait, the last time: a job that was stopped or failed may wait again."""
    started: list[float | None]
    ended: list[float | None]
    ran_before: list[float]
    """Seconds that earlier attempts ran whose work each goes on with."""
    expected_end: list[float | None]
    """When each that runs should be over; never in the past."""
    expected_by: list[str | None]
    """By what, as in `Job`."""
    priority: list[float]
    tags: list[list[str]]
    kind: list[str]
    progress: list[Progress | None]


class Page(NamedTuple):
    """Some jobs of a listing."""

    now: float
    """The time at the daemon."""
    total: int
    """How many jobs the whole listing has."""
    last: int
    """The number of the last event, from which `events` may wait for news."""
    columns: Columns


class Wishes(TypedDict, total=False):
    """What may be asked for a job; a time is in seconds, or a text like `90m`."""

    name: str | None
    tags: Sequence[str]
    comment: str | None
    """A note for people."""
    gpus: int
    among: Sequence[int] | None
    """Only GPUs with these indices."""
    gpu_memory: int | str | None
    """Share a GPU with others, by memory: bytes, a text like `6G`, or `auto`: the measured use of similar jobs."""
    oom_retries: int
    """How often it is run again, with more memory, if it runs out of that of a GPU."""
    cap: bool
    """Tell its framework to keep to its share."""
    simulate_use: str | None
    """What it uses of simulated GPUs, as in `ramp:391M,713M,1045M`."""
    mps: bool
    """Let it be a client of MPS."""
    thread_percentage: float | None
    """How much of the GPU's threads such a client may have."""
    profile: str | None
    """Profile it first if no similar job has run: `30s`, or arguments like `--epochs=2`."""
    priority: float
    """Higher runs first."""
    estimate: float | str | None
    time_limit: float | str | None
    grace: float | str | None
    """Seconds between asking the job to end and making it end."""
    requeue: bool
    """Run it again if a reboot interrupts it."""
    hold: bool
    """Queue it, but do not start it before it is released."""
    begin: float | str | None
    """Not before: seconds since the epoch, or a text like `tomorrow 8:00`."""
    deadline: float | str | None
    """When it should be done."""
    dependency: str | None
    """Jobs that must end first, by id or name: `afterok:12:13,afterany:prepare`."""
    array: str | None
    """Tasks: `0-99%4` for a hundred of them, four at once."""
    retries: int
    """How often it is run again if it fails."""
    retry_delay: float | str | None
    """Seconds before the first retry; then twice as long each time, up to an hour."""
    output: str | None
    """A file for its output, relative to its directory, with patterns like %j."""
    error: str | None
    open_mode: str | None
    """`append` or `truncate` these files."""
    script: str | None
    """A text to run, in place of the command's first word."""
    slurm: bool
    """Give it the variables that Slurm would give it."""
    preemptible: bool
    """It may be stopped so that others can run; then it waits again."""
    adaptive: bool
    """It adapts to what it is granted: it may be lent idle GPUs, and told to leave them."""
    signal: str
    """What asks it to stop, as in USR1."""
    notice: float | str | None
    """Seconds from that signal to its end; it also comes so long before its time limit."""
    notify: Sequence[str] | None
    """Where its notifications go: names of subscriptions, URLs, `all` (the default) or `none`."""
    notify_on: Sequence[str] | None
    """Of what: some of `start finish failure timeout long-wait tasks`; as each subscription says if not said."""


class LeaseWishes(TypedDict, total=False):
    """What may be asked for a lease."""

    gpus: int | None
    """How many; 1, or all that are listed, if not said."""
    among: Sequence[int] | None
    gpu_memory: int | None
    name: str | None
    tags: Sequence[str]
    priority: float
    estimate: float | None
    time_limit: float | None


class MovedJob(TypedDict):
    """A waiting job, and its place in the queue, from 1 on."""

    id: str
    name: str
    user: str
    place: int
    """What it would be."""
    was: int
    """What it is."""


class PolicyPreview(TypedDict):
    """What another policy would change now."""

    policy: str
    """All of it, `NAME[:SETTING=VALUE,...]@DISCIPLINE@PLACEMENT`."""
    starts: list[str]
    """Jobs that would start now."""
    stops: list[str]
    """Jobs that would be stopped now, to wait again."""
    order: list[MovedJob]
    """The head of the queue in the new order; who would start is still in it."""
    moved: int
    """How many waiting jobs would have another place."""
    waiting: int
    note: str | None
    """What this does not tell, as where lots decide."""


class Blocker(TypedDict):
    """A job that has to end first."""

    id: str
    name: str | None
    user: str
    gpus: list[int]
    expected_at: str | None
    expected_by: str | None
    """As in `Job`."""


class Explanation(TypedDict):
    """Why a job waits."""

    id: str
    state: str
    reason: str | None
    code: str | None
    details: dict[str, Any]
    expected_at: str | None
    """When it should start; only of the first in line, and never in the past."""
    expected_by: str | None
    """As in `Job`, of the job that has to end last; `limit`: it starts at the latest then."""
    place: int | None
    """Its place in line, from 1; null: it does not wait for its turn."""
    needs: str | None
    """Which GPUs would do for it, as `any 8 GPUs`."""
    ahead: list[str]
    must_end_first: list[Blocker]
    """Empty while others go first: no end of a job would help it then."""
    gpus: list[int]
    tasks: NotRequired[dict[str, int]]
    """Of an array, of whose tasks this is the next: how many of them are in each state."""
    holds: NotRequired[list[Blocker]]
    """Of a lease that waits: other leases that its own holder has already."""


class LogPart(NamedTuple):
    """A piece of a job's output, and where the next one begins."""

    data: bytes
    next_offset: int
    size: int
    state: str
    attempt: int
