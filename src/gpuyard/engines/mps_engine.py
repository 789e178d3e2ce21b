"""An engine around another one, which sees to it that clients of MPS find a control daemon.

There is one per GPU and user, started for the first client and ended after the last (`control`). A launch that needs
one waits until it is up: it has been accepted, and what becomes of it is reported like the rest. Without clients of MPS
nothing happens here: no directory is made, and no program is looked for.
"""

from __future__ import annotations

import logging
import math
import os
import select
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM

from gpuyard.engines.base import (
    Abandoned,
    Ended,
    Engine,
    EngineAround,
    EngineError,
    LaunchRefused,
    NeverBegan,
    Placement,
    Report,
    Running,
    Task,
)
from gpuyard.engines.local import processes
from gpuyard.engines.local.accounts import NOBODY, Account, account_of
from gpuyard.engines.local.folders import make_parent
from gpuyard.engines.mps_control import PATIENCE, SHORT, Control, Phase

logger = logging.getLogger(__name__)

_MIB = 2**20
_LAST_PATIENCE = 2 * PATIENCE + 1.0  # seconds at our own end: one call may run, another follows
_HASTE = 1.0  # seconds at our own end for one that starts and is unused
NOBODYS = "", 0  # whose a process of MPS is: ours, but of no attempt


