"""Answers on notifications, tokens, sessions, the audit log and estimates."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


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


class PredictionError(TypedDict):
    """How far predictions were from the truth, as parts of it; more than 0: too much was expected."""

    count: int
    median: float
    """Of how far, either way."""
    worst: float
    bias: float
    """The mean."""


class Estimate(TypedDict):
    """What is known of jobs of one signature, by their latest runs."""

    signature: str
    command: str
    """Without what belongs to one run only; `#` stands for how many epochs there are."""
    name: str
    user: str
    runs: int
    """How many are known of in all."""
    memory: float | None
    """Bytes on each GPU that the next one is expected to need, margin included; null: nothing is known."""
    seconds: float | None
    """That it is expected to run; of one epoch, if `per_epoch`."""
    per_epoch: bool
    evidence: str | None
    memory_error: PredictionError | None
    time_error: PredictionError | None
    last_at: str
    """When the latest run ended."""


class Estimates(TypedDict):
    """What is known, the latest first."""

    estimates: list[Estimate]


class PastRun(TypedDict):
    """What one attempt took: bytes on one GPU, and seconds; null where that is not known."""

    job: str
    attempt: int
    ended_at: str
    outcome: str
    """A state, or `requeued` or `preempted`."""
    peak: int | None
    seconds: float
    alone: bool
    predicted_peak: float | None
    predicted_seconds: float | None


class Expectation(TypedDict):
    """What is expected of a job, and by what evidence."""

    signature: str
    command: str
    memory: float | None
    """Bytes on each GPU, margin included; null: nothing is known, and with `auto` it gets a GPU alone."""
    seconds: float | None
    evidence: str | None
    runs: list[PastRun]
    """Of this signature or, if there are none, of earlier versions of its script; the latest first."""


class Forgotten(TypedDict):
    """What is not known any more."""

    runs: int
