"""Generated workloads: seeded, in range, and with the load that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.core.model import DEFAULT_GPU_MEMORY, GIB
from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import describe
from gpuyard.sim.workload import generate_poisson, generate_tasks

TYPES = {
    "image_classification": ((20, 40), (10, 30), (5, 10), (1, 3)),
    "lstm_training": ((30, 50), (40, 60), (7, 15), (2, 4)),
    "cnn_training": ((50, 80), (30, 50), (10, 20), (3, 5)),
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a task file."""
    monkeypatch.chdir(tmp_path)

    def make(text: str) -> str:
        Path("my.toml").write_text(text)
        return "my.toml"

    return make


def same(one: Trace, other: Trace) -> bool:
    columns = ("submit", "run", "gpus", "requested", "priority", "memory", "compute", "tickets")
    return (one.ids, one.users) == (other.ids, other.users) and all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in columns
    )


def test_built_in_tasks_fill_their_ranges() -> None:
    trace = generate_tasks(3, jobs=3000)
    kinds = np.array([job.rsplit("-", 1)[0] for job in trace.ids])
    assert set(kinds) == set(TYPES)
    percent = trace.memory / DEFAULT_GPU_MEMORY * 100
    for kind, ranges in TYPES.items():
        mine = kinds == kind
        assert 900 < mine.sum() < 1100
        for values, (low, high) in zip((trace.compute, percent, trace.run, trace.priority), ranges, strict=True):
            assert sorted(set(values[mine].round(6).tolist())) == list(range(low, high + 1))
    assert set(trace.submit) == {0.0}
    assert set(trace.gpus) == {1}
    assert np.isnan(trace.requested).all()


def test_count_of_tasks_varies_from_40_to_50() -> None:
    assert {len(generate_tasks(seed)) for seed in range(200)} == set(range(40, 51))


def test_same_seed_same_tasks() -> None:
    assert same(generate_tasks(1), generate_tasks(1))
    assert not same(generate_tasks(1), generate_tasks(2))
    assert same(generate_tasks(1, jobs=100).take(slice(0, 20)), generate_tasks(1, jobs=20))
    ids = generate_tasks(1, jobs=500).ids
    assert len(set(ids)) == 500


def test_memory_is_of_the_gpu_and_shares_fit() -> None:
    small, large = generate_tasks(1, gpu_memory=GIB), generate_tasks(1, gpu_memory=80 * GIB)
    assert large.memory == pytest.approx(80 * small.memory)
    assert np.all(small.memory == np.floor(small.memory))


