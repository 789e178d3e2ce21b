"""The yard's history as a trace: what `gpuyard compare history` reads from the store, read from the API."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import IO, Any

from gpuyard.errors import UserError
from gpuyard.page.api import Api
from gpuyard.page.simulations.places import temporary

MOST = 50_000
"""Jobs, the latest."""
_PAGE = 1000
_COLUMNS = ("job", "submit", "run", "gpus", "requested", "priority", "user", "memory", "preemptible")
_SHORTEST = 0.001  # seconds; a job cannot take none


async def gather(api: Api, since: date | None, user: str) -> tuple[IO[bytes], int]:
    """The jobs that were submitted since and ran to some end, and how many these are."""
    begin = datetime(since.year, since.month, since.day, tzinfo=UTC) if since else None
    file = temporary()
    file.write((",".join(_COLUMNS) + "\n").encode())
    count, cursor = 0, ""
    while count < MOST:
        page = await api.get(
            "/history", limit=_PAGE, user=user, since=begin.isoformat() if begin else None, cursor=cursor
        )
        found = rows(page["jobs"], begin.timestamp() if begin else None)
        file.write(_lines(found))
        count += len(found)
        if page["next"] is None:
            break
        cursor = page["next"].rpartition("cursor=")[2].partition("&")[0]
    if not count:
        file.close()
        raise UserError("no job of that time has run to its end, so there is nothing to simulate yet")
    file.flush()
    return file, count


def rows(jobs: Iterable[Mapping[str, Any]], begin: float | None = None) -> list[tuple[Any, ...]]:
    """A row of the trace for each job that ran, was submitted since then, and wanted a GPU."""
    return [
        _row(job) for job in jobs if job["started_at"] and job["ended_at"] and job["gpu_count"] and _is_of(job, begin)
    ]


def _is_of(job: Mapping[str, Any], begin: float | None) -> bool:
    return begin is None or _seconds(job["submitted_at"]) >= begin


def _row(job: Mapping[str, Any]) -> tuple[Any, ...]:
    run = round(_seconds(job["ended_at"]) - _seconds(job["started_at"]), 3)
    return (
        job["id"], _seconds(job["submitted_at"]), max(run, _SHORTEST), job["gpu_count"], job["estimate"] or "",
        job["priority"], job["user"], job["gpu_memory"] or "", "false",
    )  # fmt: skip


def _lines(found: Iterable[tuple[Any, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(found)
    return text.getvalue().encode()


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
