"""A daemon that can be killed at any instant, and jobs that tell by themselves when and where they ran."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import gpuyard
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.engines.local import processes
from tests.nest import Hatched, hatch

SOURCES = Path(gpuyard.__file__).parents[1]
GPUS = 4
GPU_MEMORY = 16 * 2**30
PATIENCE = 120.0
"""Seconds that anything may take on a busy machine before a test gives up."""

SCRIPT = r"""
place=$1 seconds=$2
now() { # again, where the signal that ends the job ended `date`
    at=
    until [ -n "$at" ]; do at=$(date +%s.%N); done
}
stamp() {
    now
    printf '%s %s %s %s %s %s\n' "$1" "$GPUYARD_JOB_ID" "$GPUYARD_ATTEMPT" "$GPUYARD_GPUS" $$ $at \
        >>"$place/$GPUYARD_JOB_ID"
}
trap 'stamp stop; exit 143' TERM
stamp start
case $seconds in
*/*) while [ ! -e "$seconds" ]; do sleep 0.1; done ;;
*) sleep "$seconds" ;;
esac
stamp stop
exit $((${GPUYARD_JOB_ID%%_*} % 7))
"""


STOPPABLE = r"""
place=$1 steps=$2
now() { # as above
    at=
    until [ -n "$at" ]; do at=$(date +%s.%N); done
}
stamp() {
    now
    printf '%s %s %s %s %s %s %s\n' "$1" "$GPUYARD_JOB_ID" "$GPUYARD_ATTEMPT" "$GPUYARD_GPUS" $$ $at $done \
        >>"$place/$GPUYARD_JOB_ID"
}
file=$GPUYARD_CHECKPOINT_DIR/done done=0
[ -e "$file" ] && read -r done <"$file"
save() { echo $done >"$file.new" && mv "$file.new" "$file"; }
trap 'save; stamp stop; exit 0' TERM
stamp start
while [ $done -lt $steps ]; do sleep 0.02; done=$((done + 1)); done
save
stamp stop
exit $((${GPUYARD_JOB_ID%%_*} % 7))
"""


def stoppable_command(stamps: Path, steps: int) -> list[str]:
    """A job of so many steps that can be stopped and goes on; it stamps how far it is, too."""
    return ["/bin/sh", "-c", STOPPABLE, "job", str(stamps), str(steps)]


def job_command(stamps: Path, length: float | Path) -> list[str]:
    """A job that stamps its start and its stop: it runs for so many seconds, or until there is such a file."""
    return ["/bin/sh", "-c", SCRIPT, "job", str(stamps), str(length)]


def exit_code(job: str) -> int:
    """What such a job ends with, and each task of such an array."""
    return int(job.partition("_")[0]) % 7


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a job said of itself."""

    kind: str
    job: str
    attempt: int
    gpus: tuple[int, ...]
    pid: int
    at: float
    done: int = 0
    """Steps of a job that can be stopped."""


def read_stamps(folder: Path) -> list[Stamp]:
    """All that jobs have stamped, in the order of time."""
    found = []
    for path in folder.iterdir():
        for line in path.read_text().split("\n")[:-1]:  # a job may be about to write the last one
            kind, job, attempt, gpus, pid, at, *done = line.split(" ")
            where = tuple(map(int, gpus.split(",")))
            found.append(Stamp(kind, job, int(attempt), where, int(pid), float(at), *map(int, done)))
    return sorted(found, key=lambda stamp: stamp.at)


class Daemon:
    """`gpuyard serve` on a data directory, in as many lives as a test wants."""

    def __init__(self, data_dir: Path, *options: str, log: Path | None = None) -> None:
        self.data_dir = data_dir
        self.log = log or data_dir.parent / f"{data_dir.name}.log"
        """What it says, in all its lives."""
        self.client = Client(data_dir / "gpuyard.sock", timeout=PATIENCE)
        self.lives = 0
        self._options = ["--data-dir", str(data_dir), "--simulate-gpus", f"{GPUS}x16G", *options]
        self._processes: list[Hatched] = []

    def spawn(self, *options: str) -> Hatched:
        """Begin a life, without waiting for anything."""
        variables = {"PATH": os.environ["PATH"], "GPUYARD_CONFIG": "/dev/null/none", "GPUYARD_PAGE": "off"}
        with self.log.open("ab") as log:
            process = hatch(["serve", *self._options, *options], self.data_dir.parent, variables, log)
        self._processes.append(process)
        self.lives += 1
        return process

    def start(self, *options: str) -> None:
        """Begin a life, and wait until it answers."""
        self.spawn(*options)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until a life of it answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.status()
                return
            except NoDaemon:
                living = [process for process in self._processes if process.poll() is None]
                assert living, f"it has ended:\n{self.words()}"
                assert time.monotonic() < deadline, f"it does not come up:\n{self.words()}"
                time.sleep(0.01)

    def words(self) -> str:
        """Its last words."""
        return self.log.read_text()[-3000:]

    def kill(self) -> None:
        """End whatever lives of it at once."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it as `gpuyard down` would; it must end well."""
        codes = self._signal(signal.SIGTERM)
        assert codes == [0], f"ended with {codes}:\n{self.words()}"

    def _signal(self, number: signal.Signals) -> list[int]:
        living = [process for process in self._processes if process.poll() is None]
        for process in living:
            process.send_signal(number)
        codes = [process.wait(PATIENCE) for process in living]
        self._processes = []
        return codes

    def losers(self, rivals: int) -> list[int]:
        """Wait until all but one of several rivals have given up: what these ended with."""
        deadline = time.monotonic() + PATIENCE
        while len(over := [process for process in self._processes if process.poll() is not None]) < rivals - 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return [process.wait() for process in over]

    def wait_until_empty(self) -> None:
        """Wait until no job waits or runs; a failure if none ends for long."""
        fewest, deadline = math.inf, 0.0
        while left := self.client.jobs():
            if len(left) < fewest:
                fewest, deadline = len(left), time.monotonic() + PATIENCE
            assert time.monotonic() < deadline, f"{len(left)} jobs are left: {left[:3]}"
            time.sleep(0.05)

    def close(self) -> None:
        """Leave nothing behind, whatever the test has done."""
        self.kill()
        for pid in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[int]:
        """Processes of jobs that live."""
        jobs = f"{self.data_dir}/jobs/"
        return [pid for pid in processes.everyone() if (processes.mark_of(pid) or "").startswith(jobs)]
