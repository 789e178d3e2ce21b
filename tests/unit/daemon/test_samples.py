"""What is kept of looks at the GPUs, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.daemon.devices.samples import OFTEN, SELDOM, Samples
from gpuyard.gpus.base import Reading
from gpuyard.server.routes.gpus import samples_json

T = 1_800_000_000.0


def reading(index: int, busy: int | None = 50, memory: int = 2**30) -> Reading:
    return Reading(index, memory_used=memory, utilization=busy, temperature=40, power=100.4)


def lost(index: int) -> Reading:
    return Reading(index, lost=True, problem="gone")


def told(samples: Samples, after: float = 0.0, **wishes: Any) -> Any:
    return json.loads(samples_json(samples.part(after, **wishes)))


def test_looks_are_told_column_by_column() -> None:
    samples = Samples(2)
    assert told(samples) == {
        "period": SELDOM, "at": [],
        "gpus": [{"index": n, "utilization": [], "memory_used": [], "temperature": [], "power": []} for n in range(2)],
    }  # fmt: skip
    samples.add(T, [reading(0, 10), reading(1, None)])
    samples.add(T + 1.0004, [reading(0, 20, 9 * 2**30), lost(1)])
    assert told(samples) == {
        "period": SELDOM, "at": [T, T + 1],
        "gpus": [
            {
                "index": 0, "utilization": [10, 20], "memory_used": [2**30, 9 * 2**30], "temperature": [40, 40],
                "power": [100, 100],
            },
            {
                "index": 1, "utilization": [None, None], "memory_used": [2**30, None], "temperature": [40, None],
                "power": [100, None],
            },
        ],
    }  # fmt: skip
    [only] = told(samples, T, gpus=[0])["gpus"]
    assert (only["index"], only["utilization"]) == (0, [20])


def test_looks_that_follow_at_once_are_one() -> None:
    samples, heard = Samples(1), list[float]()
    samples.listeners.append(lambda: heard.append(samples.newest))
    for at in (T, T + 0.1, T + 0.39, T + 0.5, T - 5):
        samples.add(at, [reading(0)])
    assert heard == [T, T + 0.5]
    assert told(samples)["at"] == heard


def test_minutes_are_means_of_what_is_known() -> None:
    samples = Samples(2)
    for second in range(125):
        readings = [reading(0, 100 if second < 60 else 20), lost(1) if second != 30 else reading(1, 70)]
        samples.add(T + second, readings)
    found = told(samples, span="coarse")
    assert (found["period"], found["at"], samples.newest_minute) == (
        60.0,
        [T, T + 60],
        T + 60,
    )  # not the one that goes on
    first, second_gpu = found["gpus"]
    assert (first["utilization"], first["memory_used"]) == ([100, 20], [2**30, 2**30])
    assert second_gpu["utilization"] == [70, None]
    assert told(samples, T, span="coarse")["at"] == [T + 60]


def test_only_ten_minutes_are_kept_and_an_answer_is_bounded() -> None:
    samples = Samples(1)
    for n in range(4000):
        samples.add(T + n * 0.5, [reading(0)])
    at: list[float] = told(samples)["at"]
    assert at[-1] == T + 3999 * 0.5
    assert 600 <= at[-1] - at[0] < 1200
    many = Samples(1000)
    for n in range(150):
        many.add(T + n, [reading(g) for g in range(1000)])
    assert len(many.part(0.0).at) == 100
    assert many.part(0.0).at[-1] == T + 149
    assert len(many.part(0.0, gpus=[3]).at) == 150


def test_who_watches_sees_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("gpuyard.daemon.devices.samples.time.monotonic", lambda: now[0])
    samples = Samples(1)
    assert samples.period == SELDOM
    samples.watched()
    assert samples.period == OFTEN
    now[0] += 11
    assert samples.period == SELDOM


@given(st.lists(st.floats(0.4, 50.0), max_size=80), st.lists(st.integers(0, 7), max_size=40))
def test_who_asks_again_and_again_gets_each_once(gaps: Sequence[float], pauses: Sequence[int]) -> None:
    samples, taken, got = Samples(1), list[float](), list[float]()
    at, after = T, 0.0
    rounds = iter([*pauses, *[3] * (len(gaps) + 1)])
    left = next(rounds)
    for gap in gaps:
        at = round(at + gap + 0.001, 3)
        samples.add(at, [reading(0)])
        taken.append(at)
        left -= 1
        if left < 0:
            part = samples.part(after)
            got += part.at.tolist()
            after, left = got[-1] if got else 0.0, next(rounds)
    assert [*got, *samples.part(after).at.tolist()] == taken
