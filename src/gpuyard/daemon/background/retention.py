"""What is kept of jobs that are over, and for how long; whether the store keeps it; memory that nothing is kept in.

A thread of its own looks at the start, and every hour after that. It removes files by itself; rows of the store it has
removed by the yard's thread, which alone may write, in bites of a few milliseconds with long pauses between them. Files
go before the rows that tell of them, a job's rows all at once, so whatever is cut short is done the next time.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from gpuyard.config import Settings
from gpuyard.daemon.commands import KEPT
from gpuyard.daemon.context import BackgroundThread, Context
from gpuyard.daemon.store.database import BESIDE, damage_of
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.local import stored_attempts
from gpuyard.errors import UserError
from gpuyard.units import format_duration

log = logging.getLogger("gpuyard")
_EVERY = 3600.0
_DOUBT = 86400.0
_BITE = 50  # jobs; about 5 ms of the loop's time
_IDLE = 20  # times as long as a step took passes before the next: 5 % of the loop's time at most
_LOOKED_UP = 500
_SHORT = 0.005
_TRIM_EVERY = 10.0
_WORTH = 32 * 2**20  # bytes more, or less, than the last time: then much may be free
_SYNC = 5.0  # seconds between looks at the files
_CHECK_EVERY = 6 * 3600.0  # seconds between checks of all pages
_SELDOM = 200  # times as long as a check took passes before the next: 0.5 % of one core at most
SMALL = 2**26  # bytes of a store that is checked before a daemon starts, which takes a tenth of a second


class Stopped(Exception):
    """The daemon ends."""


class Removed(UserError):
    """The output of this job was removed."""


def check_kept(settings: Settings, view: JobView, attempt: int) -> None:
    """Raise `Removed` for an attempt whose output there was, and is not any more."""
    if not view.over or not 0 < attempt <= view.attempt or stored_attempts.is_kept(settings.jobs_dir, view.id, attempt):
        return
    old = settings.keep_logs and view.ended is not None and view.ended < time.time() - settings.keep_logs
    kept = f"it is kept for {format_duration(settings.keep_logs)} after a job's end (setting keep_logs)"
    raise Removed(f"the output of job {view.id} is gone: {kept if old else f'its files were in {settings.jobs_dir}'}")


class MemoryTrimmer(BackgroundThread):
    """Gives freed memory back to the system: the C library keeps what a large array, or a large answer, took."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries than glibc have none
        self._last = resident()  # bytes, after the last time

    def _step(self) -> float:
        if self._trim is not None and abs(resident() - self._last) > _WORTH:
            self._trim(0)
            self._last = resident()
        return _TRIM_EVERY


def resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Retention(BackgroundThread):
    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__("retention")
        self._context, self._settings = context, settings

    def _step(self) -> float:
        with suppress(Stopped):
            self.sweep(time.time())
        return _EVERY

    def sweep(self, now: float) -> tuple[int, int]:
        """Remove everything too old: the number of jobs whose files went, and of jobs that went.

        A clock that was set ahead is believed after a day: until then it may be wrong, and what is removed is gone.
        """
        reader, settings = Reader(self._settings.database), self._settings
        try:
            now -= reader.clock_gained(now - _DOUBT, now)
            if reader.any_answered_before(now - KEPT):
                self._in_bites(lambda: self._context.store.forget_answers(now - KEPT, 10 * _BITE))
            files = self._remove_files(reader, now) if settings.keep_logs or settings.keep_history else 0
            jobs = self._remove_history(reader, now - settings.keep_history) if settings.keep_history else 0
        finally:
            reader.close()
        if files or jobs:
            log.info("removed the output of %d jobs, and %d jobs from the history", files, jobs)
        return files, jobs

    # -- files ------------------------------------------------------------------------------------

    def _remove_files(self, reader: Reader, now: float) -> int:
        """Output of jobs that are no longer in the history goes too, so both settings count."""
        kept = min(time for time in (self._settings.keep_logs, self._settings.keep_history) if time)
        directory, before = self._settings.jobs_dir, now - kept
        for path in stored_attempts.half_removed(directory):
            self._remove(str(path), partial(stored_attempts.remove_tree, path))
        removed = 0
        for job in self._too_old(reader, stored_attempts.jobs_in(directory), before):
            removed += self._remove(f"the output of job {job}", partial(stored_attempts.remove, directory, job))
        return removed

    def _remove(self, what: str, act: Callable[[], None]) -> bool:
        """Whether it could be removed; if not, others can."""
        try:
            act()
        except Exception as error:  # users make these files as they like
            log.warning("cannot remove %s: %s", what, error)
            return False
        finally:
            self._pause(_SHORT)
        return True

    def _too_old(self, reader: Reader, jobs: list[str], before: float) -> Iterator[str]:
        """Jobs that ended before an instant, and those unknown to the store since a restore."""
        strangers: list[str] = []
        for begin in range(0, len(jobs), _LOOKED_UP):
            some = jobs[begin : begin + _LOOKED_UP]
            ends = reader.ends(some)
            strangers += [job for job in some if job not in ends]
            yield from (job for job, ended in ends.items() if ended is not None and ended < before)
            self._pause(_SHORT)
        directory = self._settings.jobs_dir
        lives = {job for job, _ in stored_attempts.living(directory)} if strangers else set()
        for job in strangers:
            if job not in lives and stored_attempts.last_change(directory, job) < before:
                yield job

    # -- rows -------------------------------------------------------------------------------------

    def _remove_history(self, reader: Reader, before: float) -> int:
        store = self._context.store
        if not reader.any_ended_before(before):
            return 0
        self._in_bites(self._want_checkpoint)
        removed = self._in_bites(lambda: store.forget(before, _BITE))
        self._in_bites(lambda: store.forget_gpus(before, 10 * _BITE))
        keys, newest = reader.needless_environments()
        for begin in range(0, len(keys), _BITE):
            self._ask(partial(self._forget_environments, keys[begin : begin + _BITE], newest))
        return removed

    def _want_checkpoint(self) -> int:
        """Only what is older than the checkpoint may go; the loop makes one at the end of its turn."""
        self._context.checkpoints.wanted = True
        return 0

    def _forget_environments(self, keys: list[str], newest: int) -> int:
        coming = self._context.environments  # of jobs that are not written yet
        return self._context.store.forget_environments([key for key in keys if key not in coming], newest)

    def _in_bites(self, bite: Callable[[], int]) -> int:
        removed = 0
        while count := self._ask(bite):
            removed += count
        return removed

    def _ask(self, bite: Callable[[], int]) -> int:
        took = 0.0

        def timed() -> int:
            nonlocal took
            began = time.perf_counter()
            count = bite()
            took = time.perf_counter() - began
            return count

        answer = self._context.ask(timed)
        while True:
            try:
                count = answer.result(1.0)
                break
            except TimeoutError:
                self._pause(0.0)
        self._pause(_IDLE * took)
        return count

    def _pause(self, seconds: float) -> None:
        self._move()
        if self._over.wait(seconds):
            raise Stopped


class StoreWatch(BackgroundThread):
    """Brings the store's mark to the disk, and finds damage before somebody needs what is lost."""

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        super().__init__("store")
        self._store, self._tell = store, tell
        self._files = self._numbers()
        self._check_at = 0.0

    def _step(self) -> float:
        self._store.mark.sync()
        if problem := self.replaced() or (time.monotonic() >= self._check_at and self.check()) or "":
            self._tell(problem)
        return _SYNC

    def check(self) -> str:
        """What is wrong with the store, as a sentence; empty if nothing is."""
        began = time.monotonic()
        problem = damage_of(self._store.path)
        now = time.monotonic()
        self._check_at = now + max(_CHECK_EVERY, _SELDOM * (now - began))
        return problem

    def replaced(self) -> str:
        """Which of the files that we write to is no longer the one under its name; empty if all are."""
        for path, number in self._numbers().items():
            if self._files[path] and number != self._files[path]:
                way = "gpuyard down && gpuyard up writes what the daemon still holds"
                if path == str(self._store.path):
                    way = f"its content can be copied from /proc/{os.getpid()}/fd until the daemon ends"
                return f"{path} was deleted or replaced while the daemon runs, and nothing is kept any more; {way}"
        return ""

    def _numbers(self) -> dict[str, int]:
        """The inode of each file; 0 if there is none."""
        paths = (f"{self._store.path}{ending}" for ending in ("", BESIDE[0]))
        return {path: os.stat(path).st_ino if os.path.exists(path) else 0 for path in paths}
