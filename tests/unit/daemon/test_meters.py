"""What is counted of a daemon's life."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.core.events import Cancelled, Event, Exited, Placed, Preempted, Started, Submitted
from gpuyard.core.model import Request
from gpuyard.daemon.meters import Histogram, Meters
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.views import JobView
from gpuyard.server.routes.health import HealthRoutes


def noted(meters: Meters, *events: Event) -> Meters:
    meters.note([Record(event) for event in events])
    return meters


def fresh() -> Meters:
    return Meters({}, lambda job: 0.0)


def test_a_histogram_counts_what_does_not_exceed_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [2, 3, 4]
    assert histogram.total == 12.0


def test_a_job_waits_again_after_it_was_stopped() -> None:
    meters = noted(
        fresh(),
        Submitted(0.0, "1", Request()), Placed(10.0, "1", 1, (0,)), Started(10.0, "1", 1), Preempted(20.0, "1", 1),
        Placed(23.0, "1", 2, (0,)), Started(23.0, "1", 2), Exited(30.0, "1", 2, 3),
    )  # fmt: skip
    assert meters.waits.total == 13.0
    assert meters.runs["failed"].total == 17.0  # both attempts: the second went on with the work of the first
    assert (meters.finished, meters.submitted) == ({"failed": 1}, 1)
    assert meters.events["Started"] == 2


def test_late_reports_and_jobs_that_never_began() -> None:
    meters = noted(
        fresh(),
        Submitted(0.0, "1", Request()), Placed(1.0, "1", 1, (0,)), Preempted(2.0, "1", 1),
        Exited(3.0, "1", 1), Started(3.0, "1", 1),  # of an attempt that is over
        Submitted(4.0, "2", Request()), Cancelled(5.0, "2"),
        Submitted(6.0, "3", Request()), Placed(7.0, "3", 1, (0,)), Exited(8.0, "3", 1, None),
        Submitted(9.0, "4", Request()), Placed(9.0, "4", 1, (0,)), Started(9.0, "4", 1),
        Exited(10.0, "4", 1, 143, "timeout"),
    )  # fmt: skip
    assert meters.finished == {"cancelled": 1, "failed": 1, "timeout": 1}
    assert meters.waits.cumulative()[-1] == 1
    assert list(meters.runs) == ["timeout"]


def test_a_daemon_goes_on_with_what_it_finds() -> None:
    views = [
        JobView(1, "1", "", "ann", "running", 0.0, 0.0, attempt=1, started=50.0),
        JobView(2, "2", "", "ann", "queued", 0.0, 0.0, attempt=1),
        JobView(3, "3", "", "ann", "queued", 40.0, 0.0),
    ]
    meters = Meters({view.id: view for view in views}, {"2": 90.0}.__getitem__)
    noted(
        meters,
        Exited(60.0, "1", 1),
        Placed(100.0, "2", 2, (0,)), Started(100.0, "2", 2), Placed(100.0, "3", 1, (0,)), Started(100.0, "3", 1),
    )  # fmt: skip
    assert meters.runs["succeeded"].total == 10.0
    assert meters.waits.total == 10.0 + 60.0


@pytest.mark.parametrize(("late", "status"), [(-3600.0, 200), (1.0, 200), (100.0, 503)])
def test_a_daemon_whose_yard_does_not_turn_is_not_well(late: float, status: int) -> None:
    context = SimpleNamespace(daemon=SimpleNamespace(due_back=time.monotonic() - late))
    routes = HealthRoutes(cast(Any, context), cast(Any, None), cast(Any, None), lambda: "", lambda: None)
    answer = asyncio.run(routes.healthz())
    assert answer.status_code == status
    if status == 503:
        assert b"the daemon plans nothing: its thread is 10" in bytes(answer.body)
