"""How a job stands, what it asks for and why it waits, in words; `when` tells times as a viewer does. All pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gpuyard.page.parts import STATES, amount, priority, size, span, watt_hours
from gpuyard.page.views.job.story import gpus_in_words
from gpuyard.shapes import OVER

Facts = Mapping[str, Any]
When = Callable[[str | None], str]
WAITING = ("queued", "held")
_RAN_OUT = {"timeout": "ran out of time", "oom": "ran out of GPU memory"}
"""What is told of these states if there is no reason, which says as much."""
_ORDER = ("running", "queued", "held", "failed", "oom", "timeout", "interrupted", "cancelled", "succeeded")


def command_line(command: list[str]) -> str:
    """A command as one could type it in a shell."""
    return shlex.join(command)


def outcome(job: Facts) -> str:
    """How a job stands, where there is more to say than its state: how it ended, above all."""
    state, why = str(job["state"]), (job["reason"] or "").rstrip(".")
    if counts := job.get("tasks"):
        return f"An array of {sum(counts.values()):,} tasks: {counted(counts)}."
    if state in WAITING:
        return ""
    if state == "succeeded" and not why:
        return "Succeeded: exit code 0." if job["kind"] == "job" else "Succeeded."
    if state in _RAN_OUT:
        return _sentence(why or _RAN_OUT[state])
    if not why:
        return "" if state == "running" else _sentence(STATES.get(state, state))
    return _sentence(why if state == "running" or why.startswith(state) else f"{STATES.get(state, state)}: {why}")


def counted(counts: Mapping[str, int]) -> str:
    """`2 running, 98 waiting`."""
    return ", ".join(f"{counts[state]:,} {STATES[state]}" for state in _ORDER if counts.get(state))


def wishes(job: Facts, when: When) -> Iterator[tuple[str, str]]:
    """What it asks for, where that is not the usual."""
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
    if job.get("pid"):
        yield "Held by", f"process {job['pid']}"


def _gpus(job: Facts) -> str:
    count, memory, among = job["gpu_count"], job["gpu_memory"], job["among"]
    wanted = f"{size(memory)} on {'one GPU' if count == 1 else f'each of {count} GPUs'}" if memory else f"{count}"
    return wanted + (f", of {gpus_in_words(among)}" if among else "")


def _sharing(job: Facts) -> Iterator[tuple[str, str]]:
    """How it shares GPUs, what was expected of it, and what it uses."""
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


def used(job: Facts) -> Iterator[tuple[str, str]]:
    """What it took of the GPUs in all, as far as that is known."""
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


def why_it_waits(found: Facts, when: When) -> str:
    """The reason as a sentence, with times on the viewer's clock where the daemon's sentence has its own."""
    details, code = found["details"], found["code"]
    if code == "BeginTime" and details.get("at"):
        return f"It is not to start before {when(details['at'])}."
    if code == "Resources" and found["expected_at"]:
        return f"It {(found['reason'] or '').partition('; expected')[0]}."
    if code == "Reserved":
        due = f", due at {when(details['until'])}" if details.get("until") else ", which has waited longer"
        return f"It would fit, but could delay job {details['behind']}{due}."
    if code == "Reservation":
        which = gpus_in_words(details["gpus"])
        rest = ", and it has no time limit" if details.get("unlimited") else ""
        times = f"from {when(details['begin'])} to {when(details['end'])}"
        return f"It would fit, but {which} {_are(details['gpus'])} reserved ({details['name']}) {times}{rest}."
    if not found["reason"]:
        return "It is about to start."
    return f"It {'is ' * (found['state'] == 'held')}{found['reason'].rstrip('.')}."


def _are(many: list[int]) -> str:
    return "are" if len(many) > 1 else "is"


def until(blocker: Facts, when: When) -> str:
    """When a job that is in the way will have ended."""
    if blocker["expected_at"]:
        return f"until about {when(blocker['expected_at'])}"
    return "did not say for how long" if blocker["gpus"] else "waits itself"


def ends(job: Facts, when: When, now: float) -> str:
    """When a job that does not say how far it is should end; that it takes longer, where that time is past."""
    expected = job["expected_end_at"]
    if job["state"] != "running" or not expected or job["progress"]:
        return ""
    past = datetime.fromisoformat(expected).timestamp() <= now
    return "takes longer than expected" if past else f"expected to end about {when(expected)}"


def may_do(job: Facts, *, owns: bool) -> list[str]:
    """What somebody can do to a job as it stands, the most wanted first."""
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


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
