"""Comparisons in processes of their own, at most two at a time, and the routes for uploads and downloads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import IO, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gpuyard.errors import GpuyardError, UserError
from gpuyard.files import csv_text
from gpuyard.page.api import Api, Refused, Unavailable
from gpuyard.page.parts import sentence
from gpuyard.page.simulations import trace_sources
from gpuyard.page.simulations.choices import Choices
from gpuyard.page.simulations.trace_sources import TraceFolder, Uploads, code_cache, reopened

log = logging.getLogger("gpuyard.page")
MAX_RUNNING = 2
_EACH, _ALL = 4, 24
_LONGEST_LINE = 16 * 2**20
_GRACE = 120.0  # seconds beyond its limit until a process is killed: it may be compiling
_MOST_WORDS = 300
Trace = Callable[[], Awaitable[IO[bytes] | None]]  # opens the trace when the run starts; None for a generated workload


@dataclass(eq=False)
class Run:
    viewer: str
    choices: Choices
    trace: Trace
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = "waiting"  # `waiting`, `running`, `done`, `failed` or `cancelled`
    at: float = field(default_factory=time.time)
    done: float = 0.0
    total: int = 0
    words: str = ""  # the latest message of the process, for example that it compiles the kernel
    error: str = ""
    jobs: int | None = None
    table: dict[str, Any] = field(default_factory=dict)
    curves: bytes = b""
    charts: dict[int, bytes] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running")

    def hear(self, line: bytes) -> None:
        said = json.loads(line)
        if "progress" in said:
            self.done, self.total = said["progress"]
        elif "begun" in said:
            self.jobs = said["begun"]["jobs"]
        elif "table" in said:
            self.table = said["table"]
        elif "curves" in said:
            self.curves = line
        elif "chart" in said:
            self.charts[said["number"]] = line
        elif "error" in said:
            self.error = str(said["error"])
        elif "done" in said:
            self.state = "done"


class RunQueue:
    """All comparisons of this page: running, waiting, and the latest of each viewer."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._news = asyncio.Event()

    def start(self, viewer: str, choices: Choices, trace: Trace) -> Run:
        if any(not run.is_over for run in self.of(viewer)):
            raise UserError("one comparison of yours is not done yet; cancel it, or wait for it")
        run = Run(viewer, choices, trace)
        self._runs.append(run)
        self._forget(viewer)
        run.task = asyncio.create_task(self._take(run), name=f"simulation {run.id}")
        return run

    def of(self, viewer: str) -> list[Run]:
        return [run for run in reversed(self._runs) if run.viewer == viewer]

    def find(self, viewer: str, id: str) -> Run | None:
        return next((run for run in self._runs if run.id == id and run.viewer == viewer), None)

    def ahead(self, run: Run) -> int:
        return sum(not other.is_over for other in self._runs[: self._runs.index(run)])

    async def cancel(self, run: Run) -> None:
        """Cancel a run; the state is set first, so that a late result cannot replace it."""
        if run.task is not None and not run.is_over:
            run.state = "cancelled"
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)

    async def close(self) -> None:
        for run in list(self._runs):
            await self.cancel(run)

    def _forget(self, viewer: str) -> None:
        over = [run for run in self._runs if run.is_over]
        own = [run for run in over if run.viewer == viewer]
        for old in own[: -(_EACH - 1)] or over[:-_ALL]:
            self._runs.remove(old)

    async def _take(self, run: Run) -> None:
        try:
            while self.ahead(run) >= MAX_RUNNING:
                self._news.clear()
                await self._news.wait()
            run.state = "running"
            await _simulate(run)
        except GpuyardError as error:
            run.error = str(error)
        except OSError as error:
            run.error = f"it could not be started ({error.strerror})"
        except Exception:
            log.exception("a simulation failed")
            run.error = "the page made a mistake, which the daemon's log tells of"
        finally:
            if not run.is_over:
                run.state = "failed"
            self._news.set()


async def _simulate(run: Run) -> None:
    file = await run.trace()
    try:
        given = os.open(os.devnull, os.O_RDONLY) if file is None else reopened(file)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-s", "-P", "-m", "gpuyard.cli.simulator.comparison_process",
                json.dumps(run.choices.request()),
                stdin=given, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/",
                env={**os.environ, "GPUYARD_CACHE_DIR": code_cache(), "PYTHONUNBUFFERED": "1"}, limit=_LONGEST_LINE,
            )  # fmt: skip
        finally:
            os.close(given)
        await _follow(run, process)
    finally:
        if file is not None and run.choices.source != "upload":  # uploads may be used again
            file.close()


