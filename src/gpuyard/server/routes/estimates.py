"""Routes of estimates: what is known of each job signature, and what to expect of a job."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field

from gpuyard.api import access_types
from gpuyard.core.model import Request as GpuRequest
from gpuyard.daemon.jobs.estimates import KnownSignature, all_known, expected_of, title
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.profiles import epochs_in
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import work_of
from gpuyard.predict.similar_runs import Errors
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.context import Context
from gpuyard.server.request_fields import Command, Directory, Gpus, Tags
from gpuyard.server.requests import JobIntake, StrictBody
from gpuyard.server.responses import iso, reply
from gpuyard.server.routing import LATER, NO_JOB, Route, ok
from gpuyard.spec.work import Work

_USUAL, _MOST = 200, 2_000
_ERROR: dict[str, Any] = {"count": 12, "median": 0.03, "worst": -0.04, "bias": 0.021}
ESTIMATES: dict[str, Any] = {
    "estimates": [
        {
            "signature": "5b0c1d9e2f7a4c31", "command": "python train.py --batch-size=64 epochs=#", "name": "train",
            "user": "ann", "runs": 14, "memory": 2103443456.0, "seconds": 61.5, "per_epoch": True,
            "evidence": "p95 of 14 runs: 1,947 MiB + 3 %", "memory_error": _ERROR, "time_error": None,
            "last_at": LATER,
        }
    ]
}  # fmt: skip
EXPECTATION: dict[str, Any] = {
    "signature": "5b0c1d9e2f7a4c31", "command": "python train.py --batch-size=64 epochs=#", "memory": 2103443456.0,
    "seconds": 307.5, "evidence": "p95 of 14 runs: 1,947 MiB + 3 %",
    "runs": [
        {
            "job": "17", "attempt": 1, "outcome": "succeeded", "peak": 2041577472, "seconds": 301.2, "alone": False,
            "predicted_peak": 2103443456.0, "predicted_seconds": 307.5, "ended_at": LATER,
        }
    ],
}  # fmt: skip
GUESSES: dict[str, Any] = {
    "a command": {"command": ["python", "train.py", "--epochs", "5"], "directory": "/home/ann/project"},
}


class Guess(StrictBody):
    """A job of which somebody wants to know what would be expected of it."""

    command: Command
    directory: Annotated[Directory | None, Field(description="Where it would run: an absolute path.")] = None
    tags: Tags = Field(default=[])
    gpus: Gpus = None


class EstimateRoutes:
    def __init__(self, context: Context, intake: JobIntake) -> None:
        self._context, self._intake = context, intake
        self._one_at_a_time = asyncio.Lock()

    @Route(
        "GET /estimates", "listEstimates", "What is known of jobs by their signature", "Jobs",
        ok("What.", access_types.Estimates, ESTIMATES), (422,),
    )  # fmt: skip
    async def estimates(
        self,
        user: Annotated[str, Query(description="Only of this user's jobs.")] = "",
        limit: Annotated[int, Query(ge=1, le=_MOST, description="At most so many.")] = _USUAL,
    ) -> Response:
        """What is known of jobs by their signature: what the next one is expected to need, and how right that was."""
        context = self._context

        def look() -> Response:
            known = all_known(
                context.reader, user, limit, context.settings.memory_margin, context.daemon.estimates.part
            )
            return reply({"estimates": [_known_json(one) for one in known]})

        async with self._one_at_a_time:  # it may read a hundred thousand runs
            return await asyncio.to_thread(look)

    @Route(
        "GET /jobs/{job}/estimate", "getEstimate", "What is expected of a job?", "Jobs",
        ok("What, and why.", access_types.Expectation, EXPECTATION), NO_JOB,
    )  # fmt: skip
    async def of_job(self, job: str) -> Response:
        """What is expected of a job by now, and by which runs."""
        view = tasks.first(self._context.reader, job)
        return await asyncio.to_thread(self._expected, work_of(view))

    @Route(
        "POST /estimates", "guessEstimate", "What would be expected of a job?", "Jobs",
        ok("What, and why.", access_types.Expectation, EXPECTATION), (422,), GUESSES,
    )  # fmt: skip
    async def guess(self, request: Request, given: Guess) -> Response:
        """What would be expected of a job that whoever asks might submit."""
        work = Work(tuple(given.command), given.directory or "/", tags=tuple(given.tags))
        asked = GpuRequest(gpus=given.gpus or 1, user=self._context.permissions.name(request))
        [signed] = await self._intake.signed(request, [JobRequest(work, asked)])
        return await asyncio.to_thread(self._expected, signed.work)

    @Route(
        "DELETE /estimates/{signature}", "forgetEstimate", "Forget the runs of a signature", "Jobs",
        ok("How many there were.", access_types.Forgotten, {"runs": 14}), (404, 503),
    )  # fmt: skip
    async def forget(self, request: Request, signature: str) -> Response:
        """Forget the runs of a signature, as after a change of what its script uses."""
        context, caller = self._context, self._context.permissions.caller(request)
        if (owner := context.reader.owner_of(signature)) is None:
            raise NoSuchJob(f"nothing is known of a signature {signature} (gpuyard estimates lists them)")
        context.permissions.check(Permission.OWNER, caller, f"forget runs of {signature}", lambda: owner)
        return reply({"runs": await context.ask(lambda: context.daemon.estimates.drop(signature))})

    def _expected(self, work: Work) -> Response:
        context, few = self._context, self._context.settings.memory_margin
        epochs = epochs_in(work.command)
        found, runs = expected_of(
            context.reader, work.signature, work.likeness, epochs, few, context.daemon.estimates.part
        )
        similar = [{"ended_at": iso(run.pop("at")), **run, "alone": bool(run["alone"])} for run in runs]
        return reply(
            {
                "signature": work.signature, "command": title(work.command), "memory": found.memory or None,
                "seconds": found.seconds or None, "evidence": found.evidence or None, "runs": similar,
            }
        )  # fmt: skip


def _known_json(one: KnownSignature) -> dict[str, Any]:
    return {
        "signature": one.signature, "command": one.command, "name": one.name, "user": one.user, "runs": one.runs,
        "memory": one.expected.memory or None, "seconds": one.seconds or None, "per_epoch": one.per_epoch,
        "evidence": one.expected.evidence or None, "memory_error": _error_json(one.memory_error),
        "time_error": _error_json(one.time_error), "last_at": iso(one.last),
    }  # fmt: skip


def _error_json(errors: Errors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    rounded = {name: round(value, 6) for name, value in errors._asdict().items()}
    return {"count": rounded.pop("number"), **rounded}
