"""`gpuyard show` and `gpuyard explain`: one job in detail, and why it waits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.api.types import SILENT
from gpuyard.cli.common_options import DaemonOptions, JobId, Json, option_groups
from gpuyard.cli.terminal import output
from gpuyard.cli.terminal.text_table import far_of, indices, instant, now, print_table, ran, share, visible
from gpuyard.spec.fields import FIELDS
from gpuyard.spec.job_field import JobField, ShowLine
from gpuyard.spec.kinds import DURATION, INSTANT, NUMBER, SWITCH
from gpuyard.spec.work import DEFAULTS
from gpuyard.units import format_duration, format_plain, format_size

if TYPE_CHECKING:
    from gpuyard.api.grant_types import Adaptation
    from gpuyard.api.types import Blocker, Explanation, Job
    from gpuyard.client.client import Client


_LISTED = 30  # events that are listed; the JSON has them all
_PAGE = 1000
_TOLD = 20


@option_groups
def show(daemon: DaemonOptions, job: JobId, json: Json = False) -> None:
    """Show one job in detail: what it asks for, how it stands, and what happened to it."""
    client = daemon.client()
    found = client.job(job)
    events = list(_events(client, found["id"]))
    whose = ["JOB"] if "tasks" in found else []
    told = [
        (_when(event["at"]), *(event["job"] for _ in whose), said(event))
        for event in events
        if event["kind"] not in SILENT
    ]
    notices = _notices(client, found["id"])
    if json:
        output.print_json({**found, "events": events, "notifications": notices})
        return
    parts = [*_identity(found), *_request(found), *_course(found), *_notifications(notices)]
    lines = [(f"{label}:", value) for label, value in parts if value]
    width = max(len(label) for label, _ in lines)
    print("\n".join(f"{label:<{width}}  {visible(value)}" for label, value in lines))
    if told:
        if len(told) > _LISTED:
            output.say(f"{len(told) - _LISTED:,} earlier events are left out (--json has them)")
        print()
        print_table(("WHEN", *whose, "EVENT"), told[-_LISTED:])


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
    from gpuyard.client.transport import Refused

    try:
        return client.notifications(job=id, limit=_TOLD)
    except Refused:
        return []


def _notifications(notices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    from gpuyard.cli.jobs.notify import notification_lines

    for line in notification_lines(notices):
        yield "Notification", line


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
    yield "Command", _command(job["command"])
    yield "Directory", job["directory"]
    yield "Tags", ", ".join(job["tags"])


def _mps(job: Job) -> str:
    if not job.get("mps"):
        return ""
    most = job.get("thread_percentage")
    return f"yes, {most:g} % of the GPU's threads at most" if most else "yes"


def _asked(job: Job) -> str:
    asked = job["gpu_memory_asked"]
    return format_size(asked) if job["ooms"] and isinstance(asked, int | float) else ""


_LINES = sorted(((field.show, field) for field in FIELDS if field.show), key=lambda line: line[0].place)


def _request(job: Job) -> Iterator[tuple[str, str]]:
    """What it asked for, where that is not the usual."""
    alone = ", alone on it" if job["gpu_memory"] and job.get("alone") else ""
    yield "GPUs wanted", share(job["gpu_count"], job["gpu_memory"]) + alone
    yield "Asked at first", _asked(job)
    yield "MPS", _mps(job)
    yield "Expected", _expected(job)
    for line, field in _LINES:
        yield line.label, _field_text(line, field, job)


def _field_text(line: ShowLine, field: JobField, job: Mapping[str, Any]) -> str:
    value, kind = job.get(field.json_key), field.kind
    if value is None or (not value and kind is not NUMBER):
        return ""
    if kind is SWITCH:
        return line.yes
    if kind is INSTANT:
        return _when(value)
    if kind is NUMBER:
        return f"{value:.12g}"
    if field.name == "signal" and job["notice"]:
        return f"{value}, {format_duration(job['notice'])} before it must end"
    if field.name == "notify":
        return ", ".join(value) + (f" on {', '.join(job['notify_on'])}" if job["notify_on"] else "")
    if value == DEFAULTS.get(field.name) or (field.name == "estimate" and value == job["time_limit"]):
        return ""
    return _long(value) if kind is DURATION else kind.format(value)


def _course(job: Job) -> Iterator[tuple[str, str]]:
    yield "Attempts", str(job["attempt"] or "")
    yield "Failures", str(job["failures"] or "")
    yield "Out of memory", f"{job['ooms']} of {job['oom_retries']} retries with more" if job["ooms"] else ""
    yield "Preemptions", str(job["preemptions"] or "")
    yield "On GPUs", indices(job["gpus"]) if job["gpus"] else ""
    yield "On loan", f"GPU {indices(job['granted'])}, until somebody needs it" if job["granted"] else ""
    yield "Let in", _let_in(job.get("admission")).strip() if job["gpus"] else ""
    yield "Submitted", _when(job["submitted_at"])
    yield "Started", _when(job["started_at"])
    yield "Ended", _when(job["ended_at"])
    yield "Ran", ran(job, now()) if job["started_at"] else ""
    yield "Expected end", _when(job["expected_end_at"]) + (" at the latest" if job["expected_by"] == "limit" else "")
    yield "Progress", far_of(job) if job["progress"] or job["expected_by"] == "overdue" else ""
    yield "GPU memory", _used(job)
    yield "GPU busy", _busy(job)
    yield "GPU hours", format_plain(job["gpu_hours"], 3) if job["gpu_hours"] else ""
    yield "Energy", _energy(job["energy_wh"])
    yield "Exit code", "" if job["exit_code"] is None else str(job["exit_code"])


def _command(words: list[str]) -> str:
    """A command; of a trial what it tries out, and not how its directory is made and thrown away."""
    trial = words[3:4] == ["gpuyard-profile"]
    return f"{shlex.join(words[4:])} (in a directory that is thrown away)" if trial else shlex.join(words)


def _expected(job: Job) -> str:
    if (expected := job["prediction"]) is None:
        return ""
    memory, seconds = expected["memory"], expected["seconds"]
    told = [format_size(memory)] if memory else []
    told += [f"about {format_duration(seconds)}"] if seconds else []
    return f"{', '.join(told)} ({expected['evidence']})"


def _used(job: Job) -> str:
    measured = job["measured"]
    if measured is None or measured["peak"] is None:
        return ""
    most = f" of {format_size(job['gpu_memory'])}" if job["gpu_memory"] and not job["alone"] else ""
    looks = f"{measured['samples']:,} look{'s' * (measured['samples'] != 1)}"
    if (current := measured.get("current")) is not None:
        return f"{format_size(current)}{most}, {format_size(measured['peak'])} at most so far ({looks})"
    mean = f", {format_size(measured['mean'] or 0.0)} on average"
    return f"{format_size(measured['peak'])}{most} at most{mean} ({looks})"


def _busy(job: Job) -> str:
    measured = job["measured"]
    if measured is None or measured["utilization"] is None:
        return ""
    return f"{measured['utilization']:.0f} %" + ("" if measured["alone"] else ", beside other jobs")


def _energy(watt_hours: float | None) -> str:
    if watt_hours is None:
        return ""
    return f"{format_plain(watt_hours / 1000, 3)} kWh" if watt_hours >= 1000 else f"{format_plain(watt_hours, 3)} Wh"


def _long(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _when(text: str | None) -> str:
    return instant(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


def _let_in(admission: Mapping[str, Any] | None) -> str:
    if not admission or admission["by"] == "fit":
        return ""
    return f" by {admission['by']}: {admission['why']}"


_SAID = {
    "Submitted": "submitted", "Edited": "changed", "Held": "held", "Released": "released", "Cancelled": "cancelled",
    "Preempted": "stopped so that others can run", "Requeued": "waits again", "Spared": "need not end after all",
    "Promised": "next, as soon as its GPUs are left", "Rejected": "refused: it can never run here",
}  # fmt: skip


LOANS = {
    "Granted": "was lent GPU {gpus}", "Reclaimed": "told to leave GPU {gpus}", "Returned": "left GPU {gpus}",
    "Adapted": "decided",
}  # fmt: skip
"""What happens to jobs that adapt."""


def adapted(event: Mapping[str, Any]) -> str:
    """The same of a job that adapts: what it was lent, or decided, and why."""
    text = LOANS[event["kind"]].format(gpus=indices(event.get("gpus", ())))
    if event["kind"] != "Adapted":
        return f"{text}: {event['why']}" if event.get("why") else text
    accepted = event.get("accepted")
    answer = text if accepted is None else "accepted" if accepted else "declined"
    before, after = event.get("parameters_before"), event.get("parameters")
    grew = f" ({before:,} to {after:,} parameters)" if before is not None and after is not None else ""
    return f"{answer}: {event.get('decision', '')}{grew}" + (f": {event['reason']}" if event.get("reason") else "")


def said(event: Mapping[str, Any]) -> str:
    kind, attempt = event["kind"], event["attempt"]
    if kind == "Edited" and event.get("message"):  # by the daemon itself
        return str(event["message"])
    if kind == "Placed":
        text = f"attempt {attempt}: given GPU {indices(event['gpus'])}{_let_in(event.get('admission'))}"
    elif kind == "Charged":
        text = f"counts with {format_size(event['memory'])} of a GPU from now on"
        text += f" ({event['why']})" if event.get("why") else ""
    elif kind == "Started":
        text = f"attempt {attempt}: started"
    elif kind == "Recalled":
        cause = {"oom": "out of GPU memory", "crowded": "others want their memory"}.get(
            event.get("cause") or "", event.get("cause") or "cancelled"
        )
        text = f"attempt {attempt}: asked to end ({cause})"
    elif kind in LOANS:
        return adapted(event)
    elif kind == "Exited":
        code = event.get("code")
        text = f"attempt {attempt}: ended, " + ("exit code not known" if code is None else f"exit code {code}")
        text += f" ({event['cause']})" if event.get("cause") and not event.get("message") else ""
    else:
        text = _SAID.get(kind, kind)
    return f"{text}: {event['message']}" if event.get("message") else text


_AHEAD_LISTED = 3
_BLOCKERS_LISTED = 10  # jobs that are named; the JSON has them all
_ENDED = {
    "cancelled": "has been cancelled",
    "timeout": "has been ended",
    "oom": "has run out of GPU memory",
    "interrupted": "has been interrupted",
}


@option_groups
def explain(daemon: DaemonOptions, job: JobId, json: Json = False) -> None:
    """Tell why a job waits, and what has to end before it can start."""
    client = daemon.client()
    found = client.explain(job)
    if json:
        output.print_json(found)
    else:
        print("\n".join(sentences(found)))
        if found["state"] == "running" and "tasks" not in found:
            for line in adaptation(client.adaptation(found["id"]), found["reason"] or ""):
                print(line)


def adaptation(found: Adaptation, said: str) -> list[str]:
    """What a running job that adapts was lent, and what it decided, in words, as far as it is not `said` already."""
    from gpuyard.cli.terminal.text_table import visible

    lent = [f"was given GPU {one['gpu']}: {one['why']}" for one in found["grants"] if one["until"] is None]
    decided = [": ".join(filter(None, (one["decision"], one["reason"]))) for one in found["decisions"][-1:]]
    lines = [f"It {found['standing']}."] if found["standing"] else []
    lines += [f"It {text.rstrip('.')}." for text in lent if text not in said]
    lines += [f"It decided last: {text.rstrip('.')}." for text in decided if text not in said]
    return [visible(line) for line in lines]


def sentences(found: Explanation) -> list[str]:
    from gpuyard.cli.terminal.text_table import clock, visible

    lines = [f"Job {found['id']} {visible(_standing(found))}."]
    if counts := found.get("tasks"):
        counted = ", ".join(f"{count:,} {state}" for state, count in counts.items())
        lines.insert(0, f"This is an array of {output.many(sum(counts.values()), 'task')}: {counted}.")
    if ahead := found["ahead"]:
        names = ", ".join(ahead[:_AHEAD_LISTED]) + (", ..." if len(ahead) > _AHEAD_LISTED else "")
        first = f"{output.many(len(ahead), 'job')} ({names})"
        lines.append(f"It is number {found['place']:,} in line; ahead of it: {first}.")
        lines.append(f"When its turn comes, {found['needs']} will do.")
    if found["must_end_first"]:
        lines += ["Before it can start, these have to end:", *_blockers(found)]
    if holds := found.get("holds"):
        from gpuyard.client.leases import held_already

        lines.append(f"{held_already('Its own holder', holds)}.")
    if found["expected_at"]:
        when = clock(found["expected_at"])
        latest = found["expected_by"] == "limit"
        told = f"{when} at the latest, by time limits" if latest else f"about {when}, if estimates hold"
        lines.append(f"It is expected to start at {told}.")
    return lines


def _standing(found: Explanation) -> str:
    from gpuyard.cli.terminal.text_table import indices

    state, why = found["state"], (found["reason"] or "").rstrip(".")
    if state == "running":
        place = f" on GPU {indices(found['gpus'])}"
        return f"is running{place}: {why}" if why else f"is running{place}; it waits for nothing"
    if state == "queued":
        return f"is queued: it {why}" if why else "is queued, and about to start"
    if state == "held":
        return f"is {why}"
    return f"{_ENDED.get(state, f'has {state}')}" + (f": {why}" if why else "")


def _blockers(found: Explanation) -> list[str]:
    from gpuyard.cli.terminal.text_table import indices, lines

    first = found["must_end_first"]
    rows = [
        (
            f"  job {job['id']}",
            job["name"] or "-",
            job["user"],
            f"GPU {indices(job['gpus'])}" if job["gpus"] else "waits itself",
            _until(job),
        )
        for job in first[:_BLOCKERS_LISTED]
    ]
    table = lines(("",) * 5, rows, None)[1:]
    return [*table, f"  and {len(first) - _BLOCKERS_LISTED:,} more"] if len(first) > _BLOCKERS_LISTED else table


def _until(job: Blocker) -> str:
    from gpuyard.cli.terminal.text_table import clock

    if job["expected_at"]:
        return (
            f"until {clock(job['expected_at'])} at the latest"
            if job["expected_by"] == "limit"
            else f"until about {clock(job['expected_at'])}"
        )
    if job["expected_by"] == "overdue":
        return "takes longer than expected"
    return "it did not say for how long" if job["gpus"] else ""
