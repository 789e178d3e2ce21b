"""Attempts that ran out of GPU memory: how that is known, and what becomes of their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuyard.core.events import Edited, Exited, Requeued
from gpuyard.core.model import Phase, Request
from gpuyard.daemon.elsewhere import Elsewhere
from gpuyard.daemon.launching import named
from gpuyard.daemon.offences import Offences
from gpuyard.daemon.profiles import is_trial
from gpuyard.daemon.resizing import Share, Shortage, next_share, told, told_of_end, told_of_retry
from gpuyard.daemon.retries import retry_of
from gpuyard.daemon.sizing import seated
from gpuyard.daemon.views import JobView, Work
from gpuyard.engines.base import Ended
from gpuyard.outofmemory import TAIL, Death, recognise
from gpuyard.units import format_size

if TYPE_CHECKING:
    from gpuyard.daemon.yard import Yard

OOM = "oom"
_TIDIES = 2.0  # seconds in which a trial removes what it made
_SIGNALLED = 128  # exit codes above this tell of a signal
_CRASHES = (134, 135, 139)  # abort, bus error and segmentation fault: what programs do that check nothing


class Ooms:
    """Who ran out of GPU memory."""

    def __init__(self, yard: Yard, offences: Offences) -> None:
        self._yard, self._offences = yard, offences
        self._wanted: dict[tuple[str, int], float] = {}
        self._elsewhere = Elsewhere()

    def ran_out(self, job: str, attempt: int, gpu: int, wanted: int) -> None:
        """A simulated GPU has not as much as an attempt wants of it: as with CUDA, that is its end."""
        yard, row = self._yard, self._yard.state.row_of.get(job, -1)
        if row < 0 or yard.state.attempt[row] != attempt or yard.state.phase[row] is not Phase.RUNNING:
            return
        self._wanted[job, attempt] = wanted
        grace = _TIDIES if is_trial(yard.wishes(job)["command"]) else 0.0
        yard.recall(job, OOM, yard.clock.now(), grace, gpu=gpu, wanted=wanted)

    def of(self, row: int, report: Ended, cause: str, measured: Mapping[str, Any]) -> Shortage | None:
        """What is known of the lack of memory that ended an attempt; None if it was not that."""
        key = report.job, report.attempt
        wanted, used, stopped = self._wanted.pop(key, 0.0), 0.0, self._offences.stopped(key)
        if cause == OOM and not wanted and not stopped:  # a former life told it to end, and wrote down why
            said = self._yard.store.recalled(*key)
            wanted, used = float(said.get("wanted", 0.0)), float(said.get("used", 0.0))
            stopped = used > 0
        gpus = self._yard.state.spot[row].tolist()
        full = bool(wanted) or self._offences.were_full(gpus)
        if cause == OOM:
            death: Death | None = Death("") if report.asked or report.code != 0 else None
        else:
            death = None if cause or report.code in (0, None) else self._read(report, full)
        if death is None:
            return None
        peak = float(measured.get("peak") or 0.0)
        held = death.held or peak
        tried = held + death.wanted if held else 0.0  # the last piece alone says nothing of all that it needs
        size = self._yard.machine.least_memory(gpus)
        return Shortage(max(peak, tried, wanted, used), full, size, stopped and not wanted)

    def _read(self, report: Ended, full: bool) -> Death | None:
        """What the end of its output says. Who was ended by somebody's signal did not come to it by itself."""
        assert report.code is not None
        view = self._yard.store.open[report.job]
        if view.kind != "job" or (report.code > _SIGNALLED and report.code not in _CRASHES):
            return None
        try:
            _, log = self._yard.engine.read_log(report.job, report.attempt, -TAIL, TAIL)
        except OSError:  # it was removed, or cannot be read now
            log = b""
        own = self._printed_elsewhere(view)
        wordless = full and (report.code in _CRASHES or own == b"")
        return recognise(log + (own or b""), full=full, wordless=wordless)

    def _printed_elsewhere(self, view: JobView) -> bytes | None:
        """The end of what a job printed to files of its own, errors last; None if it has none."""
        yard, state = self._yard, self._yard.state
        paths = [named(view.work, view, which, yard.machine.node) for which in ("output", "error")]
        if not any(paths):
            return None
        user, began = view.user if yard.settings.shared else "", float(state.table.started[state.row_of[view.id]])
        ends = [self._elsewhere.end_of(path, user, began, TAIL) for path in dict.fromkeys(paths) if path]
        return b"\n".join(filter(None, ends))

    def settle(self, report: Ended, shortage: Shortage, at: float, **details: Any) -> None:
        """Let the job of such an attempt wait for another, with more memory, or be over."""
        work, request = self._yard.description(report.job)
        what = told(shortage, request)
        share = next_share(shortage, request, work, self._sizes(request), self._yard.machine.buffer)
        if share is not None:
            message = f"{what}; {told_of_retry(share, work)}"
            self._yard.record(Requeued(at, report.job, report.attempt), message=message, ooms=True, **details)
            self._resize(report.job, work, request, share, at)
            return
        why = told_of_end(request, work)
        message = f"{what}; {why}" if why else what
        retry = retry_of(self._yard.store.open[report.job], work, report.code, at, message)
        if retry is not None:
            again = Requeued(at, report.job, report.attempt, retry.begin)
            self._yard.record(again, failed=True, message=retry.message, **details)
            return
        self._yard.record(Exited(at, report.job, report.attempt, report.code, OOM), message=message, **details)

    def _resize(self, job: str, work: Work, request: Request, share: Share, at: float) -> None:
        """In the same transaction as that it waits again: what it asks for from now on."""
        state = self._yard.state
        asked = work.asked_memory or (0.0 if work.auto_memory else request.memory)
        if share.counted:
            work = replace(work, ooms=work.ooms + 1, asked_memory=asked)
        else:
            work = replace(work, blameless=work.blameless + 1)
        begin = float(state.table.begin[state.row_of[job]])
        compute = 100.0 if share.alone else 0.0
        another = seated(self._yard, replace(request, memory=share.memory, compute=compute, begin=begin))
        said = {}
        if share.counted:
            size = "a GPU for itself" if share.alone else f"{format_size(share.memory)} of a GPU"
            said = {"message": f"asks for {size} from now on"}
        self._yard.record(Edited(at, job, another), work=work.to_json(), **said)

    def _sizes(self, request: Request) -> list[float]:
        """How large the GPUs are that the job may run on."""
        devices = self._yard.machine.gpus.devices
        return [float(device.memory) for device in devices if not request.scope or device.index in request.scope]
