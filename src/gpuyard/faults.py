"""Fault points for tests: every instant between two writes that a sudden end could separate.

`GPUYARD_FAULT=NAME[:N]` kills the process with SIGKILL when it comes to that point for the N-th time (default: first).
`GPUYARD_FAULT_LOG=FILE` logs each point that is passed, so that a test can find out which points there are.
Both are read once, when this module is imported; without them a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping


class Faults:
    def __init__(self, environment: Mapping[str, str]) -> None:
        fault = environment.get("GPUYARD_FAULT", "")
        name, _, count = fault.rpartition(":")
        self._name, self._count = (name, int(count)) if count.isdigit() else (fault, 1)
        self._log = environment.get("GPUYARD_FAULT_LOG", "")
        self._passed: Counter[str] = Counter()
        self.wanted = bool(self._name or self._log)

    def arrive(self, name: str) -> None:
        self._passed[name] += 1
        if self._log:
            with open(self._log, "a", encoding="utf-8") as log:
                log.write(f"{name}\n")
        if name == self._name and self._passed[name] == self._count:
            os.kill(os.getpid(), signal.SIGKILL)


_faults = Faults(os.environ)
_wanted = _faults.wanted


def point(name: str) -> None:
    if _wanted:
        _faults.arrive(name)
