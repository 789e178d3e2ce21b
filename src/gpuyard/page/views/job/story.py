"""What happened to a job, from its events: a sentence for each, and how its attempts went. Pure functions."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.units import format_size

Event = Mapping[str, Any]
SILENT = frozenset(("Renewed", "Chosen", "Unpromised"))
"""Kinds of events that tell people nothing."""
_SAID = {
    "Submitted": "Submitted",
    "Edited": "Changed what it asks for",
    "Held": "Held, until it is released",
    "Released": "Released",
    "Cancelled": "Cancelled while it waited",
    "Preempted": "Stopped so that others can run; waits again",
    "Requeued": "Waits again",
    "Promised": "Next on {gpus}, as soon as who is there has left",
    "Rejected": "Refused: it can never run here",
    "Granted": "Was lent {gpus}",
    "Reclaimed": "Told to leave {gpus}",
    "Returned": "Left {gpus}",
}
_CAUSES = {
    "cancelled": "since it was cancelled", "timeout": "since its time was over", "preempted": "so that others can run",
    "oom": "since there was no more GPU memory for it", "interrupted": "interrupted",
    "crowded": "since others want the memory that it was given",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to run a job."""

    number: int
    gpus: tuple[int, ...]
    placed: str
    """When it was given its GPUs; ISO-8601, as all times here."""
    begin: str | None = None
    end: str | None = None
    how: str = "runs"
    """How it ended, in words."""


def said(event: Event) -> str:
    """What happened, as a sentence without its full stop."""
    kind = str(event["kind"])
    if kind == "Placed":
        text = f"Attempt {event['attempt']} was given {gpus_in_words(event['gpus'])}{_let_in(event)}"
    elif kind == "Charged":
        text = f"Counts with {format_size(event['memory'])} of a GPU from now on"
        text += f" ({event['why']})" if event.get("why") else ""
    elif kind == "Started":
        text = f"Attempt {event['attempt']} started"
    elif kind == "Recalled":
        text = f"Asked to end, {_CAUSES.get(event.get('cause') or '', 'since it was cancelled')}" + _by(event)
    elif kind == "Exited" and event.get("cause") == "oom" and event.get("message"):
        text = f"Attempt {event['attempt']} {event['message']}"
    elif kind == "Exited":
        text = f"Attempt {event['attempt']} {ended(event)}"
    elif kind == "Adapted":
        accepted = event.get("accepted")
        answer = "Decided" if accepted is None else "Accepted" if accepted else "Declined"
        text = f"{answer}: {event.get('decision', '')}"
    elif kind == "Edited" and event.get("message"):  # by the daemon itself
        text = f"It {event['message']}"
    else:
        text = _SAID.get(kind, kind).format(gpus=gpus_in_words(event.get("gpus", ()))) + _by(event)
    message = _message(event)
    return f"{text}: {message}" if message and message not in text else text


def _message(event: Event) -> str:
    """What the daemon says of it, but for a time on the daemon's clock: the next event has it on the viewer's."""
    return re.sub(r" at (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$", "", _told(event))


def _told(event: Event) -> str:
    loan = event["kind"] in ("Granted", "Reclaimed", "Returned")
    return str(event.get("message") or event.get("reason") or (event.get("why") if loan else "") or "")


def _let_in(event: Event) -> str:
    """By which rule it was given memory that others asked for, and why."""
    told = event.get("admission") or {}
    return f" by {told['by']}: {told['why']}" if event.get("rule") and told else ""


def _by(event: Event) -> str:
    return f", by {event['by']}" if event.get("by") else ""


def ended(event: Event) -> str:
    """How an attempt ended, as the rest of a sentence."""
    code, cause = event.get("code"), event.get("cause") or ""
    told = "its exit code is not known" if code is None else f"exit code {code}{_signal(code)}"
    why = {"timeout": "ran out of time", "oom": "ran out of GPU memory"}.get(cause, f"was {cause}" if cause else "")
    if not why:
        why = "succeeded" if code == 0 else "failed"
    return f"{why}, {told}"


def _signal(code: int) -> str:
    number = code - 128
    return f" (signal {number}, {signal.Signals(number).name})" if number in set(signal.Signals) else ""


def gpus_in_words(gpus: Iterable[int]) -> str:
    """`GPU 3`, or `GPUs 0, 1`."""
    indices = [str(gpu) for gpu in gpus]
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}" if indices else "no GPU"


def attempts(events: Iterable[Event]) -> list[Attempt]:
    """How often it was tried, and how that went."""
    found: dict[int, Attempt] = {}
    for event in events:
        kind, number = event["kind"], event.get("attempt")
        if kind == "Placed":
            found[event["attempt"]] = Attempt(event["attempt"], tuple(event["gpus"]), event["at"])
        elif number in found:
            found[number] = _went_on(found[number], event)
    return list(found.values())


def _went_on(attempt: Attempt, event: Event) -> Attempt:
    kind, at = event["kind"], event["at"]
    if kind == "Started":
        return replace(attempt, begin=at)
    if kind == "Recalled":
        return replace(attempt, how="is about to end")
    if kind == "Exited":
        return replace(attempt, end=at, how=ended(event))
    if kind == "Preempted":
        return replace(attempt, end=at, how="stopped so that others can run")
    if kind == "Requeued":
        return replace(attempt, end=at, how=_message(event) or "came to nothing; it waits again")
    return attempt
