"""`gpuyard run`: a queued command that looks like one that runs here."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType

import typer

from gpuyard.cli import output
from gpuyard.cli.following import exit_code, follow, log_of, told
from gpuyard.cli.sharing import shared
from gpuyard.cli.submit import Request, send
from gpuyard.cli.yard import Yard
from gpuyard.client import Client, Refused
from gpuyard.errors import GpuyardError, UserError
from gpuyard.patience import patiently


@shared
def run(context: typer.Context, yard: Yard, request: Request) -> None:
    """Queue a command, follow its output, and end with its exit code."""
    if request.array:
        raise UserError("run follows one job; queue an array with gpuyard submit, and wait for it with gpuyard wait")
    client = yard.client()
    with Interrupts(client) as interrupts:
        job = send(context, request, client)
        interrupts.pass_to(job)
        _await_start(client, job)
        follow(log_of(client, job), job)
        ended = client.wait(job)
    if ended["state"] not in ("succeeded", "failed") or (ended["state"] == "failed" and ended["exit_code"] is None):
        output.say(told(ended))
    raise SystemExit(exit_code(ended))  # not typer.Exit: 130 would be taken for our own interruption


def _await_start(client: Client, id: str) -> None:
    """Return when the job has started or is over; tell why it waits if that takes more than a second."""
    said = ""
    job = patiently(client.job, id, wait=1.0, until="start", say=output.say)
    while job["state"] in ("queued", "held"):
        if told(job) != said:
            said = told(job)
            output.say(said)
        time.sleep(0.05)
        job = patiently(client.job, id, wait=30.0, until="start", say=output.say)
    if said and job["state"] == "running":
        gpus = ", ".join(map(str, job["gpus"]))
        output.say(f"job {id}: running" + (f" on GPU {gpus}" if gpus else ""))


class Interrupts:
    """Ctrl-C is for the job: the first asks it to end, the second ends it, the third leaves it alone and goes.

    A handler does not raise, so no request and no write is cut in the middle: Python goes on where it was.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.job: str | None = None
        self.count = 0

    def __enter__(self) -> Interrupts:
        self.before = {number: signal.signal(number, self._catch) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def pass_to(self, job: str) -> None:
        """The job there is now; if somebody was faster than the queue, end it."""
        self.job = job
        if self.count:
            self._cancel(job)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2 or (self.count > 1 and self.job is None):
            raise KeyboardInterrupt
        if self.job is not None:
            self._cancel(self.job)

    def _cancel(self, job: str) -> None:
        at_once = self.count > 1
        output.say(f"job {job}: " + ("ended at once" if at_once else "asked to end; Ctrl-C again ends it at once"))
        try:
            self.client.cancel(job, 0.0 if at_once else None)
        except Refused as error:
            if error.status != 409:  # it is over already
                output.say(f"gpuyard: error: {error}")
        except GpuyardError as error:
            output.say(f"gpuyard: error: {error}")
