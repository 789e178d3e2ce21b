"""What the job view says: state, request, waiting reason, attempts and events. Pure functions."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuyard.api.types import OVER
from gpuyard.page.api import Facts
from gpuyard.page.parts import STATES, amount, epoch, priority, sentence, size, span, watt_hours
from gpuyard.spec.fields import FIELDS
from gpuyard.spec.kinds import TEXT
from gpuyard.units import format_size

Event = Facts
_EVENT_TEXTS = {
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
    "Spared": "Need not end after all",
}
_CAUSES = {
    "cancelled": "since it was cancelled", "timeout": "since its time was over", "preempted": "so that others can run",
    "oom": "since there was no more GPU memory for it", "interrupted": "interrupted",
    "crowded": "since others want the memory that it was given", "requeued": "to wait again",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    gpus: tuple[int, ...]
    placed: str  # when it was given its GPUs; ISO-8601, as all times here
    begin: str | None = None
    end: str | None = None
    how: str = "runs"  # how it ended, in words


def event_text(event: Event) -> str:
    """A sentence without its full stop."""
    kind = str(event["kind"])
    if kind == "Placed":
        text = f"Attempt {event['attempt']} was given {gpus_text(event['gpus'])}{_let_in(event)}"
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
        text = f"Attempt {event['attempt']} {exit_text(event)}"
    elif kind == "Adapted":
        accepted = event.get("accepted")
        answer = "Decided" if accepted is None else "Accepted" if accepted else "Declined"
        text = f"{answer}: {event.get('decision', '')}"
    elif kind == "Edited" and event.get("message"):  # by the daemon itself
        text = f"It {event['message']}"
    else:
        text = _EVENT_TEXTS.get(kind, kind).format(gpus=gpus_text(event.get("gpus", ()))) + _by(event)
    message = _message(event)
    return f"{text}: {message}" if message and message not in text else text


def _message(event: Event) -> str:
    """The daemon's message without the time on its clock: the next event has it on the viewer's."""
    loan = event["kind"] in ("Granted", "Reclaimed", "Returned")
    text = event.get("message") or event.get("reason") or (event.get("why") if loan else "") or ""
    return re.sub(r" at (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$", "", str(text))


def _let_in(event: Event) -> str:
    told = event.get("admission") or {}
    return f" by {told['by']}: {told['why']}" if event.get("rule") and told else ""


def _by(event: Event) -> str:
    return f", by {event['by']}" if event.get("by") else ""


def exit_text(event: Event) -> str:
    code, cause = event.get("code"), event.get("cause") or ""
    told = "its exit code is not known" if code is None else f"exit code {code}{_signal(code)}"
    why = {"timeout": "ran out of time", "oom": "ran out of GPU memory"}.get(cause, f"was {cause}" if cause else "")
    if not why:
        why = "succeeded" if code == 0 else "failed"
    return f"{why}, {told}"


def _signal(code: int) -> str:
    number = code - 128
    return f" (signal {number}, {signal.Signals(number).name})" if number in set(signal.Signals) else ""


def gpus_text(gpus: Iterable[int]) -> str:
    """`GPU 3`, or `GPUs 0, 1`."""
    indices = [str(gpu) for gpu in gpus]
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}" if indices else "no GPU"


def attempts(events: Iterable[Event]) -> list[Attempt]:
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
        return replace(attempt, end=at, how=exit_text(event))
    if kind == "Preempted":
        return replace(attempt, end=at, how="stopped so that others can run")
    if kind == "Requeued":
        return replace(attempt, end=at, how=_message(event) or "came to nothing; it waits again")
    return attempt


When = Callable[[str | None], str]
WAITING = ("queued", "held")
_RAN_OUT = {"timeout": "ran out of time", "oom": "ran out of GPU memory"}
"""Texts for these states if there is no reason, which says as much."""
_ORDER = ("running", "queued", "held", "failed", "oom", "timeout", "interrupted", "cancelled", "succeeded")


def outcome_text(job: Facts) -> str:
    """More than the state: how the job ended, above all."""
    state, why = str(job["state"]), (job["reason"] or "").rstrip(".")
    if counts := job.get("tasks"):
        return f"An array of {sum(counts.values()):,} tasks: {counted(counts)}."
    if state in WAITING:
        return ""
    if state == "succeeded" and not why:
        return "Succeeded: exit code 0." if job["kind"] == "job" else "Succeeded."
    if state in _RAN_OUT:
        return sentence(why or _RAN_OUT[state])
    if not why:
        return "" if state == "running" else sentence(STATES.get(state, state))
    return sentence(why if state == "running" or why.startswith(state) else f"{STATES.get(state, state)}: {why}")


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[state]:,} {STATES[state]}" for state in _ORDER if counts.get(state))


_WORDED = frozenset(("dependency", "name", "output", "error", "profile", "simulate_use"))
_OTHER_TEXTS = [
    (field.show.label, field.json_key)
    for field in FIELDS
    if field.show and field.kind is TEXT and field.name not in _WORDED
]
"""Texts that are shown as they are; the other fields have words of their own."""


def request_facts(job: Facts, when: When) -> Iterator[tuple[str, str]]:
    """What it asks for, where that is not the default."""
    yield "GPUs", _gpus(job)
    yield from _sharing(job)
    yield "Time limit", span(job["time_limit"]) or "none"
    if job["estimate"] != job["time_limit"]:
        yield "Estimate", span(job["estimate"])
    yield "Priority", priority(job["priority"])
    yield "Not before", when(job["begin_at"])
    yield "Deadline", when(job["deadline_at"])
    yield "Retries", _retries(job)
    yield "After a reboot", "it runs again" if job["requeue"] else ""
    yield "Preemptible", _preemptible(job)
    yield "Adaptive", "yes, it may be lent idle GPUs" if job["adaptive"] else ""
    yield "Output goes to", job["output"] or ""
    yield "Errors go to", job["error"] or ""
    yield "Tells", ", ".join(job["notify"]) + (f" of {', '.join(job['notify_on'])}" if job["notify_on"] else "")
    for label, name in _OTHER_TEXTS:
        yield label, job.get(name) or ""
    if job.get("pid"):
        yield "Held by", f"process {job['pid']}"


def _gpus(job: Facts) -> str:
    count, memory, among = job["gpu_count"], job["gpu_memory"], job["among"]
    wanted = f"{size(memory)} on {'one GPU' if count == 1 else f'each of {count} GPUs'}" if memory else f"{count}"
    return wanted + (f", of {gpus_text(among)}" if among else "")


def _sharing(job: Facts) -> Iterator[tuple[str, str]]:
    measured, predicted = job["measured"], job["prediction"]
    if job["gpu_memory_asked"] == "auto":
        yield "Memory by", predicted["evidence"] if predicted else "nothing known of its like yet: alone on a GPU"
    elif job["gpu_memory_asked"] != job["gpu_memory"]:
        yield "Memory asked for", size(job["gpu_memory_asked"]) if job["gpu_memory_asked"] else ""
    if measured and measured["peak"] is not None:
        promised = f" of {size(job['gpu_memory'])}" if job["gpu_memory"] else ""
        mean = f", {size(measured['mean'])} in the mean" if measured["mean"] else ""
        yield "Memory used", f"{size(measured['peak'])}{promised} at its peak{mean}"
    times = job["ooms"]
    yield "Ran out of memory", f"{times} time{'s' * (times > 1)}" if times else ""
    percent = job["thread_percentage"]
    yield "MPS", ("yes" + (f", {percent:g} % of the threads" if percent else "")) if job["mps"] else ""
    yield "Capped", "its framework is told to keep to its share" if job["cap"] else ""
    yield "Simulated use", job["simulate_use"] or ""
    row = job["row"]
    yield (
        "Batch",
        f"{job['batch']}" + (f", row {row['number']}, wave {row['wave']}" if row else "") if job["batch"] else "",
    )


def usage_facts(job: Facts) -> Iterator[tuple[str, str]]:
    yield "GPU-hours", amount(job["gpu_hours"])
    if job["energy_wh"] is not None:
        yield "Energy", watt_hours(job["energy_wh"])
    measured = job["measured"]
    if measured and measured["peak"] is not None:
        promised = f" of {size(job['gpu_memory'])}" if job["gpu_memory"] else ""
        yield "Memory at its peak", size(measured["peak"]) + promised


def _retries(job: Facts) -> str:
    if not job["retries"]:
        return ""
    failures = job["failures"]
    failed = f"; failed {failures} time{'s' * (failures > 1)} until now" if failures else ""
    return f"{job['retries']}, the first after {span(job['retry_delay'])}{failed}"


def _preemptible(job: Facts) -> str:
    if not job["preemptible"]:
        return ""
    times = job["preemptions"]
    stopped = f"; was stopped {times} time{'s' * (times > 1)}" if times else ""
    return f"yes, by {job['signal']}{stopped}"


def waiting_text(found: Facts, when: When) -> str:
    """The reason as a sentence, with times on the viewer's clock."""
    details, code = found["details"], found["code"]
    if code == "BeginTime" and details.get("at"):
        return f"It is not to start before {when(details['at'])}."
    if code == "Resources" and found["expected_at"]:
        return f"It {(found['reason'] or '').partition('; expected')[0]}."
    if code == "Reserved":
        due = f", due at {when(details['until'])}" if details.get("until") else ", which goes first"
        return f"It would fit, but could delay job {details['behind']}{due}."
    if code == "Reservation":
        which, are = gpus_text(details["gpus"]), "are" if len(details["gpus"]) > 1 else "is"
        rest = ", and it has no time limit" if details.get("unlimited") else ""
        times = f"from {when(details['begin'])} to {when(details['end'])}"
        return f"It would fit, but {which} {are} reserved ({details['name']}) {times}{rest}."
    if not found["reason"]:
        return "It is about to start."
    return f"It {'is ' * (found['state'] == 'held')}{found['reason'].rstrip('.')}."


