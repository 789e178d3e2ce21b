"""Finished jobs and usage in a time window, as table rows and as a file to download."""

from __future__ import annotations

import math
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from gpuyard.errors import GpuyardError
from gpuyard.files import csv_text
from gpuyard.page.api import Api, Facts, Refused, Unavailable
from gpuyard.page.parts import STATES, amount, capitalized, epoch, job_path, watt_hours
from gpuyard.page.table import Column, Row
from gpuyard.page.views.queue_jobs import gpus_of

HOUR = 3600.0
PRESETS = {"1h": HOUR, "24h": 24 * HOUR, "7d": 168 * HOUR, "30d": 720 * HOUR}  # seconds back from now
NAMES = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
USUAL = "24h"
_STEP = 60.0  # windows begin at a full minute, so that all viewers request the same


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, in seconds since the epoch."""

    since: float
    until: float | None  # None: up to now
    back: float | None = None  # its length, if it ends now and moves with the clock

    @property
    def query(self) -> dict[str, str]:
        found = {"since": iso(self.since)}
        return found if self.until is None else {**found, "until": iso(self.until)}


def initial_preset(oldest: float | None, latest: float | None, now: float) -> str:
    """An hour if there is no older job, else a day, or more if the last day is empty."""
    if oldest is None or now - oldest <= HOUR:
        return "1h"
    age = max(24 * HOUR, now - (oldest if latest is None else latest))
    return next((name for name, length in PRESETS.items() if age <= length), USUAL)


def window_of(span: str, since: str, until: str, now: float) -> Window:
    """The window that a URL asks for: a preset, or instants; the last day if invalid."""
    begin, end = instant(since), instant(until)
    if begin is not None and (end is None or end > begin):
        return Window(begin, end if end is not None and end < now else None)
    length = PRESETS.get(span, PRESETS[USUAL])
    return Window(math.floor((now - length) / _STEP) * _STEP, None, length)


def instant(text: str) -> float | None:
    """Seconds since the epoch of an ISO-8601 time with a zone; None if invalid."""
    try:
        found = datetime.fromisoformat(text)
        return found.timestamp() if found.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def local_text(at: float | None, zone: tzinfo | None) -> str:
    """The value of a `datetime-local` field in the viewer's zone."""
    return "" if at is None else datetime.fromtimestamp(at, zone or UTC).strftime("%Y-%m-%dT%H:%M")


def typed_instant(text: str, zone: tzinfo | None) -> str:
    """ISO-8601 of a `datetime-local` field's value; empty if invalid."""
    try:
        return iso(datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp())
    except (ValueError, OverflowError, OSError):
        return ""


JOB_COLUMNS = (
    Column("ID", "link"), Column("Name", "link", grow=True), Column("State", "chip"), Column("User"), Column("GPUs"),
    Column("Waited", "span", right=True), Column("Ran", "span", right=True), Column("Ended", "time", right=True),
    Column("How it ended", "stand", grow=True),
)  # fmt: skip
_MOST = 20


def job_row(job: Facts) -> Row:
    submitted, started, ended = (epoch(job[f"{what}_at"]) for what in ("submitted", "started", "ended"))
    reason = str(job["reason"] or "")
    cells = (
        {"text": job["id"], "href": job_path(job["id"]), "title": ""},
        {"text": job["name"] or "–", "href": job_path(job["id"]), "title": "", "tags": job["tags"]},
        {"state": job["state"], "text": STATES.get(job["state"], job["state"])},
        job["user"],
        gpus_of(job["gpus"], job["gpu_count"], job["gpu_memory"]),
        None if started is None or submitted is None else max(0.0, started - submitted - job["ran_before"]),
        None if started is None or ended is None else max(0.0, ended - started) + job["ran_before"],
        ended,
        {"fraction": None, "text": capitalized(reason)},
    )
    return Row(job["id"], f"job {job['id']}", cells)


def usage_columns(name: str) -> tuple[Column, ...]:
    """Energy is known per user only."""
    energy = (Column("Energy", right=True),) if name == "User" else ()
    return (
        Column(name, "link"), Column("GPU-hours", "stand", grow=True), *energy, Column("Ended", right=True),
        Column("Submitted", right=True),
    )  # fmt: skip


def usage_rows(name: str, entries: Sequence[Facts]) -> list[Row]:
    most = max((entry["gpu_hours"] for entry in entries), default=0.0) or 1.0
    found = []
    for entry in sorted(entries, key=lambda entry: -entry["gpu_hours"])[:_MOST]:
        hours = entry["gpu_hours"]
        who = {"text": entry[name], "href": f"/history?{urlencode({name: entry[name]})}", "title": entry[name]}
        bar = {"fraction": hours / most, "text": amount(hours)}
        known = entry.get("energy_wh")
        energy = ("–" if known is None else watt_hours(known),) if name == "user" else ()
        cells = (who, bar, *energy, f"{entry['ended']:,}", f"{entry['submitted']:,}")
        found.append(Row(entry[name], entry[name], cells))
    return found


