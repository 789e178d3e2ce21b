"""Short lives of the yard, without HTTP: this program imports everything once, and forks a life per line of input.

A life opens the store and the engine as `gpuyard serve` does, and lets one customer do what its story says. What the
customer was told it writes down, so that a test knows what was acknowledged before the life ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuyard import files
from gpuyard.config import settings
from gpuyard.core.model import Request
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.local.local_engine import LocalEngine
from gpuyard.engines.local.processes import adopt_orphans
from gpuyard.gpus.base import Visible
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.spec.work import Work
from tests.chaos.harness import GPUS, PATIENCE, job_command, stoppable_command

FIRM = Request(estimate=1.0, preemptible=False)


class Customer:
    """Asks for things, waits for answers, and writes them down."""

    def __init__(self, place: Path, yard: Daemon) -> None:
        self._place, self._yard, self._desk = place, yard, yard.commands
        self._reader = Reader(place / "data" / "gpuyard.db")

    def submit(
        self, length: float | Path, hold: bool = False, time_limit: float | None = None, request: Request = FIRM
    ) -> str:
        work = Work(tuple(job_command(self._place / "stamps", length)), "/", grace=2.0, time_limit=time_limit)
        return self._submit(work, request, hold)

    def submit_stoppable(self, steps: int) -> str:
        """A job on all GPUs, which may be stopped and goes on."""
        work = Work(tuple(stoppable_command(self._place / "stamps", steps)), "/", grace=PATIENCE)
        return self._submit(work, Request(gpus=GPUS, estimate=1.0))

    def _submit(self, work: Work, request: Request, hold: bool = False) -> str:
        variables = {"PATH": "/usr/bin:/bin"}
        job: str = self._ask(lambda: self._desk.submit(work, request, variables, hold))
        self._tell("submitted", job)
        return job

    def cancel(self, job: str) -> None:
        self._ask(lambda: self._desk.cancel(job))
        self._tell("cancelled", job)

    def release(self, job: str) -> None:
        self._ask(lambda: self._desk.release(job))

    def wait(self, job: str) -> None:
        self._until(lambda: (view := self._reader.job(job)) is not None and view.over)

    def wait_for_stamp(self, job: str) -> None:
        self._until((self._place / "stamps" / job).exists)

    def open_jobs(self) -> list[JobView]:
        return self._reader.jobs(over=False, wanted={})

    def finish(self) -> None:
        """Let everybody come to an end."""
        (self._place / "end").touch()
        for view in self.open_jobs():
            with contextlib.suppress(NotNow):
                self.release(view.id)
        self._until(lambda: not self.open_jobs())

    def _ask(self, command: Callable[[], Any]) -> Any:
        return self._yard.ask(command).result(PATIENCE)

    def _tell(self, what: str, job: str) -> None:
        with (self._place / "told").open("a") as file:
            file.write(f"{what} {job}\n")

    def _until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError("it does not happen")
            time.sleep(0.002)


def _submit(customer: Customer, place: Path) -> None:
    customer.wait(customer.submit(0.02))


def _hold(customer: Customer, place: Path) -> None:
    job = customer.submit(0, hold=True)
    customer.release(job)
    customer.wait(job)


def _cancel(customer: Customer, place: Path) -> None:
    job = customer.submit(place / "end")
    customer.wait_for_stamp(job)
    customer.cancel(job)
    customer.wait(job)


def _cancel_early(customer: Customer, place: Path) -> None:
    """Before it has begun, if all goes well."""
    job = customer.submit(place / "end")
    customer.cancel(job)
    customer.wait(job)


def _run_out_of_time(customer: Customer, place: Path) -> None:
    customer.wait(customer.submit(place / "never", time_limit=0.05))


def _preempt(customer: Customer, place: Path) -> None:
    """One that can be stopped is, for another that needs its GPUs, and goes on afterwards."""
    low = customer.submit_stoppable(8)
    customer.wait_for_stamp(low)
    high = customer.submit(0.02, request=Request(gpus=GPUS, estimate=1.0, preemptible=False, priority=5.0))
    customer.wait(high)
    customer.wait(low)


def _begin_and_die(customer: Customer, place: Path) -> None:
    customer.wait_for_stamp(customer.submit(place / "end"))
    os.kill(os.getpid(), signal.SIGKILL)


def _finish(customer: Customer, place: Path) -> None:
    customer.finish()


STORIES = {
    "submit": _submit, "hold": _hold, "cancel": _cancel, "cancel-early": _cancel_early, "timeout": _run_out_of_time,
    "preempt": _preempt,
    "begin-and-die": _begin_and_die, "finish": _finish,
}  # fmt: skip


def live(place: Path, story: str) -> None:
    """One life."""
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    (place / "stamps").mkdir(exist_ok=True)
    gpus = SimulatedGpus.parse(f"{GPUS}x16G")
    store = Store(data / "gpuyard.db")
    adopt_orphans()
    engine = LocalEngine(data / "jobs", Visible(gpus), cgroups=False)
    yard = Daemon(store, engine, machine := Machine(gpus, engine), settings({"data_dir": data}, {}))
    yard.open(machine.cluster, machine.uuids)
    failed: list[BaseException] = []

    def be_customer() -> None:
        try:
            STORIES[story](Customer(place, yard), place)
        except BaseException as error:
            failed.append(error)
        yard.stop()

    thread = threading.Thread(target=be_customer)
    thread.start()
    yard.run()
    thread.join()
    engine.close()
    store.close()
    if failed:
        raise failed[0]


def main() -> None:
    """Fork a life for each line; answer with how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                files._faults = files.Faults(order["environment"])
                files._wanted = files._faults.wanted
                live(Path(order["place"]), order["story"])
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
