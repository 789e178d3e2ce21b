"""What surrounds waiting jobs: how full the cluster is, who else waits, and when room is expected."""

from __future__ import annotations

import numpy as np

from gpuyard.core.columns import COLUMNS
from gpuyard.core.engine import Engine
from gpuyard.core.events import Started
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.planner import ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import policy
from gpuyard.core.queue_features import foreseen, measure_queue, opening


def yard() -> Engine:
    """Two nodes of four GPUs: a (3 GPUs, 100 s) runs, b (5, 50 s), c (8, 10 s) and d (2, 400 s) wait."""
    engine = Engine(Cluster((4, 4)), ordered(POLICIES["fcfs"], "strict"))
    for name, gpus, estimate in (("a", 3, 100.0), ("b", 5, 50.0), ("c", 8, 10.0), ("d", 2, 400.0)):
        assert engine.submit(0.0, name, Request(gpus=gpus, estimate=estimate, user="ann")) is None
        if name == "a":
            for start in engine.plan(0.0).starts:
                engine.place(0.0, start)
                engine.record(Started(0.0, start.job, 1))
    return engine


def column(engine: Engine, name: str, now: float) -> list[float]:
    return [float(v) for v in COLUMNS[name].values(engine.state, engine.state.waiting.array, now)]


def test_what_is_seen() -> None:
    engine = yard()
    assert column(engine, "idle", 10.0) == [5.0, 5.0, 5.0]
    assert column(engine, "hole", 10.0) == [4.0, 4.0, 4.0]
    assert column(engine, "capacity", 10.0) == [8.0, 8.0, 8.0]
    assert column(engine, "queue", 10.0) == [3.0, 3.0, 3.0]
    assert column(engine, "queue_work", 10.0) == [1130.0, 1130.0, 1130.0]
    assert column(engine, "opening", 10.0) == [0.0, 90.0, 0.0]
    assert column(engine, "suitable", 10.0) == [5.0, 5.0, 5.0]
    assert column(engine, "shadow", 10.0) == [0.0, 0.0, 0.0]
    assert column(engine, "shorter", 10.0) == [0.5, 1 / 6, 5 / 6]
    assert column(engine, "usage_share", 10.0) == [1.0, 1.0, 1.0]


def test_who_has_outlived_its_estimate_is_expected_to_end_next() -> None:
    assert column(yard(), "opening", 500.0) == [0.0, 1.0, 0.0]


def test_what_will_be_seen_once_somebody_has_begun() -> None:
    engine = yard()
    state, before = engine.state, measure_queue(engine.state, 10.0)
    with foreseen(state, 10.0, [0, 0], np.array([1])):
        assert measure_queue(state, 10.0).queue == 2
        assert opening(state, state.waiting.array[1:], 10.0).tolist() == [90.0, 50.0]
    assert measure_queue(state, 10.0) is before


def test_ranks_are_those_after_every_start() -> None:
    @policy
    def fitting_first(opening: np.ndarray, submit: np.ndarray) -> np.ndarray:
        return opening + 0.001 * submit

    engine = Engine(Cluster((4,)), ordered(fitting_first, "strict"))
    for at, (name, gpus) in enumerate((("a", 3), ("b", 2), ("c", 1))):
        engine.submit(float(at), name, Request(gpus=gpus, estimate=10.0))
    plan = ordered(fitting_first, "strict").plan(Snapshot(engine.state, 5.0))
    assert [start.job for start in plan.starts] == ["a", "c"]  # b would have been next, before a had begun
