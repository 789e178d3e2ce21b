"""Attempts that ran out of memory: how the daemon recognises them, and how their jobs are retried."""

from __future__ import annotations

import os
import pwd
import stat
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuyard.core.events import Edited, Requeued
from gpuyard.core.model import Phase, Request
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.gpu_shares import fitted_share
from gpuyard.daemon.devices.over_limit import OverLimit
from gpuyard.daemon.jobs.launch import named
from gpuyard.daemon.jobs.profiles import is_trial
from gpuyard.daemon.jobs.stops import OOM, Stops
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.base import Ended
from gpuyard.predict.oom import TAIL, Death, Share, Shortage, end_text, next_share, recognise, retry_text, shortage_text
from gpuyard.spec.work import Work
from gpuyard.units import format_size

_COUNTERS = Path("/proc/vmstat")
KILLED = 137  # the exit code of who was killed


class KernelKills:
    """Counts processes that the kernel killed for lack of memory since attempts began."""

    def __init__(self, counters: Path = _COUNTERS) -> None:
        self._counters = counters
        self._before: dict[tuple[str, int], int] = {}

    def began(self, job: str, attempt: int) -> None:
        if (count := self._count()) is not None:
            self._before[job, attempt] = count

    def ended(self, job: str, attempt: int, code: int | None) -> str:
        """A message if the kernel may have killed an attempt that ended with this code; else empty."""
        before = self._before.pop((job, attempt), None)
        if before is None or code != KILLED or (self._count() or 0) <= before:
            return ""
        return "killed (exit code 137), most likely by the kernel: the machine ran out of memory while it ran"

    def _count(self) -> int | None:
        """Kills since the machine was started; None if unknown."""
        try:
            lines = self._counters.read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


_PATIENCE = 0.5  # seconds
_CLOCKS = 0.1  # seconds by which the time of a file may be before that of the attempt that wrote it


class OwnFiles:
    def __init__(self) -> None:
        self._reading: threading.Thread | None = None

    def end_of(self, path: str, user: str, since: float, size: int) -> bytes:
        """Up to `size` bytes of the end; nothing where it must not be read, or cannot be by now.

        Its owner must be `user`; ourselves, if that is empty.
        """
        if self._reading is not None and self._reading.is_alive():  # one that hangs is enough
            return b""
        found: list[bytes] = []

        def read() -> None:
            try:
                found.append(_read(path, pwd.getpwnam(user).pw_uid if user else os.geteuid(), since, size))
            except (OSError, KeyError, ValueError):  # gone, closed to us, or no path; or the user is gone
                found.append(b"")

        self._reading = threading.Thread(target=read, daemon=True)
        self._reading.start()
        self._reading.join(_PATIENCE)
        return found[0] if found else b""


def _read(path: str, uid: int, since: float, size: int) -> bytes:
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # opens nothing yet: a device may mind that
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_mtime < since - _CLOCKS:
            return b""
        with open(f"/proc/self/fd/{place}", "rb", buffering=0) as file:
            file.seek(max(0, found.st_size - size))
            return file.read(size) or b""
    finally:
        os.close(place)


_TIDIES = 2.0  # seconds in which a trial removes what it made
_SIGNALLED = 128  # exit codes above this tell of a signal
_CRASHES = (134, 135, 139)  # abort, bus error and segmentation fault: what programs do that check nothing


