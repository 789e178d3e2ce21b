"""Events as rows of the log, and back.

The core's events say what a plan may depend on. What else is known, of a job's command or of a process, goes along in
`details`: the core never sees it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, NamedTuple, get_args

from gpuyard.core import events
from gpuyard.core.checkpoint import booking_of, plain_rules, rules_of
from gpuyard.core.events import Booked, Edited, Event, Opened, RulesSet, Submitted
from gpuyard.core.model import Booking, Cluster, Request, Rules
from gpuyard.errors import Bug
from gpuyard.spec.work import joined, with_tuples, without

KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(events.Event)}
UNSAID: dict[str, dict[str, Any]] = {
    name: {f.name: f.default for f in fields(kind) if isinstance(f.default, str | int | float | bool | None)}
    for name, kind in KINDS.items()
}
"""What a row of each kind does not say, since it is the usual."""
_DEFAULTS = {f.name: f.default for f in fields(Request)}
_CLUSTER = {f.name: f.default for f in fields(Cluster)}


@dataclass(frozen=True, slots=True)
class Record:
    event: Event
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job(self) -> str | None:
        return getattr(self.event, "job", None)


class Row(NamedTuple):
    at: float
    kind: str
    job: str | None
    attempt: int | None
    data: str


Bases = Callable[[str], Mapping[str, Any]]
"""What the tasks of an array share, by its hash."""


def encode(record: Record, bases: Bases | None = None) -> Row:
    """The row of an event; what its job shares with others of an array is left out where `bases` has it."""
    event = record.event
    data: dict[str, Any] = {}
    for f in fields(event):
        value = getattr(event, f.name)
        if f.name in ("at", "job", "attempt") or (f.default is not MISSING and value == f.default):
            continue
        if isinstance(value, Request):
            value = plain_request(value)
        elif isinstance(value, Cluster):
            value = _without_defaults(value, _CLUSTER)
        elif isinstance(value, Rules):
            value = plain_rules(value)
        elif isinstance(value, Booking):
            value = asdict(value)
        data[f.name] = value
    if record.details:
        data["details"] = record.details
        if bases is not None and (key := record.details.get("work", {}).get("shared")):
            data["details"] = {**record.details, "work": without(record.details["work"], bases(key))}
    text = json.dumps(data, separators=(",", ":"), default=_plain) if data else ""
    return Row(event.at, type(event).__name__, record.job, getattr(event, "attempt", None), text)


def decode(row: Row, bases: Bases | None = None) -> Record:
    kind = KINDS.get(row.kind)
    if kind is None:
        raise Bug(f"the log has an event '{row.kind}', which this version of gpuyard does not know")
    data = json.loads(row.data) if row.data else {}
    details = data.pop("details", {})
    if kind in (Submitted, Edited):
        data["request"] = request_of(data["request"])
        if bases is not None and (key := details.get("work", {}).get("shared")):
            details["work"] = joined(details["work"], bases(key))
    elif kind is Opened:
        data["cluster"] = Cluster(**with_tuples(data["cluster"]))
    elif kind is RulesSet:
        data["rules"] = rules_of(data["rules"])
    elif kind is Booked:
        data["booking"] = booking_of(data["booking"])
    if row.job is not None:
        data["job"] = row.job
    if row.attempt is not None:
        data["attempt"] = row.attempt
    return Record(kind(at=row.at, **with_tuples(data)), details)


def plain_request(request: Request) -> dict[str, Any]:
    return _without_defaults(request, _DEFAULTS)


def request_of(data: Mapping[str, Any]) -> Request:
    return Request(**with_tuples(data))


def _without_defaults(value: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: v for name, default in defaults.items() if (v := getattr(value, name)) != default}


def _plain(value: Any) -> Any:
    raise Bug(f"an event holds {value!r}, which the log cannot keep")


def finite(value: float) -> float | None:
    """A number for JSON: an infinite one is null."""
    return value if math.isfinite(value) else None
