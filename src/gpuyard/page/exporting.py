"""The history as a file: all jobs that a filter finds, written as they are read.

A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, also one that a job's name smuggled in:
such texts get an apostrophe in front, which spreadsheets take for `this is text`.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Api, Away, Refused

PATH = "/page/history.csv"
FILTERS = ("text", "user", "tag", "state", "since", "until")
COLUMNS = (
    "id", "name", "user", "state", "exit_code", "attempt", "gpus", "gpu_count", "gpu_memory", "priority", "tags",
    "submitted_at", "started_at", "ended_at", "wait_seconds", "run_seconds", "gpu_hours", "energy_wh", "command",
    "directory", "reason",
)  # fmt: skip
_PIECE = 1000  # jobs asked for at once
_RISKY = ("=", "+", "-", "@", "\t", "\r", "\n")


def add_to(app: FastAPI, api: Api) -> None:
    """Make the file known."""

    async def history(request: Request) -> Response:
        asking = api.as_viewer(request.headers.get("x-gpuyard-ticket", ""))
        if "x-gpuyard-ticket" not in request.headers:
            return PlainTextResponse("Log in first.", 401)
        wanted = {name: request.query_params.get(name, "") for name in FILTERS}
        try:
            first = await _piece(asking, wanted, "")
        except Refused as error:
            return PlainTextResponse(f"{error}\n", error.status)
        except Away:
            return PlainTextResponse("The daemon does not answer at the moment; try again in a second.\n", 503)
        headers = {"Content-Disposition": 'attachment; filename="gpuyard-history.csv"'}
        return StreamingResponse(_lines(asking, wanted, first), 200, headers, "text/csv; charset=utf-8")

    app.add_api_route(PATH, history, include_in_schema=False)


async def _lines(api: Api, wanted: Mapping[str, str], first: Mapping[str, Any]) -> AsyncIterator[str]:
    """The file, piece by piece."""
    yield written([COLUMNS])
    answer = first
    while True:
        yield written([cells(job) for job in answer["jobs"]])
        cursor = cursor_of(answer["next"])
        if not cursor:
            return
        try:
            answer = await _piece(api, wanted, cursor)
        except GpuyardError as error:  # a file that ends early must not look like a whole one
            yield written([[f"The rest is missing: {str(error) or 'the daemon does not answer'}"]])
            return


async def _piece(api: Api, wanted: Mapping[str, str], cursor: str) -> Any:
    return await api.get("/history", **wanted, limit=_PIECE, cursor=cursor)


def cursor_of(address: str | None) -> str:
    """Where the next piece begins, as `next` tells; empty: there is none."""
    return parse_qs(urlsplit(address).query).get("cursor", [""])[0] if address else ""


def written(rows: list[Any]) -> str:
    """Rows as lines of a file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def cells(job: Mapping[str, Any]) -> list[Any]:
    """A job as a row."""
    submitted, started, ended = (_instant(job[f"{what}_at"]) for what in ("submitted", "started", "ended"))
    run = None if started is None or ended is None else ended - started
    found = {
        **{name: job.get(name) for name in COLUMNS},
        "gpus": " ".join(map(str, job["gpus"])),
        "tags": " ".join(job["tags"]),
        "command": shlex.join(job["command"]),
        "wait_seconds": _rounded(None if started is None or submitted is None else started - submitted, 3),
        "run_seconds": _rounded(run, 3),
        "gpu_hours": _rounded(None if run is None or job["gpu_memory"] else run * job["gpu_count"] / 3600, 6),
    }
    return [harmless(found[name]) for name in COLUMNS]


def harmless(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_RISKY) else value


def _instant(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
