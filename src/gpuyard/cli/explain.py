"""`gpuyard explain`: why a job waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import JobId, Yard

if TYPE_CHECKING:
    from gpuyard.client import Explanation

_LISTED = 10
"""Jobs that are named; the JSON has them all."""


@shared
def explain(yard: Yard, job: JobId, json: Json = False) -> None:
    """Tell why a job waits, and what has to end before it can start."""
    found = yard.client().explain(job)
    if json:
        output.print_json(found)
    else:
        print("\n".join(_sentences(found)))


def _sentences(found: Explanation) -> list[str]:
    from gpuyard.cli.table import clock, visible

    why = visible(found["reason"] or "").rstrip(".")
    lines = [f"Job {found['id']} is {found['state']}" + (f": {why}." if why else ".")]
    if found["details"]:
        lines.append("In numbers: " + ", ".join(f"{name} {_value(value)}" for name, value in found["details"].items()))
    if ahead := found["ahead"]:
        names = ", ".join(ahead[:_LISTED]) + (", ..." if len(ahead) > _LISTED else "")
        lines.append(f"Ahead of it: {output.many(len(ahead), 'job')} ({names}).")
    if found["must_end_first"]:
        lines += ["Before it can start, these have to end:", *_blockers(found)]
    if found["expected_at"]:
        lines.append(f"It is expected to start at about {clock(found['expected_at'])}, if estimates hold.")
    return lines


def _blockers(found: Explanation) -> list[str]:
    from gpuyard.cli.table import clock, indices, lines

    first = found["must_end_first"]
    rows = [
        (
            f"  job {job['id']}",
            job["name"] or "-",
            job["user"],
            f"GPU {indices(job['gpus'])}",
            f"until about {clock(job['expected_at'])}" if job["expected_at"] else "nobody knows until when",
        )
        for job in first[:_LISTED]
    ]
    table = lines(("",) * 5, rows, None)[1:]
    return [*table, f"  and {len(first) - _LISTED:,} more"] if len(first) > _LISTED else table


def _value(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
