"""The protocol between the daemon and the engines that run jobs: this machine, or a cluster.

The daemon writes down that a job is to run (`Placed`) before it asks the engine, so it may die at any instant, and its
next life asks again. That is why everything here is idempotent by (job, attempt): launching an attempt twice runs it
once, and asking about an attempt that never began (`adopt`) makes sure that it never will.

An engine reports what it sees and decides nothing. `tests/contract` has the suite that every engine must pass.
"""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuyard.errors import GpuyardError


class EngineError(GpuyardError):
    """The engine cannot do this now; trying again later may help."""


class LaunchRefused(GpuyardError):
    """The job can never be launched as it is: its directory is missing, say. It fails with this as the reason."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    gpus: tuple[str, ...]  # what `CUDA_VISIBLE_DEVICES` calls each of its GPUs, by index


@dataclass(frozen=True, slots=True)
class Placement:
    """The node and GPUs of an attempt."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """What a client of MPS may have of its GPU."""

    thread_percentage: float = 0.0  # percent of the threads; 0: all
    memory: float = 0.0  # bytes; 0: as much as there is


@dataclass(frozen=True, slots=True)
class Task:
    """A job for an engine. Commands are argument lists, never shell strings."""

    job: str
    command: tuple[str, ...]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """The submitter's environment; the engine adds to it what tells the job its GPUs and its id."""
    output_limit: int = 2**30  # bytes of output that are kept: the beginning and the end, if there is more
    umask: int = 0o022  # what the files that it makes may not permit
    user: str = ""  # the user that it runs as; empty: the engine's own
    limits: tuple[str, ...] = ()  # limits of its processes that differ from the engine's own, as in `nofile=1024:4096`
    variables: Mapping[str, str] = field(default_factory=dict)  # what comes on top of the environment
    script: bytes | None = None  # a text that is run in place of the command's first word
    output: str = ""  # the file that its output goes to, opened by the job's own side; empty: ours
    error: str = ""  # the file that its errors go to, if not where its output goes
    append: bool = False  # whether these files are appended to; else what they held is lost
    attach: tuple[str, ...] = ()  # what stands before the command, and ties it to somebody's terminal
    mps: Client | None = None  # of a client of MPS: what it may have; None: it is none


@dataclass(frozen=True, slots=True)
class Running:
    job: str
    attempt: int
    at: float  # when it began, in seconds since the epoch
    handle: str  # what the engine calls it: a process id, a cluster's job id


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over, and nothing of it is left."""

    job: str
    attempt: int
    at: float
    code: int | None  # exit code as the shell has it, 128 + n for signal n; None where it cannot be known
    interrupted: bool = False  # whether it ended with the machine, not by itself
    message: str = ""  # what a user should know beyond the code
    began: float | None = None  # when it began, where that is known
    asked: bool = False  # whether it had been asked to end before it did; false if it came to its end by itself


@dataclass(frozen=True, slots=True)
class NeverBegan:
    """An attempt did not begin, and will not: `launch` came too late, or failed."""

    job: str
    attempt: int
    message: str = ""  # why, where that is worth telling


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A waiting lease lost the process that it is for."""

    job: str
    at: float
    message: str


Report = Running | Ended | NeverBegan | Abandoned


class Engine(Protocol):
    """Runs jobs."""

    def nodes(self) -> Sequence[Node]: ...

    def last_job(self) -> int:
        """The largest number of a job that it has ever been given; 0 if there is none."""
        ...

    def launch(self, task: Task, attempt: int, placement: Placement) -> None:
        """Begin to run an attempt; once, however often it is called.

        Raises `LaunchRefused` if it can never run, `EngineError` if trying again may help; in both cases nothing runs.
        That it runs, or has failed to, is then reported by `observe`.
        """
        ...

    def adopt(self, job: str, attempt: int) -> Report:
        """What became of an attempt that an earlier daemon may have launched; it is observed from now on.

        Of one that is over, but has left something behind, it says `Running`: `Ended` follows when all of it is gone.
        """
        ...

    def stop(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        """Ask an attempt to end, and make it end when `grace` seconds have passed; all of it, children included.

        All its processes get the signal, once in this life of the daemon. With an infinite grace they are only asked.
        Returns at once; `observe` reports the end. Stopping what is over, or stopping twice in the same way, does
        nothing.
        """
        ...

    def observe(self) -> list[Report]:
        """What has happened since the last call. Returns at once."""
        ...

    def fileno(self) -> int:
        """Readable when there is something to observe."""
        ...

    def due(self) -> float | None:
        """When `observe` wants to be called although `fileno` stays silent, on the monotonic clock; None: never."""
        ...

    def owner(self, pid: int) -> tuple[str, int] | None:
        """The attempt of a process of this machine; None if it has none."""
        ...

    def read_log(self, job: str, attempt: int, offset: int, size: int, *, exact: bool = False) -> tuple[int, bytes]:
        """Up to `size` bytes of an attempt's output from `offset` on, and the offset to read on from.

        A negative offset counts from the end. Where bytes were left out to keep to the limit, the answer begins with a
        line that says how many (which comes on top of `size`), and goes on with what follows them; if it is to be
        `exact`, zeros stand for them.
        """
        ...

    def log_size(self, job: str, attempt: int) -> int:
        """Bytes of output that an attempt has written, whether all of them are kept or not."""
        ...

    def close(self) -> None:
        """Release everything; what runs goes on."""
        ...


class EngineAround:
    """What is the same in engines around another one, which has the nodes and keeps all output."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self._epoll = select.epoll()
        self._epoll.register(inner.fileno(), select.EPOLLIN)

    def nodes(self) -> Sequence[Node]:
        return self._inner.nodes()

    def last_job(self) -> int:
        return self._inner.last_job()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def read_log(self, job: str, attempt: int, offset: int, size: int, *, exact: bool = False) -> tuple[int, bytes]:
        return self._inner.read_log(job, attempt, offset, size, exact=exact)

    def log_size(self, job: str, attempt: int) -> int:
        return self._inner.log_size(job, attempt)
