"""How long a job ran that was preempted: the sum over the attempts that went on with each other, everywhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.api.types import LogPart
from gpuyard.cli.jobs.batch_results import keep_logs
from gpuyard.client.client import Client
from gpuyard.core.events import Event, Exited, Opened, Placed, Preempted, Requeued, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.jobs.progress_reader import Expected
from gpuyard.daemon.store.batch_history import batch_log
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.statistics import Window, statistics
from gpuyard.server.responses import columns_json, job_json
from gpuyard.server.routes.batches import outcome, report_json
from gpuyard.sim.traces import history
from gpuyard.spec.work import Work

WORK = Work(("train",), "/", signature="s", batch=("1", "rows.csv", ""), row=(1, 1, 0.0, 0.0))


def _attempt(number: int, begin: float, end: Event) -> list[Event]:
    return [Placed(begin, "1", number, (0,)), Started(begin, "1", number), end]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A job that ran for 4 s until it was preempted, then 2 s in vain, then 3 s to its end."""
    found = Store(tmp_path / "gpuyard.db")
    found.append(
        [Record(Opened(0.0, Cluster((1,)), ("a",))), Record(Submitted(0.0, "1", Request()), {"work": WORK.to_json()})]
    )
    events = [
        *_attempt(1, 1.0, Preempted(5.0, "1", 1)), *_attempt(2, 10.0, Requeued(12.0, "1", 2)),
        *_attempt(3, 20.0, Exited(23.0, "1", 3, 0)),
    ]  # fmt: skip
    for event in events:
        ends = isinstance(event, Preempted | Requeued | Exited)
        found.append([Record(event, {"measured": {"seconds": 1.0, "peak": 5}} if ends else {})])
    return found


def test_a_job_tells_how_long_it_ran_before(store: Store) -> None:
    with batch_log(store.path) as log:
        (view,) = log.rows("1")
    assert (view.ran_before, view.ran) == (4.0, 7.0)
    told = job_json(view)
    assert told["ran_before"] == 4.0
    assert "ran_before" not in (told["measured"] or {})
    assert columns_json([view], [None], [None], [Expected()], [0.0])["ran_before"] == [4.0]
    assert outcome(view)["seconds"] == 7.0


def test_similar_jobs_are_expected_to_run_as_long(store: Store) -> None:
    runs = {row[2]: row[1] for row in store.latest_runs("signature", "s", 9)}
    assert runs == {"succeeded": 7.0, "requeued": 2.0, "preempted": 4.0}


def test_statistics_and_simulations_count_it(store: Store) -> None:
    found = statistics(store.path, Window(0.0, 30.0, gpus=1, memory=16.0))
    assert (found["run_seconds"]["mean"], round(found["gpu_hours"] * 3600, 6)) == (7.0, 9.0)
    assert history.read(store.path).run.tolist() == [7.0]


def test_a_batch_did_not_lose_time_by_a_preemption(store: Store) -> None:
    with batch_log(store.path) as log:
        head = log.head("1")
        assert head is not None
        found = report_json(head, log, 30.0)
    assert found["sequential"] == 7.0
    assert round(found["gpu_hours_saved"] * 3600, 6) == -2.0  # what was done in vain


def test_the_output_of_all_attempts_is_kept(tmp_path: Path) -> None:
    logs = {("1", 1): b"step 1\n", ("1", 2): b"step 2\n", ("2", 1): b"whole\n"}
    jobs = {"1": {"attempt": 2, "output": None, "name": "a/b"}, "2": {"attempt": 1, "output": None, "name": None}}

    def log(id: str, offset: int, *, size: int, attempt: int) -> LogPart:
        return LogPart(logs[id, attempt][offset : offset + 3], offset + 3, 7, "succeeded", attempt)

    client: Any = SimpleNamespace(job=jobs.__getitem__, log=log)
    keep_logs(cast("Client", client), ["1", "2"], tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {
        "1-a-b.txt": b"--- attempt 1 ---\nstep 1\n--- attempt 2 ---\nstep 2\n",
        "2.txt": b"whole\n",
    }
