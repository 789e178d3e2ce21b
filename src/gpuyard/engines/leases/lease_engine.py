"""The engine of leases: it "runs" what runs already.

A lease gives GPUs to a process that the daemon did not start. It lasts as long as that process, its holder: to launch
it is to hold the process by a pidfd, which becomes readable when the process ends, however it ends. No process is ever
killed here: to stop a lease is to end it, and its process goes on.

While a lease waits, two processes are watched: the holder, and the requester (`gpuyard acquire` requests for the shell
that called it). If one of them ends, the request is dropped.

A remote client has no process here. Its lease lasts as long as heartbeats come (`heartbeats`); or, if it sends none
once it has its GPUs, until these were used and are free again.

Nothing is written down here. What a lease is (`Terms`) the daemon's log knows, and tells by `find`.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuyard.engines.base import (
    Abandoned,
    Ended,
    Engine,
    EngineAround,
    LaunchRefused,
    Placement,
    Report,
    Running,
    Task,
)
from gpuyard.engines.leases.heartbeats import REST, Heartbeats, InUse, Silence
from gpuyard.engines.leases.holders import ShellUse
from gpuyard.engines.local import processes
from gpuyard.units import format_duration

_RETRY = 1.0  # seconds between looks at shells and at GPUs
_HELD_UP = 5.0  # seconds by which we may be late, and still count silence
_DEEPEST = 256  # generations that are looked at for an ancestor
_GONE = "whoever asked for it had gone"
GIVEN_UP = "given up: "  # how the message of an abandoned lease begins


class Holder(NamedTuple):
    """A process identified by id, start in clock ticks, and boot of the machine."""

    pid: int
    started: int
    life: str


@dataclass(frozen=True, slots=True)
class Terms:
    holder: Holder | None  # None: it lasts by signs of life
    requester: Holder | None = None  # who asked, if not the holder itself
    interactive: bool = False  # whether an interactive shell holds it
    since: float | None = None  # when it began, if it has
    gpus: tuple[int, ...] = ()  # what it gives, once it has been placed
    heartbeat: float = 0.0  # without a process: seconds without a sign of life that end it
    by_use: bool = False
    """Without a process: whether it lasts, once it is held, until its GPUs were used and are free again."""

    @property
    def waiting_for_it(self) -> tuple[Holder, ...]:
        """Processes that must live as long as it waits."""
        if self.holder is None:
            return ()
        return (self.holder,) if self.requester in (None, self.holder) else (self.holder, self.requester)


@dataclass(slots=True, eq=False)
class _Lease:
    job: str
    terms: Terms
    attempt: int = 0  # 0: it waits
    began: float = 0.0
    use: ShellUse | None = None
    silence: Silence | None = None  # how it is with its signs of life, if it lasts by these

    def running(self) -> Running:
        return Running(self.job, self.attempt, self.began, str(self.terms.holder.pid if self.terms.holder else ""))

    def ended(self, code: int | None, message: str) -> Ended:
        return Ended(self.job, self.attempt, time.time(), code, message=message, began=self.began)


@dataclass(slots=True)
class _Watched:
    held: processes.Held
    leases: set[_Lease] = field(default_factory=set)


class LeaseEngine:
    """Watches the processes that hold leases. One thread may use it at a time."""

    def __init__(self, find: Callable[[str], Terms | None], idle: float = 60.0, rest: float = REST) -> None:
        self._find, self._idle, self._rest = find, idle, rest
        self.heartbeats = Heartbeats()  # where signs of life are noted; any thread may
        self.in_use: InUse = lambda gpu, seconds: None
        """Whether a process is on a GPU; set by the part that looks at GPUs."""
        self._life = processes.life()
        self._watch = processes.Watch()
        self._leases: dict[str, _Lease] = {}
        self._watched: dict[Holder, _Watched] = {}
        self._held: dict[processes.Held, Holder] = {}
        self._look_at = 0.0
        self._hear_at = math.inf  # when the first of those may have been silent for too long
        self._reports: list[Report] = []

    def is_lease(self, job: str) -> bool:
        """Whether a job is a lease: one that is held or waited for, or that the log knows."""
        return job in self._leases or self._find(job) is not None

    def fileno(self) -> int:
        return self._watch.fileno()

    def watch(self, job: str) -> None:
        terms = self._find(job)
        if terms is not None and job not in self._leases:
            self._leases[job] = lease = _Lease(job, terms)
            self._listen(lease)
            self._watch_waiting(lease)

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        known = self._leases.get(task.job)
        if known is not None and known.attempt == attempt:
            return
        terms = self._find(task.job)
        if terms is None:
            raise LaunchRefused("nobody is known to hold this lease; ask for it again")
        gone = [who for who in terms.waiting_for_it if not self._lives(who)]
        self._reports.append(self._begin(task.job, attempt, terms, time.time()))
        if gone and (lease := self._leases.get(task.job)) is not None:
            self._end(lease, 0, _GONE)

    def adopt(self, job: str, attempt: int) -> Report:
        """What became of a lease while no daemon ran."""
        known = self._leases.get(job)
        if known is not None and known.attempt == attempt:
            return known.running()
        terms = self._find(job)
        if terms is None:
            return Ended(job, attempt, time.time(), None, message="nobody is known to hold this lease")
        if terms.holder is not None and terms.holder.life != self._life:
            return Ended(
                job, attempt, time.time(), None, interrupted=True, message="its process ended with the machine"
            )
        if terms.since is None and not all(map(self._lives, terms.waiting_for_it)):
            return Ended(job, attempt, time.time(), 0, message=_GONE)  # its start was never reported
        return self._begin(job, attempt, terms, terms.since or time.time())

    def stop(self, job: str, attempt: int) -> None:
        """End a lease at once, or forget a waiting one. Its process goes on."""
        lease = self._leases.get(job)
        if lease is None:
            return
        if lease.attempt:
            holder = lease.terms.holder
            whom = f"process {holder.pid}" if holder else "whoever holds it"
            self._end(lease, None, f"the lease was ended; {whom} was left alone")
        else:
            self._forget(lease)

    def observe(self) -> list[Report]:
        """Find holders that have ended, and shells that are no longer used."""
        for held in self._watch.ended():
            if (who := self._held.get(held)) is not None:  # else the end of another has settled it
                self._process_ended(who)
        now = time.monotonic()
        if now >= self._look_at and any(True for _ in self._shells()):
            self._look_at = now + _RETRY
            self._look_at_shells(now)
        if now >= self._hear_at:
            self._hear(now)
        reports, self._reports = self._reports, []
        return reports

    def due(self) -> float | None:
        """When to look at shells, at processes without a pidfd, or at silent leases."""
        if self._reports:
            return time.monotonic()
        look = self._look_at if any(True for _ in self._shells()) else math.inf
        due = min(look, self._hear_at, self._watch.due() or math.inf)
        return due if due < math.inf else None

    def owner(self, pid: int, gpu: int | None = None) -> tuple[str, int] | None:
        """The lease of a process: that of an ancestor, or of the leader of its session; on a GPU: one for that GPU.

        What a script left on a GPU that it gave back is no longer ours, unless it waits for GPUs again: it would wait
        for itself. If a lease without a process has the GPU, all processes on it belong to that lease. For any thread.
        """
        leases = list(self._leases.values())  # in one step: others may ask while leases come and go
        held = [lease for lease in leases if lease.attempt and gpu in (None, *lease.terms.gpus)]
        waiting = (lease for lease in leases if not lease.attempt)
        own = [lease for lease in waiting if lease.terms.holder and lease.terms.holder.pid == pid]
        holders = {lease.terms.holder.pid: lease for lease in (*own, *held) if lease.terms.holder}
        process = processes.look(pid) if holders else None
        for _ in range(_DEEPEST):
            if process is None or process.pid <= 0:
                break
            if lease := holders.get(process.pid) or holders.get(process.session):
                return lease.job, lease.attempt
            process = processes.look(process.parent)
        afar = (lease for lease in held if gpu is not None and lease.silence is not None)
        return next(((lease.job, lease.attempt) for lease in afar), None)

    def close(self) -> None:
        for kept in (self._leases, self._watched, self._held):
            kept.clear()
        self._watch.close()

    # How leases begin and end

    def _begin(self, job: str, attempt: int, terms: Terms, began: float) -> Running | Ended:
        """Watch the holder, and no other process of the lease."""
        lease = self._leases.get(job) or _Lease(job, terms)
        # first: it may fail, and then the lease waits on as before
        living = terms.holder is None or self._keep(terms.holder, lease)
        lease.attempt, lease.began, lease.terms = attempt, began, terms
        if not living:
            self._forget(lease)
            return lease.ended(0, "its process ended")
        self._leases[job] = lease
        self._listen(lease)
        if terms.requester not in (None, terms.holder):
            self._let_go(terms.requester, lease)
        if terms.interactive and terms.holder is not None and self._idle > 0:
            lease.use = ShellUse(terms.holder.pid, processes.ticks(began))
        return lease.running()

    def _watch_waiting(self, lease: _Lease) -> None:
        if not all(self._keep(who, lease) for who in lease.terms.waiting_for_it):
            self._end(lease, 0, "")

    def _process_ended(self, who: Holder) -> None:
        for lease in list(self._watched[who].leases):
            self._end(lease, 0, "its process ended")

    def _end(self, lease: _Lease, code: int | None, message: str) -> None:
        self._forget(lease)
        if lease.attempt:
            self._reports.append(lease.ended(code, message))
        else:
            why = message if lease.silence else "whoever asked for it has gone"
            self._reports.append(Abandoned(lease.job, time.time(), f"{GIVEN_UP}{why}"))

    def _forget(self, lease: _Lease) -> None:
        self._leases.pop(lease.job, None)
        self.heartbeats.forget(lease.job)
        for who in lease.terms.waiting_for_it:
            self._let_go(who, lease)

    # Processes

    def _keep(self, who: Holder, lease: _Lease) -> bool:
        """Watch a process for a lease; False if it is gone."""
        watched = self._watched.get(who)
        if watched is None:
            held = self._watch.add(who.pid, who.started) if who.life == self._life else None
            if held is None:
                return False
            self._watched[who] = watched = _Watched(held)
            self._held[held] = who
        watched.leases.add(lease)
        return True

    def _let_go(self, who: Holder | None, lease: _Lease) -> None:
        watched = self._watched.get(who) if who is not None else None
        if who is None or watched is None:
            return
        watched.leases.discard(lease)
        if not watched.leases:
            del self._watched[who], self._held[watched.held]
            self._watch.release(watched.held)

    def _lives(self, who: Holder) -> bool:
        watched = self._watched.get(who)
        held = watched.held if watched is not None else processes.Held(who.pid, who.started)
        return who.life == self._life and not held.has_ended()

    # Interactive shells

    def _shells(self) -> Iterable[tuple[_Lease, ShellUse]]:
        return ((lease, lease.use) for lease in self._leases.values() if lease.use is not None)

    def _look_at_shells(self, now: float) -> None:
        for lease, use in list(self._shells()):
            if use.idle(now) >= self._idle:
                span = format_duration(self._idle)
                self._end(lease, 0, f"its shell had nothing to do for {span} (the setting lease_idle)")

    # Those who have no process here

    def _listen(self, lease: _Lease) -> None:
        """Expect heartbeats of a lease; without a process, the last one must be recent."""
        self.heartbeats.expect(lease.job)
        terms = lease.terms
        if terms.holder is None:
            lease.silence = lease.silence or Silence(terms.heartbeat or math.inf, self._rest)
            soon = time.monotonic() + (_RETRY if terms.by_use else terms.heartbeat)
            self._hear_at = min(self._hear_at, soon)

    def _hear(self, now: float) -> None:
        """End leases without heartbeats; heartbeats that came while we were held up still count."""
        if now - self._hear_at > _HELD_UP:
            self._hear_at = now + _HELD_UP
            return
        self._hear_at = math.inf
        for lease in [lease for lease in self._leases.values() if lease.silence is not None]:
            gpus = lease.terms.gpus if lease.terms.by_use and lease.attempt else ()
            self._hear_at = min(self._hear_at, self._heard(lease, gpus, now))

    def _heard(self, lease: _Lease, gpus: tuple[int, ...], now: float) -> float:
        """Check one lease; returns when to check it again."""
        assert lease.silence is not None
        silent = self.heartbeats.silent(lease.job, now)
        if gpus:
            busy = [self.in_use(gpu, time.time() - lease.began) for gpu in gpus]
            why = lease.silence.unused(busy, silent, now)
        else:
            why = lease.silence.broken(silent)
        if why:
            self._end(lease, 0 if lease.silence.used else None, why)
            return math.inf
        return now + (_RETRY if gpus else lease.silence.limit - silent)


class RoutingEngine(EngineAround):
    """An engine for jobs, and beside it that of leases, which leave no files and have no output."""

    def __init__(self, jobs: Engine, leases: LeaseEngine) -> None:
        super().__init__(jobs)
        self._leases = leases
        self._epoll.register(leases.fileno(), select.EPOLLIN)

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        (self._leases if self._leases.is_lease(task.job) else self._inner).launch(task, attempt, placement)

    def adopt(self, job: str, attempt: int) -> Report:
        return (self._leases if self._leases.is_lease(job) else self._inner).adopt(job, attempt)

    def stop(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        """Ask a job to end; end a lease at once."""
        if self._leases.is_lease(job):
            self._leases.stop(job, attempt)
        else:
            self._inner.stop(job, attempt, grace, signal)

    def observe(self) -> list[Report]:
        seen = self._inner.observe()  # first: it may fail, and the other's reports must not be lost then
        return [*seen, *self._leases.observe()]

    def due(self) -> float | None:
        return min((due for due in (self._inner.due(), self._leases.due()) if due is not None), default=None)

    def owner(self, pid: int) -> tuple[str, int] | None:
        return self._inner.owner(pid) or self._leases.owner(pid)

    def owner_on(self, pid: int, gpu: int) -> tuple[str, int] | None:
        """The same for one GPU: the process of a lease is not pinned to the lease's GPUs."""
        return self._inner.owner(pid) or self._leases.owner(pid, gpu)

    def close(self) -> None:
        self._epoll.close()
        self._leases.close()
        self._inner.close()
