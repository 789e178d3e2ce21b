"""`gpuyard run`: queue a command and follow it in the foreground. `gpuyard acquire`: GPUs for a shell or a script."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.api.types import OVER
from gpuyard.cli.common_options import DaemonOptions, LocalOnlyOptions, NoWait, option, option_groups
from gpuyard.cli.jobs.job_options import Estimate, From, GpuMemory, Priority, Tags, duration, named, value_of
from gpuyard.cli.jobs.logs import exit_code, log_of, outcome, write
from gpuyard.cli.jobs.submit import Request, run_in_place, send
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.client.follow import output_of
from gpuyard.client.retry import patiently
from gpuyard.client.transport import Refused
from gpuyard.errors import GpuyardError, UserError
from gpuyard.units import parse_share

if TYPE_CHECKING:
    from gpuyard.client.attachment import Desk

Gpus = Annotated[int | None, option("--gpus", "-g", "N", "How many GPUs (1, or all that --from lists).", min=1)]
Timeout = Annotated[str | None, option("--timeout", "TIME", "Give up after that, as in 10m.")]
TimeLimit = Annotated[
    str | None, option("--time", "--time-limit", "-t", "TIME", "End the lease after that, as in 90m.")
]
Pid = Annotated[int | None, option("--pid", "PID", "The process that holds the lease (the shell that asks).", min=1)]
Name = Annotated[str | None, option("--name", "-n", "NAME", "What to call it (its program).")]


@option_groups
def acquire(
    daemon: LocalOnlyOptions,
    gpus: Gpus = None,
    from_: From = None,
    gpu_memory: GpuMemory = None,
    timeout: Timeout = None,
    name: Name = None,
    priority: Priority = None,
    time: TimeLimit = None,
    estimate: Estimate = None,
    tag: Tags = None,
    pid: Pid = None,
    no_wait: NoWait = False,
    uuids: Annotated[bool, option("--uuids", "Print UUIDs instead of indices.")] = False,
    json: Annotated[bool, option("--json", "Print id, indices, UUIDs and holder as JSON.")] = False,
) -> None:
    """Wait for GPUs for the shell or script that asks, and print their indices."""
    from gpuyard.client import leases
    from gpuyard.engines.leases.holders import find_holder

    among = value_of("from", from_)
    lease, holder = leases.of_this_job(gpus, among), None
    if lease is None:
        client, found = daemon.client(no_wait=no_wait), find_holder(pid)
        with named("--gpu-memory"):
            memory = None if gpu_memory is None else parse_share(gpu_memory)
        holder = found.pid
        try:
            job = leases.LeaseRequest(client, output.say).obtain(
                duration("--timeout", timeout), holder=found.pid, interactive=found.interactive,
                gpus=gpus, among=among, gpu_memory=memory, name=name or found.name or None,
                priority=priority or 0.0, tags=tag or [], estimate=value_of("estimate", estimate),
                time_limit=value_of("time_limit", time),
            )  # fmt: skip
        except TimeoutError as error:
            raise GpuyardError(str(error)) from error
        lease = leases.lease_of(client, job)
    if json:
        output.print_json({"id": lease.id, "gpus": lease.indices, "uuids": lease.uuids, "pid": holder})
    else:
        print(",".join(lease.uuids if uuids else map(str, lease.indices)))


@option_groups
def run(context: typer.Context, daemon: DaemonOptions, request: Request) -> None:
    """Queue a command, follow its output, and end with its exit code."""
    if request.array:
        raise UserError("run follows one job; queue an array with gpuyard submit, and wait for it with gpuyard wait")
    client = daemon.client()
    with desk_of(client) as desk, Interrupts(client, desk) as interrupts:
        more = {} if desk is None else {"attach": desk.words}
        job = send(run_in_place(context, request), request, client, **more)
        interrupts.pass_to(job)
        _await_start(client, job)
        interrupts.started = True
        try:
            _show(client, job, desk)
        except OSError as error:  # of our output: a full disk, or a terminal that has gone
            how = f"job {job} is not affected, and gpuyard logs -f {job} shows its output"
            raise GpuyardError(f"cannot write the output ({error.strerror}); {how}") from error
        ended = client.wait(job)
    if ended["state"] not in ("succeeded", "failed") or (ended["state"] == "failed" and ended["exit_code"] is None):
        output.say(outcome(ended))
    raise SystemExit(exit_code(ended))  # not typer.Exit: 130 would be taken for our own interruption


@contextmanager
def desk_of(client: Client) -> Iterator[Desk | None]:
    """Where the job finds this terminal; None for a job elsewhere, which has no input."""
    if client.host is not None:
        output.say("the job runs elsewhere: it gets no input, and its errors come with its output")
        yield None
        return
    from gpuyard.client.attachment import Desk  # which needs POSIX

    desk = Desk()
    try:
        yield desk
    finally:
        desk.close()


def _show(client: Client, job: str, desk: Desk | None) -> None:
    """Show the output: as it comes from the job; what it could not hand over, by the log."""
    attempt, shown = patiently(client.job, job, say=output.say)["attempt"], None
    if desk is not None:
        shown = desk.attend(lambda: patiently(client.job, job, say=output.say)["state"] not in OVER, write_frame)
    log = patiently(log_of, client, job, say=output.say)
    for data in output_of(log, job, shown or 0, say=output.say, seen=attempt):
        write(data)


def write_frame(kind: bytes, data: bytes) -> None:
    from gpuyard.client.attachment import ERR

    stream = sys.stderr if kind == ERR else sys.stdout
    stream.buffer.write(data)
    stream.buffer.flush()


def _await_start(client: Client, id: str) -> None:
    """Return when the job has started or is over; after a second print why it waits."""
    said = ""
    job = patiently(client.job, id, wait=1.0, until="start", say=output.say)
    while job["state"] in ("queued", "held"):
        if outcome(job) != said:
            said = outcome(job)
            output.say(said)
        time.sleep(0.05)
        job = patiently(client.job, id, wait=30.0, until="start", say=output.say)
    if said and job["state"] == "running":
        gpus = ", ".join(map(str, job["gpus"]))
        output.say(f"job {id}: running" + (f" on GPU {gpus}" if gpus else ""))


_ENDING = signal.SIGINT, signal.SIGTERM
_PASSED = signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
_TOGETHER = 2.0  # seconds between two Ctrl-C that belong together, where the job has a terminal of its own


class Interrupts:
    """Ctrl-C is for the job: the first is SIGINT, the second cancels it, the third waits no more.

    A job that waits, or that has no tie to this terminal, is cancelled by the first, and killed by the second. The
    handler does not raise, so no request and no write is cut in the middle."""

    def __init__(self, client: Client, desk: Desk | None) -> None:
        self.client, self.desk = client, desk
        self.job: str | None = None
        self.started = False
        self.count, self._last = 0, 0.0
        if desk is not None:
            desk.on_keys = self._typed

    def __enter__(self) -> Interrupts:
        self.before = {number: signal.signal(number, self._catch) for number in (*_ENDING, *_PASSED)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def pass_to(self, job: str) -> None:
        """Set the job; if Ctrl-C came before it was queued, cancel it."""
        self.job = job
        if self.count:
            self._cancel(job)

    def _typed(self, keys: bytes) -> None:
        """Count Ctrl-C in a terminal of the job's own, which it has got itself: programs use single ones."""
        now = time.monotonic()
        if not keys:  # its program reads keys itself, as a shell does at its prompt
            self.count = 0
        for key in keys:
            if key != 3 or (self.count == 1 and now > self._last + _TOGETHER):
                self.count = 0
            if key == 3:
                self.count, self._last = self.count + 1, now
                if self.count > 1:
                    self._go_on()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if number in _PASSED:
            if self.desk is None or not self.desk.signal(number):
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.count += 1
        if self.job is None and self.count > 1:
            raise KeyboardInterrupt
        if self.count == 1 and number == signal.SIGINT and self.desk is not None and self.desk.signal(number):
            return
        self._go_on()

    def _go_on(self) -> None:
        if self.job is None:
            return
        if self.count > 2:
            how = f"gpuyard logs -f {self.job} follows it, gpuyard cancel --grace 0 {self.job} ends it at once"
            self._say(f"job {self.job} is killed when its grace period is over: {how}")
            raise SystemExit(130)
        self._cancel(self.job)

    def _cancel(self, job: str) -> None:
        tied = self.desk is not None and self.desk.connection is not None
        at_once = self.count > 1 and not tied
        again = "Ctrl-C again leaves it" if tied else "Ctrl-C again ends it at once"
        self._say(f"job {job}: " + ("ended at once" if at_once else f"asked to end; {again}"))
        try:
            self.client.cancel(job, 0.0 if at_once else None)
        except Refused as error:
            if error.status != 409:  # it is over already
                self._say(f"gpuyard: error: {error}")
        except GpuyardError as error:
            self._say(f"gpuyard: error: {error}")

    def _say(self, sentence: str) -> None:
        if self.desk is None or not self.desk.say(sentence):
            output.say(sentence)
