"""What the API answers with, but for what `gpuyard.shapes` has: pages, the status, policies, rules, and refusals.

The server makes its schema from these types, and from those.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpuyard.shapes import Columns, Event, Job


class Id(TypedDict):
    """What something new is called."""

    id: str
    """The job's, the lease's or the array's."""


class Ids(TypedDict):
    """What several new jobs are called, in their order."""

    ids: list[str]


class Jobs(TypedDict):
    """A page of jobs."""

    total: int
    """How many there are on all pages; each task of an array counts."""
    jobs: list[Job]
    next: str | None
    """Where the next page is."""


class Table(TypedDict):
    """A page of jobs, column by column."""

    now: float
    """The time at the daemon."""
    total: int
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


class Rules(TypedDict):
    """How GPUs are shared."""

    half_life: float | None
    preempts: bool
    """Whether preemptible jobs are stopped for others."""
    users: list[Standing]


class PolicyInForce(TypedDict):
    """What makes the plans."""

    policy: str
    """All of it, `NAME[:SETTING=VALUE,...]@DISCIPLINE@PLACEMENT`."""
    name: str
    discipline: str
    placement: str
    since: str


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
    """What is risky or missing in how it can be reached."""
    simulated: bool
    gpus: dict[str, int]
    """How many GPUs are in each state."""
    policy: str
    jobs: dict[str, int]
    """How many jobs are in each state."""
    plan: dict[str, float]
    """How long planning takes."""
    store: StoreHealth


class LeaseStanding(TypedDict):
    """How a lease stands."""

    id: str
    state: Literal["queued", "held", "running"]
    gpus: list[int]
    reason: str | None


class Spread(TypedDict):
    """How long something took, in seconds."""

    count: int
    mean: float | None
    median: float | None
    p90: float | None
    p99: float | None


class UserStats(TypedDict):
    """What one user did in a span of time."""

    user: str
    gpu_hours: float
    submitted: int
    ended: int


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
    queue: dict[str, int]
    """How it stands now."""


class Subscription(TypedDict):
    """Where somebody is told of their jobs, and of what."""

    id: str
    name: str
    target: str
    """What may be shown of its URL."""
    events: list[str]
    long_wait: float
    title: str | None
    body: str | None
    created_at: str


class Subscriptions(TypedDict):
    """Where somebody is told of their jobs."""

    subscriptions: list[Subscription]
    mail: bool
    """Whether a bare e-mail address will do."""


class Delivery(TypedDict):
    """Something that was sent, or is to be."""

    id: str | None
    at: str
    user: str
    job: str | None
    event: str
    state: str
    attempts: int
    error: str | None
    next_at: str | None
    ended_at: str | None
    subscription: str | None
    target: str | None


class Deliveries(TypedDict):
    """What was sent, or is to be, the latest first."""

    notifications: list[Delivery]


class Token(TypedDict):
    """A token, but for its secret."""

    id: str
    user: str
    role: Literal["viewer", "user", "admin"]
    label: str
    made_by: str
    state: str
    sessions: int
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    token: NotRequired[str]
    """The secret itself, where it is new."""
    runs_as: NotRequired[str | None]
    """Of a new one: the account that its jobs run as; none if it runs none."""


class Tokens(TypedDict):
    """Tokens, the newest first."""

    tokens: list[Token]


class AuditEntry(TypedDict):
    """What somebody did, or tried to."""

    id: int
    at: str
    user: str | None
    via: str
    address: str | None
    method: str | None
    path: str
    status: int
    job: str | None
    times: int


class Audit(TypedDict):
    """Who changed what, and who was refused, the latest first."""

    entries: list[AuditEntry]


class WhoAmI(TypedDict):
    """Who asks, and how that is known."""

    user: str
    role: str
    via: str
    csrf: NotRequired[str]
    """Of a session: what to send with changes, as X-CSRF-Token."""
    expires_at: NotRequired[str]


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
