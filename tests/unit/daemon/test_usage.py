"""Who was on which GPU when, from logs that can be read by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.events import Cancelled, Event, Exited, Opened, Placed, Preempted, Requeued, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.statistics import usage
from gpuyard.spec.work import Work


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "gpuyard.db")
    found.append([Record(Opened(0.0, Cluster((4,)), ("a", "b", "c", "d")))])
    return found


def write(store: Store, *events: Event, **details: Any) -> None:
    for event in events:
        work = {"work": Work(("true",), "/", name=f"n{getattr(event, 'job', '')}").to_json()}
        store.append([Record(event, work if isinstance(event, Submitted) else details)])


def run(job: str, begin: float, end: float, *gpus: int, code: int = 0) -> list[Event]:
    return [
        Submitted(begin - 1, job, Request(user="ann", gpus=len(gpus))), Placed(begin, job, 1, gpus),
        Started(begin, job, 1), Exited(end, job, 1, code),
    ]  # fmt: skip


def spans(store: Store, since: float, until: float, limit: int = 100) -> list[tuple[Any, ...]]:
    """Job, attempt, GPUs, begin, end and state of each."""
    found, more = usage(store.path, since, until, limit)
    assert not more
    assert len({len(column) for column in found.values()}) == 1
    return list(zip(*(found[name] for name in ("job", "attempt", "gpu", "begin", "end", "state")), strict=True))


def test_jobs_in_a_window(store: Store) -> None:
    write(store, *run("1", 10, 20, 0, 1), *run("2", 30, 40, 2, code=3), *run("3", 50, 60, 0)[:3])
    write(store, Submitted(55, "4", Request(user="bob")))
    second, first = ("2", 1, [2], 30.0, 40.0, "failed"), ("1", 1, [0, 1], 10.0, 20.0, "succeeded")
    assert spans(store, 0, 100) == [("3", 1, [0], 50.0, None, "running"), second, first]
    assert spans(store, 15, 45) == [second, first]
    assert spans(store, 25, 35) == [second]
    assert spans(store, 21, 29) == []
    found, more = usage(store.path, 0, 100, 2)
    assert (found["job"], more) == (["3", "2"], True)
    assert (found["name"], found["user"], found["kind"]) == (["n3", "n2"], ["ann", "ann"], ["job", "job"])


def test_every_attempt_is_told(store: Store) -> None:
    write(store, Submitted(0, "1", Request(user="ann", gpus=2)))
    write(store, Placed(10, "1", 1, (0, 1)), Started(10, "1", 1), Preempted(20, "1", 1))
    first = ("1", 1, [0, 1], 10.0, 20.0, "preempted")
    assert spans(store, 0, 100) == [first]  # it waits
    write(store, Placed(30, "1", 2, (2, 3)), Started(31, "1", 2), Exited(32, "1", 1, 143))  # a late report
    write(store, Requeued(40, "1", 2), failed=True)
    second = ("1", 2, [2, 3], 31.0, 40.0, "failed")
    assert spans(store, 0, 100) == [second, first]
    write(store, Placed(50, "1", 3, (0, 3)), Started(50, "1", 3))
    assert spans(store, 0, 100) == [("1", 3, [0, 3], 50.0, None, "running"), second, first]
    write(store, Requeued(60, "1", 3), Placed(61, "1", 4, (1, 2)), Requeued(62, "1", 4))  # which never began
    third = ("1", 3, [0, 3], 50.0, 60.0, "requeued")
    assert spans(store, 0, 100) == [third, second, first]
    write(store, Cancelled(70, "1"))
    assert spans(store, 0, 100) == [third, second, first]
    assert spans(store, 25, 45) == [second]


def test_what_the_log_no_longer_tells_is_left_out(store: Store) -> None:
    write(store, Submitted(0, "1", Request(user="ann")), Placed(1, "1", 1, (0,)), Started(1, "1", 1))
    write(store, Preempted(2, "1", 1), Placed(3, "1", 2, (1,)), Started(3, "1", 2), Exited(4, "1", 2))
    assert len(spans(store, 0, 10)) == 2
    store._connection.execute("DELETE FROM events WHERE job = '1'")
    assert spans(store, 0, 10) == [("1", 2, [1], 3.0, 4.0, "succeeded")]
