"""#SBATCH options in terms of ours."""

from __future__ import annotations

import pytest

from gpuyard.cli.jobs.job_script import Line, slurm_seconds, translate
from gpuyard.errors import UserError


def words(*options: str) -> list[str]:
    return [word for line in translate([Line("x.sh:2", list(options))]).lines for word in line.words]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("1:30", 90), ("01:00:00", 3600), ("100:00:00", 360_000), ("1-0", 86400), ("1-12", 129_600),
        ("2-00:30", 174_600), ("1-02:03:04", 93_784), ("0", 0), ("soon", None), ("1-", None), ("1:2:3:4", None),
    ],
)  # fmt: skip
def test_times(text: str, seconds: int | None) -> None:
    assert slurm_seconds(text) == seconds


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (["--gres=gpu:2"], ["--gpus", "2"]),
        (["--gres", "gpu"], ["--gpus", "1"]),
        (["--gres=gpu:a100:2"], ["--gpus", "2"]),
        (["--gres=gpu:1,nvme:10"], ["--gpus", "1"]),
        (["-G", "v100:3"], ["--gpus", "3"]),
        (["-G3"], ["--gpus", "3"]),
        (["--gpus-per-node=2"], ["--gpus", "2"]),
        (["--ntasks=3", "--gpus-per-task=2"], ["--gpus", "6"]),
        (["-J", "name", "-t", "5"], ["--name", "name", "--time", "300s"]),
        (["-Jname", "-t=5"], ["--name", "name", "--time", "300s"]),
        (["--time=UNLIMITED"], []),
        (["-a", "0-9%2"], ["--array", "0-9%2"]),
        (["--requeue", "--hold"], ["--requeue", "--hold"]),
        (["--nice"], ["--priority=-100"]),
        (["--nice=-5"], ["--priority=5"]),
        (["-N", "1-1", "-n", "1"], []),
        (["--wait", "--output=x"], ["--output", "x"]),
    ],
)
def test_options(options: list[str], meant: list[str]) -> None:
    assert words(*options) == meant


def test_what_has_no_meaning_here_is_told_with_its_line() -> None:
    found = translate([Line("x.sh:4", ["--mem", "32G"]), Line("x.sh:5", ["--gress=gpu:1", "-p", "long"])])
    assert found.warnings == [
        "x.sh:4: #SBATCH --mem 32G: host memory is not managed here; ignored",
        "x.sh:5: #SBATCH --gress=gpu:1: ignored: this option is not known; did you mean 'gres'?",
        "x.sh:5: #SBATCH -p long: there are no partitions here; ignored",
    ]
    assert found.lines == []


def test_what_slurm_would_tell_the_job() -> None:
    found = translate([Line("x.sh:2", ["--ntasks-per-node=4", "--cpus-per-task=8", "--partition=long"])])
    assert found.variables == {
        "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_PARTITION": "long",
    }  # fmt: skip


def test_more_than_one_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"x\.sh:2: #SBATCH --nodes=2-4: there is one machine here"):
        words("--nodes=2-4")


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (["--mail-type=END", "--mail-user=a@b.de"], ["--notify", "a@b.de", "--notify-on", "finish,failure,timeout"]),
        (["--mail-type=BEGIN,FAIL"], ["--notify", "all", "--notify-on", "start,failure,timeout"]),
        (["--mail-type=ALL,ARRAY_TASKS"], ["--notify", "all", "--notify-on", "start,finish,failure,timeout,tasks"]),
        (["--mail-type=time_limit", "--mail-user=ann"], ["--notify", "all", "--notify-on", "timeout"]),
        (["--mail-type=NONE"], ["--notify", "none"]),
        (["--mail-user=a@b.de"], []),
        (["--mail-type=STAGE_OUT"], []),
    ],
)
def test_mail(options: list[str], meant: list[str]) -> None:
    assert words(*options) == meant


def test_mail_that_nobody_gets_is_told() -> None:
    found = translate([Line("x.sh:2", ["--mail-user=a@b.de"])])
    assert found.warnings == ["x.sh:2: #SBATCH --mail-user=a@b.de: without --mail-type no mail is sent; ignored"]
    found = translate([Line("x.sh:2", ["--mail-type=REQUEUE,END", "--mail-user=ann"])])
    assert found.warnings == [
        "x.sh:2: #SBATCH --mail-type=REQUEUE,END: of REQUEUE nobody is told here; ignored",
        "x.sh:2: #SBATCH --mail-user=ann: not an address; told is who is in gpuyard notify list",
    ]
