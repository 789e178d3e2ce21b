"""One job, or an array as one, as JSON; and the open jobs that an id names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import Response

from gpuyard.core.limits.loans import loans
from gpuyard.core.reasons import Reason
from gpuyard.server import tasks
from gpuyard.server.context import Context
from gpuyard.server.responses import ReasonTexts, job_json, reply, times_are_known


class JobLookup:
    """Finds jobs by their ids."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def open_ids(self, job: str) -> list[str]:
        """The ids of the job or tasks that an id names: those that are not over, if there are any."""
        ids = tasks.ids(self._context.reader, job)
        return [id for id in ids if id in self._context.daemon.store.open] or ids

    async def one(self, job: str) -> Response:
        """A job, or an array as if it were one, with its reason, progress and usage."""
        context, daemon = self._context, self._context.daemon
        alone = context.reader.job(job)
        views = [alone] if alone else await asyncio.to_thread(lambda: tasks.chosen(context.reader, job))
        view = tasks.together(job, views)
        reasons: Mapping[str, Reason] = {}
        if view.state == "queued" and len(views) == 1:
            recent = context.commands.recent_reasons() or {}
            reasons = recent if job in recent else await context.look(context.commands.reasons)
        say = ReasonTexts(times=times_are_known(list(daemon.store.open.values())))
        progress = None
        if view.state == "running" and len(views) == 1:
            progress = await asyncio.to_thread(context.progress.of, view, daemon.clock.now())
        used = daemon.measures.live(view)
        granted = loans(daemon.state, view.id)
        found = job_json(view, say(reasons.get(view.id), view), progress, daemon.machine.node, used, granted)
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)
