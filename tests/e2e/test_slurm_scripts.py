"""Scripts that were written for Slurm, run as they are."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.yard import Done, Yard, finish, until

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def here(yard: Yard, tmp_path: Path) -> Iterator[Path]:
    """A directory with all scripts, from which commands are given."""
    folder = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, folder)
    before, yard.cwd = yard.cwd, folder
    yield folder
    yard.cwd = before


def submitted(yard: Yard, *arguments: str) -> tuple[str, list[str]]:
    """The id, and the warnings."""
    done: Done = yard("submit", *arguments)
    assert done.code == 0, done
    return done.out.strip(), done.err.splitlines()


def test_a_single_gpu(yard: Yard, here: Path) -> None:
    id, warnings = submitted(yard, "01-single-gpu.sh")
    assert warnings == [
        "01-single-gpu.sh:3: #SBATCH --partition=gpu: there are no partitions here; ignored",
        "01-single-gpu.sh:6: #SBATCH --cpus-per-task=4: CPU cores are not managed here; "
        "only SLURM_CPUS_PER_TASK is set",
        "01-single-gpu.sh:7: #SBATCH --mem=16G: host memory is not managed here; ignored",
    ]
    job = yard.wait(id)
    assert (job["state"], job["name"], job["time_limit"], job["gpu_count"]) == ("succeeded", "single", 5400, 1)
    assert job["output"] == str(here / f"single-{id}.out")
    lines = (here / f"single-{id}.out").read_text().splitlines()
    assert lines[:2] == [f"Job {id} (single) on {socket.gethostname()}", "threads 4"]
    assert lines[-1] == "epoch 1"
    assert yard("logs", id).out.splitlines() == lines
    assert yard("logs", id, "--tail", "1").out == "epoch 1\n"


def test_a_process_for_each_gpu_by_srun(yard: Yard, here: Path) -> None:
    id, warnings = submitted(yard, "02-ddp-srun.sh")
    assert warnings == []
    job = yard.wait(id)
    assert (job["state"], job["time_limit"], job["gpu_count"]) == ("succeeded", 7200, 2)
    text = (here / f"ddp-{id}.log").read_text()
    assert f"master {socket.gethostname()} world 2" in text
    assert "rank 0 of 2" in text
    assert "rank 1 of 2" in text


def test_a_launcher(yard: Yard, here: Path) -> None:
    id, warnings = submitted(yard, "03-torchrun.sh")
    assert len(warnings) == 2
    job = yard.wait(id)
    assert (job["state"], job["name"], job["gpu_count"], job["time_limit"]) == ("succeeded", "torchrun test", 2, 7200)
    text = yard("logs", id).out
    assert f"Head node: {socket.gethostname()}" in text
    assert "step on 0" in text
    assert {"local rank 0 of 2", "local rank 1 of 2"} <= set(text.splitlines())


def test_an_array_that_reads_a_line_of_a_file(yard: Yard, here: Path) -> None:
    (here / "params.txt").write_text("--lr 0.5\n--lr 0.25 --seed 3\n--seed 9\n")
    (here / "logs").mkdir()
    id, warnings = submitted(yard, "04-array-from-file.sh")
    assert warnings == []
    assert yard.wait(id)["state"] == "succeeded"
    text = (here / "logs" / f"sweep_{id}_2.out").read_text()
    assert "task 2 of 3: --lr 0.25 --seed 3" in text
    assert "lr 0.25 seed 3" in text
    assert (here / "logs" / f"sweep_{id}_3.err").read_text() == "a warning\n"
    assert yard("logs", "--error", f"{id}_1").out == "a warning\n"
    assert yard("logs", f"{id}_1").err.startswith(
        f"its errors go to {here}/logs/sweep_{id}_1.err (gpuyard logs --error"
    )


def test_modules_and_conda(yard: Yard, here: Path) -> None:
    id, warnings = submitted(yard, "05-conda.sh")
    assert [warning.split(": ")[1].split("=")[0] for warning in warnings] == [
        "#SBATCH --account", "#SBATCH --qos", "#SBATCH --mem-per-cpu", "no mail is sent to someone@example.org",
    ]  # fmt: skip
    assert yard.wait(id)["state"] == "succeeded"
    text = yard("logs", id).out
    assert "module: there are no environment modules here; 'load cuda/12.1' does nothing" in text
    assert "lr 0.01 seed 0" in text


def test_several_options_in_a_line_and_a_remark(yard: Yard, here: Path) -> None:
    (here / "tf.out").write_text("before\n")
    id, warnings = submitted(yard, "06-tensorflow.sh")
    assert warnings == ["06-tensorflow.sh:2: #SBATCH --gres=gpu:a100:1: which kind of GPU (a100) is not looked at"]
    job = yard.wait(id)
    assert (job["state"], job["name"], job["time_limit"]) == ("succeeded", "tf", 2 * 86400)
    lines = (here / "tf.out").read_text().splitlines()
    assert lines[0] == "before"
    assert lines[1].startswith("visible: ")
    assert lines[-1] == "epoch 0"


def test_a_checkpoint_that_is_gone_on_from(yard: Yard, here: Path) -> None:
    id, warnings = submitted(yard, "07-checkpoint.sh")
    assert warnings == []
    until(lambda: (here / "resume.out").exists() and "training" in (here / "resume.out").read_text())
    assert yard("edit", id, "--time", "60.1s").code == 0  # it is told 60 s before: now
    assert yard.wait(id)["state"] == "succeeded"
    assert (here / "checkpoint.txt").read_text() == "epoch 7\n"
    id, _ = submitted(yard, "07-checkpoint.sh")
    assert yard.wait(id)["state"] == "succeeded"
    text = (here / "resume.out").read_text()
    assert "checkpoint written" in text
    assert text.endswith("restart 0\nrank 0 of 1 on GPUs 0\nlr 0.1 seed 0\nresuming from epoch 7\nepoch 0\n")


def test_hyperparameters_four_at_once(yard: Yard, here: Path) -> None:
    id, warnings = submitted(yard, "08-hyperparameters.sh")
    assert warnings == []
    assert yard.client.job(f"{id}_0")["time_limit"] == 900
    assert yard.wait(id)["tasks"] == {"succeeded": 8}
    assert "lr 0.001 seed 2" in (here / "hyper.6").read_text()


def test_a_chain(yard: Yard, here: Path) -> None:
    first = yard.submit("--hold", "--name", "prepare", "--", "sh", "-c", "echo ready >prepared.txt")
    id, warnings = submitted(yard, "09-chain.sh")
    assert warnings == [
        "09-chain.sh:6: #SBATCH --kill-on-invalid-dep=yes: a job whose dependency fails is cancelled; ignored"
    ]
    assert yard.client.job(id)["dependency"] == f"afterok:{first}"
    yard("release", first)
    assert yard.wait(id)["state"] == "succeeded"
    assert yard("logs", id).out.splitlines()[0] == "ready"


def test_patterns_quotes_and_what_stands_below_the_first_command(yard: Yard, here: Path) -> None:
    (here / "work" / "out").mkdir(parents=True)
    id, warnings = submitted(yard, "10-patterns.sh", "an argument", "--gpus", "3")
    assert warnings == []
    job = yard.client.job(id)
    assert (job["state"], job["gpu_count"], job["priority"], job["tags"]) == ("held", 1, -50, ["a remark"])
    yard("release", id)
    job = yard.wait(id)
    name = f"my job-{job['user']}-{id.rjust(5, '0')}-{socket.gethostname()}-100%.txt"
    assert job["output"] == str(here / "work" / "out" / name)
    lines = Path(job["output"]).read_text().splitlines()
    assert lines[0] == str(here / "work")
    assert lines[1] == "hello the world"
    assert lines[2].endswith("/script an argument --gpus 3")


def test_all_scripts_are_run_by_some_test() -> None:
    text = Path(__file__).read_text()
    scripts = [path.name for path in SCRIPTS.glob("*.sh")]
    assert len(scripts) >= 10
    assert all(f'"{name}"' in text for name in scripts)


def test_what_is_run_is_what_was_submitted(yard: Yard, here: Path) -> None:
    script = here / "mine.sh"
    script.write_text("#!/bin/sh\necho as it was\n")
    id, _ = submitted(yard, "--hold", "mine.sh")
    script.write_text("#!/bin/sh\necho changed\n")
    in_place = yard.submit("--hold", "--", "sh", "mine.sh")
    yard("release", id, in_place)
    yard.wait(id)
    yard.wait(in_place)
    assert (yard("logs", id).out, yard("logs", in_place).out) == ("as it was\n", "changed\n")
    job = yard.client.job(id)
    assert (job["name"], job["command"]) == ("mine.sh", ["mine.sh"])


def test_the_command_line_goes_before_our_lines_and_these_before_slurms(yard: Yard, here: Path) -> None:
    (here / "mine.sh").write_text(
        "#!/bin/sh\n#SBATCH --gpus=3 --time=60 --job-name=slurm\n#GPUYARD --gpus 2 --time 1h --tag a\n"
        "#GPUYARD --tag b --from 0,1,2\nenv | grep -c ^SLURM_JOB_ID=\n"
    )
    id, _ = submitted(yard, "--gpus", "1", "mine.sh")
    job = yard.wait(id)
    assert (job["gpu_count"], job["time_limit"], job["name"], job["tags"]) == (1, 3600, "slurm", ["a", "b"])
    assert yard("logs", id).out == "1\n"
    plain, _ = submitted(yard, "--no-slurm-variables", "mine.sh")
    yard.wait(plain)
    assert yard("logs", plain).out == "0\n"
    asked = yard.submit("--slurm-variables", "--", "sh", "-c", "echo $SLURM_JOB_ID $SLURM_GPUS; srun echo hi")
    yard.wait(asked)
    assert yard("logs", asked).out == f"{asked} 1\nhi\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("#SBATCH --nodes=2", "mine.sh:2: #SBATCH --nodes=2: there is one machine here"),
        ("#SBATCH --time=soon", "mine.sh:2: #SBATCH --time=soon: a time is expected"),
        ("#SBATCH --gpus=many", "mine.sh:2: #SBATCH --gpus=many: a number of GPUs is expected"),
        ("#SBATCH --job-name='x", "mine.sh:2: #SBATCH --job-name='x: no closing quotation"),
        ("#SBATCH word", "mine.sh:2: #SBATCH word: this is no option"),
        ("#SBATCH --array=9-1", "goes backwards"),
        ("#GPUYARD --gpu 2", "mine.sh:2: No such option: --gpu"),
        ("#GPUYARD --gpus two", "mine.sh:2: --gpus is a whole number of 1 or more, as in 1, not 'two'"),
        ("#GPUYARD --time 90", "mine.sh:2: --time 90: 90m or 90s? Write the unit"),
        ("#GPUYARD --gpu-memory 3X", "mine.sh:2: --gpu-memory: '3X' is not a size"),
        ("#SBATCH --begin=soon", "mine.sh:2: #SBATCH --begin=soon: --begin: 'soon' is not a time"),
    ],
)
def test_a_line_that_makes_no_sense_is_told_with_its_place(yard: Yard, here: Path, line: str, told: str) -> None:
    (here / "mine.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    done = yard("submit", "mine.sh")
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert yard.client.jobs() == []


def test_folders_of_output_are_made_or_refused_when_a_job_is_submitted(yard: Yard, here: Path) -> None:
    id = yard.submit("--output", "new/%j/out", "--error", "other/err", "--", "sh", "-c", "echo hi; echo no >&2")
    assert yard.wait(id)["state"] == "succeeded"
    assert ((here / "new" / id / "out").read_text(), (here / "other" / "err").read_text()) == ("hi\n", "no\n")
    (here / "file").touch()
    refused = yard("submit", "--output", "file/x/%j.out", "--", "true")
    assert (refused.code, refused.out) == (2, "")
    assert f"--output file/x/%j.out cannot be written: {here}/file is not a directory" in refused.err
    for folder, example in (("new/", "new/%j.out"), ("other", "other/%j.out"), ("later/", "later/%j.out")):
        refused = yard("submit", "--error", folder, "--", "true")
        assert (refused.code, refused.out) == (2, "")
        assert f"--error {folder} is a directory; name a file in it, as in {example}" in refused.err


def test_a_file_that_cannot_be_written_fails_the_job_with_the_reason(yard: Yard, here: Path) -> None:
    id = yard.submit("--hold", "--output", "nowhere/%j.out", "--", "echo", "hi")
    (here / "nowhere").touch()
    assert yard("release", id).code == 0
    job = yard.wait(id)
    assert (job["state"], job["exit_code"]) == ("failed", 73)
    told = f"gpuyard: {here}/nowhere/{id}.out, where its output was to go, cannot be written\n"
    assert yard.client.job(id)["reason"] == f"its output file {here}/nowhere/{id}.out cannot be written"
    assert yard("logs", id).out == told


STAND_INS = """#!/bin/bash
#SBATCH --gres=shard:1 --tasks-per-node=2 --time=90
echo $SLURM_NTASKS $SLURM_RESTART_COUNT; squeue -h -j $SLURM_JOB_ID -o '%i %T %u'
if [ $SLURM_RESTART_COUNT = 0 ]; then scontrol requeue $SLURM_JOB_ID; exit 0; fi
first=$(sbatch --parsable --hold --wrap 'echo hi')
inner=$(printf 'inner\\033[2J')
sbatch -H --time=2 -J "$inner" <<'END'
#!/bin/sh
true
END
scontrol show job $((SLURM_JOB_ID + 2)) | head -n 1
squeue --me -h -t PENDING -o '%.5j|%t'; squeue --me -h -t PD -n "$inner" -o %j
scancel $first; scancel --name "$inner"
squeue --me -t PD | wc -l
scancel --signal USR1 $first
"""


def test_slurms_programs_have_stand_ins_within_a_job(yard: Yard, here: Path) -> None:
    (here / "mine.sh").write_text(STAND_INS)
    id, warnings = submitted(yard, "mine.sh")
    assert warnings == [
        "mine.sh:2: #SBATCH --gres=shard:1: GPUs are shared by memory here: --gpu-memory 6G is a share; without it the "
        "job gets one whole GPU"
    ]
    job = yard.wait(id)
    user, last = job["user"], int(id) + 2
    out = (here / f"slurm-{id}.out").read_text() if job["output"] else yard("logs", id).out
    assert out.splitlines() == [
        "2 1", f"{id} RUNNING {user}", f"Submitted batch job {last}", f"JobId={last} JobName=inner [2J",
        " wrap|PD", "inner|PD", "inner [2J", "1",
        "scancel: error: jobs are not sent USR1 from outside; submit them with --signal USR1@60s",
    ]  # fmt: skip
    assert (job["attempt"], job["time_limit"], yard.client.job(str(last))["time_limit"]) == (2, 5400, 120)
    assert yard.client.job(str(last))["state"] == "cancelled"
    assert "requeued, and waits again" in yard("show", id).out


def test_a_job_that_cancels_all_of_its_users_cancels_itself_last(yard: Yard, here: Path) -> None:
    waits = "while [ ! -e go ]; do sleep 0.05; done"
    (here / "all.sh").write_text(f"#!/bin/sh\n#SBATCH --gpus=4\n{waits}\nscancel --me\nsleep 1000\n")
    id, _ = submitted(yard, "all.sh")
    array = yard.submit("--array", "0-3", "--", "sleep", "1000")
    (here / "go").touch()
    assert yard.wait(id)["state"] == "cancelled"
    tasks = [job for job in yard.client.history(limit=10) if job["array"] == array]
    assert [(job["state"], job["attempt"]) for job in tasks] == [("cancelled", 0)] * 4


def test_a_file_is_begun_anew_at_first_and_gone_on_with_then(yard: Yard, here: Path) -> None:
    (here / "out").write_text("old\n")
    flaky = ("--retries", "1", "--retry-delay", "0", "--output", "out", "--", "sh", "-c")
    yard.wait(yard.submit(*flaky, "echo $GPUYARD_ATTEMPT; test $GPUYARD_ATTEMPT = 2"))
    assert (here / "out").read_text() == "1\n2\n"
    yard.wait(yard.submit("--open-mode", "append", "--output", "out", "--", "echo", "more"))
    assert (here / "out").read_text() == "1\n2\nmore\n"


def test_run_and_logs_follow_the_file_that_a_job_writes(yard: Yard, here: Path) -> None:
    command = ("sh", "-c", "echo begin; sleep 0.3; echo end; exit 4")
    assert yard("run", "--output", "%x.txt", "--name", "n", "--", *command)[:2] == (4, "begin\nend\n")
    assert (here / "n.txt").read_text() == "begin\nend\n"
    id = yard.submit("--output", "%j.txt", "--", "sh", "-c", "echo begin; sleep 1000")
    follower = yard.popen("logs", "-f", id)
    until(lambda: (here / f"{id}.txt").exists())
    yard("cancel", id, "--grace", "0")
    assert finish(follower)[:2] == (0, "begin\n")


def test_each_task_of_srun_has_its_own_gpus(yard: Yard, here: Path) -> None:
    show = "sh -c 'echo $SLURM_PROCID $SLURM_GPUS_PER_TASK $CUDA_VISIBLE_DEVICES'"
    (here / "own.sh").write_text(
        f"#!/bin/sh\n#SBATCH --ntasks=2 --gpus-per-task=2\nsrun {show}\n"
        f"srun -n 1 --gpus-per-task=1 {show}\nsrun -n 3 {show}\n"
    )
    id, _ = submitted(yard, "own.sh")
    assert yard.wait(id)["exit_code"] == 2
    *lines, last = yard("logs", id).out.splitlines()
    assert [line.split()[:2] for line in sorted(lines)] == [["0", "1"], ["0", "2"], ["1", "2"]]
    one, first, second = (line.split()[2].split(",") for line in sorted(lines))
    assert len({*first, *second}) == 4
    assert first[:1] == one
    assert last == "srun: 3 tasks with 2 GPUs each want more than the 4 of this job"


def test_the_job_id_of_a_task_is_a_number(yard: Yard, here: Path) -> None:
    (here / "count.sh").write_text(
        "#!/bin/sh\n#SBATCH --array=1-2 --output=%A-%J.txt\n"
        "echo $((SLURM_JOB_ID + 0)) $((SLURM_JOBID + 0)) $SLURM_ARRAY_JOB_ID\n"
        "sbatch --parsable -H -d afterok:$SLURM_JOB_ID,afterany:$SLURM_JOB_ID --wrap true\n"
    )
    id, _ = submitted(yard, "count.sh")
    yard.wait(id)
    found = [(here / f"{id}-{id}_{task}.txt").read_text().split() for task in (1, 2)]
    assert [same == number and array == id for number, same, array, _ in found] == [True, True]
    assert [yard.client.job(found[task - 1][3])["dependency"] for task in (1, 2)] == [
        f"afterok:{id}_{task},afterany:{id}_{task}" for task in (1, 2)
    ]
    assert found[0][0] != found[1][0]
