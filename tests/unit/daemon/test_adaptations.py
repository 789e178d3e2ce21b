"""What a job that adapts hears and what is told of it, by its events alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuyard.core.events import (
    Adapted,
    Edited,
    Event,
    Exited,
    Granted,
    Placed,
    Preempted,
    Recalled,
    Reclaimed,
    Returned,
    Started,
    Submitted,
)
from gpuyard.core.model import Request
from gpuyard.daemon.jobs.loans import GrantHistory, deadline_of, grants_of
from gpuyard.daemon.store.records import Record, encode

NAMES = ("GPU-a", "GPU-b", "GPU-c")


def course(*events: tuple[Event, dict[str, Any]] | Event) -> GrantHistory:
    records = [Record(*event) if isinstance(event, tuple) else Record(event) for event in events]
    return grants_of(enumerate(map(encode, records), 10), NAMES)


def asked(limit: float | None, at: float = 0.0, deadline: float = float("inf"), edit: bool = False) -> Any:
    kind = Edited if edit else Submitted
    work = {"command": ["x"], "directory": "/", "grace": 7.0, **({} if limit is None else {"time_limit": limit})}
    return kind(at, "3", Request(deadline=deadline)), {"work": work}


BEGUN: Sequence[Any] = (asked(100.0), Placed(1.0, "3", 1, (0,)), Started(2.0, "3", 1))


def test_when_it_is_to_be_done() -> None:
    assert deadline_of(5.0, 10.0, None) == 15.0
    assert deadline_of(5.0, 10.0, 12.0) == 12.0
    assert deadline_of(5.0, None, 12.0) == 12.0
    assert deadline_of(5.0, None, None) is None
    assert deadline_of(None, 10.0, None) is None


def test_what_it_has_at_first() -> None:
    found = course(*BEGUN)
    assert (found.budget, found.deadline, found.grace, found.all_gpus, found.changes) == (100.0, 102.0, 7.0, [0], [])
    assert (found.attempt, found.last) == (1, 12)


def test_every_change_has_its_number_and_all_that_it_has_then() -> None:
    found = course(
        *BEGUN, (Granted(3.0, "3", 1, (2,)), {"why": "nobody waits"}), asked(150.0, 4.0, edit=True),
        (Reclaimed(5.0, "3", 1, (2,)), {"why": "job 4 needs it", "grace": 5.0}), Returned(6.0, "3", 1, (2,)),
        asked(50.0, 7.0, edit=True), (Recalled(8.0, "3", 1, "cancelled"), {"grace": 3.0}),
    )  # fmt: skip
    assert [(one["number"], one["kind"], one["at"]) for one in found.changes] == [
        (13, "up", 3.0), (14, "extend", 4.0), (15, "down", 5.0), (17, "shrink", 7.0), (18, "preempt", 8.0),
    ]  # fmt: skip
    up, extend, down, shrink, end = found.changes
    assert (up["gpus"], up["indices"], up["why"], up["budget"]) == (["GPU-a", "GPU-c"], [0, 2], "nobody waits", 100.0)
    assert (extend["budget"], extend["deadline"], extend["gpus"]) == (150.0, 152.0, ["GPU-a", "GPU-c"])
    assert (down["gpus"], down["grace"], down["why"]) == (["GPU-a"], 5.0, "job 4 needs it")
    assert (shrink["budget"], shrink["deadline"]) == (50.0, 52.0)
    assert (end["grace"], end["deadline"], end["why"]) == (3.0, 11.0, "it was cancelled")
    assert [(one["before"], one["after"]) for one in found.times] == [(100.0, 150.0), (150.0, 50.0)]


def test_an_edit_of_something_else_is_no_news() -> None:
    assert course(*BEGUN, asked(100.0, 3.0, edit=True)).changes == []
    assert course(asked(100.0), asked(50.0, 0.5, edit=True), *BEGUN[1:]).changes == []  # before it began
    later = course(*BEGUN, asked(100.0, 3.0, deadline=40.0, edit=True))
    assert [(one["kind"], one["deadline"]) for one in later.changes] == [("shrink", 40.0)]
    assert course(*BEGUN, asked(None, 3.0, edit=True)).changes[0]["kind"] == "extend"


def test_another_attempt_hears_only_of_itself() -> None:
    found = course(
        *BEGUN, Granted(3.0, "3", 1, (1,)), Preempted(4.0, "3", 1), Placed(5.0, "3", 2, (2,)), Started(6.0, "3", 2)
    )
    assert (found.changes, found.all_gpus, found.attempt, found.deadline) == ([], [2], 2, 106.0)
    [loan] = found.grants
    assert (loan["gpu"], loan["since"], loan["until"], loan["ended"]) == (1, 3.0, 4.0, "the job ended")


def test_loans_and_decisions_are_kept_with_their_reasons() -> None:
    found = course(
        *BEGUN, (Granted(3.0, "3", 1, (1,)), {"why": "nobody waits"}),
        (Adapted(3.5, "3", 1), {"decision": "grew", "reason": "+1.2 points", "accepted": True, "parameters": 9}),
        (Reclaimed(4.0, "3", 1, (1,)), {"why": "job 4 needs it"}),
        (Returned(5.0, "3", 1, (1,)), {"why": "its grace was over"}), Exited(9.0, "3", 1),
    )  # fmt: skip
    [loan] = found.grants
    assert loan == {
        "gpu": 1, "since": 3.0, "until": 5.0, "why": "nobody waits", "told": 4.0,
        "ended": "job 4 needs it; its grace was over",
    }  # fmt: skip
    [made] = found.decisions
    assert (made["decision"], made["reason"], made["accepted"], made["parameters"]) == ("grew", "+1.2 points", True, 9)
    assert made["parameters_before"] is None
