"""What jobs are said to use of simulated GPUs: by their submitter, or by a variable that one of their processes has."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

from gpuyard.daemon.views import JobView
from gpuyard.engines.attempts import processes_below
from gpuyard.engines.processes import read_proc, variable_of
from gpuyard.errors import UserError
from gpuyard.gpus.uses import VARIABLE, Use, parse_use, use_of

log = logging.getLogger("gpuyard")
_YOUNG = 5.0  # seconds after its beginning, or ours, in which a job's processes are looked at


class Declared:
    """What is said. One thread looks, others may ask."""

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs
        self._began = time.time()
        self._found: dict[tuple[str, int], Use | None] = {}

    def of(self, view: JobView, attempt: int) -> Use | None:
        """What an attempt of a job uses as time goes by; None if nobody said so."""
        text = view.work.get("simulate_use")
        if not text:
            return self._found.get((view.id, attempt))
        try:
            return parse_use(text)
        except UserError:  # what one version took, another may not
            return None

    def look(self, running: Iterable[JobView], now: float) -> bool:
        """Look at the processes of jobs of which nobody said anything; whether to look again soon."""
        known, self._found = self._found, {}
        young = False
        for view in running:
            key = (view.id, view.attempt)
            if view.kind != "job" or view.work.get("simulate_use") or view.started is None:
                continue
            if key in known:
                self._found[key] = known[key]
            elif now - max(view.started, self._began) < _YOUNG:
                young = True
                if (text := self._said_by(*key)) is not None:
                    self._found[key] = _parsed(text, view.id)
        return young

    def _said_by(self, job: str, attempt: int) -> str | None:
        """What the variable says of the latest process of an attempt that has it, and is meant."""
        for pid in reversed(processes_below(self._jobs, job, attempt)):
            if text := variable_of(pid, VARIABLE):
                words = (read_proc(pid, "cmdline") or b"").rstrip(b"\0").split(b"\0")
                if use := use_of(text, [os.fsdecode(word) for word in words]):
                    return use
        return None


def _parsed(text: str, job: str) -> Use | None:
    try:
        return parse_use(text)
    except UserError as error:
        log.warning("job %s: %s: %s", job, VARIABLE, error)
        return None
