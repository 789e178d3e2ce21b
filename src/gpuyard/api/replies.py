"""Answers of the API besides jobs and GPUs:

pages, status, policies, limits, access, notifications, estimates, problems.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpuyard.api.types import Columns, Event, Job


class Id(TypedDict):
    """What something new is called."""

    id: str
    """The job's, the lease's or the array's."""
    warnings: NotRequired[list[str]]
    """What should be known of it."""


class Ids(TypedDict):
    """What several new jobs are called, in their order."""

    ids: list[str]
    warnings: NotRequired[list[str]]
    """What should be known of them."""


class BulkChange(TypedDict):
    """What became of all jobs that match."""

    action: str
    matched: int
    """How many jobs match; each task of an array counts."""
    changed: int
    """How many of them it was done to; the others had begun, or ended, meanwhile."""
    states: dict[str, int]
    """How many of them were in each state."""
    jobs: list[str]
    """Those that match; tasks of an array together, as in `12_[0-99]`."""
    ids: list[str]
    """What the new jobs of a retry are called."""


class Jobs(TypedDict):
    """A page of jobs."""

    total: int
    """How many there are on all pages; each task of an array counts."""
    rows: int
    """How many entries that makes, which are fewer where tasks are folded."""
    states: dict[str, int]
    """How many of them are in each state."""
    jobs: list[Job]
    next: str | None
    """Where the next page is."""


class Table(TypedDict):
    """A page of jobs, column by column."""

    now: float
    """The time at the daemon."""
    total: int
    rows: int
    """How many entries there are on all pages, which are fewer than `total` where tasks are folded."""
    states: dict[str, int]
    """How many of them are in each state."""
    last: int
    """The number of the last event."""
    columns: Columns
    next: str | None
    """Where the next page is."""


class Ended(TypedDict):
    """A page of the history."""

    jobs: list[Job]
    next: str | None
    """Where the next page is."""


class Probed(TypedDict):
    """All is well."""

    status: Literal["ok"]


class Variables(TypedDict):
    """An environment."""

    environment: dict[str, str]


class Events(TypedDict):
    """Some of the log."""

    events: list[Event]
    last: int
    """The number of the last of them, after which to ask for more."""


class Drained(TypedDict):
    """GPUs that nothing starts on."""

    drained: list[int]


class Reservation(TypedDict):
    """GPUs that are kept for some users for a time."""

    name: str
    gpus: list[int]
    begin_at: str
    end_at: str
    users: list[str]
    in_the_way: NotRequired[list[str]]
    """Jobs that may still be on these GPUs when it begins, where it is new."""


class Reservations(TypedDict):
    """Reservations that are not over, the next to begin first."""

    reservations: list[Reservation]


class Standing(TypedDict):
    """What a user, a group (@name) or everybody else (*) deserves, may have and has had."""

    name: str
    group: str | None
    weight: float
    gpus: int
    week_gpu_hours: float
    faded_gpu_hours: float
    """What counts against them in fair shares: the longer ago, the less."""
    quota_gpus: int | None
    quota_gpu_hours: float | None
    quota_queued: int | None


class Rules(TypedDict):
    """How GPUs are shared."""

    half_life: float | None
    preempts: bool
    """Whether preemptible jobs are stopped for others."""
    users: list[Standing]


class Gate(TypedDict):
    """How a trained policy fared against the best heuristic where it was held out."""

    passed: bool
    ratio: float | None
    """Below 1 it was better."""
    ratio_low: float | None
    ratio_high: float | None
    """Between these the ratio is, with confidence."""
    mean_ratio: float | None
    p99_ratio: float | None
    best_heuristic: str | None
    reasons: list[str]
    """Why it did not pass."""


class LearnedInForce(TypedDict):
    """The trained policy that decides, and what its guard counted since it does."""

    file: str
    hash: str
    """The first digits of the hash of what was loaded."""
    base: str
    """The heuristic that it builds on, and that ranks where it cannot be trusted."""
    forced: bool
    """Whether somebody had it decide though its gate is not passed."""
    gate: Gate | None
    """null: nobody has evaluated it."""
    plans: int
    """How often the queue was ranked."""
    fallbacks: dict[str, int]
    """How often the base heuristic did that: `not-a-number`, `unusual`, `late`."""
    starved: int
    """Jobs that were put ahead for having waited too long."""


class PolicyInForce(TypedDict):
    """What makes the plans."""

    policy: str
    """All of it, `NAME[:SETTING=VALUE,...]@DISCIPLINE@PLACEMENT`."""
    name: str
    discipline: str
    placement: str
    since: str
    admission: str
    """`requests`: GPUs are shared by what jobs ask for; `usage`: by what they and their like use."""
    learned: LearnedInForce | None
    """null: what decides is no trained policy."""
    warning: str | None
    """Why another policy decides than the one that was set; null: it does not."""


