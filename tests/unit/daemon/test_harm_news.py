"""What is recorded of interference, and what a new daemon makes of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.core.events import HarmMeasured, Opened
from gpuyard.core.model import Cluster
from gpuyard.daemon.background.interference import is_news, joined, recorded
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.predict.slowdowns import Finding
from gpuyard.server.routes.statistics import verdict

NOW = Finding("a", "b", 2.0, 100.0, "progress", 50.0, ("1", "2"), ("train", "eval"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "store.db")
    yield found
    found.close()


def test_what_former_lives_found_out_weighs_as_much_as_it_was_seen() -> None:
    found = joined(NOW, NOW._replace(slowdown=4.0, seconds=300.0, at=1.0))
    assert found.slowdown == pytest.approx(3.5)
    assert (found.seconds, found.at) == (400.0, 50.0)
    assert joined(NOW, None) == NOW


def test_it_does_not_weigh_for_ever() -> None:
    assert joined(NOW, NOW._replace(slowdown=4.0, seconds=1e6)).slowdown == pytest.approx(3.5)


def test_the_better_evidence_counts() -> None:
    weak = NOW._replace(evidence="run time", slowdown=9.0)
    assert joined(NOW, weak) == NOW
    assert joined(weak, NOW) == NOW
    assert joined(NOW, NOW._replace(evidence="a guess")) == NOW  # of a later version


def test_a_new_daemon_knows_the_latest_of_each_pair(store: Store) -> None:
    told = {"evidence": "progress", "seconds": 12.5, "jobs": ["3", "4"], "names": ["x", "y"]}
    events = [HarmMeasured(2.0, "a", "b", 3.0), HarmMeasured(3.0, "b", "a", 1.0), HarmMeasured(4.0, "a", "b", 2.5)]
    store.append([Record(Opened(1.0, Cluster((1,)), ("u",))), *(Record(event, told) for event in events)])
    state = store.load()
    assert state is not None
    assert recorded(store, state) == {
        ("b", "a"): Finding("b", "a", 1.0, 12.5, "progress", 3.0, ("3", "4"), ("x", "y")),
        ("a", "b"): Finding("a", "b", 2.5, 12.5, "progress", 4.0, ("3", "4"), ("x", "y")),
    }


@pytest.mark.parametrize(
    ("then", "news"),
    [
        (None, True),
        (NOW._replace(at=30.0), False),  # the same
        (NOW._replace(at=30.0, slowdown=2.09), False),
        (NOW._replace(at=30.0, slowdown=2.2), True),
        (NOW._replace(at=45.0, slowdown=2.2), False),  # only just told
        (NOW._replace(at=30.0, seconds=10.0), True),  # much surer
    ],
)
def test_only_news_is_recorded(then: Finding | None, news: bool) -> None:
    assert is_news(NOW, then, 10.0) is news


@pytest.mark.parametrize(
    ("slowdown", "means"), [(0.9, "together"), (1.25, "avoided"), (1.99, "avoided"), (2.0, "apart")]
)
def test_what_it_means(slowdown: float, means: str) -> None:
    assert verdict(slowdown) == means
