"""Comparisons, one after the other: two at a time in all and one of each viewer, each in a process of its own.

This process only reads what they tell. What is large (curves and charts) stays bytes, which browsers fetch.
"""

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

from gpuyard.errors import GpuyardError, UserError
from gpuyard.page.simulations.choices import Choices
from gpuyard.page.simulations.places import cache, reopened

log = logging.getLogger("gpuyard.page")
AT_ONCE = 2
_EACH, _ALL = 4, 24
_LONGEST_LINE = 16 * 2**20
_GRACE = 120.0  # seconds beyond its limit after which a process is ended: it may be compiling
_MOST_WORDS = 300
Trace = Callable[[], Awaitable[IO[bytes] | None]]
"""Opens the trace, once it is its turn; None if it is made up."""


@dataclass(eq=False)
class Run:
    """One comparison, and how far it is."""

    viewer: str
    choices: Choices
    trace: Trace
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = "waiting"
    """`waiting`, `running`, `done`, `failed` or `cancelled`."""
    at: float = field(default_factory=time.time)
    done: float = 0.0
    total: int = 0
    words: str = ""
    """What the process said last, of the kernel that it compiles, say."""
    error: str = ""
    jobs: int | None = None
    table: dict[str, Any] = field(default_factory=dict)
    curves: bytes = b""
    charts: dict[int, bytes] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state not in ("waiting", "running")

    def hear(self, line: bytes) -> None:
        """Take in what the process tells."""
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


class Line:
    """All comparisons of this process: those that run, those that wait, and the last of each viewer."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._news = asyncio.Event()

    def start(self, viewer: str, choices: Choices, trace: Trace) -> Run:
        """Have something simulated; it may have to wait."""
        if any(not run.is_over for run in self.of(viewer)):
            raise UserError("one comparison of yours is not done yet; cancel it, or wait for it")
        run = Run(viewer, choices, trace)
        self._runs.append(run)
        self._forget(viewer)
        run.task = asyncio.create_task(self._take(run), name=f"simulation {run.id}")
        return run

    def of(self, viewer: str) -> list[Run]:
        """Those of a viewer, the latest first."""
        return [run for run in reversed(self._runs) if run.viewer == viewer]

    def find(self, viewer: str, id: str) -> Run | None:
        """One of a viewer's own."""
        return next((run for run in self._runs if run.id == id and run.viewer == viewer), None)

    def ahead(self, run: Run) -> int:
        """How many come before it."""
        return sum(not other.is_over for other in self._runs[: self._runs.index(run)])

    async def cancel(self, run: Run) -> None:
        """End it; that it was its owner's wish is known before anything else can come of it."""
        if run.task is not None and not run.is_over:
            run.state = "cancelled"
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)

    async def close(self) -> None:
        """End all."""
        for run in list(self._runs):
            await self.cancel(run)

    def _forget(self, viewer: str) -> None:
        over = [run for run in self._runs if run.is_over]
        own = [run for run in over if run.viewer == viewer]
        for old in own[: -(_EACH - 1)] or over[:-_ALL]:
            self._runs.remove(old)

    async def _take(self, run: Run) -> None:
        """A run's whole way: wait for its turn, simulate, tell how it ended."""
        try:
            while self.ahead(run) >= AT_ONCE:
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
                sys.executable, "-s", "-P", "-m", "gpuyard.cli.comparing", json.dumps(run.choices.request()),
                stdin=given, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/",
                env={**os.environ, "GPUYARD_CACHE_DIR": cache(), "PYTHONUNBUFFERED": "1"}, limit=_LONGEST_LINE,
            )  # fmt: skip
        finally:
            os.close(given)
        await _follow(run, process)
    finally:
        if file is not None and run.choices.source != "upload":  # which may be wanted again
            file.close()


async def _follow(run: Run, process: asyncio.subprocess.Process) -> None:
    """Listen to a process until it ends, or is ended."""
    limit = float(run.choices.request()["limit"]) + _GRACE
    words = asyncio.create_task(_read_words(run, process))
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


async def _read_words(run: Run, process: asyncio.subprocess.Process) -> None:
    """The process's last words to people; a warning of a library, of several lines, is not for them."""
    assert process.stderr is not None
    async for line in process.stderr:
        run.words = line.decode(errors="replace").strip()[:_MOST_WORDS] or run.words
