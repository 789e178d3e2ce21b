"""A short command that runs beside us: begun here, looked at later, and ended if it takes too long."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuyard.engines import processes
from gpuyard.engines.base import EngineError

_MOST_SAID = 2000  # bytes of what it printed that are worth telling
_NEEDLESS = re.compile(r"[\x00-\x1f\x7f]+")

# The shell writes down how the command ended: a child of ours may be reaped by whoever looks for orphans, code and all.
_SCRIPT = r"""
gpuyard_code=$1
shift
"$@"
printf '%s\n' "$?" >"$gpuyard_code"
"""


class Errand:
    """One such command, in a session of its own; what it prints and how it ends is kept in two files."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], files: Path, seconds: float, given: bytes = b""
    ) -> None:
        """Begin it; `given` is what it reads, and the names of the two files begin with `files`."""
        self._printed, self._code = files.with_suffix(".out"), files.with_suffix(".code")
        self.deadline = time.monotonic() + seconds
        """When it has taken too long, on the monotonic clock."""
        try:
            self._code.unlink(missing_ok=True)
            with open(self._printed, "wb") as printed:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT, "gpuyard", str(self._code), *words],
                    cwd="/", env=dict(environment), stdin=subprocess.PIPE, stdout=printed, stderr=printed,
                    start_new_session=True, umask=0o077,
                )  # fmt: skip
        except OSError as error:
            raise EngineError(f"cannot start a process: {error.strerror}") from error
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(given)
        process.returncode = 0  # it is reaped by its pidfd, or by the engine; this object is to leave it alone
        self._pid = process.pid
        self.pidfd = self._hold()

    def _hold(self) -> int:
        pidfd = processes.hold(self._pid)
        if pidfd is None:  # somebody has reaped it already
            raise EngineError("a process ended at once")
        return pidfd

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return processes.has_ended(self.pidfd)

    @property
    def code(self) -> int | None:
        """How it ended; None if a signal ended it, or we did."""
        try:
            return int(self._code.read_text())
        except (OSError, ValueError):
            return None

    @property
    def said(self) -> str:
        """The end of what it printed, in one line."""
        try:
            text = self._printed.read_bytes()[-_MOST_SAID:].decode(errors="replace")
        except OSError:
            return ""
        return _NEEDLESS.sub(" ", text).strip()

    def close(self) -> None:
        """Let go of it; what still runs of it is ended."""
        if not self.is_over:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        processes.reap(self.pidfd)
        os.close(self.pidfd)
        for path in (self._printed, self._code):
            path.unlink(missing_ok=True)
