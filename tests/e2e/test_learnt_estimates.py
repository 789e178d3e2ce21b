"""Jobs whose memory is found out: measured, remembered, and told."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.users import Desk, User
from tests.yard import Yard, until

from gpuyard.api.access_types import PastRun
from gpuyard.api.types import Job
from gpuyard.client.connection import description
from gpuyard.client.transport import Refused

SCRIPT = """\
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--id")
parser.add_argument("--version", default="1")
given = parser.parse_args()
checkpoint = pathlib.Path(f"{given.id}.pt")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
for epoch in range(given.epochs):
    time.sleep(0.05)
    with open(os.environ["TALLY"], "a") as tally:
        tally.write(f"{given.id}\\n")
    checkpoint.write_text(str(done + epoch + 1))
"""


class Project:
    """A directory with a script that is new to the yard, and how to run it."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.folder = yard.cwd / os.urandom(4).hex()
        self.folder.mkdir()
        self.script = self.folder / "train.py"
        self.script.write_text(SCRIPT + f"# {self.folder.name}\n")
        self.tally = self.folder / "tally"
        self.tally.write_text("")

    def submit(self, *options: str, id: str = "1", epochs: int = 3, use: str = "2G") -> str:
        return self.yard.submit(
            "--simulate-use", use, "--env", f"TALLY={self.tally}", "--chdir", self.folder, *options, "--", "python3",
            "train.py", "--epochs", str(epochs), "--id", id,
        )  # fmt: skip

    def run(self, *options: str, id: str = "1", epochs: int = 3) -> Job:
        return self.yard.wait(self.submit(*options, id=id, epochs=epochs))

    def profiler(self, job: str) -> Job:
        """The job that tried another out."""
        return self.yard.client.job(str(int(job) - 1))

    def left(self) -> list[Path]:
        return list(self.yard.cwd.glob(".gpuyard-profile*"))


def _share_after(trial: Job, peak: float) -> float:
    """What somebody gets who was only tried out: a short trial is not believed; on a busy machine it may be long."""
    assert trial["measured"] is not None
    return 4 * 2**30 if trial["measured"]["seconds"] < 2 else math.ceil(1.05 * peak / 2**20) * 2**20


@pytest.fixture
def project(yard: Yard) -> Project:
    return Project(yard)


def test_the_second_run_has_what_the_first_one_used(yard: Yard, project: Project) -> None:
    first = project.run("--gpu-memory", "auto")
    assert (first["state"], first["gpu_memory"], first["prediction"]) == ("succeeded", None, None)
    assert first["measured"] is not None
    assert first["measured"]["peak"] == 2 * 2**30
    second = project.run("--gpu-memory", "auto", id="2", epochs=5)
    assert second["prediction"] is not None
    assert second["prediction"]["evidence"] == "p95 of 1 run: 2,048 MiB + 5 %"
    assert second["gpu_memory"] == second["prediction"]["memory"] == 2151 * 2**20
    assert second["prediction"]["seconds"] == pytest.approx(first["measured"]["seconds"] / 3 * 5, rel=0.05, abs=0.02)
    assert second["estimate"] is None  # nobody said so


def test_who_is_unknown_is_alone_and_those_who_wait_are_told(yard: Yard, project: Project) -> None:
    jobs = [project.submit("--gpu-memory", "auto", "--from", "0", id=str(n), epochs=6) for n in range(3)]
    found = [yard.client.job(job) for job in jobs[1:]]
    assert [job["gpu_memory"] for job in found if job["state"] == "queued"] == [None] * 2
    yard.wait(jobs[0])
    rest = [yard.wait(job) for job in jobs[1:]]
    assert [job["gpu_memory"] for job in rest] == [2151 * 2**20] * 2
    assert [job["attempt"] for job in rest] == [1, 1]
    begun = [job["started_at"] or "" for job in rest]
    assert max(begun) < min(job["ended_at"] or "" for job in rest), "they shared the GPU"


