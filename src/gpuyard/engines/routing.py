"""Two engines as one: what runs jobs, and what holds leases."""

from __future__ import annotations

import select
from collections.abc import Sequence

from gpuyard.engines.base import Engine, Node, Placement, Report, Task
from gpuyard.engines.leases import LeaseEngine


class Routing:
    """An engine that leaves leases to one engine and all else to another."""

    def __init__(self, jobs: Engine, leases: LeaseEngine) -> None:
        self._jobs, self._leases = jobs, leases
        self._epoll = select.epoll()
        self._epoll.register(jobs.fileno(), select.EPOLLIN)
        self._epoll.register(leases.fileno(), select.EPOLLIN)

    def nodes(self) -> Sequence[Node]:
        """The machines on which jobs run."""
        return self._jobs.nodes()

    def last_job(self) -> int:
        """The largest number that has left files; a lease leaves none."""
        return self._jobs.last_job()

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        """Run a job, or give a lease to its holder."""
        (self._leases if self._leases.is_lease(task.job) else self._jobs).launch(task, attempt, placement)

    def adopt(self, job: str, attempt: int) -> Report:
        """What became of it."""
        return (self._leases if self._leases.is_lease(job) else self._jobs).adopt(job, attempt)

    def stop(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        """Ask a job to end; end a lease at once."""
        if self._leases.is_lease(job):
            self._leases.stop(job, attempt)
        else:
            self._jobs.stop(job, attempt, grace, signal)

    def observe(self) -> list[Report]:
        """What both have seen."""
        seen = self._jobs.observe()  # first: it may fail, and what the other would have told must not be lost then
        return [*seen, *self._leases.observe()]

    def fileno(self) -> int:
        """Readable when one of them has something to tell."""
        return self._epoll.fileno()

    def due(self) -> float | None:
        """The sooner of both."""
        return min((due for due in (self._jobs.due(), self._leases.due()) if due is not None), default=None)

    def owner(self, pid: int) -> tuple[str, int] | None:
        """The job or the lease that a process belongs to."""
        return self._jobs.owner(pid) or self._leases.owner(pid)

    def owner_on(self, pid: int, gpu: int) -> tuple[str, int] | None:
        """The same, as far as a GPU is concerned: nobody but us pins a lease's process to the GPUs that it has."""
        return self._jobs.owner(pid) or self._leases.owner(pid, gpu)

    def read_log(self, job: str, attempt: int, offset: int, size: int, *, exact: bool = False) -> tuple[int, bytes]:
        """A piece of a job's output; leases have none."""
        return self._jobs.read_log(job, attempt, offset, size, exact=exact)

    def log_size(self, job: str, attempt: int) -> int:
        """How much output a job has written."""
        return self._jobs.log_size(job, attempt)

    def close(self) -> None:
        """Let go of both."""
        self._epoll.close()
        self._leases.close()
        self._jobs.close()
