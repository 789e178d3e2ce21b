"""A real daemon on simulated GPUs, and the commands that people give it.

Most commands are called in this process, which is ten times as quick as starting one; where signals, a terminal or the
process itself matter, there is `popen`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from gpuyard.api.types import Job
from gpuyard.cli import main
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.errors import GpuyardError
from tests import nest
from tests.fake_nvml import FakeNvml
from tests.nest import Hatched

PATIENCE = 120.0
"""Seconds after which something that should happen counts as not happening: far more than it takes anywhere."""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def call(*arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    """Run a command to its end, in this process; without an environment, in that of pytest."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in written)
    code: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, os.environ if environment is None else environment, clear=True),
        mock.patch.object(sys, "argv", ["gpuyard", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Done(code, *(stream.getvalue().decode(errors="replace") for stream in written))


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """What the condition says once it says something; a failure if it never does."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:.0f} s"
        time.sleep(0.01)
    return found


class Yard:
    """A data directory, the daemon on it, and the commands."""

    def __init__(self, data_dir: Path, cwd: Path) -> None:
        self.data_dir, self.cwd = data_dir, cwd
        self.daemon: subprocess.Popen[bytes] | Hatched | None = None
        self._gpus: tuple[str, ...] = ("--simulate-gpus", "4x16G")
        self.forks = True  # whether daemons may be forked from a nest; not where their command line matters
        self.started_by: tuple[str, ...] = ()  # a command that starts the daemon's, with a limit for example
        self.client = Client(data_dir=data_dir)
        outside = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
        self.environment = outside | {
            "GPUYARD_DATA_DIR": str(data_dir),
            "GPUYARD_CONFIG": str(data_dir / "none.toml"),
            "GPUYARD_PORT": "none",
            "GPUYARD_PAGE": "off",
        }

    def popen(self, *arguments: str | Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Begin a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpuyard", *map(str, arguments)],
            cwd=self.cwd, env={**self.environment, **(more or {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip

    def __call__(self, *arguments: str | Path, more: Mapping[str, str] | None = None) -> Done:
        """Run a command to its end, in this process."""
        return call(*arguments, cwd=self.cwd, environment={**self.environment, **(more or {})})

    def process(self, *arguments: str | Path) -> Done:
        """Run a command to its end, as a process."""
        return finish(self.popen(*arguments))

    def json(self, *arguments: str | Path) -> Any:
        """What a command that succeeds prints with --json."""
        done = self(*arguments, "--json")
        assert done.code == 0, done
        return json.loads(done.out)

    def submit(self, *arguments: str | Path) -> str:
        """Queue a command; the job's id."""
        done = self("submit", *arguments)
        assert (done.code, done.err) == (0, ""), done
        return done.out.strip()

    def wait(self, id: str) -> Job:
        """The job when it is over."""
        return self.client.wait(id, timeout=PATIENCE)

    def await_output(self, id: str, text: bytes) -> None:
        """Return once the job has written this: then it has come that far."""
        until(lambda: text in self.client.log(id).data, f"job {id} writing {text!r}")

    def use(self, nvml: FakeNvml) -> None:
        """Let the daemon have the GPUs of a made-up driver."""
        self.environment |= {name: nvml.env[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
        self._gpus = ()

    def serve(self, *arguments: str) -> None:
        """Start the daemon, and wait until it answers."""
        words = ["serve", *self._gpus, *arguments]
        with (self.data_dir / "daemon.log").open("ab") as log:
            if self.forks and not self.started_by and nest.fits(self.environment):
                self.daemon = nest.hatch(words, self.cwd, self.environment, log)
            else:
                command = [*self.started_by, sys.executable, "-m", "gpuyard", *words]
                self.daemon = subprocess.Popen(
                    command, cwd=self.cwd, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        until(self._answers, "an answer of the daemon")

    def is_up(self) -> bool:
        """Whether the daemon that was started runs."""
        return self.daemon is not None and self.daemon.poll() is None

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the daemon by a signal."""
        assert self.daemon is not None
        self.daemon.send_signal(number)
        self.daemon.wait(PATIENCE)

    def clear(self) -> None:
        """Let no job be left."""
        for job in self.client.jobs():
            with contextlib.suppress(GpuyardError):  # it may end by itself meanwhile
                self.client.cancel(job["id"], grace=0)
        until(lambda: not self.client.jobs(), "the end of all jobs")
        (self.cwd / "go").unlink(missing_ok=True)  # what jobs of many tests wait for

    def _answers(self) -> bool:
        assert self.is_up(), (self.data_dir / "daemon.log").read_text()
        try:
            self.client.status()
        except NoDaemon:
            return False
        return True


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for a command's end."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return Done(process.returncode, out, err)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Yard]:
    """A yard in a folder, whose daemon is still to be started; no daemon and no job is left of it."""
    (folder / "data").mkdir(mode=0o700)
    (folder / "here").mkdir()
    found = Yard(folder / "data", folder / "here")
    try:
        yield found
        if (found.data_dir / "jobs").exists():
            if not found.is_up():
                found.serve()
            found.clear()
    finally:
        if found.is_up():
            found.end()