class MpsEngine(EngineAround):
    """An engine whose tasks may be clients of MPS. One thread may use it at a time."""

    def __init__(self, inner: Engine, place: Path, devices: Sequence[str], *, shared: bool = False) -> None:
        super().__init__(inner)
        self._place, self._devices, self._shared = place, devices, shared
        self._waiting: dict[tuple[str, int], tuple[Task, Placement]] = {}
        self._reports: list[Report] = []
        self._controls = {control.name: control for control in self._left_behind()}
        self._adopted: set[tuple[str, int]] | None = set()
        """Running attempts of an earlier daemon; None once that is settled."""

    # -- what an engine does ----------------------------------------------------------------------

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        """Launch an attempt; a client of MPS as soon as its control daemon is up."""
        key, task = (task.job, attempt), self._disinherited(task)
        if task.mps is None:
            self._inner.launch(task, attempt, placement)
            return
        if key in self._waiting:
            return
        self._settle()
        control = self._control(task, placement)
        control.attempts.add(key)
        try:
            if control.is_alive:
                control.write()
                self._inner.launch(_as_client(task, control), attempt, placement)
                return
            self._waiting[key] = task, placement
            if control.phase in (Phase.DOWN, Phase.UP):  # or it has died
                self._start(control)
        except (EngineError, LaunchRefused):
            self._waiting.pop(key, None)
            self._release(key)
            raise

    def adopt(self, job: str, attempt: int) -> Report:
        """The fate of an attempt; one that waits for its control daemon never began."""
        self._waiting.pop((job, attempt), None)
        report = self._inner.adopt(job, attempt)
        if isinstance(report, Running) and self._adopted is not None:
            self._adopted.add((job, attempt))
        self._note([report])
        return report

    def stop(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        """Ask an attempt to end; one that waits for its control daemon does so at once."""
        if self._waiting.pop((job, attempt), None) is None:
            self._inner.stop(job, attempt, grace, signal)
            return
        message = "stopped before it began"
        self._reports.append(Ended(job, attempt, time.time(), 128 + SIGTERM, message=message, asked=True))
        self._release((job, attempt))

    def observe(self) -> list[Report]:
        reports = self._inner.observe()
        self._settle()
        self._note(reports)
        now = time.monotonic()
        for control in list(self._controls.values()):
            self._attend(control, now)
        mine, self._reports = self._reports, []
        return [*reports, *mine]

    def due(self) -> float | None:
        if self._reports or (self._controls and self._adopted is not None):
            return time.monotonic()
        times = [control.look_at for control in self._controls.values() if math.isfinite(control.look_at)]
        return min((due for due in (self._inner.due(), *times) if due is not None), default=None)

    def owner(self, pid: int) -> tuple[str, int] | None:
        """The attempt of a process; `NOBODYS` for processes of MPS that we have started."""
        found = self._inner.owner(pid)
        if found is not None or not self._controls:
            return found
        mark = processes.mark_of(pid)
        control = next((one for one in self._controls.values() if str(one.folder) == mark), None)
        return NOBODYS if control is not None and processes.user_of(pid) == control.uid else None

    def close(self) -> None:
        """Release everything; control daemons with jobs stay, others are ended."""
        self._inner.close()
        for key in list(self._waiting):  # they have not begun: the next life has them wait again
            del self._waiting[key]
            self._release(key)
        self._end_unused(time.monotonic() + _LAST_PATIENCE)
        for control in self._controls.values():
            if control.errand:
                control.errand.close()
        self._epoll.close()

    def _end_unused(self, deadline: float) -> None:
        """End control daemons without jobs, and wait for it."""
        for control in self._controls.values():
            if control.errand and control.phase is Phase.STARTING:
                control.errand.deadline = min(control.errand.deadline, time.monotonic() + _HASTE)
        while unused := [one for one in self._controls.values() if not one.attempts]:
            now = time.monotonic()
            if now >= deadline:
                logger.warning("a control daemon of MPS does not end; the next start sees to it")
                break
            for control in unused:
                control.look_at = min(control.look_at, now)
                self._attend(control, now)
            time.sleep(0.01)

    # -- control daemons --------------------------------------------------------------------------

    def _disinherited(self, task: Task) -> Task:
        """A task without the variables of the control daemon of the job that submitted it."""
        if not task.environment.get("CUDA_MPS_PIPE_DIRECTORY", "").startswith((f"{self._place}/", SHORT)):
            return task
        kept = {name: value for name, value in task.environment.items() if not name.startswith("CUDA_MPS_")}
        return replace(task, environment=kept)

    def _control(self, task: Task, placement: Placement) -> Control:
        if len(placement.gpus) != 1:
            raise LaunchRefused(f"a client of MPS has one GPU, not {len(placement.gpus)}")
        gpu = placement.gpus[0]
        account = account_of(task.user) if task.user else None
        fresh = Control(
            self._place, gpu, self._devices[gpu], account.uid if account else os.geteuid(), account, task.user
        )
        return self._controls.setdefault(fresh.name, fresh)

    def _start(self, control: Control) -> None:
        make_parent(self._place, self._shared)
        control.start()
        self._watch(control)
        if control.phase is Phase.DOWN:
            self._give_up(control)

    def _watch(self, control: Control) -> None:
        if control.errand is not None:
            with suppress(FileExistsError):
                self._epoll.register(control.errand.pidfd, select.EPOLLIN)

    def _attend(self, control: Control, now: float) -> None:
        before = control.phase
        control.step(now)
        if before is Phase.STARTING and control.phase is Phase.UP:
            self._launch_waiting(control)
        elif before is Phase.STARTING and control.phase is Phase.DOWN:
            self._give_up(control)
        elif before in (Phase.QUITTING, Phase.KILLING) and control.phase is Phase.DOWN:
            self._ended(control)
        elif control.phase is Phase.UP and not control.attempts and now >= control.look_at:
            control.end()
            self._watch(control)

    def _launch_waiting(self, control: Control) -> None:
        for key in sorted(control.attempts & self._waiting.keys()):
            task, placement = self._waiting.pop(key)
            try:
                control.write()  # first: the next daemon must not end it under its client
                self._inner.launch(_as_client(task, control), key[1], placement)
            except LaunchRefused as error:
                self._fail(key, str(error))
            except EngineError as error:
                self._postpone(key, str(error))
        if not control.attempts:
            control.rest(time.monotonic())

    def _give_up(self, control: Control) -> None:
        """It could not be started: the jobs that wait for it fail with the reason."""
        for key in sorted(control.attempts & self._waiting.keys()):
            del self._waiting[key]
            self._fail(key, control.problem)
        if not control.attempts and control.phase is Phase.DOWN:  # who waited for it does so no more
            control.end()

    def _fail(self, key: tuple[str, int], message: str) -> None:
        self._reports.append(Ended(*key, time.time(), None, message=message))
        self._release(key)

    def _postpone(self, key: tuple[str, int], message: str) -> None:
        self._reports.append(NeverBegan(*key, f"cannot be launched now: {message}"))
        self._release(key)

    def _ended(self, control: Control) -> None:
        """Nothing is left of it; but a job may want it again by now."""
        if wanted := sorted(control.attempts & self._waiting.keys()):
            try:
                self._start(control)
            except EngineError as error:
                for key in wanted:
                    del self._waiting[key]
                    self._postpone(key, str(error))
        elif not control.attempts:
            control.forget()
            del self._controls[control.name]

    def _note(self, reports: Iterable[Report]) -> None:
        for report in reports:
            if not isinstance(report, Running | Abandoned):
                self._release((report.job, report.attempt))

    def _release(self, key: tuple[str, int]) -> None:
        control = next((one for one in self._controls.values() if key in one.attempts), None)
        if control is None:
            return
        control.attempts.discard(key)
        if self._adopted is not None:
            return  # it is not known yet whether it runs at all
        if control.attempts:
            with suppress(EngineError):  # an outdated record does no harm: it is checked again
                control.write()
        elif control.phase is Phase.UP:
            control.rest(time.monotonic())
        elif control.phase is Phase.DOWN:
            control.end()

    # -- after an earlier daemon -----------------------------------------------------------------

    def _left_behind(self) -> Iterable[Control]:
        """Control daemons of an earlier daemon, unless the machine was rebooted since."""
        for path in sorted(self._place.glob("*.json")):
            try:
                control = Control.read(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("%s cannot be read, and is left alone: %s", path, error)
                continue
            if control.life != processes.life():
                control.forget()
                continue
            control.account = _account(control.user, control.uid)
            yield control

    def _settle(self) -> None:
        """Once the running jobs of an earlier daemon are known: end control daemons that none needs."""
        if self._adopted is None:
            return
        adopted, self._adopted = self._adopted, None
        for control in self._controls.values():
            control.attempts &= adopted
            control.settle()
            if not control.attempts:
                control.end()
                self._watch(control)


def _as_client(task: Task, control: Control) -> Task:
    wish, found = task.mps, control.variables
    if wish is not None and wish.thread_percentage:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{wish.thread_percentage:g}"
    if wish is not None and wish.memory:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={math.ceil(wish.memory / _MIB)}M"
    return replace(task, variables={**task.variables, **found})


def _account(user: str, uid: int) -> Account | None:
    """The account of an existing control daemon, also where that user is gone."""
    try:
        return account_of(user) if user else None
    except LaunchRefused:
        return Account(uid, NOBODY)
