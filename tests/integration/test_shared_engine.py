"""The engine of a machine with many users, where one of them means harm."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.engine import Watch
from tests.users import PATH, User, made, reachable_folder, require_root
from tests.yard import until

from gpuyard.engines.base import Ended, EngineError, LaunchRefused, Placement, Running, Task
from gpuyard.engines.local.cgroups import find_cgroups
from gpuyard.engines.local.local_engine import LocalEngine
from gpuyard.engines.local.processes import MARK, look

pytestmark = pytest.mark.root

PLACE = Placement("here", ())
VARIABLES = {"PATH": PATH}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    require_root()
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def eve(place: Path) -> Iterator[User]:
    with made(place, f"gyeve{os.getpid()}") as user:
        yield user


@pytest.fixture(params=[True, False], ids=["cgroups", "census"])
def watch(request: pytest.FixtureRequest, place: Path, eve: User) -> Iterator[Watch]:
    folder = Path(tempfile.mkdtemp(dir=place))
    folder.chmod(0o711)
    if request.param:
        try:
            find_cgroups(folder).close()
        except EngineError as error:
            pytest.skip(str(error))
    found = Watch(_engine(folder / "jobs", request.param), eve.home)
    yield found
    for claim in (folder / "jobs").glob("*/*/pid"):
        job, attempt = claim.parts[-3], int(claim.parts[-2])
        if isinstance(found.engine.adopt(job, attempt), Running):
            found.engine.stop(job, attempt, 0)
            found.until(Ended, job, attempt)
    found.engine.close()


def _engine(directory: Path, cgroups: bool) -> LocalEngine:
    return LocalEngine(directory, (), "here", cgroups=cgroups, shared=True)


def _run(watch: Watch, user: User, script: str, job: str = "1", attempt: int = 1) -> None:
    task = Task(job, ("sh", "-c", script), str(user.home), VARIABLES, user=user.name)
    watch.engine.launch(task, attempt, PLACE)


def _work(watch: Watch) -> Path:
    assert isinstance(watch.engine, LocalEngine)
    return watch.engine._folders.work("1")


def test_a_job_is_in_its_cgroup_and_its_users(watch: Watch, eve: User, request: pytest.FixtureRequest) -> None:
    _run(watch, eve, "id -u; cat /proc/self/cgroup")
    assert watch.until(Ended, "1").code == 0
    uid, *groups = watch.log("1").decode().split()
    assert int(uid) == eve.uid
    assert any(line.endswith("/1.1") for line in groups) is ("cgroups" in request.node.name)


def test_a_jobs_directory_is_kept_if_something_is_in_it(watch: Watch, eve: User) -> None:
    work = _work(watch)
    _run(watch, eve, "test -d $GPUYARD_CHECKPOINT_DIR")
    assert watch.until(Ended, "1").code == 0
    assert not work.exists()
    _run(watch, eve, "echo $GPUYARD_RESTART_COUNT >$GPUYARD_CHECKPOINT_DIR/state", attempt=2)
    watch.until(Ended, "1", 2)
    assert (work / "checkpoint" / "state").read_text() == "1\n"
    _run(watch, eve, "cat $GPUYARD_CHECKPOINT_DIR/state; rm $GPUYARD_CHECKPOINT_DIR/state", attempt=3)
    watch.until(Ended, "1", 3)
    assert watch.log("1", 3) == b"1\n"
    assert not work.exists()


@pytest.mark.parametrize("trick", ["ln -s $VICTIM", "ln $VICTIM/file", "ln -s $VICTIM/file", "mv $HOME/mine"])
def test_nothing_of_roots_is_given_away(watch: Watch, eve: User, place: Path, trick: str) -> None:
    """A user puts something else in the place of what the daemon made, and lets it try again."""
    victim = Path(eve.home.parent, f"victim-{watch.directory.name}-{os.urandom(4).hex()}")
    victim.mkdir(mode=0o755)
    (victim / "file").write_text("")
    mine = eve.home / "mine"
    mine.mkdir(exist_ok=True)  # root's, though in a directory of eve's
    swap = "cd ..; rm -r $GPUYARD_JOB_ID; mv $GPUYARD_JOB_ID elsewhere; ln -s $VICTIM 2"
    _run(watch, eve, f"VICTIM={victim}; cd $GPUYARD_CHECKPOINT_DIR/..; rmdir checkpoint; {trick} checkpoint; {swap}")
    watch.until(Ended, "1")
    _run(watch, eve, "exit 0", attempt=2)
    watch.until(Ended, "1", 2)
    work = _work(watch)
    assert not (work.parent / "2").exists()
    assert not (work.parent / "elsewhere").exists()
    for path in (victim, victim / "file", work.parent, mine if mine.exists() else work / "checkpoint"):
        assert path.stat().st_uid == 0, path
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert os.listdir(victim) == ["file"]


def test_a_process_cannot_say_that_it_is_ours(watch: Watch, eve: User) -> None:
    watch.engine.launch(Task("1", ("sh", "-c", "echo $GPUYARD_RUN; exec sleep 1000"), "/", VARIABLES), 1, PLACE)
    _run(watch, eve, "echo $$; exec sleep 1000", "2")
    until(lambda: watch.log("1") and watch.log("2"), "the beginning of both")
    watch.until(Running, "1")
    liar = subprocess.Popen(
        ["sleep", "999"], env={MARK: watch.log("1").decode().strip()}, user=eve.uid, group=eve.gid
    )  # fmt: skip
    try:
        assert watch.engine.owner(int(watch.log("2"))) == ("2", 1)
        assert watch.engine.owner(liar.pid) is None
        watch.engine.stop("1", 1, 0)
        watch.until(Ended, "1")
        assert look(liar.pid) is not None
        assert liar.poll() is None
    finally:
        liar.kill()
        liar.wait()


def test_an_adopted_job_is_still_its_users(watch: Watch, eve: User, request: pytest.FixtureRequest) -> None:
    """A new daemon looks for processes of the user's, as the former did, not for those of its own."""
    hide = "setsid sh -c 'touch left; exec sleep 1000' & while [ ! -e left ]; do sleep 0.02; done"
    _run(watch, eve, f"echo on; while [ ! -e go ]; do sleep 0.02; done; {hide}")
    until(lambda: watch.log("1"), "the beginning")
    watch.until(Running, "1")
    second = _engine(_work(watch).parent.parent / "jobs", "cgroups" in request.node.name)
    try:
        assert isinstance(second.adopt("1", 1), Running)
        (eve.home / "go").touch()
        report = Watch(second, eve.home).until(Ended, "1")
        assert report.message == "ended 1 process that it had left running"
    finally:
        second.close()
        for name in ("go", "left"):
            (eve.home / name).unlink()


def test_users_who_cannot_be(watch: Watch, eve: User) -> None:
    for user in ("gynobody", "0", str(eve.uid)):
        with pytest.raises(LaunchRefused, match=f"there is no user {user} on this machine any more"):
            watch.engine.launch(Task("1", ("true",), "/", user=user), 1, PLACE)
