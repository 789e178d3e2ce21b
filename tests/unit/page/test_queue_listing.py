"""Jobs as rows: what is told of each, and what may be done to it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.page.parts import priority
from gpuyard.page.views.queue_jobs import gpus_of, listed, rows_of, standing
from gpuyard.page.visit import Viewer

ANN = Viewer({"user": "ann", "role": "user", "via": "session"})
ADMIN = Viewer({"user": "root", "role": "admin", "via": "socket"})
GUEST = Viewer({"user": "guest", "role": "viewer", "via": "session"})


def columns(**changes: Any) -> dict[str, list[Any]]:
    job: dict[str, Any] = {
        "id": "17", "name": "train", "user": "ann", "state": "queued", "kind": "job", "priority": 0.0, "tags": ["nlp"],
        "gpus": [], "gpu_count": 2, "gpu_memory": None, "submitted": 100.0, "waiting_since": 150.0, "started": None,
        "ended": None, "reason": "waits for 2 GPUs: 1 is free", "progress": None,
        "expected_end": None, "expected_by": None,
    }  # fmt: skip
    return {name: [value] for name, value in {**job, **changes}.items()}


@pytest.mark.parametrize(
    ("viewer", "changes", "acts"),
    [
        (ANN, {}, ("raise", "lower", "hold", "cancel")),
        (ADMIN, {}, ("raise", "lower", "hold", "cancel")),
        (ANN, {"state": "held"}, ("raise", "lower", "release", "cancel")),
        (ANN, {"state": "running"}, ("cancel",)),
        (ANN, {"kind": "lease"}, ("raise", "lower", "cancel")),
        (ANN, {"user": "bob"}, ()),
        (GUEST, {"user": "guest"}, ()),
    ],
)
def test_nobody_is_offered_what_they_may_not_do(viewer: Viewer, changes: dict[str, Any], acts: tuple[str, ...]) -> None:
    (row,) = rows_of(columns(**changes), viewer, movable=True)
    assert row.acts == acts
    assert row.picks is bool(acts)
    assert row.moves is (bool(acts) and changes.get("state", "queued") == "queued")


def test_a_job_waits_since_it_last_began_to_and_runs_since_it_started() -> None:
    (waiting,) = rows_of(columns(), ANN, movable=False)
    (running,) = rows_of(columns(state="running", started=200.0), ANN, movable=False)
    assert (150.0 in waiting.cells, 200.0 in running.cells) == (True, True)


def test_the_key_of_folded_tasks_stays_while_they_start() -> None:
    before, after = (listed(columns(id=id))[0] for id in ("12_[3-99%4]", "12_[4-99%4]"))
    assert before.key == after.key
    assert (before.tasks, after.label) == (97, "the 96 waiting tasks of job 12")
    (row,) = rows_of(columns(id="12_[3-99%4]"), ANN, movable=False)
    assert row.cells[0]["href"] == "/jobs/12"


@pytest.mark.parametrize(
    ("gpus", "count", "memory", "told"),
    [
        ([], 1, None, "1 GPU"),
        ([], 2, None, "2 GPUs"),
        ([3], 1, None, "GPU 3"),
        ([0, 1, 2, 5], 4, None, "GPUs 0-2,5"),
        ([3], 1, 6 * 2**30, "GPU 3, 6 GiB"),
        ([], 2, 6 * 2**30, "2 GPUs, 6 GiB each"),
    ],
)
def test_gpus_are_told_as_which_or_how_many(gpus: list[int], count: int, memory: int | None, told: str) -> None:
    assert gpus_of(gpus, count, memory) == told


def test_how_a_job_stands_is_a_bar_or_a_sentence() -> None:
    far = {"done": 1.0, "total": 4.0, "fraction": 0.25, "remaining": 90.0}
    assert standing("running", None, far, 2e9, "limit") == {"fraction": 0.25, "text": "25 %", "end": 2e9, "by": "limit"}
    assert standing("running", None, far, None, "overdue") == {"fraction": 0.25, "text": "25 %; longer than expected"}
    assert standing("running", "stopping", far, 2e9, "limit") == {"fraction": 0.25, "text": "25 %; stopping"}
    assert standing("queued", "waits for 2 GPUs", None) == {"fraction": None, "text": "Waits for 2 GPUs"}
    assert standing("running", None, None) == {"fraction": None, "text": ""}


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (2.0, "2"), (1.999955, "1.999955"), (0.1 + 0.2, "0.3"), (-1.5, "-1.5")]
)
def test_a_priority_is_told_from_its_neighbours(value: float, text: str) -> None:
    assert priority(value) == text
