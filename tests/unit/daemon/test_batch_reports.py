"""What a batch achieved, and the order in which its jobs come in."""

from __future__ import annotations

import pytest

from gpuyard.api.batch_types import Cost, Span, achieved, busy, by_themselves, most_at_once
from gpuyard.core.model import Request
from gpuyard.daemon.jobs.intake import BatchOptions, NewJobs, as_batch
from gpuyard.spec.work import Work


def test_gpus_are_busy_while_anybody_is_on_them() -> None:
    spans = [Span((0,), 0.0, 10.0), Span((0,), 5.0, 12.0), Span((0, 1), 20.0, 21.0), Span((1,), 20.5, 20.6)]
    assert busy(spans) == 14.0
    assert busy([]) == 0.0


def test_who_begins_as_another_ends_is_not_there_with_it() -> None:
    assert most_at_once([Span((0,), 0.0, 1.0), Span((0,), 1.0, 2.0)]) == 1
    assert most_at_once([Span((0,), 0.0, 1.1), Span((1,), 1.0, 2.0), Span((2,), 1.05, 1.06)]) == 3
    assert most_at_once([]) == 0


def test_who_shared_no_gpu_at_any_time() -> None:
    spans = {
        "long": Span((0,), 0.0, 10.0), "inside": Span((0,), 2.0, 3.0), "late": Span((0,), 9.0, 12.0),
        "after": Span((0,), 12.0, 13.0), "elsewhere": Span((1,), 0.0, 10.0), "both": Span((1, 2), 20.0, 21.0),
        "third": Span((2,), 20.5, 22.0),
    }  # fmt: skip
    assert by_themselves(spans) == {"after", "elsewhere"}


def test_three_at_once_are_three_times_as_fast() -> None:
    spans = [Span((0,), 100.0, 3700.0)] * 3
    found = achieved(spans, [Cost(3600.0, 1, True), Cost(3600.0, 1, False), Cost(3600.0, 1, False)])
    assert (found.makespan, found.sequential, found.speedup) == (3600.0, 10800.0, 3.0)
    assert (found.gpu_hours, found.gpu_hours_sequential, found.gpu_hours_saved) == (1.0, 3.0, 2.0)
    assert (found.most_at_once, found.alone) == (3, 1)
    assert achieved([], []).speedup is None


THREE = (("2", 1, "1"), ("4", 1, "3"), ("6", 2, "5"))


def row(id: str, wave: int, after: tuple[str, ...] = (), tried: str = "") -> NewJobs:
    trials = (NewJobs(tried, Request(), Work(("true",), "/")),) if tried else ()
    return NewJobs(id, Request(after=after), Work(("true",), "/", row=(int(id), wave, 0.0, 0.0)), trials=trials)


def test_rows_follow_each_other_and_waves_as_well() -> None:
    entries = [row("1", 1), row("2", 1, ("ok:9",)), row("3", 2), row("4", 2), row("5", 4)]
    found = as_batch(entries, BatchOptions("name", "key", waves=True), [(7, "too large")])
    assert [entry.request.after for entry in found] == [
        (), ("ok:9", "begun:1"), ("any:1", "any:2"), ("begun:3",), ("any:3", "any:4"),
    ]  # fmt: skip
    assert {entry.work.batch for entry in found} == {("1", "name", "key")}
    assert [entry.work.refusals for entry in found[:2]] == [((7, "too large"),), ()]


def test_what_tries_rows_out_comes_before_their_wave() -> None:
    entries = [row(id, wave, (f"any:{tried}",), tried) for id, wave, tried in THREE]
    found = as_batch(entries, BatchOptions("name", waves=True), [])
    assert [entry.request.after for entry in found] == [
        ("any:1", "any:3"), ("any:3", "begun:2"), ("any:5", "any:2", "any:4"),
    ]  # fmt: skip
    tried = [[(trial.id, trial.request.after, trial.work.batch) for trial in entry.trials] for entry in found]
    batch = ("2", "name", "")
    assert tried == [[("1", (), batch), ("3", (), batch)], [], [("5", ("any:2", "any:4"), batch)]]


@pytest.mark.parametrize("waves", [True, False])
def test_without_waves_nobody_follows_anybody(waves: bool) -> None:
    found = as_batch([row("1", 1), row("2", 1)], BatchOptions("name", waves=waves), [])
    assert found[1].request.after == (("begun:1",) if waves else ())
