"""Yards for tests: a shared one, one of a test's own, one of root that real users share, and some on TCP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doors import Door, door_with
from tests.users import Desk, User, group, made, reachable_folder, require_root
from tests.yard import Yard, opened


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """The yard that most tests share: starting a daemon takes a second."""
    with opened(tmp_path_factory.mktemp("yard")) as found:
        found.serve()
        yield found


@pytest.fixture
def yard(daemon: Yard, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    """The shared yard, without any job of an earlier test that runs; a test that is tried again gets one of its own."""
    if getattr(request.node, "execution_count", 1) > 1:
        with opened(tmp_path) as found:
            found.serve()
            yield found
        return
    yield daemon
    daemon.clear()


@pytest.fixture
def own_yard(tmp_path: Path) -> Iterator[Yard]:
    """A yard whose daemon a test starts and ends as it likes."""
    with opened(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    require_root()
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def groups(place: Path) -> Iterator[tuple[str, str]]:
    """A group that a user is in, and the one of the admins."""
    with group(f"gyteam{os.getpid()}") as team, group(f"gyadm{os.getpid()}") as admins:
        yield team, admins


@pytest.fixture(scope="session")
def ann(place: Path, groups: tuple[str, str]) -> Iterator[User]:
    with made(place, f"gyann{os.getpid()}", groups[0]) as user:
        yield user


@pytest.fixture(scope="session")
def bob(place: Path, groups: tuple[str, str]) -> Iterator[User]:
    with made(place, f"gybob{os.getpid()}") as user:
        yield user


@pytest.fixture(scope="session")
def system(place: Path, groups: tuple[str, str]) -> Iterator[Yard]:
    """The daemon of root that everybody shares."""
    with opened(place) as yard:
        yard.environment["GPUYARD_ADMIN_GROUP"] = groups[1]
        yard.environment["GPUYARD_MAX_PRIORITY"] = "5"
        yard.serve()
        yield yard


@pytest.fixture
def shared_yard(system: Yard) -> Iterator[Yard]:
    yield system
    system.clear()


@pytest.fixture
def a(shared_yard: Yard, ann: User) -> Desk:
    return Desk(shared_yard, ann)


@pytest.fixture
def b(shared_yard: Yard, bob: User) -> Desk:
    return Desk(shared_yard, bob)


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One that wants a token of everybody."""
    yield from door_with(tmp_path_factory, "--token", "required")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One that trusts the kernel on who asks, as is usual."""
    yield from door_with(tmp_path_factory)


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One behind a proxy."""
    yield from door_with(tmp_path_factory, GPUYARD_ALLOWED_HOSTS="gpus.example.org,box:8443")


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One that lets anybody look."""
    yield from door_with(tmp_path_factory, "--token", "none", GPUYARD_ALLOWED_HOSTS="gpus.example.org")
