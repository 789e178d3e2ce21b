"""The recordings that plot, report, forecast and monitor draw: of jobs, of groups, or of a span of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.cli.common_options import past_time
from gpuyard.client.transport import NoDaemon
from gpuyard.errors import UserError, suggest
from gpuyard.monitor.sources import open_source
from gpuyard.recordings.series import METRICS, USUAL, Mark, Recording, Subject

if TYPE_CHECKING:
    from gpuyard.api.types import Job
    from gpuyard.client.client import Client
    from gpuyard.monitor.sources import Source

Span = tuple[float, float]
Named = list[tuple[str, Recording]]
ALIASES = {
    "memory": "memory_used", "util": "utilization", "gpu": "utilization", "temp": "temperature",
    "clock": "sm_clock", "clocks": "sm_clock", "errors": "xid", "copy": "memcopy",
}  # fmt: skip
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Query:
    client: Callable[[], Client]
    metrics: Sequence[str]
    span: Span | None  # seconds since the epoch; None: a job's own time, the whole of a file, or the last hour
    gpus: Sequence[str]
    url: str = ""


def metrics_of(text: str | None) -> list[str]:
    """The metrics that a text names; None: the usual ones."""
    if text is None:
        return list(USUAL)
    names = [ALIASES.get(name.strip(), name.strip()) for name in text.split(",") if name.strip()]
    if "all" in names:
        return list(METRICS)
    for name in names:
        if name not in METRICS:
            near = suggest(name, (*METRICS, *ALIASES, "all"))
            raise UserError(f"--metrics: there is no '{name}'{near} (there are {', '.join(METRICS)}, and all)")
    if not names:
        raise UserError(f"--metrics: nothing is named; there are {', '.join(METRICS)}, and all")
    return list(dict.fromkeys(names))


def span_of(since: str | None, from_: str | None, to: str | None) -> Span | None:
    if since is not None and from_ is not None:
        raise UserError("--since and --from say the same; give one of them")
    if since is None and from_ is None and to is None:
        return None
    begin, option = (from_, "--from") if from_ is not None else (since, "--since")
    end = time.time() if to is None else past_time(to, "--to").timestamp()
    start = end - _HOUR if begin is None else past_time(begin, option).timestamp()
    if not start < end:
        raise UserError(f"{option} has to be before {'now' if to is None else '--to'}; write for example {option} 1h")
    return start, end


def named_gpus(text: str | None) -> list[str]:
    """GPUs by index, UUID or `host:0`; `0-3` are four."""
    from gpuyard.units import parse_indices

    if text is None:
        return []
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        plain = part.replace("-", "").isdecimal()
        found += map(str, parse_indices(part)) if plain or not part else [part]
    return found


def gather(query: Query, sources: Sequence[str], jobs: Sequence[str], groups: Sequence[str]) -> Named:
    parsed = [_parsed(group) for group in groups]
    found: Named = []
    for text in sources:
        if text.endswith((".json", ".json.gz")):
            found.append(_from_file(text, query))
            continue
        source = open_source(text, query.client, url=query.url)
        more = f", {source.name}" if len(sources) > 1 else ""
        found += [(f"{name}{more}", one) for name, one in (of_job(query, source, job) for job in jobs)]
        found += [(f"{name}{more}", _of_group(query, source, ids)) for name, ids in parsed]
        if not jobs and not parsed:
            name = Path(text).name if Path(text).is_file() else source.name
            found.append((name, _of_span(query, source, text)))
    return _distinct(found)


def _parsed(group: str) -> tuple[str, list[str]]:
    name, equals, ids = group.partition("=")
    jobs = [job.strip() for job in ids.split(",") if job.strip()]
    if not equals or not name.strip() or not jobs:
        raise UserError(f"--group '{group}': write a name and jobs, as in --group sjf=4,5,6")
    return name.strip(), jobs


def _from_file(text: str, query: Query) -> tuple[str, Recording]:
    from gpuyard.recordings.textform import read_recording

    path = Path(text)
    plain = path.name.removesuffix(".gz").removesuffix(".json")
    name = path.resolve().parent.name if plain == "recording" else plain  # each in a folder of its own
    return name, narrowed(read_recording(path), query.span, query.gpus)


def of_job(query: Query, source: Source, id: str) -> tuple[str, Recording]:
    job = _job(query, id)
    if job is None:  # no daemon knows when it ran; the options say it
        start, end = query.span or (-math.inf, math.inf)
        return f"job {id}", source.read(query.metrics, start, end, gpus=query.gpus, job=id)
    name = job_label(job)
    if _is_daemons(source):
        start, end = query.span or (-math.inf, math.inf)
        found = source.read(query.metrics, start, end, gpus=query.gpus, job=job["id"])
        if not found.series and job["started_at"] is None:
            raise UserError(f"job {id} has not run yet, so there is nothing to draw (gpuyard explain {id} tells why)")
        return name, found
    start, end = _window(query, [job])
    gpus = query.gpus or _gpus_of(query, [job])
    found = source.read(query.metrics, start, end, gpus=gpus, job=job["id"])
    return name, _marked(found, [job])


def _of_group(query: Query, source: Source, ids: Sequence[str]) -> Recording:
    client = query.client()
    jobs = [client.job(id) for id in ids]
    start, end = _window(query, jobs)
    gpus = query.gpus or _gpus_of(query, jobs)
    found = source.read(query.metrics, start, end, gpus=gpus)
    mine = {job["id"] for job in jobs}
    found.series = [one for one in found.series if not one.subject.job or one.subject.job in mine]
    if not _is_daemons(source):
        return _marked(found, jobs)
    found.marks = [one for one in found.marks if one.subject is None or one.subject.job in (*mine, "")]
    return found


def _of_span(query: Query, source: Source, text: str) -> Recording:
    now = time.time()
    usual = (-math.inf, math.inf) if Path(text).is_file() or ".csv" in text else (now - _HOUR, now)
    start, end = query.span or usual
    return source.read(query.metrics, start, end, gpus=query.gpus)


def _job(query: Query, id: str) -> Job | None:
    try:
        return query.client().job(id)
    except NoDaemon as error:
        if query.span is None:
            raise UserError(f"{error}; without it nobody knows when job {id} ran: say so by --from and --to") from None
        return None


def job_label(job: Job) -> str:
    """`job 7 (train)`."""
    return f"job {job['id']} ({job['name']})" if job["name"] else f"job {job['id']}"


def _is_daemons(source: Source) -> bool:
    from gpuyard.monitor.sources.recorded import Recorded

    return isinstance(source, Recorded)


def window_of(job: Job) -> Span | None:
    if job["started_at"] is None:
        return None
    ended = time.time() if job["ended_at"] is None else datetime.fromisoformat(job["ended_at"]).timestamp()
    return datetime.fromisoformat(job["started_at"]).timestamp(), ended


def _window(query: Query, jobs: Sequence[Job]) -> Span:
    if query.span is not None:
        return query.span
    spans = [span for span in map(window_of, jobs) if span is not None]
    if not spans:
        raise UserError(f"job {jobs[0]['id']} has not run yet, so there is nothing to draw")
    return min(start for start, _ in spans), max(end for _, end in spans)


def _gpus_of(query: Query, jobs: Sequence[Job]) -> list[str]:
    """The GPUs of jobs: by UUID, which is the same everywhere, or by index if they are simulated."""
    wanted = {gpu for job in jobs for gpu in job["gpus"]}
    known = query.client().gpus()
    uuids = {} if known["simulated"] else {gpu["index"]: gpu["uuid"] for gpu in known["gpus"]}
    return [uuids.get(gpu) or str(gpu) for gpu in sorted(wanted)]


def _marked(found: Recording, jobs: Sequence[Job]) -> Recording:
    """Add the starts and ends of jobs, which other sources do not know."""
    for job in jobs:
        if (span := window_of(job)) is not None:
            until = None if job["ended_at"] is None else span[1]
            found.marks.append(Mark(span[0], job_label(job), until, Subject(-1, job=job["id"])))
    return found


def narrowed(found: Recording, span: Span | None, gpus: Sequence[str]) -> Recording:
    from dataclasses import replace

    from gpuyard.monitor.sources import is_selected

    series = [one for one in found.series if is_selected(one.subject, gpus)]
    if span is None:
        return replace(found, series=series)
    start, end = span
    cut = []
    for one in series:
        inside = (one.at >= start) & (one.at <= end)
        low, high = (None if part is None else part[inside] for part in (one.low, one.high))
        cut.append(replace(one, at=one.at[inside], mean=one.mean[inside], low=low, high=high))
    return replace(found, series=cut, start=max(start, found.start), end=min(end, found.end))


def _distinct(found: Named) -> Named:
    seen: dict[str, int] = {}
    named: Named = []
    for name, recording in found:
        seen[name] = seen.get(name, 0) + 1
        named.append((name if seen[name] == 1 else f"{name} ({seen[name]})", recording))
    return named
