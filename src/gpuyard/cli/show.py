"""`gpuyard show`: all that is known of one job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.table import elapsed, how_far, indices, instant, now, print_table, share, visible
from gpuyard.cli.yard import JobId, Yard
from gpuyard.units import format_duration

if TYPE_CHECKING:
    from gpuyard.client import Client, Job

_LISTED = 30
"""Events that are listed; the JSON has them all."""
_PAGE = 1000
_TOLD = 20


@shared
def show(yard: Yard, job: JobId, json: Json = False) -> None:
    """Show one job in detail: what it asks for, how it stands, and what happened to it."""
    client = yard.client()
    found = client.job(job)
    events = list(_events(client, found["id"]))
    notices = _notices(client, found["id"])
    if json:
        output.print_json({**found, "events": events, "notifications": notices})
        return
    parts = [*_identity(found), *_wishes(found, _described(events)), *_course(found), *_told(notices)]
    rows = [(f"{label}:", value) for label, value in parts if value]
    width = max(len(label) for label, _ in rows)
    print("\n".join(f"{label:<{width}}  {visible(value)}" for label, value in rows))
    if events:
        if len(events) > _LISTED:
            output.say(f"{len(events) - _LISTED:,} earlier events are left out (--json has them)")
        print()
        print_table(("WHEN", "EVENT"), [(_when(event["at"]), said(event)) for event in events[-_LISTED:]])


def _events(client: Client, id: str) -> Iterator[dict[str, Any]]:
    after = 0
    while True:
        page = client.events(after, job=id, limit=_PAGE)
        yield from page["events"]
        if len(page["events"]) < _PAGE:
            return
        after = page["last"]


def _notices(client: Client, id: str) -> list[dict[str, Any]]:
    """What you were told of the job; nothing where that cannot be said."""
    from gpuyard.client import Refused

    try:
        return client.notifications(job=id, limit=_TOLD)
    except Refused:
        return []


def _told(notices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    from gpuyard.cli.notify import told

    for line in told(notices):
        yield "Notification", line


def _described(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What was last said of the job that is not in its own JSON."""
    told = [event for event in events if event["kind"] in ("Submitted", "Edited")]
    return {**told[-1].get("request", {}), **told[-1].get("work", {})} if told else {}


def _identity(job: Job) -> Iterator[tuple[str, str]]:
    yield "Job", job["id"] + (f" (a {job['kind']})" if job["kind"] != "job" else "")
    yield "Name", job["name"] or ""
    yield "User", job["user"]
    yield "State", job["state"]
    yield "Reason", job["reason"] or ""
    if counts := job.get("tasks"):
        yield "Tasks", ", ".join(f"{count:,} {state}" for state, count in counts.items())
    elif job["array"]:
        yield "Array", f"task {job['task']} of array {job['array']}"
    yield "Command", shlex.join(job["command"])
    yield "Directory", job["directory"]
    yield "Tags", ", ".join(job["tags"])


def _wishes(job: Job, more: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What it asked for, where that is not the usual."""
    yield "GPUs wanted", share(job["gpu_count"], job["gpu_memory"])
    yield "Only on GPUs", ",".join(map(str, more.get("scope", ())))
    yield "Time limit", _long(job["time_limit"])
    yield "Estimate", _long(job["estimate"]) if job["estimate"] != job["time_limit"] else ""
    yield "Priority", f"{job['priority']:g}"
    yield "Not before", _when(job["begin_at"])
    yield "Deadline", _when(job["deadline_at"])
    yield "Dependency", job["dependency"] or ""
    yield "Retries", str(job["retries"] or "")
    yield "Requeue", "after a reboot" if more.get("requeue") else ""
    yield "Preemptible", "yes" if job["preemptible"] else ""
    yield "Signal", more.get("signal", "")
    yield "Grace", _long(more.get("grace"))
    yield "Output file", job["output"] or ""
    yield "Error file", job["error"] or ""
    yield "Notify", ", ".join(job["notify"]) + (f" on {', '.join(job['notify_on'])}" if job["notify_on"] else "")


def _course(job: Job) -> Iterator[tuple[str, str]]:
    """How it went until now."""
    yield "Attempts", str(job["attempt"] or "")
    yield "Failures", str(job["failures"] or "")
    yield "Preemptions", str(job["preemptions"] or "")
    yield "On GPUs", indices(job["gpus"]) if job["gpus"] else ""
    yield "Submitted", _when(job["submitted_at"])
    yield "Started", _when(job["started_at"])
    yield "Ended", _when(job["ended_at"])
    yield "Ran", elapsed(job["started_at"], job["ended_at"], now()) if job["started_at"] else ""
    yield "Progress", how_far(job["progress"])
    yield "Exit code", "" if job["exit_code"] is None else str(job["exit_code"])


def _long(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _when(text: str | None) -> str:
    return instant(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


_SAID = {
    "Submitted": "submitted", "Edited": "changed", "Held": "held", "Released": "released", "Cancelled": "cancelled",
    "Preempted": "stopped so that others can run", "Requeued": "waits again",
}  # fmt: skip


def said(event: Mapping[str, Any]) -> str:
    """What happened, in words."""
    kind, attempt = event["kind"], event["attempt"]
    if kind == "Placed":
        text = f"attempt {attempt}: given GPU {indices(event['gpus'])}"
    elif kind == "Started":
        text = f"attempt {attempt}: started"
    elif kind == "Recalled":
        text = f"attempt {attempt}: asked to end ({event.get('cause') or 'cancelled'})"
    elif kind == "Exited":
        code = event.get("code")
        text = f"attempt {attempt}: ended, " + ("exit code not known" if code is None else f"exit code {code}")
        text += f" ({event['cause']})" if event.get("cause") else ""
    else:
        text = _SAID.get(kind, kind)
    return f"{text}: {event['message']}" if event.get("message") else text
