"""What a job runs and asks for, as it was last said."""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.core.events import Edited, Submitted
from gpuyard.core.model import Request
from gpuyard.daemon.journal import Record
from gpuyard.daemon.store import Store
from gpuyard.daemon.views import Work
from gpuyard.errors import UserError


class NoSuchJob(UserError):
    """There is no such job."""


def description(job: str, store: Store, unwritten: Mapping[str, Record]) -> tuple[Work, Request]:
    """What a job runs and asks for, also when it is over; `unwritten` is what was last said of jobs, by their ids."""
    record = unwritten.get(job) or store.described(job)
    if record is None or not isinstance(record.event, Submitted | Edited):
        raise NoSuchJob(f"what job {job} ran is not kept any more")
    return Work.from_json(record.details["work"]), record.event.request