def test_profiling_comes_first_leaves_nothing_and_is_done_once(yard: Yard, project: Project) -> None:
    (project.folder / "last.pt").write_text("mine")
    jobs = [project.submit("--profile", "--epochs 2", id=str(n), epochs=4) for n in (7, 8)]
    done = [yard.wait(job) for job in jobs]
    assert [job["state"] for job in done] == ["succeeded"] * 2
    assert all(job["prediction"] and job["prediction"]["evidence"].startswith("p95 of 1 run") for job in done)
    assert int(jobs[1]) == int(jobs[0]) + 1
    profile = project.profiler(jobs[0])
    assert profile["name"] == "profile of train.py"
    assert (profile["gpu_memory"], profile["state"]) == (None, "succeeded")
    tally = project.tally.read_text().split()
    assert {id: tally.count(id) for id in tally} == {profile["id"]: 2, "7": 4, "8": 4}  # epochs run = epochs asked
    assert [(project.folder / f"{id}.pt").read_text() for id in (7, 8)] == ["4", "4"]
    assert not (project.folder / f"{profile['id']}.pt").exists()
    assert not project.left()
    later = project.submit("--profile", "--epochs 2", id="9")
    assert project.profiler(later)["id"] == jobs[1], "it is known by now"


def test_a_trial_changes_nothing_that_is_there(yard: Yard, project: Project) -> None:
    """Neither what is in directories, nor what links lead to, nor a large file."""
    outside, folder = project.folder / ".." / f"outside-{project.folder.name}", project.folder
    (folder / "ckpt").mkdir()
    (folder / "ckpt" / "last.txt").write_text("kept")
    (folder / "ckpt" / "inner").symlink_to("last.txt")
    outside.mkdir()
    (outside / "best.txt").write_text("kept")
    (folder / "best.txt").symlink_to(outside / "best.txt")
    (folder / "elsewhere").symlink_to(outside)
    (folder / "dangling").symlink_to("nowhere")
    with open(folder / "large.pt", "wb") as file:
        file.truncate(70 * 2**20)
    files = "ckpt/last.txt best.txt elsewhere/best.txt large.pt"
    script = f"for f in {files}; do test -s $f || exit 3; echo trial >$f; done; cat ckpt/inner; test -L dangling"
    (folder / "run.sh").write_text(script)
    wishes = ("--hold", "--simulate-use", "1G", "--chdir", folder, "--profile", "--epochs 2")
    job = yard.submit(*wishes, "--", "sh", "run.sh")
    trial = yard.wait(project.profiler(job)["id"])
    assert (trial["state"], yard.client.log(trial["id"]).data) == ("succeeded", b"trial\n")
    for name in ("ckpt/last.txt", "best.txt", "elsewhere/best.txt"):
        assert (folder / name).read_text() == "kept", name
    assert (folder / "large.pt").stat().st_size == 70 * 2**20
    assert not project.left()
    yard.client.cancel(job)


def test_a_trial_that_runs_out_of_memory_leaves_nothing(yard: Yard, project: Project) -> None:
    job = project.submit("--hold", "--profile", "5s", epochs=100, use="ramp/0.2:1G,20G")
    assert yard.wait(project.profiler(job)["id"])["state"] == "oom"
    assert not project.left()


def test_profiling_for_a_time_ends_then(yard: Yard, project: Project) -> None:
    job = project.submit("--profile", "0.3s", epochs=8)
    assert yard.wait(job)["prediction"] is not None
    profile = project.profiler(job)
    assert (profile["name"], profile["state"]) == ("profile of train.py", "timeout")
    assert not project.left()


def test_a_profile_that_fails_tells_nothing_and_the_job_is_alone(yard: Yard, project: Project) -> None:
    job = project.submit("--profile", "--epochs two")
    done = yard.wait(job)
    assert project.profiler(job)["state"] == "failed"
    assert (done["state"], done["gpu_memory"]) == ("succeeded", None)


