"""Parts of the daemon, each made with a context by hand: no loop runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.test_yard import Scripted

from gpuyard.config import settings
from gpuyard.core.events import Edited, Event, Placed, Recalled, Requeued, Started, Submitted
from gpuyard.core.model import Phase, Request
from gpuyard.core.state import State
from gpuyard.daemon.context import SLICE, Context
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.devices.measurements import Seen
from gpuyard.daemon.devices.over_limit import OverLimit
from gpuyard.daemon.jobs.oom import Ooms
from gpuyard.daemon.jobs.stops import CROWDED, OOM, OOM_GRACE, Stops
from gpuyard.daemon.limits import Limits
from gpuyard.daemon.store.log import Store
from gpuyard.engines.base import Ended
from gpuyard.errors import UserError
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.spec.work import Work

G = 2.0**30


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    engine, store = Scripted(), Store(tmp_path / "gpuyard.db")
    machine = Machine(SimulatedGpus.parse("2x16G"), engine)
    found = Context(store, engine, machine, settings({"data_dir": tmp_path, "over_memory": "stop"}, {}))
    found.state = State(machine.cluster)
    yield found
    store.close()
    engine.close()


def running(context: Context, gpu: int = 0, memory: float = 0.0, **more: Any) -> str:
    """A job on a GPU, as if it were written."""
    job, now = context.next_id(), context.clock.now()
    request = Request(memory=memory, compute=0.0 if memory else 100.0, estimate=60.0)
    context.record(Submitted(now, job, request), work=Work(("true",), "/", **more).to_json())
    context.record(Placed(now, job, 1, (gpu,)))
    context.record(Started(now, job, 1))
    write(context)
    return job


def write(context: Context) -> list[Event]:
    records, environments, answers, _ = context.take_unwritten()
    context.store.append(records, environments, answers.values())
    return [record.event for record in records]


def uses(context: Context, job: str, size: float) -> None:
    now = context.clock.now()
    context.measures.note(now, [Seen(job, 1, now, {0: int(size)}, None, False)], context.store.runs)


def test_a_stop_is_recorded_and_then_carried_out(context: Context) -> None:
    stops, job = Stops(context), running(context, grace=7.0)
    stops.recall(job, "cancelled", context.clock.now())
    assert len(stops) == 1
    [recalled] = write(context)
    assert isinstance(recalled, Recalled)
    assert recalled.cause == "cancelled"
    stops.carry_out(context.engine)
    assert context.engine.asked == [(job, 1, 7.0, "TERM")]  # type: ignore[attr-defined]
    assert len(stops) == 0


def test_the_grace_follows_the_cause(context: Context) -> None:
    stops = Stops(context)
    job = running(context, grace=30.0)
    stops.recall(job, CROWDED, context.clock.now())
    stops.carry_out(context.engine)
    assert context.engine.asked == [(job, 1, OOM_GRACE, "TERM")]  # type: ignore[attr-defined]


def test_a_job_beyond_its_time_limit_is_recalled(context: Context) -> None:
    stops, job = Stops(context), running(context, time_limit=0.0)
    stops.watch_limits()
    stops.end_overdue(context.clock.now())
    assert context.state.recalled[context.state.row_of[job]] == "timeout"


def test_a_job_beyond_its_share_is_warned_and_stopped(context: Context) -> None:
    stops = Stops(context)
    over_limit = OverLimit(context, stops)
    greedy, modest = (running(context, 0, 4 * G) for _ in range(2))
    uses(context, modest, 4 * G)
    over_limit.look()
    assert write(context) == []
    uses(context, greedy, 9 * G)
    over_limit.look()
    edited, recalled = write(context)
    assert isinstance(edited, Edited)
    assert isinstance(recalled, Recalled)
    assert (recalled.job, recalled.cause) == (greedy, OOM)
    assert over_limit.stops(0) is False  # the only offender ends already
    assert over_limit.stopped((greedy, 1))


def test_a_job_that_ran_out_of_memory_waits_with_more(context: Context) -> None:
    stops = Stops(context)
    ooms = Ooms(context, stops, OverLimit(context, stops))
    job = running(context, 0, 4 * G, oom_retries=2)
    ooms.ran_out(job, 1, 0, int(6 * G))
    row, now = context.state.row_of[job], context.clock.now()
    report = Ended(job, 1, now, 137, asked=True)
    shortage = ooms.of(row, report, context.state.recalled[row], {})
    assert shortage is not None
    assert shortage.needed == 6 * G
    assert ooms.requeue(report, shortage, now) == ""
    assert [type(event) for event in write(context)] == [Recalled, Requeued, Edited]
    assert context.state.phase[row] is Phase.QUEUED
    assert context.description(job)[1].memory > 6 * G


def test_limits_change_the_state_of_the_context(context: Context) -> None:
    limits = Limits(context)
    assert limits.drain([1]) == [1]
    with pytest.raises(UserError, match="there is no GPU 7"):
        limits.drain([7])
    assert limits.resume(None) == []


def test_an_unwritten_description_counts_until_it_is_dropped(context: Context) -> None:
    job = running(context)
    now = context.clock.now()
    context.record(Edited(now, job, Request(priority=2.0)), work=Work(("false",), "/").to_json())
    assert (context.work_of(job).command, context.description(job)[1].priority) == (("false",), 2.0)
    assert list(context.work_json(job)["command"]) == ["false"]
    context.drop_unwritten()
    assert (context.work_of(job).command, context.description(job)[1].priority) == (("true",), 0.0)


def test_a_long_request_comes_on_however_long_turns_are(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gpuyard.daemon.context.time.monotonic", lambda: now)
    context.inbox.resume(iter(()))  # type: ignore[arg-type]
    for _ in range(100):
        now += 1.0
        context.begin_slice()
    now += SLICE / 6
    assert not context.slice_is_over
    now += SLICE
    assert context.slice_is_over
