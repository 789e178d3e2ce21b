"""Requests about many jobs: written down first, carried out a slice a turn, and all of it whatever happens."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.test_yard import Full, Place

from gpuyard.core.events import Cancelled, Submitted
from gpuyard.core.model import Quota, Request, Rules
from gpuyard.daemon.commands import Idempotency, KeyedRequest, NotNow
from gpuyard.daemon.jobs.bulk import Chosen
from gpuyard.daemon.jobs.intake import MANY, BatchOptions, JobRequest
from gpuyard.daemon.limits import Limits
from gpuyard.daemon.store.reader import EventFilter, Queries, Reader
from gpuyard.engines.base import Ended, EngineError, Running
from gpuyard.errors import UserError
from gpuyard.server.routes.submissions import Changes
from gpuyard.spec.work import Work, joined, without

COUNT = MANY + 20
ANN = Request(estimate=60.0, user="ann", preemptible=False)


class Busy(Place):
    """A yard in which a long request does one job a turn."""

    def begin(self) -> None:
        super().begin()
        self.yard.bulk.read_edit = lambda plain: Changes.model_validate(plain).edit(self.yard.settings)

    def start(self, command: Callable[[], Any], turns: int = 1) -> Future[Any]:
        """Ask for something long, and let a few turns pass."""
        answer = self.yard.ask(command)
        for _ in range(turns):
            self.yard.turn(0)
        return answer

    def finish(self, answer: Future[Any] | None = None) -> Any:
        turns = 0
        while self.yard.context.inbox.is_busy:
            self.yard.turn(0)
            turns += 1
            assert turns < 10 * COUNT
        return answer.result(0) if answer else None

    def die(self) -> None:
        """As by kill -9, and a new life."""
        self.store._connection.close()
        self.begin()

    def array(self, count: int = COUNT, hold: bool = True, **more: Any) -> Callable[[], Any]:
        work = Work(("python", "train.py", "x" * 500), "/home/ann", name="sweep", tags=("t",), **more)
        wanted = JobRequest(work, ANN, {"A": "b"}, hold, "", f"0-{count - 1}")
        return lambda: self.desk.submitting([wanted], lambda ids: {"id": ids[0]})

    def states(self) -> dict[str, int]:
        reader = Reader(self.database)
        found = reader.counts()
        reader.close()
        return found

    def change(self, kind: str, **how: Any) -> Callable[[], Any]:
        chosen = Chosen.of((f"1_{task}" for task in range(COUNT)), self.store.open)
        return lambda: self.yard.bulk.change(kind, chosen, **how)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    monkeypatch.setattr("gpuyard.daemon.context.SLICE", 0.0)
    found = Busy(tmp_path)
    yield found
    found.store.close()
    found.engine.close()


@pytest.fixture
def full_queue(place: Busy) -> Busy:
    place.finish(place.start(place.array()))
    return place


def test_others_are_answered_between_the_slices_of_a_long_submit(place: Busy) -> None:
    answer = place.start(place.array(), turns=3)
    assert not answer.done()
    other = place.submit(Request(estimate=60.0, user="bob", preemptible=False))
    assert other in place.store.open, "acknowledged, and on disk"
    assert not answer.done()
    assert place.finish(answer) == {"id": "1"}
    assert place.states()["held"] == COUNT


@pytest.mark.parametrize("kind", ["cancel", "hold", "release", "requeue", "edit"])
def test_others_are_answered_between_the_slices_of_a_long_change(full_queue: Busy, kind: str) -> None:
    how = {"changes": {"priority": 3.0}} if kind == "edit" else {}
    answer = full_queue.start(full_queue.change(kind, **how), turns=3)
    assert full_queue.ask(lambda: "between") == "between"
    assert not answer.done()
    assert full_queue.finish(answer)["changed"] == COUNT


@pytest.mark.parametrize("turns", [1, 50])
def test_a_submit_that_was_written_down_is_finished_by_the_next_life(place: Busy, turns: int) -> None:
    place.start(place.array(), turns)
    place.die()
    place.finish()
    assert place.states() == {"held": COUNT}
    assert place.store.unfinished() == []
    assert place.submit() == "2", "no other job got the number of the array"
    assert place.desk.description("1_7")[0].command == ("python", "train.py", "x" * 500)


def test_a_change_that_was_written_down_is_finished_by_the_next_life(full_queue: Busy) -> None:
    full_queue.start(full_queue.change("cancel", by="ann"), turns=20)
    assert 0 < full_queue.states()["cancelled"] < COUNT
    full_queue.die()
    full_queue.finish()
    assert full_queue.states() == {"cancelled": COUNT}
    kinds = [type(record.event) for _, record in full_queue.store.records()]
    assert kinds.count(Cancelled) == COUNT, "each once"


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_cancelled_starts_nothing_else_that_is_to_be_cancelled(place: Busy, dies: bool) -> None:
    place.engine.quick = True
    place.finish(place.start(place.array(hold=False)))
    assert [job for job, _ in place.engine.launched] == ["1_0", "1_1"]
    place.tell()  # they run
    place.start(place.change("cancel", by="ann"), turns=3)
    if dies:
        place.engine.adopted = {f"1_{task}": Running(f"1_{task}", 1, time.time(), "17") for task in range(2)}
        place.die()
    while place.yard.context.inbox.is_busy:
        place.yard.turn(0)
        place.engine.tell(*(Ended(job, 1, time.time(), 137) for job in place.engine.stopped))
        place.engine.stopped.clear()
    place.tell()
    assert place.states() == {"cancelled": COUNT}
    assert len(place.engine.launched) == 2


def test_what_others_did_meanwhile_is_not_undone_after_a_restart(full_queue: Busy) -> None:
    full_queue.submit(Request(gpus=2, estimate=60.0, preemptible=False))  # so that the others wait
    full_queue.start(full_queue.change("release"), turns=20)
    full_queue.ask(lambda: full_queue.desk.hold("1_0"))
    full_queue.die()
    full_queue.finish()
    assert full_queue.states()["held"] == 1


def test_before_it_is_written_down_nothing_has_happened(full_queue: Busy) -> None:
    answer = full_queue.start(full_queue.change("edit", changes={"gpus": 99}), turns=1)
    with pytest.raises(UserError, match="could never run here"):
        full_queue.finish(answer)
    assert {view.work["gpu_count"] for view in full_queue.store.open.values()} == {1}


def test_rows_of_a_batch_are_all_recorded_or_none(place: Busy) -> None:
    works = [Work(("true",), "/", row=(n, 1, 0.0, 0.0)) for n in range(1, COUNT + 1)]
    rows = [JobRequest(work, ANN, {}, True) for work in works]
    answer = place.start(lambda: place.desk.submitting_batch(rows, BatchOptions("b"), [], lambda taken: taken.ids), 50)
    assert place.states() == {}, "they are only looked at"
    while not place.states():
        place.yard.turn(0)
    assert not answer.done()
    place.die()
    place.finish()
    assert place.states() == {"held": COUNT}


def test_a_repeated_request_is_answered_as_soon_as_the_first_is_written_down(place: Busy) -> None:
    once, sent = Idempotency(place.yard.context), KeyedRequest("ann", "k", "digest")
    first = place.start(lambda: once.once(sent, place.array()), turns=2)
    assert place.ask(lambda: once.once(sent, place.array())) == ({"id": "1"}, True)
    assert place.finish(first) == ({"id": "1"}, False)
    place.die()
    once = Idempotency(place.yard.context)
    assert place.ask(lambda: once.once(sent, place.array())) == ({"id": "1"}, True)


def test_a_repeated_change_is_told_how_many_jobs_it_changes(full_queue: Busy) -> None:
    once, sent = Idempotency(full_queue.yard.context), KeyedRequest("ann", "k", "digest")
    full_queue.ask(lambda: full_queue.desk.cancel("1_5"))
    cancel = full_queue.change("cancel")
    first = full_queue.start(lambda: once.once(sent, cancel), turns=2)
    assert full_queue.ask(lambda: once.once(sent, cancel)) == ({"changed": COUNT}, True), "as far as is known"
    assert full_queue.finish(first) == ({"changed": COUNT - 1}, False)
    assert full_queue.ask(lambda: once.once(sent, cancel)) == ({"changed": COUNT - 1}, True)


def test_a_request_that_was_cut_short_is_not_answered_when_it_is_repeated(
    place: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, sent = Idempotency(place.yard.context), KeyedRequest("ann", "k", "digest")
    with monkeypatch.context() as no_memory:
        no_memory.setattr(place.yard.planning, "plan", lambda now: (_ for _ in ()).throw(MemoryError()))
        lost = place.start(lambda: once.once(sent, place.array(2)))
    assert isinstance(lost.exception(0), EngineError)
    place.yard._retry_at = 0.0
    again = place.finish(place.start(lambda: once.once(sent, place.array(2))))
    assert again == ({"id": "1"}, False)
    assert place.states() == {"held": 2}, "what is answered is on disk"


def test_a_full_disk_fails_the_request_and_what_was_written_down_goes_on(
    place: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = place.start(place.array(), turns=20)
    full = Full(place, monkeypatch)
    place.yard.turn(0)
    assert "disk is full" in str(answer.exception(0))
    full.empty(place)
    place.finish()
    assert place.states() == {"held": COUNT}
    place.ask(lambda: Limits(place.yard.context).set_quota("ann", Quota(queued=COUNT + 1), "root"))
    assert place.finish(place.start(place.array(1))) == {"id": "2"}, "none is counted twice"


def test_nobody_whom_it_can_be_done_to_is_a_refusal(full_queue: Busy) -> None:
    full_queue.finish(full_queue.start(full_queue.change("cancel")))
    answer = full_queue.start(full_queue.change("cancel"))
    with pytest.raises(NotNow, match="is over"):
        full_queue.finish(answer)


def test_chosen_jobs_are_named_in_few_words() -> None:
    found = Chosen.of(["7", "12_3", "5", "12_4", "12_9"], {})
    assert found.words == ["7", "12_[3-4,9]", "5"]
    assert found.ids == ["7", "12_3", "12_4", "12_9", "5"]


def test_what_tasks_share_is_stored_once(full_queue: Busy) -> None:
    connection = sqlite3.connect(full_queue.database)
    for table, column in (("events", "data"), ("jobs", "work")):
        [(largest,)] = connection.execute(f"SELECT max(length({column})) FROM {table} WHERE instr({column}, 'shared')")
        assert largest < 500, "less than its command"
    [(count,)] = connection.execute("SELECT count(*) FROM environments WHERE instr(content, 'xxxx')")
    connection.close()
    assert count == 1
    reader = Reader(full_queue.database)
    [one] = reader.jobs(over=None, wanted={"id": "1_5"})
    assert one.work["command"] == ["python", "train.py", "x" * 500]
    assert one.work["task"] == 5
    assert len(reader.jobs(over=None, wanted={}, tag="t")) == COUNT
    [rebuilt] = [view for view in full_queue.store.open.values() if view.id == "1_5"]
    assert full_queue.store.rebuild() == COUNT
    assert tuple(full_queue.store.open["1_5"].work["command"]) == tuple(rebuilt.work["command"])
    reader.close()


def test_a_task_keeps_what_differs_from_the_others(full_queue: Busy) -> None:
    full_queue.ask(
        lambda: full_queue.desk.edit(
            "1_5", Changes.model_validate({"tags": [], "comment": "mine"}).edit(full_queue.yard.settings)
        )
    )
    full_queue.die()
    assert full_queue.store.open["1_5"].work.get("tags") is None
    assert full_queue.store.open["1_5"].work["comment"] == "mine"
    assert full_queue.store.open["1_6"].work["tags"] == ["t"]


def test_sharing_and_joining_are_inverse() -> None:
    shared = {"command": ["a", "b"], "tags": ["x"], "grace": 5.0}
    for work in ({"command": ("a", "b"), "task": 3}, {"command": ["c"], "tags": ["x"], "grace": 5.0}, dict(shared)):
        again = joined(without(work, shared), shared)
        assert {name: list(v) if isinstance(v, tuple) else v for name, v in again.items()} == {
            name: list(v) if isinstance(v, tuple) else v for name, v in work.items()
        }
    assert without({**shared, "task": 1}, shared) == {"task": 1}


def test_tasks_that_describe_too_much_are_refused(place: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.daemon.jobs.intake._MOST_BYTES", 10_000)
    with pytest.raises(UserError, match="together they may have"):
        place.finish(place.start(place.array()))
    assert place.finish(place.start(place.array(10))) == {"id": "1"}


def test_an_edit_that_is_too_much_for_all_of_them_is_refused(full_queue: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.daemon.jobs.bulk._MOST_BYTES", 50 * COUNT)
    monkeypatch.setattr("gpuyard.daemon.jobs.intake._MOST_WAITS", 2 * COUNT)
    full_queue.finish(full_queue.start(full_queue.array(3)))
    for changes, why in (
        ({"comment": "x" * 50}, "a change of 65 bytes to 120 jobs is too large"),
        ({"dependency": "afterany:2"}, "120 jobs that follow 360 jobs together are too many, 240 are the most"),
    ):
        with pytest.raises(UserError, match=why):
            full_queue.finish(full_queue.start(full_queue.change("edit", changes=changes)))
    assert {tuple(view.work["after"]) for view in full_queue.store.open.values() if view.work.get("after")} == set()
    assert full_queue.finish(full_queue.start(full_queue.change("edit", changes={"dependency": "afterany:2_1"})))


def test_the_jobs_of_a_request_follow_so_many_others_together(
    full_queue: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.daemon.jobs.intake._MOST_WAITS", 3 * COUNT)
    monkeypatch.setattr("gpuyard.daemon.jobs.intake._FEW_WAITS", COUNT)
    follower = JobRequest(Work(("true",), "/"), ANN, {}, True, "afterany:1")
    with pytest.raises(UserError, match="4 jobs that follow 480 jobs together"):
        full_queue.finish(full_queue.start(lambda: full_queue.desk.submitting([follower] * 4, list)))
    answer = full_queue.start(lambda: full_queue.desk.submitting([follower] * 3, list), turns=4)
    assert not answer.done(), "they are recorded a slice a turn"
    assert len(full_queue.finish(answer)) == 3


def test_a_user_may_have_so_many_jobs_in_the_queue(place: Busy) -> None:
    limits = Limits(place.yard.context)
    place.ask(lambda: limits.set_quota("*", Quota(queued=COUNT + 2), "root"))
    place.finish(place.start(place.array()))
    place.finish(place.start(place.array(1)))
    with pytest.raises(UserError, match=f"ann may have {COUNT + 2} jobs in the queue and has {COUNT + 1}, so 2 more"):
        place.finish(place.start(place.array(2)))
    place.submit(Request(estimate=60.0, user="bob", preemptible=False))
    place.ask(lambda: limits.set_quota("ann", Quota(queued=COUNT + 3), "root"))
    place.finish(place.start(place.array(2)))
    assert place.states()["held"] == COUNT + 3
    place.die()
    assert (place.yard.state.rules or Rules()).quotas[-1] == ("ann", Quota(queued=COUNT + 3))


def test_each_group_of_a_user_may_have_so_many_jobs_in_the_queue(place: Busy) -> None:
    place.ask(lambda: Limits(place.yard.context).set_quota("@lab", Quota(queued=2), "root"))
    place.submit(Request(gpus=2, estimate=60.0, preemptible=False))  # so that the others wait
    for user, group in (("ann", "staff,lab"), ("bob", "lab"), ("cem", "staff")):
        place.submit(Request(estimate=60.0, user=user, group=group, preemptible=False))
    for user, group in (("ann", "staff,lab"), ("bob", "lab")):
        with pytest.raises(UserError, match="@lab may have 2 jobs in the queue and has 2"):
            place.submit(Request(estimate=60.0, user=user, group=group, preemptible=False))
    place.submit(Request(estimate=60.0, user="cem", group="staff", preemptible=False))


def test_jobs_that_are_still_to_be_recorded_count(place: Busy) -> None:
    place.ask(lambda: Limits(place.yard.context).set_quota("ann", Quota(queued=COUNT + 1), "root"))
    place.start(place.array(), turns=5)
    with pytest.raises(UserError, match=f"has {COUNT}, so 2 more"):
        place.start(place.array(2)).result(0)
    place.finish()
    submitted = [record for _, record in place.store.records() if isinstance(record.event, Submitted)]
    assert len(submitted) == COUNT


def test_what_follows_an_array_reads_nothing_of_tasks_that_wait(full_queue: Busy) -> None:
    read: list[str] = []
    full_queue.store._connection.set_trace_callback(read.append)
    follower = JobRequest(Work(("true",), "/"), ANN, {}, True, "afterok:1")
    assert full_queue.finish(full_queue.start(lambda: full_queue.desk.submitting([follower], list))) == ["2"]
    assert len(full_queue.store.open["2"].work["after"]) == COUNT
    assert not [one for one in read if "FROM jobs WHERE array" in one]


def test_what_asks_for_an_array_reads_no_other_jobs(full_queue: Busy) -> None:
    reader, store = Reader(full_queue.database), full_queue.store
    looks: list[tuple[Queries, Callable[[], Any]]] = [
        (store, lambda: store.standing(array="1")),
        (store, lambda: store.ended("1")),
        (reader, lambda: reader.jobs(over=None, wanted={"array": "1"}, limit=1)),
        (reader, lambda: reader.tasks("1")),
        (reader, lambda: reader.ids("1")),
        (reader, lambda: list(reader.happened(0, 9, EventFilter("1"), 9))),
    ]
    with sqlite3.connect(full_queue.database) as other:
        for asked, look in looks:
            said: list[str] = []
            asked._connection.set_trace_callback(said.append)
            look()
            asked._connection.set_trace_callback(None)
            plan = [row[-1] for row in other.execute(f"EXPLAIN QUERY PLAN {said[0]}")]
            assert any("SEARCH jobs USING" in step and "jobs_by_array" in step for step in plan), (said, plan)
    other.close()
    reader.close()


@pytest.mark.parametrize("compacted", [False, True])
def test_tasks_that_are_over_count_for_what_follows_an_array(full_queue: Busy, compacted: bool) -> None:
    full_queue.finish(full_queue.start(lambda: full_queue.yard.bulk.change("cancel", Chosen.of(["1_3", "1_4"], {}))))
    if compacted:
        full_queue.store.keep(full_queue.yard.state)
        full_queue.die()
        assert "1_3" not in full_queue.yard.state.row_of

    def follow(dependency: str) -> tuple[str, ...]:
        follower = JobRequest(Work(("true",), "/"), ANN, {}, True, dependency)
        (id,) = full_queue.finish(full_queue.start(lambda: full_queue.desk.submitting([follower], list)))
        return tuple(full_queue.store.open[id].work.get("after", ()))

    for whole in ("afterok:1", "afterok:1_[2-5]", "afterok:sweep"):
        with pytest.raises(UserError, match="job 1_3 was cancelled, so a job that is to follow it"):
            follow(whole)
    assert len(follow("afterany:1")) == COUNT - 2
    assert follow("afternotok:1_[2-5]") == ("notok:1_2", "notok:1_5")
    assert follow("afterany:1_[3-4]") == ()
    with pytest.raises(UserError, match="there is no job 7 to follow"):
        follow("afterok:7")
