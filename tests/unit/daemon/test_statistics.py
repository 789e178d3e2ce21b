"""What a yard did in a span of time, from logs whose numbers can be worked out by hand."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.events import Cancelled, Event, Exited, Opened, Placed, Preempted, Requeued, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.statistics import EDGES, Window, statistics
from gpuyard.spec.work import Work

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


def look(store: Store, since: float, until: float) -> dict[str, Any]:
    """What is told, but for the histograms."""
    found = statistics(store.path, Window(since * HOUR, until * HOUR, gpus=4, memory=16.0))
    for name in ("wait_seconds", "run_seconds"):
        del found[name]["histogram"]
    return found


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
    write(store, *run("2", "bob", 3, 4, 5, code=1, memory=4.0, compute=0.0))
    write(store, *run("3", "ann", 5, 8, 9))
    write(store, Submitted(9 * HOUR, "4", Request(user="bob")), Cancelled(9.5 * HOUR, "4"))
    found = look(store, 0, 10)
    assert found["outcomes"] == {"succeeded": 2, "failed": 1, "cancelled": 1}
    assert (found["submitted"], found["ended"]) == (4, 4)
    assert found["gpu_hours"] == pytest.approx(2 * 2 + 0.25 + 1)
    assert found["utilization"] == pytest.approx(5.25 / 40)
    assert found["users"] == [
        {"user": "ann", "gpu_hours": pytest.approx(5.0), "submitted": 2, "ended": 2, "energy_wh": None},
        {"user": "bob", "gpu_hours": pytest.approx(0.25), "submitted": 2, "ended": 2, "energy_wh": None},
    ]
    assert found["wait_seconds"] == {
        "count": 3, "mean": pytest.approx(5 / 3 * HOUR), "median": HOUR, "p90": 3 * HOUR, "p99": 3 * HOUR,
    }  # fmt: skip
    assert found["run_seconds"] == {
        "count": 3, "mean": pytest.approx(4 / 3 * HOUR), "median": HOUR, "p90": 2 * HOUR, "p99": 2 * HOUR,
    }  # fmt: skip


def test_energy_of_all_attempts_as_far_as_they_lie_in_the_window(store: Store) -> None:
    def measured(energy: float) -> dict[str, object]:
        return {"measured": {"energy_wh": energy, "gpu_seconds": HOUR}}

    ann, bob = run("1", "ann", 0, 1, 3), run("2", "bob", 0, 1, 2)
    store.append([*(Record(event) for event in ann[:3]), Record(Requeued(3 * HOUR, "1", 1), measured(200.0))])
    again = [Record(Placed(4 * HOUR, "1", 2, (0,))), Record(Started(4 * HOUR, "1", 2))]
    store.append([*again, Record(Exited(5 * HOUR, "1", 2, 0), measured(70.0))])
    store.append([*(Record(event) for event in bob[:3]), Record(bob[3], measured(50.0))])
    energies = {user["user"]: user["energy_wh"] for user in look(store, 2, 9)["users"]}
    assert energies == {"ann": pytest.approx(100.0 + 70.0), "bob": pytest.approx(0.0)}
    view = Reader(store.path).job("1")
    assert view is not None
    assert (view.measured["total_wh"], view.measured["total_gpu_seconds"]) == (270.0, 2 * HOUR)


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
    assert found["wait_seconds"]["median"] == HOUR
    assert found["run_seconds"]["median"] == 3 * HOUR  # the preempted attempt counts, the one in vain does not
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


def test_durations_are_counted_between_edges(store: Store) -> None:
    assert (EDGES[0], EDGES[-1], len(EDGES)) == (1.0, pytest.approx(7 * 24 * HOUR), 25)
    waits = [0.0, 0.5, 1.0, 1.5, 60.0, 61.0, 3600.0, 86400.0, 30 * 86400.0]
    for number, wait in enumerate(waits, 1):
        write(store, *run(str(number), "ann", 0, wait / HOUR, wait / HOUR + 2))
    found = statistics(store.path, Window(0.0, 1e7, gpus=4, memory=16.0))
    for name, values in (("wait_seconds", waits), ("run_seconds", [2 * HOUR] * len(waits))):
        counts = [0] * (len(EDGES) + 1)
        for value in values:
            counts[bisect_right(EDGES, value)] += 1
        assert found[name]["histogram"] == {"edges": list(EDGES), "counts": counts}
    counts = found["wait_seconds"]["histogram"]["counts"]
    assert (counts[0], counts[-1]) == (2, 1)
    nothing = statistics(store.path, Window(2e7, 3e7, gpus=4, memory=16.0))["wait_seconds"]["histogram"]
    assert nothing["counts"] == [0] * 26


def test_tags(store: Store) -> None:
    def tagged(*tags: str) -> dict[str, Any]:
        return {"work": Work(("true",), "/", tags=tags).to_json()}

    for events, work in (
        (run("1", "ann", 0, 1, 3, gpus=2), tagged("paper", "vision")),
        (run("2", "bob", 3, 4, 5), tagged("paper")),
        (run("3", "bob", 3, 4, 5), tagged()),
    ):
        for event in events:
            store.append([Record(event, work if isinstance(event, Submitted) else {})])
    store.append([Record(Submitted(9 * HOUR, "4", Request(user="ann")), tagged("new"))])
    assert look(store, 0, 10)["tags"] == [
        {"tag": "paper", "gpu_hours": pytest.approx(5.0), "submitted": 2, "ended": 2},
        {"tag": "vision", "gpu_hours": pytest.approx(4.0), "submitted": 1, "ended": 1},
        {"tag": "new", "gpu_hours": 0.0, "submitted": 1, "ended": 0},
    ]
    used = {one["tag"]: one["gpu_hours"] for one in look(store, 2, 3)["tags"] if one["gpu_hours"]}
    assert used == {"paper": pytest.approx(2.0), "vision": pytest.approx(2.0)}