def test_own_types(config: Callable[[str], str]) -> None:
    path = config(
        """
        tasks = 500
        arrival = [1, 3]
        users = ["ann", "bob"]
        [types.big]
        gpus = [2, 4]
        duration = [0.5, 1.5]
        weight = 3
        tickets = [5, 9]
        users = ["eve"]
        [types.small]
        memory = 25
        duration = 7
        """
    )
    trace = generate_tasks(5, config=path)
    assert len(trace) == 500
    big = np.array([job.startswith("big-") for job in trace.ids])
    assert 330 < big.sum() < 420
    assert set(np.diff(trace.submit)) == {1.0, 2.0, 3.0}
    assert trace.submit[0] == 0
    assert set(trace.gpus[big]) == {2, 3, 4}
    assert set(trace.compute[big]) == {100.0}
    assert trace.run[big].min() >= 0.5
    assert trace.run[big].max() <= 1.5
    assert len(set(trace.run[big])) > 100
    assert set(trace.tickets[big]) == {5, 6, 7, 8, 9}
    assert {trace.users[i] for i in np.flatnonzero(big)} == {"eve"}
    assert {trace.users[i] for i in np.flatnonzero(~big)} == {"ann", "bob"}
    assert set(trace.compute[~big]) == {0.0}
    assert set(trace.memory[~big]) == {0.25 * DEFAULT_GPU_MEMORY}
    assert set(trace.run[~big]) == {7.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tasks = [", "not valid TOML"),
        ("task = 3\n[types.a]\nduration = 1", "unknown key 'task'; did you mean 'tasks'?"),
        ("[types.a]\nduratoin = 1", "unknown key 'duratoin' in types.a; did you mean 'duration'?"),
        ("tasks = 5", "there are no task types"),
        ("[types]", "there are no task types"),
        ("types.a = 5", "types.a must be a table of ranges"),
        ("[types.a]\ncompute = 5", "types.a.duration is missing"),
        ("[types.a]\nduration = [10, 5]", "types.a.duration: the lowest value, 10, is above the highest, 5"),
        ("[types.a]\nduration = 'long'", "types.a.duration must be a number or a range"),
        ("[types.a]\nduration = true", "types.a.duration must be a number or a range"),
        ("[types.a]\nduration = [1, 2, 3]", "types.a.duration must be a number or a range"),
        ("[types.a]\nduration = [0, 5]", "types.a.duration must be above 0 seconds, not '[0, 5]'"),
        ("[types.a]\nduration = nan", "types.a.duration must be above 0 seconds, not 'nan'"),
        ("[types.a]\nduration = inf", "types.a.duration must be above 0 seconds, not 'inf'"),
        (
            "[types.a]\nduration = 1\ncompute = [50, 101]",
            "types.a.compute must be percentages above 0, up to 100",
        ),
        ("[types.a]\nduration = 1\ncompute = 0", "types.a.compute must be percentages above 0, up to 100"),
        ("[types.a]\nduration = 1\nmemory = -1", "types.a.memory must be percentages from 0 to 100"),
        ("[types.a]\nduration = 1\ngpus = 0", "types.a.gpus must be whole numbers from 1"),
        ("[types.a]\nduration = 1\ngpus = 1.5", "types.a.gpus must be whole numbers from 1"),
        ("[types.a]\nduration = 1\nweight = 0", "types.a.weight must be above 0"),
        ("[types.a]\nduration = 1\nweight = [1, 2]", "types.a.weight must be one number, not a range"),
        ("[types.a]\nduration = 1\nusers = 'ann'", "types.a.users must be a list of names"),
        ("[types.a]\nduration = 1\nusers = [1]", "types.a.users must be a list of names"),
        ("[types.' ']\nduration = 1", "' ' is not a name for a task type"),
        ("tasks = 0\n[types.a]\nduration = 1", "tasks must be whole numbers from 1"),
        ("arrival = -1\n[types.a]\nduration = 1", "arrival must be 0 seconds or more"),
    ],
)
def test_mistakes_in_task_files(config: Callable[[str], str], text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        generate_tasks(1, config=config(text))
    assert str(caught.value).startswith(f"my.toml: {said}")


def test_task_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        generate_tasks(1, config=tmp_path / "absent.toml")
    with pytest.raises(UserError, match="is a directory"):
        generate_tasks(1, config=tmp_path)
    (tmp_path / "a.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        generate_tasks(1, config=tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "number of jobs"),
        ({"gpu_memory": 0.0}, "GPU's memory"),
        ({"gpu_memory": math.nan}, "memory"),
    ],
)
def test_bad_task_arguments(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        generate_tasks(1, **options)
    with pytest.raises(UserError, match="a seed must be 0 or more, not -1"):
        generate_tasks(-1)


def test_poisson_offers_the_load() -> None:
    trace = generate_poisson(1, jobs=200_000, gpus=64, load=0.7, sigma=1.0)
    assert np.sum(trace.run * trace.gpus) / trace.submit[-1] / 64 == pytest.approx(0.7, rel=0.02)
    assert np.median(trace.run) == pytest.approx(600, rel=0.02)
    assert np.std(np.log(trace.run)) == pytest.approx(1.0, rel=0.02)
    gaps = np.diff(trace.submit)
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.02)  # exponential: as wide as long
    facts = describe(trace)
    assert facts["gpu_sizes"][1] == pytest.approx(140_000, rel=0.01)
    assert facts["users"] == 8
    assert trace.capacity == 64


def test_poisson_requests_are_never_short() -> None:
    trace = generate_poisson(2, jobs=50_000, gpus=8, load=1.0)
    assert np.all(trace.requested >= trace.run)
    assert np.mean(trace.requested / trace.run) == pytest.approx(3.0, rel=0.05)
    exact = generate_poisson(2, jobs=1000, gpus=8, load=1.0, overestimate=0)
    assert np.array_equal(exact.requested, exact.run) or np.max(exact.requested - exact.run) <= 0.001


def test_poisson_run_times_are_whole_milliseconds() -> None:
    trace = generate_poisson(3, jobs=5000, gpus=8, load=1.0, median_run=0.002, sigma=2)
    assert trace.run.min() == 0.001
    assert np.array_equal(np.round(trace.run, 3), trace.run)
    assert np.all(np.diff(trace.submit) >= 0)


def test_poisson_leaves_out_sizes_that_do_not_fit() -> None:
    trace = generate_poisson(4, jobs=20_000, gpus=2, load=1.0)
    facts = describe(trace)
    assert set(facts["gpu_sizes"]) == {1, 2}
    assert facts["gpu_sizes"][1] / 20_000 == pytest.approx(0.875, abs=0.01)


def test_same_seed_same_poisson() -> None:
    make = [generate_poisson(seed, jobs=100, gpus=8, load=0.5) for seed in (1, 1, 2)]
    assert same(make[0], make[1])
    assert not same(make[0], make[2])
    assert set(generate_poisson(1, jobs=10, gpus=8, load=0.5, users=0).users) == {""}


@pytest.mark.parametrize(
    "change",
    [
        {"jobs": 0}, {"gpus": 0}, {"load": 0.0}, {"load": math.nan}, {"load": math.inf}, {"median_run": 0.0},
        {"sigma": -1.0}, {"sigma": math.inf}, {"users": -1}, {"overestimate": -0.1}, {"sizes": {}},
        {"sizes": {16: 1.0}}, {"sizes": {0: 1.0}}, {"sizes": {1: -1.0}}, {"sizes": {1: math.nan}},
    ],
)  # fmt: skip
def test_bad_poisson_arguments(change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"jobs": 10, "gpus": 8, "load": 0.5, **change}
    with pytest.raises(UserError):
        generate_poisson(1, **options)
