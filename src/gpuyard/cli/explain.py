"""`gpuyard explain`: why a job waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import JobId, Yard

if TYPE_CHECKING:
    from gpuyard.client import Explanation
    from gpuyard.grantshapes import Adaptation
    from gpuyard.shapes import Blocker

_LISTED = 10
"""Jobs that are named; the JSON has them all."""
_ENDED = {
    "cancelled": "has been cancelled",
    "timeout": "has been ended",
    "oom": "has run out of GPU memory",
    "interrupted": "has been interrupted",
}


@shared
def explain(yard: Yard, job: JobId, json: Json = False) -> None:
    """Tell why a job waits, and what has to end before it can start."""
    client = yard.client()
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
    from gpuyard.cli.table import visible

    lent = [f"was given GPU {one['gpu']}: {one['why']}" for one in found["grants"] if one["until"] is None]
    decided = [": ".join(filter(None, (one["decision"], one["reason"]))) for one in found["decisions"][-1:]]
    lines = [f"It {found['standing']}."] if found["standing"] else []
    lines += [f"It {text.rstrip('.')}." for text in lent if text not in said]
    lines += [f"It decided last: {text.rstrip('.')}." for text in decided if text not in said]
    return [visible(line) for line in lines]


def sentences(found: Explanation) -> list[str]:
    """Why a job waits, in words."""
    from gpuyard.cli.table import clock, visible

    lines = [f"Job {found['id']} {visible(_standing(found))}."]
    if counts := found.get("tasks"):
        counted = ", ".join(f"{count:,} {state}" for state, count in counts.items())
        lines.insert(0, f"This is an array of {output.many(sum(counts.values()), 'task')}: {counted}.")
    if ahead := found["ahead"]:
        names = ", ".join(ahead[:_LISTED]) + (", ..." if len(ahead) > _LISTED else "")
        lines.append(f"Ahead of it: {output.many(len(ahead), 'job')} ({names}).")
    if found["must_end_first"]:
        lines += ["Before it can start, these have to end:", *_blockers(found)]
    if holds := found.get("holds"):
        from gpuyard.leases import held_already

        lines.append(f"{held_already('Its own holder', holds)}.")
    if found["expected_at"]:
        lines.append(f"It is expected to start at about {clock(found['expected_at'])}, if estimates hold.")
    return lines


def _standing(found: Explanation) -> str:
    """How the job stands, as the rest of a sentence."""
    from gpuyard.cli.table import indices

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
    from gpuyard.cli.table import indices, lines

    first = found["must_end_first"]
    rows = [
        (
            f"  job {job['id']}",
            job["name"] or "-",
            job["user"],
            f"GPU {indices(job['gpus'])}" if job["gpus"] else "waits itself",
            _until(job),
        )
        for job in first[:_LISTED]
    ]
    table = lines(("",) * 5, rows, None)[1:]
    return [*table, f"  and {len(first) - _LISTED:,} more"] if len(first) > _LISTED else table


def _until(job: Blocker) -> str:
    from gpuyard.cli.table import clock

    if job["expected_at"]:
        return f"until about {clock(job['expected_at'])}"
    return "it did not say for how long" if job["gpus"] else ""
