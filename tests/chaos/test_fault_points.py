"""Let the yard die between every two writes of a job's life, start it again, and see that nothing went wrong.

These lives have no HTTP server (see `nursery`), so that hundreds of them take no longer than a cup of coffee.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.checks import (
    check_acknowledged,
    check_ends,
    check_gpus,
    check_preempted,
    check_projections,
    check_starts,
    check_times,
    jobs_of,
)
from tests.chaos.harness import SOURCES, Daemon, read_stamps
from tests.conftest import REPOSITORY

OFTEN = 3
"""How many of the times that a life passes a point it dies there."""


class Nursery:
    """Where lives come from."""

    def __init__(self) -> None:
        environment = {"PYTHONPATH": f"{SOURCES}:{REPOSITORY}", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-m", "tests.chaos.nursery"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=REPOSITORY, text=True
        )

    def live(self, place: Path, story: str, **environment: str) -> int:
        """Let one live, and say how that ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"place": str(place), "story": story, "environment": environment}
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Let nobody live any more."""
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests."""
    found = Nursery()
    yield found
    found.close()


def _live_on(nursery: Nursery, place: Path, story: str) -> None:
    """The life after: everybody comes to an end, and every promise was kept."""
    assert nursery.live(place, "finish") == 0
    database = place / "data" / "gpuyard.db"
    told = [line.split() for line in (place / "told").read_text().splitlines()] if (place / "told").exists() else []
    stamps, jobs = read_stamps(place / "stamps"), jobs_of(database)
    acknowledged = [job for what, job in told if what == "submitted"]
    check_acknowledged(jobs, acknowledged, [job for what, job in told if what == "cancelled"])
    check_starts(stamps)
    check_gpus(jobs, stamps)
    check_preempted(database, jobs, stamps)
    check_times(database)
    check_projections(database)
    if story == "timeout":
        assert {view.state for view in jobs.values()} <= {"timeout"}
    else:
        check_ends(jobs, stamps)
    assert Daemon(place / "data").leftovers() == []


def _points(nursery: Nursery, place: Path, before: str, story: str) -> list[str]:
    """The points that a story comes by, with the number of the time."""
    if before:
        nursery.live(place, before)
    assert nursery.live(place, story, GPUYARD_FAULT_LOG=str(place / "points")) == 0
    passed = Counter((place / "points").read_text().split())
    _live_on(nursery, place, story)
    return [f"{name}:{n}" for name, count in passed.items() for n in range(1, min(count, OFTEN) + 1)]


@pytest.mark.parametrize(
    ("before", "story"),
    [
        ("", "submit"),
        ("", "hold"),
        ("", "cancel"),
        ("", "cancel-early"),
        ("", "timeout"),
        ("", "preempt"),
        ("begin-and-die", "finish"),
        ("begin-and-die", "submit"),
    ],
)
def test_dying_between_every_two_writes(nursery: Nursery, tmp_path: Path, before: str, story: str) -> None:
    points = _points(nursery, tmp_path / "seen", before, story)
    assert {"store:events:1", "store:views:1", "store:committed:1"} <= set(points)
    assert story != "preempt" or {"stop:noted:1", "stop:asked:1", "yard:stopped:1"} <= set(points)
    died = 0
    for n, point in enumerate(points):
        place = tmp_path / str(n)
        if before:
            nursery.live(place, before)
        status = nursery.live(place, story, GPUYARD_FAULT=point)
        assert status in (0, -signal.SIGKILL), point  # 0: this time it did not come by
        died += status != 0
        try:
            _live_on(nursery, place, story)
        except AssertionError as error:
            raise AssertionError(f"after it died at {point}: {error}") from error
    assert died >= len(points) * 0.7