def blocker_end(blocker: Facts, when: When) -> str:
    if blocker["expected_at"]:
        at = when(blocker["expected_at"])
        return f"until {at} at the latest" if blocker["expected_by"] == "limit" else f"until about {at}"
    if blocker["expected_by"] == "overdue":
        return "takes longer than expected"
    return "did not say for how long" if blocker["gpus"] else "waits itself"


def end_text(job: Facts, when: When, now: float) -> str:
    """Expected end of a running job, or that it is late."""
    expected, by = job["expected_end_at"], job["expected_by"]
    if by == "overdue" or (expected and epoch(expected) <= now):
        return "takes longer than expected"
    if not expected:
        return ""
    return f"ends {when(expected)} at the latest" if by == "limit" else f"expected to end about {when(expected)}"


def allowed_actions(job: Facts, *, owns: bool) -> list[str]:
    if not owns:
        return []
    states = set(job.get("tasks") or {job["state"]: 1})
    is_open, lease = bool(states - OVER), job["kind"] == "lease"
    able = {
        "release": "held" in states,
        "hold": "queued" in states,
        "give back": lease and "running" in states,
        "edit": is_open and not lease,
        "retry": not is_open and not lease and not (job.get("tasks") and states == {"succeeded"}),
        "clone": not lease,
        "cancel": is_open,
    }
    return [act for act, can in able.items() if can]
