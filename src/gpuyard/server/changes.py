"""What comes in of jobs that are there already: how they are to change, and how a copy is to differ."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gpuyard.arrays import parse_array
from gpuyard.config import Settings
from gpuyard.core.model import Request
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.views import Work
from gpuyard.server.fields import ArrayWish, Command, Directory, Tags
from gpuyard.server.models import RETRY_DELAY, AskedForJob, check_command, kept, program, share
from gpuyard.units import check_signal

_EMPTY: dict[str, Any] = {
    "tags": (), "time_limit": None, "requeue": False, "retries": 0, "retry_delay": RETRY_DELAY, "output": "",
    "error": "", "open_mode": "", "slurm": False, "signal": "TERM", "notice": 0.0, "notify": (), "notify_on": (),
    "cap": False, "adaptive": False, "simulate_use": "", "mps": False, "thread_percentage": 0.0, "profile": "",
}  # fmt: skip
"""What work is like where a wish is taken back; its grace is then that of the settings."""


class Changes(AskedForJob):
    """What a job is to ask for instead; what is left out stays, and null takes it back."""

    tags: Tags | None = None

    @property
    def given(self) -> set[str]:
        """What is to change, as JSON calls it."""
        return {name.rstrip("_") for name in self.model_fields_set}

    def applied(self, work: Work, request: Request, settings: Settings) -> tuple[Work, Request]:
        """Work and request as they are to be."""
        changed = self._work(work, settings)
        told = self._estimate_told(work, request) is not None or changed.time_limit is not None
        return replace(changed, estimated=told), self._request(work, changed, request, settings)

    def _work(self, work: Work, settings: Settings) -> Work:
        empty = {**_EMPTY, "grace": settings.grace}
        given = {name: getattr(self, name) for name in empty.keys() & self.model_fields_set}
        found = {name: empty[name] if value is None else value for name, value in given.items()}
        found |= {name: tuple(found[name]) for name in ("tags", "notify_on") if name in found}
        if "notify" in found:
            found["notify"] = kept(found["notify"])
        if "gpu_memory" in self.model_fields_set:
            found |= {"auto_memory": self.gpu_memory == "auto", "asked_memory": 0.0}
        if "oom_retries" in self.model_fields_set:
            found["oom_retries"] = settings.oom_retries if self.oom_retries is None else self.oom_retries
        if "name" in self.model_fields_set:
            found["name"] = self.name or program(work.command)
        if "signal" in found:
            found["signal"] = check_signal(self.signal)
        if found.get("retries") and not work.retry_delay and "retry_delay" not in found:
            found["retry_delay"] = RETRY_DELAY
        return replace(work, **found)

    def _request(self, before: Work, after: Work, request: Request, settings: Settings) -> Request:
        given = self.model_fields_set
        found: dict[str, Any] = {}
        if "priority" in given:
            found["priority"] = self.priority
        if given & {"gpus", "from_"}:
            scope = tuple(self.from_ or ()) if "from_" in given else request.scope
            found["scope"] = scope
            found["gpus"] = self.gpus or (len(scope) if "from_" in given else 0) or 1
        if "gpu_memory" in given:
            found |= share(self.gpu_memory)
        if "begin" in given:
            found["begin"] = self.begin.timestamp() if self.begin else 0.0
        if "deadline" in given:
            found["deadline"] = self.deadline.timestamp() if self.deadline else math.inf
        if "preemptible" in given:
            found["preemptible"] = self.preemptible
        if given & {"preemptible", "notice", "grace"}:
            may_stop = found.get("preemptible", request.preemptible)
            found["notice"] = (after.notice or after.grace) if may_stop else 0.0
        if given & {"estimate", "time_limit", "grace"}:
            limit = after.time_limit or math.inf
            found["limit"] = limit
            found["estimate"] = min(self._estimate(before, request, settings), limit)
        return replace(request, **found)

    def _estimate(self, before: Work, request: Request, settings: Settings) -> float:
        """Seconds that it should take; without an estimate of its own, its limit, or what is usual."""
        usual = settings.default_estimate or math.inf
        limit = self.time_limit if "time_limit" in self.model_fields_set else before.time_limit
        return self._estimate_told(before, request) or limit or usual

    def _estimate_told(self, before: Work, request: Request) -> float | None:
        """Its estimate, if there is one of its own."""
        if "estimate" in self.model_fields_set:
            return self.estimate
        return request.estimate if before.estimated and request.estimate != before.time_limit else None


class Copy(Changes):
    """How a new job is to differ from the one that it is a copy of."""

    command: Command | None = None
    directory: Directory | None = None
    hold: bool = False
    array: ArrayWish = None

    def copied(self, work: Work, request: Request, settings: Settings) -> Wanted:
        """The new job; whom the old one had to follow, and when it was to begin, was for the old one."""
        fresh = replace(request, after=(), begin=0.0, deadline=math.inf, array="", at_most=0)
        new = replace(work, task=None, tasks=None, predicted=None, profiles="", ooms=0, blameless=0)
        work, request = self.applied(new, fresh, settings)
        if self.command is not None:
            is_usual = work.name == program(work.command) and self.name is None
            name = program(self.command) if is_usual else work.name
            work = replace(work, command=tuple(self.command), script="", name=name)
        work = replace(work, directory=self.directory or work.directory)
        check_command(list(work.command), work.directory)
        if self.array:
            parse_array(self.array)
        return Wanted(work, request, {}, self.hold, self.dependency or "", self.array or "")