async def _follow(run: Run, process: asyncio.subprocess.Process) -> None:
    limit = float(run.choices.request()["limit"]) + _GRACE
    words = asyncio.create_task(_read_errors(run, process))
    try:
        async with asyncio.timeout(limit):
            assert process.stdout is not None
            async for line in process.stdout:
                run.hear(line)
            code = await process.wait()
        if run.state == "running" and not run.error:
            run.error = f"the process that simulates ended with code {code}{': ' + run.words if run.words else ''}"
    except TimeoutError:
        run.error = f"it took more than {limit / 60:.0f} minutes, and was ended; take fewer jobs or fewer policies"
    except ValueError:
        run.error = "there is more to show than a page can hold; take fewer jobs or fewer policies"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        words.cancel()
        await asyncio.shield(process.wait())
    trace = run.choices.file or run.choices.name or "the history"
    run.error = run.error.replace("standard input", trace).replace("give --format", "choose its format:")


async def _read_errors(run: Run, process: asyncio.subprocess.Process) -> None:
    """Keep the last line of stderr; earlier ones may be warnings of libraries."""
    assert process.stderr is not None
    async for line in process.stderr:
        run.words = line.decode(errors="replace").strip()[:_MOST_WORDS] or run.words


_PRIVATE = {"Cache-Control": "private, max-age=3600"}


class Comparisons:
    def __init__(self, traces: str = "") -> None:
        self.queue = RunQueue()
        self.uploads = Uploads()
        self.folder = TraceFolder(traces)

    def start(self, viewer: str, choices: Choices, api: Api) -> Run:
        return self.queue.start(viewer, choices, self._opener(viewer, choices, api))

    def _opener(self, viewer: str, choices: Choices, api: Api) -> Callable[[], Awaitable[IO[bytes] | None]]:
        async def opened() -> IO[bytes] | None:
            if choices.source == "history":
                file, _ = await trace_sources.history_trace(api, choices.since, choices.whose)
                return file
            if choices.source == "file":
                return self.folder.open(choices.file)
            if choices.source == "upload":
                upload = self.uploads.find(viewer, choices.upload)
                if upload is None:
                    raise UserError("the file that was uploaded is no longer here; choose it again")
                return upload.file
            return None

        return opened

    def add_to(self, app: FastAPI, api: Api) -> None:
        add = app.add_api_route
        add("/page/upload", _for_viewers(api, self._upload), methods=["POST"], include_in_schema=False)
        add("/page/simulations/{id}/{what}", _for_viewers(api, self._fetch), include_in_schema=False)

    async def _upload(self, request: Request, viewer: dict[str, Any]) -> Response:
        if viewer["role"] not in ("admin", "user"):
            return JSONResponse({"detail": "Your role lets you look, and not simulate."}, 403)
        try:
            name = request.query_params.get("name", "trace")
            found = await self.uploads.add(viewer["user"], name, request.stream())
        except UserError as error:
            return JSONResponse({"detail": sentence(str(error))}, 413)
        return JSONResponse({"id": found.id, "name": found.name, "size": found.size})

    async def _fetch(self, request: Request, viewer: dict[str, Any]) -> Response:
        run = self.queue.find(viewer["user"], request.path_params["id"])
        what: str = request.path_params["what"]
        if run is None or run.state != "done":
            return JSONResponse({"detail": "There is no such result any more; simulate it again."}, 404)
        if what == "curves":
            return Response(run.curves, media_type="application/json", headers=_PRIVATE)
        if what.isdecimal() and int(what) in run.charts:
            return Response(run.charts[int(what)], media_type="application/json", headers=_PRIVATE)
        if what == "comparison.json":
            return _download(json.dumps(metrics_json(run), indent=2), "application/json", what)
        if what == "comparison.csv":
            return _download(metrics_csv(run), "text/csv", what)
        return JSONResponse({"detail": "There is no such thing."}, 404)


def metrics_json(run: Run) -> dict[str, Any]:
    """The output of `gpuyard compare --json`, with the command that prints it."""
    found = run.table
    about = {"trace": run.choices.title(), "commands": run.choices.commands(), "gpus": found["gpus"]}
    return {**about, "results": found["results"], **({"errors": found["errors"]} if found["errors"] else {})}


def metrics_csv(run: Run) -> str:
    rows = run.table["results"]
    return csv_text(list(rows[0]), (row.values() for row in rows))


def _download(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


_Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


def _for_viewers(api: Api, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:

    async def known(request: Request) -> Response:
        if "x-gpuyard-ticket" not in request.headers:
            return JSONResponse({"detail": "Log in first."}, 401)
        try:
            viewer = await api.as_viewer(request.headers["x-gpuyard-ticket"]).get("/session")
        except Refused as error:
            return JSONResponse({"detail": str(error)}, error.status)
        except Unavailable:
            return JSONResponse({"detail": "The daemon does not answer at the moment; try again in a second."}, 503)
        return await handler(request, viewer)

    return known
