"""The engine that runs jobs on this machine, as processes that outlive the daemon.

Each attempt has a directory with its claim (`pid`), its end (`exit`) and its output; see `wrapper` for how they come
about. Nothing else is recorded, so this engine knows after a restart all that it knew before.

There are no threads and no sleeping: the end of a wrapper makes a pidfd readable, those are in one epoll, whose own
file descriptor is `fileno`. What takes time (a job that begins, one that is to end) is looked after by `observe`,
which `due` asks for. An attempt is over when its wrapper is gone *and* nothing that the job started is left.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals

from gpuyard.engines.base import EngineError, LaunchRefused, NeverBegan, Node, Placement, Report, Task
from gpuyard.engines.local import folders, output, processes, wrapper
from gpuyard.engines.local.accounts import account_of
from gpuyard.engines.local.attempt import WRAPPER_GRACE, LocalAttempt, interrupted, never_ran, start
from gpuyard.engines.local.cgroups import Cgroup, Membership, cgroups_if
from gpuyard.engines.local.folders import Folders
from gpuyard.files import point

logger = logging.getLogger(__name__)

_CLAIM_PATIENCE = 0.25  # seconds to wait for a wrapper between creating the claim and writing it


class LocalEngine:
    """Runs jobs on this machine. One thread may use it at a time."""

    def __init__(
        self,
        directory: Path,
        devices: Sequence[str],
        node: str | None = None,
        *,
        cgroups: bool | None = None,
        shared: bool = False,
    ) -> None:
        """With `shared`, jobs belong to many users, who may be hostile."""
        self._folders = Folders(directory, shared)
        self._directory = self._folders.directory
        self._uid = os.geteuid() if shared else None
        self._name = node or socket.gethostname()
        self._devices = devices
        self._life = processes.life()
        self._cgroups = cgroups_if(self._directory, cgroups)
        self._membership = Membership(self._directory)
        self._census = processes.Census()
        self._adopts = processes.adopts_orphans()
        self._watch = processes.Watch()
        self._runs: dict[tuple[str, int], LocalAttempt] = {}
        self._wrappers: dict[int, LocalAttempt] = {}
        self._held: dict[processes.Held, LocalAttempt] = {}
        self._beginning: set[LocalAttempt] = set()
        self._ending: set[LocalAttempt] = set()
        self._reports: list[Report] = []
        self._placed: dict[int, str | None] = {}  # the strays of the last census
        self._trimmer = output.Trimmer(self._directory)

    def nodes(self) -> Sequence[Node]:
        return (Node(self._name, tuple(self._devices)),)

    def last_job(self) -> int:
        return self._folders.last_job()

    def fileno(self) -> int:
        return self._watch.fileno()

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        """Start the wrapper of an attempt, unless it is claimed already."""
        if (task.job, attempt) in self._runs:
            return
        folder = self._folders.make(task.job, attempt)
        point("launch:folder")
        if wrapper.read_claim(folder) is not None:
            self._reports.append(self.adopt(task.job, attempt))
            return
        if placement.node != self._name or any(gpu not in range(len(self._devices)) for gpu in placement.gpus):
            raise EngineError(f"{self._name} has no GPUs {placement.gpus} of {placement.node}")
        wrapper.check(task)
        wrapper.reserve_exit(folder)
        account = account_of(task.user) if task.user else None
        if account is None:
            wrapper.check_directory(task.directory)
        point("launch:before-cgroup")
        cgroup = self._cgroups.of(task.job, attempt) if self._cgroups else None
        if cgroup:
            cgroup.create()
        point("launch:before-spawn")
        run = LocalAttempt(
            task.job, attempt, folder, 0, cgroup, task.output_limit, account.uid if account else self._uid
        )
        try:
            work = self._folders.make_work(task.job, account)
            if task.script is not None:
                task = folders.with_script(task, task.script, work)
            job_variables = wrapper.job_variables(task, attempt, placement, self._devices, work)
            run.pid = start(run, task, job_variables, self._life, account)
        except (EngineError, LaunchRefused):
            if cgroup:
                cgroup.remove()
            raise
        point("launch:spawned")
        run.ours = True
        run.held = self._watch.add(run.pid)
        self._keep(run)
        self._beginning.add(run)

    def adopt(self, job: str, attempt: int) -> Report:
        """The fate of an attempt, by its files; one that never began is claimed so that it never will."""
        if known := self._runs.get((job, attempt)):
            return known.running()
        folder = self._folders.make(job, attempt)
        claim = wrapper.await_claim(folder, _CLAIM_PATIENCE)
        if claim is None:
            point("adopt:before-fence")
            if not wrapper.fence(folder):
                claim = wrapper.await_claim(folder, _CLAIM_PATIENCE)
            point("adopt:fenced")
        if isinstance(claim, wrapper.Claim):
            return self._adopt_claimed(job, attempt, folder, claim)
        if claim == wrapper.INCOMPLETE:
            return self._adopt_incomplete(job, attempt, folder)
        return self._give_up(job, attempt)

    def _adopt_claimed(self, job: str, attempt: int, folder: Path, claim: wrapper.Claim) -> Report:
        if claim.life != self._life:
            self._folders.leave_work(job)
            return interrupted(job, attempt, folder)
        pid, cgroup = claim.wrapper.pid, Cgroup(claim.cgroup) if claim.cgroup else None
        uid = self._uid if claim.uid is None or self._uid is None else claim.uid
        asked_at = wrapper.read_asked(folder)
        run = LocalAttempt(job, attempt, folder, pid, cgroup, claim.limit, uid, claim=claim, asked_at=asked_at)
        run.held = self._watch.add(pid, claim.wrapper.started)
        if run.held is not None:
            self._keep(run)
            return run.running()
        run.witnessed = False
        run.conclude(None)
        if cgroup and cgroup.remove():
            self._trimmer.trim(run.log, run.limit)
            return run.report()
        self._keep(run)
        self._ending.add(run)
        return run.running()

    def _adopt_incomplete(self, job: str, attempt: int, folder: Path) -> Report:
        """The claim is incomplete: its wrapper lives and is slow, or it died and ran nothing."""
        for pid in self._census.take([processes.Suspect(str(folder), uid=self._uid)])[str(folder)]:
            if (held := self._watch.add(pid, self._census.born[pid])) is not None:
                run = LocalAttempt(
                    job, attempt, folder, pid, None, Task(job, (), "").output_limit, self._uid, held=held
                )
                self._keep(run)
                self._beginning.add(run)
                return run.running()
        if wrapper.claimed_before_boot(folder):
            return interrupted(job, attempt, folder)
        return self._give_up(job, attempt)

    def _give_up(self, job: str, attempt: int) -> NeverBegan:
        if self._cgroups:
            self._cgroups.of(job, attempt).remove()
        self._folders.leave_work(job)
        return NeverBegan(job, attempt)

    def stop(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        """Let `observe` ask the processes of an attempt to end, and kill them after `grace` seconds."""
        run = self._runs.get((job, attempt))
        if run is None:
            return
        if run.claim is None:
            with suppress(EngineError):  # if it has not begun, it will not; if the disk is full, it is killed instead
                wrapper.fence(run.folder)
        point("stop:fenced")
        run.stop(time.monotonic() + grace, Signals[f"SIG{signal}"])
        self._ending.add(run)

    def observe(self) -> list[Report]:
        for held in self._watch.ended():
            self._wrapper_ended(self._held[held], held)
        now = time.monotonic()
        for run in [run for run in self._beginning if run.look_at <= now]:
            self._look_at_beginning(run, now)
        self._look_at_endings([run for run in self._ending if run.look_at <= now], now)
        self._trimmer.trim_all(((run.log, run.limit) for run in self._runs.values()), now)
        reports, self._reports = self._reports, []
        return reports

    def due(self) -> float | None:
        """When to look at an attempt that begins or ends, or at the output of running ones."""
        if self._reports:
            return time.monotonic()
        times = [run.look_at for run in self._beginning | self._ending]
        times += [due for due in (self._watch.due(), self._trimmer.due() if self._runs else None) if due is not None]
        return min(times, default=None)

    def owner(self, pid: int) -> tuple[str, int] | None:
        """By its cgroup; else by its session or an ancestor, if that is a wrapper; by its environment; as an orphan."""
        found = self._membership.owner(pid)
        if found and self._vouches(found, pid):
            return found
        process, orphan = processes.look(pid), 0
        for _ in range(64):
            if process is None or process.pid <= 1:
                break
            if run := self._wrappers.get(process.pid) or self._wrappers.get(process.session):
                return run.job, run.attempt
            if process.parent == os.getpid():
                orphan = process.pid
            process = processes.look(process.parent)
        mark = processes.mark_of(pid)
        found = self._folders.parse((orphan and self._strays().get(orphan)) or mark)
        return found if found and self._vouches(found, pid) else None

    def _vouches(self, found: tuple[str, int], pid: int) -> bool:
        """Whether a process belongs to the attempt that its cgroup or mark names: users can forge both."""
        if self._uid is None:
            return True
        run = self._runs.get(found)
        if run is None:
            return False
        return pid in run.cgroup.members() if run.cgroup else processes.user_of(pid) == run.uid

    def read_log(self, job: str, attempt: int, offset: int, size: int, *, exact: bool = False) -> tuple[int, bytes]:
        """Up to `size` bytes of output and the offset to read on from; a line stands for what was left out."""
        return output.read(self._folders.of(job, attempt) / "output.log", offset, size, exact=exact)

    def log_size(self, job: str, attempt: int) -> int:
        return output.size(self._folders.of(job, attempt) / "output.log")

    def close(self) -> None:
        """Release all wrappers; they and their jobs go on."""
        for kept in (self._held, self._wrappers, self._runs, self._beginning, self._ending):
            kept.clear()
        self._watch.close()
        if self._cgroups:
            self._cgroups.close()

    # How an attempt begins

    def _keep(self, run: LocalAttempt) -> None:
        self._runs[run.job, run.attempt] = run
        if run.held is not None:
            self._wrappers[run.pid] = run
            self._held[run.held] = run

    def _forget(self, run: LocalAttempt) -> None:
        self._runs.pop((run.job, run.attempt), None)
        self._beginning.discard(run)
        self._ending.discard(run)

    def _look_at_beginning(self, run: LocalAttempt, now: float) -> None:
        claim = wrapper.read_claim(run.folder)
        if isinstance(claim, wrapper.Claim) and claim.wrapper.pid == run.pid:
            run.claim = claim
            if claim.cgroup:
                run.cgroup = Cgroup(claim.cgroup)
            run.uid = run.uid if claim.uid is None or self._uid is None else claim.uid
            self._beginning.discard(run)
            self._reports.append(run.running())
        else:
            run.rest(now)

    # How it ends

    def _wrapper_ended(self, run: LocalAttempt, held: processes.Held) -> None:
        """First read its files: if that fails, for lack of file descriptors say, it is all tried again."""
        status = held.status()
        if run.claim is None:
            self._look_at_beginning(run, time.monotonic())
        ran = run.claim is not None or wrapper.read_exit(run.folder) is not None  # it may have destroyed its claim
        if ran:
            run.conclude(status)
        held.status(reaped=True)
        self._watch.release(held)
        del self._held[held]
        if self._wrappers.get(run.pid) is run:
            del self._wrappers[run.pid]
        run.held = None
        point("end:reaped")
        self._beginning.discard(run)
        if ran:
            self._ending.add(run)
        else:
            self._never_claimed(run, status)

    def _never_claimed(self, run: LocalAttempt, status: int | None) -> None:
        """Its wrapper is gone and did not run the job: another one does, or none may, or it failed."""
        with suppress(EngineError):
            wrapper.fence(run.folder)
        point("end:fenced")
        claim = wrapper.read_claim(run.folder)
        self._forget(run)
        if isinstance(claim, wrapper.Claim):
            self._reports.append(self.adopt(run.job, run.attempt))
            return
        if run.cgroup:
            run.cgroup.remove()
        self._reports.append(never_ran(run, status))

    def _look_at_endings(self, runs: Sequence[LocalAttempt], now: float) -> None:
        counted = []
        for run in runs:
            if run.ended and self._is_gone(run):
                self._finish(run)
            else:
                counted.append(run)
        if not counted:
            return
        allowed = self._census.next(urgent=any(run.urgent(now) for run in counted))
        if now < allowed:
            for run in counted:
                run.look_at = allowed
            return
        ready = []
        for run, members in self._take_census(counted, now):
            if run.ended and not members and (run.cgroup is None or run.cgroup.remove()):
                ready.append(run)
            else:
                self._advance(run, members, now)
        for run in ready:
            if not self._is_left_to(run, ready):
                self._finish(run)

    def _is_left_to(self, run: LocalAttempt, ready: Sequence[LocalAttempt]) -> bool:
        """Whether an orphan that several attempts may have started is this one's when all that are ready are over."""
        others = [one for one in ready if one.uid == run.uid and one.ours and not one.cgroup]
        first = min(others, key=lambda one: one.suspect().started or 0, default=None)
        return None in self._placed.values() and len(others) > 1 and run is first

    def _is_gone(self, run: LocalAttempt) -> bool:
        """Whether nothing is left of an attempt whose whole life we saw, without a look at all processes.

        Who left its process group and lost its parent is our child now; who did not, has an ancestor who did. A cgroup
        tells more, but not all: what starts a container, or a scope of systemd, may have left it.
        """
        if run.cgroup and not run.cgroup.remove():
            return False
        if not run.ours or not self._adopts or not processes.is_empty(run.pid):
            return False
        found = [(pid, processes.mark_of(pid)) for pid in processes.orphans(self._wrappers)]
        return all(mark != str(run.folder) and (run.cgroup or self._shows(pid, mark)) for pid, mark in found)

    def _shows(self, pid: int, mark: str | None) -> bool:
        """Whether a mark tells whose a process is: of a living attempt of its user, of MPS, or the daemon's."""
        if mark is None:
            return False
        uid = processes.user_of(pid)
        if run := self._runs.get(self._folders.parse(mark) or ("", 0)):
            return run.uid is None or uid in (run.uid, self._uid)
        return mark == processes.OWN_MARK or self._folders.is_of_mps(mark, uid)

    def _strays(self) -> dict[int, str | None]:
        """The orphans that do not show their attempt: the folder of each, by elimination.

        Where several attempts may have started one, it is of none while two of them live, and of the last in the end.
        """
        if not self._adopts:
            return {}
        runs = list(self._runs.values())  # in one step: any thread may ask for an owner
        able = [run.suspect() for run in runs if run.ours and not run.cgroup]
        return processes.strays(os.getpid(), able, self._shows)

    def _take_census(self, runs: Sequence[LocalAttempt], now: float) -> list[tuple[LocalAttempt, list[int]]]:
        for run in runs:
            if now >= run.kill_at:
                run.halt_group()
        self._placed = self._strays()
        placed = {pid: folder for pid, folder in self._placed.items() if folder}
        members = self._census.take([run.suspect() for run in runs], placed)
        doomed = [run for run in runs if now >= run.kill_at and members[str(run.folder)]]
        if doomed:
            for run in doomed:
                processes.send(members[str(run.folder)], signal.SIGSTOP, born=self._census.born)
            members |= self._census.take([run.suspect() for run in doomed], placed)
        return [(run, run.with_cgroup(members[str(run.folder)])) for run in runs]

    def _advance(self, run: LocalAttempt, members: Sequence[int], now: float) -> None:
        """One step towards the end: ask, wait, kill."""
        if now >= run.kill_at:
            self._kill(run, members, now)
        elif members and (not run.asked or now >= run.ask_again):
            run.ask(now)
            point("stop:noted")
            run.leftovers = len(members) if run.ended else 0
            processes.send(members, run.number, signal.SIGCONT, born=self._census.born)
            run.signal_wrapper(signal.SIGCONT)
            point("stop:asked")
        run.rest(now)

    def _kill(self, run: LocalAttempt, members: Sequence[int], now: float) -> None:
        if run.cgroup:
            run.cgroup.kill()
        processes.send(members, signal.SIGKILL, born=self._census.born)
        run.signal_wrapper(signal.SIGCONT)
        if not members and run.held is not None and now >= run.kill_at + WRAPPER_GRACE:
            logger.warning("the wrapper of job %s, attempt %s, does not end; it is killed", run.job, run.attempt)
            run.signal_wrapper(signal.SIGKILL)

    def _finish(self, run: LocalAttempt) -> None:
        point("end:cleared")
        self._trimmer.trim(run.log, run.limit)
        self._folders.leave_work(run.job)
        self._forget(run)
        if self._cgroups and not self._runs:
            self._cgroups.close()
        self._reports.append(run.report())