def test_an_earlier_version_of_the_script_counts_with_a_larger_margin(yard: Yard, project: Project) -> None:
    project.run("--gpu-memory", "auto")
    project.script.write_text(project.script.read_text() + "# changed\n")
    found = project.run("--gpu-memory", "auto")["prediction"]
    assert found is not None
    assert "of an earlier version of the script" in found["evidence"]
    assert found["evidence"].endswith("+ 10 %")


def test_who_needs_more_than_a_gpu_has_is_refused_after_it_was_tried(yard: Yard, project: Project) -> None:
    job = project.submit("--profile", "--epochs 2", use="20G")
    done = yard.wait(job)
    assert done["state"] == "cancelled"
    assert "needs more than a GPU has" in (done["reason"] or "")
    assert (done["reason"] or "").endswith(f"gpuyard estimates forget {yard.json('estimates', job)['signature']}")
    assert project.profiler(job)["state"] == "oom"


def test_a_share_that_is_too_small_is_told(yard: Yard, project: Project) -> None:
    project.run("--gpu-memory", "auto")
    done = yard(
        "submit",
        "--hold",
        "--chdir",
        project.folder,
        "--gpu-memory",
        "1G",
        "--",
        "python3",
        "train.py",
        "--epochs",
        "3",
        "--id",
        "1",
    )
    assert done.code == 0
    assert done.err.startswith(
        "warning: 1G of GPU memory may be too little for train.py: p95 of 1 run: 2,048 MiB + 5 %"
    )


def test_who_says_how_much_is_not_tried_out(yard: Yard) -> None:
    done = yard("submit", "--profile", "2s", "--gpu-memory", "4G", "--", "sleep", "0")
    assert done.code == 0
    assert done.err == (
        "warning: sleep is not tried out, since it asks for 4G; --gpu-memory auto finds out how much it needs\n"
    )


def test_what_is_known_is_listed_told_and_forgotten(yard: Yard, project: Project) -> None:
    for n in range(2):
        project.run("--gpu-memory", "auto", id=str(n))
    known = yard.json("estimates")[0]
    assert known["runs"] == 2
    assert known["command"] == "python train.py epochs=#"
    assert known["per_epoch"]
    assert known["memory_error"]["count"] == 1
    assert known["memory_error"]["worst"] == pytest.approx(0.05, abs=0.001)
    assert "2,048 MiB + 5 %" in yard("estimates").out
    told = yard.client.guess(["python3.12", "train.py", "--epochs=30"], str(project.folder))
    assert told["evidence"] == "p95 of 2 runs: 2,048 MiB + 5 %"
    assert "nothing is known" in yard("estimates", "--", "python3", "train.py", "--epochs", "30").out
    job = yard.client.history(limit=1)[0]["id"]
    told_of_job = json.loads(yard("estimates", job, "--json").out)
    assert told_of_job["signature"] == known["signature"]
    assert set(told_of_job["runs"][0]) == set(PastRun.__annotations__)
    assert yard("estimates", "forget", known["signature"]).err == f"2 runs of {known['signature']} forgotten\n"
    assert "nothing is known" in yard("estimates", job).out
    assert yard("estimates", "forget", known["signature"]).code == 1


def test_run_times_that_were_learnt_tell_when_a_job_can_start(yard: Yard, project: Project) -> None:
    project.run("--from", "1")
    first = project.submit("--from", "1", epochs=60)
    second = project.submit("--from", "1", epochs=60)
    until(lambda: yard.client.job(first)["started_at"], "the start")
    assert yard.client.explain(second)["expected_at"] is not None


def test_what_makes_no_sense_is_refused(yard: Yard) -> None:
    done = yard("submit", "--profile", "soon", "--", "true")
    assert (done.code, done.err) == (
        2, "gpuyard: error: profile is a time, as in 30s, or arguments, as in '--epochs 2', not 'soon'\n",
    )  # fmt: skip


