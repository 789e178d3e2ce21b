"""Processes that leave their job: its parent, its session and its environment. None of them outlives it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.engine import alive
from tests.yard import Yard, opened, until

HIDE = "(setsid env -i {mark} sh -c 'echo $$ >{name}; exec sleep 1000' >/dev/null 2>&1 </dev/null &); echo on; {last}"


def _hide(yard: Yard, name: str, mark: str = "", last: str = "sleep 1000") -> tuple[str, int]:
    """A job and the process that hides from it."""
    job = yard.submit("--", "sh", "-c", HIDE.format(name=name, mark=mark, last=last))
    yard.await_output(job, b"on\n")
    path: Path = yard.cwd / name
    until(lambda: path.exists() and path.read_text().endswith("\n"), "the process that hides")
    return job, int(path.read_text())


def _cancel(yard: Yard, job: str) -> None:
    yard.client.cancel(job, grace=5)
    yard.wait(job)


def _leftovers(yard: Yard) -> dict[str, str]:
    (found,) = [one for one in json.loads(yard("doctor", "--json").out) if one["check"] == "leftovers"]
    return dict(found)


@pytest.fixture(scope="module")
def without_cgroups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with opened(tmp_path_factory.mktemp("census")) as found:
        found.environment["GPUYARD_CGROUPS"] = "false"
        found.serve()
        yield found


@pytest.fixture
def census(without_cgroups: Yard) -> Iterator[Yard]:
    """A yard whose jobs have no cgroups."""
    yield without_cgroups
    without_cgroups.clear()
    (without_cgroups.cwd / "hidden").unlink(missing_ok=True)


def test_by_default_nothing_hides_where_there_are_cgroups(yard: Yard) -> None:
    (cgroups,) = [one for one in json.loads(yard("doctor", "--json").out) if one["check"] == "cgroups"]
    if cgroups["found"] != "each job gets one of its own":
        pytest.skip(cgroups["found"])
    (job, hidden), (other, of_other) = _hide(yard, "hidden"), _hide(yard, "of_other")
    assert _leftovers(yard)["state"] == "ok"
    _cancel(yard, job)
    assert (alive(hidden), alive(of_other)) == (False, True)
    _cancel(yard, other)
    assert not alive(of_other)


def test_an_orphan_is_whose_it_is_by_elimination(census: Yard) -> None:
    job, hidden = _hide(census, "hidden")
    assert _leftovers(census)["state"] == "ok"  # one job may have started it
    later = census.submit("--", "sleep", "1000")
    census.client.job(later, wait=30, until="start")
    _cancel(census, job)
    assert not alive(hidden), "the other job began later, and cannot have started it"
    assert census.client.job(later)["state"] == "running"


def test_an_orphan_of_either_of_two_jobs_ends_with_the_last_of_them(census: Yard) -> None:
    first = census.submit("--", "sleep", "1000")
    census.client.job(first, wait=30, until="start")
    second, hidden = _hide(census, "hidden")
    found = _leftovers(census)
    assert (found["state"], found["found"]) == ("warn", f"1 process of jobs, of which ones is not known: {hidden}")
    _cancel(census, second)
    assert alive(hidden), "it may be the first job's, which runs"
    _cancel(census, first)
    assert not alive(hidden)
    assert _leftovers(census)["state"] == "ok"


@pytest.mark.parametrize("mark", ["page", "notices", "daemon-0", "elsewhere/jobs/1/1", "{other}", "{over}"])
def test_a_forged_mark_hides_nothing(census: Yard, mark: str) -> None:
    over = census.wait(census.submit("--", "true"))["id"]
    other = str(int(over) + 1000)
    folders = {name: f"{census.data_dir}/jobs/{job}/1" for name, job in (("other", other), ("over", over))}
    job, hidden = _hide(census, "hidden", f"GPUYARD_RUN={mark.format(**folders)}")
    _cancel(census, job)
    assert not alive(hidden)
    assert _leftovers(census)["state"] == "ok"


def test_an_orphan_of_either_of_two_jobs_that_end_at_once_ends_with_them(census: Yard) -> None:
    """Both are found to be over in one look at all processes; the orphan is the last one's."""
    wait = "while [ ! -e go ]; do sleep 0.01; done"
    first = census.submit("--", "sh", "-c", f"echo on; {wait}")
    census.await_output(first, b"on\n")
    second, hidden = _hide(census, "hidden", last=wait)
    assert census.daemon is not None
    wrappers = [int((census.data_dir / "jobs" / job / "1" / "pid").read_text().split()[0]) for job in (first, second)]
    census.daemon.send_signal(signal.SIGSTOP)
    try:
        (census.cwd / "go").touch()
        until(lambda: not any(map(alive, wrappers)), "the end of both")
    finally:
        census.daemon.send_signal(signal.SIGCONT)
    census.wait(first), census.wait(second)
    assert not alive(hidden)
    assert _leftovers(census)["state"] == "ok"


def test_doctor_counts_the_jobs_whose_orphans_a_new_daemon_does_not_see(own_yard: Yard) -> None:
    own_yard.environment["GPUYARD_CGROUPS"] = "false"
    own_yard.serve()
    job = own_yard.submit("--", "sleep", "1000")
    own_yard.client.job(job, wait=30, until="start")
    assert _leftovers(own_yard)["state"] == "ok"
    own_yard.end(signal.SIGKILL)
    own_yard.serve()
    found = _leftovers(own_yard)
    expected = f"1 of the running jobs ({job}) began before this daemon did, and without a cgroup"
    assert (found["state"], found["found"]) == ("warn", expected)
    _cancel(own_yard, job)
    found = _leftovers(own_yard)
    expected = f"as far as can be seen: job {job} began before this daemon did, without a cgroup"
    assert (found["state"], found["found"]) == ("ok", f"no process is left of a job that is over, {expected}")