class KnownPolicy(TypedDict):
    """A policy that comes with gpuyard."""

    name: str
    doc: str
    settings: dict[str, float | str | list[float]]
    """What can be set, and what that is otherwise."""
    columns: list[str]
    """What it looks at."""
    preemptive: bool


class Alias(TypedDict):
    """Another name of a policy."""

    policy: str
    doc: str


class Policies(TypedDict):
    """What there is to choose from, with a line on each."""

    policies: list[KnownPolicy]
    aliases: dict[str, Alias]
    disciplines: dict[str, str]
    placements: dict[str, str]
    columns: dict[str, str]
    """What a policy of one's own may look at."""


class StoreHealth(TypedDict):
    """Whether what happens can be written down."""

    state: Literal["ok", "failing"]
    problem: str | None


class PageState(TypedDict):
    """How the page does."""

    url: str | None
    """Where people look at it; null if there is none."""
    pid: int | None
    """Its process; null while there is none."""
    starts: int
    """How often that was started."""
    state: Literal["running", "starting", "off"]


class ThreadState(TypedDict):
    """How a thread of the daemon does."""

    name: str
    state: str
    """`ok`, `failing` (it tries again), `stuck` or `dead`."""
    problem: str | None


class Status(TypedDict):
    """How the daemon does."""

    version: str
    pid: int
    since: str
    data_dir: str
    socket: str
    url: str | None
    """Where the API is on TCP, if it is."""
    warnings: list[str]
    """What is risky or missing in how it can be reached, and whether another policy decides than is wanted."""
    simulated: bool
    gpus: dict[str, int]
    """How many GPUs are in each state."""
    policy: str
    learned: LearnedInForce | None
    """null: what decides is no trained policy."""
    admission: str
    """`requests`: GPUs are shared by what jobs ask for; `usage`: by what they and their like use."""
    jobs: dict[str, int]
    """How many jobs are in each state."""
    plan: dict[str, float]
    """How long planning takes."""
    store: StoreHealth
    page: PageState
    threads: list[ThreadState]
    """The loop, and the threads beside it that are on."""


class LeaseStanding(TypedDict):
    """How a lease stands."""

    id: str
    state: Literal["queued", "held", "running"]
    gpus: list[int]
    reason: str | None


class Histogram(TypedDict):
    """How many took how long: the first count is of those below the first edge, the last of those from the last on."""

    edges: list[float]
    """Seconds, each a fixed number of times the one before."""
    counts: list[int]
    """One more than there are edges."""


class Spread(TypedDict):
    """How long something took, in seconds."""

    count: int
    mean: float | None
    median: float | None
    p90: float | None
    p99: float | None
    histogram: Histogram


class TagStats(TypedDict):
    """What the jobs with a tag did in a span of time; a job with two tags counts for both."""

    tag: str
    gpu_hours: float
    submitted: int
    ended: int


class UserStats(TypedDict):
    """What one user did in a span of time."""

    user: str
    gpu_hours: float
    submitted: int
    ended: int
    energy_wh: float | None
    """Watt-hours that GPUs drew for their jobs; None where that is not known."""


class Stats(TypedDict):
    """What happened in a span of time."""

    since: str
    until: str
    gpus: int
    """How many there are."""
    submitted: int
    ended: int
    outcomes: dict[str, int]
    gpu_hours: float
    utilization: float | None
    wait_seconds: Spread
    run_seconds: Spread
    users: list[UserStats]
    tags: list[TagStats]
    """Of the tags with most use, 500 at most."""
    queue: dict[str, int]
    """How it stands now."""


class Kind(TypedDict):
    """Jobs that are alike."""

    signature: str
    name: str
    """What one of them is called."""
    job: str
    """The last of them that was looked at."""


class Pair(TypedDict):
    """What jobs of one kind suffer beside those of another, on the same GPU."""

    sufferer: Kind
    beside: Kind
    slowdown: float
    """How many times as long as alone it takes."""
    verdict: Literal["apart", "avoided", "together"]
    """What placement `considerate` makes of it: never on one GPU, only if there is no other, or as it comes."""
    evidence: str
    """`progress`, `utilization` or `run time`."""
    seconds: float
    """For how long it was seen."""
    at: str


class Interference(TypedDict):
    """What jobs that share a GPU do to each other, the worst first."""

    considered: bool
    """Whether the placement goes by it."""
    pairs: list[Pair]


class Ending(TypedDict):
    """The daemon is about to end."""

    running: int
    """Jobs that go on without it."""


class Complaint(TypedDict):
    """What is wrong with a part of a request."""

    where: str
    message: str


class Problem(TypedDict):
    """Why a request was refused, and what to do (RFC 9457)."""

    title: str
    status: int
    detail: str
    errors: NotRequired[list[Complaint]]
