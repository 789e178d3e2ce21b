"""What a batch achieved, worked out of what the store says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from gpuyard.batches.report import Cost, Span, achieved, by_themselves
from gpuyard.client import OVER
from gpuyard.daemon.batchlog import BatchLog, Head
from gpuyard.daemon.profiles import epochs_in
from gpuyard.daemon.views import JobView
from gpuyard.server.times import iso


def report_json(head: Head, log: BatchLog, now: float) -> dict[str, Any]:
    """What a batch achieved, as JSON has it."""
    jobs, spans = log.rows(head.id), log.spans(head.id, now)
    views = [view for view in jobs if view.work.get("row")]
    costs = _costs(views, spans, log)
    found = achieved(list(spans.values()), costs)
    succeeded = sum(view.state == "succeeded" for view in views)
    over = sum(view.over for view in views)
    return {
        "batch": head.id, "name": head.name, "state": "open" if head.ended is None else "over",
        "rows": len(views) + head.refused, "succeeded": succeeded, "failed": over - succeeded,
        "refused": head.refused, "waves": _waves(views, spans), "makespan": found.makespan,
        "sequential": found.sequential, "speedup": found.speedup, "gpu_hours": found.gpu_hours,
        "gpu_hours_sequential": found.gpu_hours_sequential, "gpu_hours_saved": found.gpu_hours_saved,
        "most_at_once": found.most_at_once, "ooms": log.ooms(head.id),
        "retries": _retries(views, spans), "profiles": len(jobs) - len(views),
        "evidence": _evidence(len(costs), found.alone),
    }  # fmt: skip


def _retries(views: Sequence[JobView], spans: Iterable[tuple[str, int]]) -> int:
    """How often rows were run again, but for those that were stopped so that others can run."""
    began = Counter(job for job, _ in spans)  # an attempt may never have begun, if the daemon was killed just then
    return sum(max(0, began[view.id] - 1 - view.preemptions) for view in views)


def _evidence(rows: int, alone: int) -> str:
    """Where the times of single rows come from."""
    if not rows:
        return "no row has run yet"
    if not alone:
        return "all rows as they ran here, beside others"
    if alone == rows:
        return "all rows by runs alone on their GPUs"
    known = f"{alone:,} row{'s' * (alone > 1)} by runs alone on their GPUs"
    return f"{known}, {rows - alone:,} as they ran here, beside others"


def _waves(views: Sequence[JobView], spans: dict[tuple[str, int], Span]) -> list[dict[str, Any]]:
    begins: dict[str, float] = {}
    for (job, _), span in spans.items():
        begins[job] = min(begins.get(job, span.begin), span.begin)
    waves: dict[int, list[JobView]] = {}
    for view in views:
        waves.setdefault((view.work.get("row") or (0, 1))[1], []).append(view)
    return [
        {
            "wave": wave, "rows": len(rows),
            "started_at": iso(min((begins[row.id] for row in rows if row.id in begins), default=None)),
            "ended_at": iso(max(row.ended or 0.0 for row in rows)) if all(row.over for row in rows) else None,
        }
        for wave, rows in sorted(waves.items())
    ]  # fmt: skip


def _costs(views: Sequence[JobView], spans: dict[tuple[str, int], Span], log: BatchLog) -> list[Cost]:
    """What each row that has ended costs by itself: as others like it took alone, or as its last attempt did."""
    single = by_themselves(spans)  # what was measured is looked at now and then, which may miss a short neighbour
    ended = [(view, spans[key]) for view in views if view.state in OVER and (key := (view.id, view.attempt)) in spans]
    alone = {v.id for v, _ in ended if (v.measured or {}).get("alone") and (v.id, v.attempt) in single}
    known: dict[tuple[str, float], float | None] = {}
    found = []
    for view, span in ended:
        like = (view.work.get("signature", ""), epochs_in(view.work.get("command", ())))
        if like not in known:
            known[like] = _alone(log, *like, {view.id for view in views} - alone)
        seconds = known[like] if view.state == "succeeded" and view.id not in alone else None
        took = span.end - span.begin if seconds is None else seconds
        found.append(Cost(took, len(span.gpus), view.id in alone or seconds is not None))
    return found


def _alone(log: BatchLog, signature: str, epochs: float, but: set[str]) -> float | None:
    """Seconds that runs like this took alone, of as many epochs, but for certain jobs; None if there was none."""
    runs = log.alone(signature) if signature else []
    times = [seconds for job, seconds, command in runs if job not in but and epochs_in(command) == epochs]
    return median(times) if times else None
