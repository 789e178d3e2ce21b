"""Yards for tests: a shared one, and one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.yard import Yard, opened


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """The yard that most tests share: starting a daemon takes a second."""
    with opened(tmp_path_factory.mktemp("yard")) as found:
        found.serve()
        yield found


@pytest.fixture
def yard(daemon: Yard) -> Iterator[Yard]:
    """The shared yard, without any job of an earlier test."""
    yield daemon
    daemon.clear()


@pytest.fixture
def own_yard(tmp_path: Path) -> Iterator[Yard]:
    """A yard whose daemon a test starts and ends as it likes."""
    with opened(tmp_path) as found:
        yield found
