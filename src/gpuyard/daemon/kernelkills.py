"""Whether the machine itself ran out of memory, so that the kernel killed processes: it counts them, and names none."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")
KILLED = 137
"""The exit code of who was killed."""


class KernelKills:
    """How many processes the kernel has killed for want of memory since attempts began."""

    def __init__(self, counters: Path = _COUNTERS) -> None:
        self._counters = counters
        self._before: dict[tuple[str, int], int] = {}

    def began(self, job: str, attempt: int) -> None:
        """An attempt begins."""
        if (count := self._count()) is not None:
            self._before[job, attempt] = count

    def ended(self, job: str, attempt: int, code: int | None) -> str:
        """What is to be said of an attempt that ended so: nothing, unless it may have been killed by the kernel."""
        before = self._before.pop((job, attempt), None)
        if before is None or code != KILLED or (self._count() or 0) <= before:
            return ""
        return "killed (exit code 137), most likely by the kernel: the machine ran out of memory while it ran"

    def _count(self) -> int | None:
        """How many it has killed since the machine was started; None where it does not tell."""
        try:
            lines = self._counters.read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