def test_a_shell_s_text_is_not_tried_out_by_other_arguments(yard: Yard) -> None:
    done = yard("submit", "--profile", "--epochs 2", "--", "sh", "-c", "cd . && sleep 1")
    assert done.code == 2
    assert "has no place for other arguments" in done.err
    assert yard("submit", "--hold", "--profile", "1s", "--", "sh", "-c", "cd . && sleep 1").code == 0
    assert yard("submit", "--hold", "--profile", "--epochs 2", "--", "sh", "run.sh").code == 0


def test_what_was_learnt_holds_over_a_restart(own_yard: Yard) -> None:
    own_yard.serve()
    project = Project(own_yard)
    project.run("--gpu-memory", "auto")
    waiting = [project.submit("--gpu-memory", "auto", "--hold", id=str(n)) for n in (2, 3)]
    own_yard.end(signal.SIGKILL)
    own_yard.serve()
    later = project.submit("--gpu-memory", "auto", "--hold", id="4")
    found = [own_yard.client.job(job) for job in (*waiting, later)]
    assert [job["gpu_memory"] for job in found] == [2151 * 2**20] * 3


def test_a_job_is_tried_out_as_its_user(a: Desk, bob: User) -> None:
    script = a.user.home / "train.sh"
    fresh = os.urandom(4).hex()  # nobody has run it before, in an earlier try of this test neither
    a.user.do(lambda: script.write_text(f"id -un; pwd; echo kept > new # {fresh}\n"))
    wishes: dict[str, Any] = {"directory": str(a.user.home), "simulate_use": "2G"}
    job = a.yard.wait(a.submit("sh", "train.sh", profile="--epochs 2", **wishes))
    profile = a.yard.client.job(str(int(job["id"]) - 1))
    assert (job["state"], job["gpu_memory"]) == ("succeeded", _share_after(profile, 2 * 2**30))
    who, where = a.yard.client.log(profile["id"]).data.decode().split()
    assert (profile["state"], who) == ("succeeded", a.user.name)
    assert where != str(a.user.home)
    assert not Path(where).exists()
    assert a.ask(lambda client: client.guess(["sh", "train.sh"], str(a.user.home)))["memory"] is not None
    assert bob.do(lambda: a.yard.client.guess(["sh", str(script)], str(bob.home)))["memory"] is None
    with pytest.raises(Refused, match="only"):
        bob.do(lambda: a.yard.client.forget_estimate(a.yard.client.estimate(job["id"])["signature"]))


def test_one_trial_serves_all_of_a_batch(yard: Yard, project: Project) -> None:
    wishes: dict[str, Any] = {"profile": "--epochs=1", "simulate_use": "1G", "hold": True}
    commands = [["python3", "train.py", f"--epochs={n}", f"--id={n}"] for n in (3, 4, 5)]
    environment = {**yard.environment, "TALLY": str(project.tally)}
    jobs = yard.client.submit_all([description(words, project.folder, environment, **wishes) for words in commands])
    trial = project.profiler(jobs[0])
    assert [yard.client.job(job)["dependency"] for job in jobs] == [f"afterany:{trial['id']}"] * 3
    tried = yard.wait(trial["id"])
    assert tried["state"] == "succeeded"
    assert [yard.client.job(job)["gpu_memory"] for job in jobs] == [_share_after(tried, 2**30)] * 3
    assert project.tally.read_text().split() == [trial["id"]]


def test_everybody_is_told_however_many_wait_and_whoever_dies_meanwhile(own_yard: Yard) -> None:
    own_yard.serve()
    wish = {"command": ["sleep", "0.3"], "directory": "/", "environment": {"PATH": "/usr/bin:/bin"}}
    auto = {**wish, "gpu_memory": "auto", "simulate_use": "2G"}
    ids = own_yard.client.submit_all([{**auto, "hold": n > 0} for n in range(600)])

    def told() -> int:
        return sum(job["gpu_memory"] is not None for job in own_yard.client.jobs() if job["id"] != ids[0])

    until(told, "the first being told")
    own_yard.end(signal.SIGKILL)
    own_yard.serve()
    until(lambda: told() == 599, "everybody being told")
