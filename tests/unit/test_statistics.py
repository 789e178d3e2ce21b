"""What a yard did in a span of time, from logs whose numbers can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.core.events import Cancelled, Event, Exited, Opened, Placed, Preempted, Requeued, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.journal import Record
from gpuyard.daemon.statistics import Window, statistics
from gpuyard.daemon.store import Store
from gpuyard.daemon.views import Work

HOUR = 3600.0
WORK = {"work": Work(("true",), "/").to_json()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "gpuyard.db")
    found.append([Record(Opened(0.0, Cluster((4,)), ("a", "b", "c", "d")))])
    return found


def write(store: Store, *events: Event) -> None:
    for event in events:
        store.append([Record(event, WORK if isinstance(event, Submitted) else {})])


def look(store: Store, since: float, until: float) -> dict[str, object]:
    return statistics(store.path, Window(since * HOUR, until * HOUR, gpus=4, memory=16.0))


def run(
    job: str, user: str, submitted: float, started: float, ended: float, code: int = 0, **wishes: float
) -> list[Event]:
    request = Request(user=user, **wishes)  # type: ignore[arg-type]
    return [
        Submitted(submitted * HOUR, job, request),
        Placed(started * HOUR, job, 1, tuple(range(request.gpus))),
        Started(started * HOUR, job, 1),
        Exited(ended * HOUR, job, 1, code),
    ]


def test_a_day(store: Store) -> None:
    write(store, *run("1", "ann", 0, 1, 3, gpus=2))
    write(store, *run("2", "bob", 3, 4, 5, code=1, memory=4.0))
    write(store, *run("3", "ann", 5, 8, 9))
    write(store, Submitted(9 * HOUR, "4", Request(user="bob")), Cancelled(9.5 * HOUR, "4"))
    found = look(store, 0, 10)
    assert found["outcomes"] == {"succeeded": 2, "failed": 1, "cancelled": 1}
    assert (found["submitted"], found["ended"]) == (4, 4)
    assert found["gpu_hours"] == pytest.approx(2 * 2 + 0.25 + 1)
    assert found["utilization"] == pytest.approx(5.25 / 40)
    assert found["users"] == [
        {"user": "ann", "gpu_hours": pytest.approx(5.0), "submitted": 2, "ended": 2},
        {"user": "bob", "gpu_hours": pytest.approx(0.25), "submitted": 2, "ended": 2},
    ]
    assert found["wait_seconds"] == {
        "count": 3, "mean": pytest.approx(5 / 3 * HOUR), "median": HOUR, "p90": 3 * HOUR, "p99": 3 * HOUR,
    }  # fmt: skip
    assert found["run_seconds"] == {
        "count": 3, "mean": pytest.approx(4 / 3 * HOUR), "median": HOUR, "p90": 2 * HOUR, "p99": 2 * HOUR,
    }  # fmt: skip


def test_percentiles(store: Store) -> None:
    for number in range(1, 11):
        write(store, *run(str(number), "ann", 0, number, 20))
    found = look(store, 0, 30)["wait_seconds"]
    assert found == {
        "count": 10, "mean": 5.5 * HOUR, "median": 5.5 * HOUR, "p90": 9 * HOUR, "p99": 10 * HOUR,
    }  # fmt: skip


def test_only_what_is_within_the_window_counts(store: Store) -> None:
    write(store, *run("1", "ann", 0, 1, 3))
    write(store, *run("2", "ann", 3, 3, 6))
    write(store, *run("3", "ann", 6, 7, 8)[:3])  # goes on running
    found = look(store, 2, 5)
    assert found["gpu_hours"] == pytest.approx(1 + 2)
    assert (found["submitted"], found["ended"], found["outcomes"]) == (1, 1, {"succeeded": 1})
    assert look(store, 6, 9)["gpu_hours"] == pytest.approx(2)
    assert look(store, 20, 30)["gpu_hours"] == pytest.approx(10)
    nothing = look(store, -10, -5)
    assert (nothing["gpu_hours"], nothing["submitted"], nothing["outcomes"]) == (0, 0, {})
    assert nothing["wait_seconds"] == {"count": 0, "mean": None, "median": None, "p90": None, "p99": None}


def test_every_attempt_counts_and_the_first_start_ends_the_wait(store: Store) -> None:
    write(
        store,
        Submitted(0.0, "1", Request(user="ann", gpus=2)),
        Placed(1 * HOUR, "1", 1, (0, 1)), Started(1 * HOUR, "1", 1), Preempted(2 * HOUR, "1", 1),
        Placed(4 * HOUR, "1", 2, (0, 1)), Started(4 * HOUR, "1", 2), Requeued(4.5 * HOUR, "1", 2),
    )  # fmt: skip
    assert look(store, 0, 10)["gpu_hours"] == pytest.approx(2 * 1.5)  # it waits again
    write(store, Placed(5 * HOUR, "1", 3, (0, 1)), Started(5 * HOUR, "1", 3))
    assert look(store, 0, 6)["gpu_hours"] == pytest.approx(2 * 2.5)  # it runs
    write(store, Exited(7 * HOUR, "1", 3))
    found = look(store, 0, 10)
    assert found["gpu_hours"] == pytest.approx(2 * 3.5)
    assert found["wait_seconds"]["median"] == HOUR  # type: ignore[index]
    assert found["run_seconds"]["median"] == 2 * HOUR  # type: ignore[index]
    write(store, Submitted(7 * HOUR, "2", Request(user="bob")), Placed(7 * HOUR, "2", 1, (0,)))
    write(store, Started(7 * HOUR, "2", 1), Requeued(8 * HOUR, "2", 1), Cancelled(9 * HOUR, "2"))
    assert look(store, 7, 10)["gpu_hours"] == pytest.approx(1)


def test_numbers_may_be_missing(store: Store) -> None:
    """What is too old was removed; the search for the window's first job goes by those that are left."""
    for n in range(1, 41):
        write(store, *run(str(n), "ann", n, n, n + 0.5))
    store.append([])
    state = store.load()
    assert state is not None
    store.keep(state)
    assert store.forget(20.6 * HOUR, 100) == 20
    assert look(store, 0, 50)["submitted"] == 20
    assert look(store, 30, 35)["submitted"] == 5
    assert look(store, 5, 6)["submitted"] == 0
