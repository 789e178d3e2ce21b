"""A real API server for the tests of a process, and an empty cluster on it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.cluster import Cluster
from tests.kube.server import KubeServer


@pytest.fixture(scope="session")
def kube_server() -> Iterator[KubeServer]:
    """An API server that is there until the end: starting one takes four seconds."""
    server = KubeServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def cluster(kube_server: KubeServer, tmp_path: Path) -> Cluster:
    """A cluster without nodes and pods."""
    found = Cluster(kube_server, tmp_path)
    found.clear()
    return found