class Ooms:
    def __init__(self, context: Context, stops: Stops, over_limit: OverLimit) -> None:
        self._context, self._stops, self._over_limit = context, stops, over_limit
        self._wanted: dict[tuple[str, int], float] = {}
        self._own_files = OwnFiles()

    def ran_out(self, job: str, attempt: int, gpu: int, wanted: int) -> None:
        """A simulated GPU has less than an attempt wants of it: as with CUDA, that is its end."""
        context, row = self._context, self._context.state.row_of.get(job, -1)
        if row < 0 or context.state.attempt[row] != attempt or context.state.phase[row] is not Phase.RUNNING:
            return
        self._wanted[job, attempt] = wanted
        grace = _TIDIES if is_trial(context.work_json(job)["command"]) else 0.0
        self._stops.recall(job, OOM, context.clock.now(), grace, gpu=gpu, wanted=wanted)

    def of(self, row: int, report: Ended, cause: str, measured: Mapping[str, Any]) -> Shortage | None:
        """The lack of memory that ended an attempt; None if another cause did."""
        key = report.job, report.attempt
        wanted, used, stopped = self._wanted.pop(key, 0.0), 0.0, self._over_limit.stopped(key)
        if cause == OOM and not wanted and not stopped:  # an earlier daemon recalled it, and recorded why
            said = self._context.store.recalled(*key)
            wanted, used = float(said.get("wanted", 0.0)), float(said.get("used", 0.0))
            stopped = used > 0
        gpus = self._context.state.spot[row].tolist()
        full = bool(wanted) or self._over_limit.were_full(gpus)
        if cause == OOM:
            death: Death | None = Death("") if report.asked or report.code != 0 else None
        else:
            death = None if cause or report.code in (0, None) else self._read(report, full)
        if death is None:
            return None
        peak = float(measured.get("peak") or 0.0)
        held = death.held or peak
        tried = held + death.wanted if held else 0.0  # the last piece alone says nothing of all that it needs
        size = self._context.machine.least_memory(gpus)
        return Shortage(max(peak, tried, wanted, used), full, size, stopped and not wanted)

    def _read(self, report: Ended, full: bool) -> Death | None:
        """What the end of its output says. An attempt that was ended by a signal did not fail by itself."""
        assert report.code is not None
        view = self._context.store.open[report.job]
        if view.kind != "job" or (report.code > _SIGNALLED and report.code not in _CRASHES):
            return None
        try:
            _, log = self._context.engine.read_log(report.job, report.attempt, -TAIL, TAIL)
        except OSError:  # it was removed, or cannot be read now
            log = b""
        own = self._own_output(view)
        wordless = full and (report.code in _CRASHES or own == b"")
        return recognise(log + (own or b""), full=full, wordless=wordless)

    def _own_output(self, view: JobView) -> bytes | None:
        """The end of what a job printed to its own files, errors last; None if it has none."""
        context, state = self._context, self._context.state
        paths = [named(view.work, view, which, context.machine.node) for which in ("output", "error")]
        if not any(paths):
            return None
        user, began = view.user if context.settings.shared else "", float(state.table.started[state.row_of[view.id]])
        ends = [self._own_files.end_of(path, user, began, TAIL) for path in dict.fromkeys(paths) if path]
        return b"\n".join(filter(None, ends))

    def requeue(self, report: Ended, shortage: Shortage, at: float, **details: Any) -> str:
        """Requeue the job with more memory; if nothing is left to try, returns what happened."""
        work, request = self._context.description(report.job)
        what = shortage_text(shortage, request)
        share = next_share(shortage, request, work, self._sizes(request), self._context.machine.buffer)
        if share is not None:
            message = f"{what}; {retry_text(share, work)}"
            self._context.record(Requeued(at, report.job, report.attempt), message=message, ooms=True, **details)
            self._resize(report.job, work, request, share, at)
            return ""
        why = end_text(request, work)
        return f"{what}; {why}" if why else what

    def _resize(self, job: str, work: Work, request: Request, share: Share, at: float) -> None:
        state = self._context.state
        asked = work.asked_memory or (0.0 if work.auto_memory else request.memory)
        if share.counted:
            work = replace(work, ooms=work.ooms + 1, asked_memory=asked)
        else:
            work = replace(work, blameless=work.blameless + 1)
        begin = float(state.table.begin[state.row_of[job]])
        compute = 100.0 if share.alone else 0.0
        another = fitted_share(self._context, replace(request, memory=share.memory, compute=compute, begin=begin))
        said = {}
        if share.counted:
            size = "a GPU for itself" if share.alone else f"{format_size(share.memory)} of a GPU"
            said = {"message": f"asks for {size} from now on"}
        self._context.record(Edited(at, job, another), work=work.to_json(), **said)

    def _sizes(self, request: Request) -> list[float]:
        devices = self._context.machine.gpus.devices
        return [float(device.memory) for device in devices if not request.scope or device.index in request.scope]
