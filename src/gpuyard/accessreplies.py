"""What the API answers on who is told of what and who may do what: notifications, tokens, sessions, the audit trail."""

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