def left_out(entries: Sequence[Any]) -> str:
    return f"and {len(entries) - _MOST:,} more with less" if len(entries) > _MOST else ""


def summary(stats: Facts) -> list[tuple[str, str]]:
    numbers = [(f"{stats['ended']:,}", "jobs ended")]
    for state, many in sorted(stats["outcomes"].items(), key=lambda item: -item[1]):
        numbers.append((f"{many:,}", STATES.get(state, state)))
    numbers.append((amount(stats["gpu_hours"]), "GPU-hours"))
    if energies := [user["energy_wh"] for user in stats["users"] if user["energy_wh"] is not None]:
        numbers.append((watt_hours(sum(energies)), "of energy"))
    if stats["utilization"] is not None:
        share = 100 * stats["utilization"]
        numbers.append(("< 1 %" if 0 < share < 0.5 else f"{share:.0f} %", "of the GPUs in use"))
    return numbers


EXPORT_PATH = "/page/history.csv"
_LINE_END = "\r\n"  # as spreadsheets want it
EXPORT_FILTERS = ("text", "user", "tag", "state", "since", "until")
EXPORT_COLUMNS = (
    "id", "name", "user", "state", "exit_code", "attempt", "gpus", "gpu_count", "gpu_memory", "priority", "tags",
    "submitted_at", "started_at", "ended_at", "wait_seconds", "run_seconds", "gpu_hours", "energy_wh", "command",
    "directory", "reason",
)  # fmt: skip
_PIECE = 1000  # jobs per request


def add_export(app: FastAPI, api: Api) -> None:
    async def history(request: Request) -> Response:
        asking = api.as_viewer(request.headers.get("x-gpuyard-ticket", ""))
        if "x-gpuyard-ticket" not in request.headers:
            return PlainTextResponse("Log in first.", 401)
        wanted = {name: request.query_params.get(name, "") for name in EXPORT_FILTERS}
        try:
            first = await _piece(asking, wanted, "")
        except Refused as error:
            return PlainTextResponse(f"{error}\n", error.status)
        except Unavailable:
            return PlainTextResponse("The daemon does not answer at the moment; try again in a second.\n", 503)
        headers = {"Content-Disposition": 'attachment; filename="gpuyard-history.csv"'}
        return StreamingResponse(_lines(asking, wanted, first), 200, headers, "text/csv; charset=utf-8")

    app.add_api_route(EXPORT_PATH, history, include_in_schema=False)


async def _lines(api: Api, wanted: Mapping[str, str], first: Facts) -> AsyncIterator[str]:
    yield csv_text(EXPORT_COLUMNS, (), _LINE_END)
    answer = first
    while True:
        yield csv_text((), map(csv_cells, answer["jobs"]), _LINE_END)
        cursor = cursor_of(answer["next"])
        if not cursor:
            return
        try:
            answer = await _piece(api, wanted, cursor)
        except GpuyardError as error:  # a truncated file must not look complete
            yield csv_text((), [[f"The rest is missing: {str(error) or 'the daemon does not answer'}"]], _LINE_END)
            return


async def _piece(api: Api, wanted: Mapping[str, str], cursor: str) -> Any:
    return await api.get("/history", **wanted, limit=_PIECE, cursor=cursor)


def cursor_of(address: str | None) -> str:
    """The cursor in the API's `next`; empty after the last page."""
    return parse_qs(urlsplit(address).query).get("cursor", [""])[0] if address else ""


def csv_cells(job: Facts) -> list[Any]:
    submitted, started, ended = (epoch(job[f"{what}_at"]) for what in ("submitted", "started", "ended"))
    run = None if started is None or ended is None else ended - started + job["ran_before"]
    wait = None if started is None or submitted is None else max(0.0, started - submitted - job["ran_before"])
    found = {
        **{name: job.get(name) for name in EXPORT_COLUMNS},
        "gpus": " ".join(map(str, job["gpus"])),
        "tags": " ".join(job["tags"]),
        "command": shlex.join(job["command"]),
        "wait_seconds": _rounded(wait, 3),
        "run_seconds": _rounded(run, 3),
        "gpu_hours": _rounded(None if run is None or job["gpu_memory"] else run * job["gpu_count"] / 3600, 6),
    }
    return [found[name] for name in EXPORT_COLUMNS]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
