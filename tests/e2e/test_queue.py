"""What is asked of the queue, and what it answers."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest
from tests.yard import Yard, finish

import gpuyard
from gpuyard.client.transport import Invalid
from gpuyard.errors import UserError

JOB_KEYS = [
    "id", "name", "user", "state", "reason", "attempt", "gpus", "exit_code", "submitted_at", "started_at", "ended_at"
]  # fmt: skip
GPU_KEYS = ["index", "uuid", "name", "state", "memory_total", "memory_used", "utilization", "jobs"]
ENDLESS = ("sleep", "1000")


def test_a_job_from_submit_to_history(yard: Yard) -> None:
    id = yard.submit("--name", "first", "--", "sh", "-c", "echo hello; exit 3")
    assert yard("wait", id) == (3, "", f"job {id}: failed (exit code 3)\n")
    assert yard("logs", id) == (0, "hello\n", "")
    [newest] = yard.json("history", "--limit", "1")
    assert list(newest)[: len(JOB_KEYS)] == JOB_KEYS
    assert newest["id"] == id
    assert (newest["name"], newest["state"], newest["exit_code"], newest["attempt"]) == ("first", "failed", 3, 1)
    assert newest["submitted_at"] <= newest["started_at"] <= newest["ended_at"]
    table = yard("history", "--since", "1h", "--state", "failed", "--name", "first").out.splitlines()
    assert table[0].split()[:5] == ["ID", "NAME", "USER", "STATE", "EXIT"]
    assert [row.split()[0] for row in table[1:]] == [id]
    assert yard.json("history", "--user", "nobody-of-this-name") == []


def test_submit_takes_all_that_can_be_asked_for(yard: Yard, tmp_path: Path) -> None:
    options = "--gpus 2 --from 0,1,3 --gpu-memory 6G --name n --priority 2.5 --time 90m --estimate 1h --tag a --tag b"
    asked = yard("submit", *options.split(), "--requeue", "--hold", "--grace", "5s", "-D", tmp_path, "--json", "true")
    id = json.loads(asked.out)["id"]
    [job] = yard.json("ps", "--state", "held")
    assert (job["id"], job["name"], job["priority"], job["tags"]) == (id, "n", 2.5, ["a", "b"])
    assert (job["gpu_count"], job["gpu_memory"], job["directory"]) == (2, 6 * 2**30, str(tmp_path))
    assert (job["time_limit"], job["estimate"], job["command"]) == (5400, 3600, ["true"])
    assert "gpuyard release" in job["reason"]


def test_what_follows_the_commands_first_word_is_the_commands(yard: Yard) -> None:
    id = yard.submit("--hold", "--gpus", "2", "env", "-m", "train", "--name", "x")
    job = yard.client.job(id)
    assert (job["command"], job["gpu_count"]) == (["env", "-m", "train", "--name", "x"], 2)
    assert yard.client.job(yard.submit("--hold", "--from", "0,1", "true"))["gpu_count"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["submit"], "there is no command to run; put it after --"),
        (["submit", "--", "python train.py"], "sh -c 'python train.py'"),
        (["submit", "--gpus", "9", "--", "true"], "wants 9 GPUs"),
        (["submit", "--gpus", "0", "--", "true"], "--gpus"),
        (["submit", "--from", "0,7", "--", "true"], "wants GPU 7"),
        (["submit", "--from", "a", "--", "true"], "'a' is not a list of GPUs"),
        (["submit", "--gpu-memory", "17G", "--", "true"], "wants 17G on each GPU"),
        (["submit", "--gpu-memory", "lots", "--", "true"], "'lots' is not a size"),
        (["submit", "--time", "soon", "--", "true"], "'soon' is not a duration"),
        (["submit", "--time", "0", "--", "true"], "--time must be above 0"),
        (["submit", "--grace", "-1", "--", "true"], "--grace must be 0 or more"),
        (["submit", "--chdir", "nowhere", "--", "true"], "there is no directory"),
        (["submit", "--priority", "nan", "--", "true"], "--priority is a number, as in 0, not 'nan'"),
        (["history", "--since", "once"], "--since 'once' is no time"),
        (["ps", "--state", "runing"], "did you mean 'running'?"),
        (["ps", "--state", "PENDING"], "did you mean 'waiting'?"),
        (["policy", "set", "sfj"], "did you mean 'sjf'?"),
        (["cancel"], "which jobs? give their ids, or --name"),
        (["cancel", "--user", "ann"], "which jobs of ann? give --name, --state, --tag, or --all"),
        (["pss"], "Did you mean 'ps'"),
        (["squeue", "-u", "me"], "gpuyard ps does that"),
        (
            ["submit", "--gpu-memory", "6", "--", "true"],
            "6 bytes of a GPU's memory are too few; write a unit, as in 6G",
        ),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_exit_2(yard: Yard, arguments: list[str], told: str) -> None:
    done = yard(*arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err
    assert yard.client.jobs() == []


@pytest.mark.parametrize("arguments", [["logs"], ["cancel"], ["hold"], ["release"], ["wait"], ["explain"], ["show"]])
def test_a_job_that_is_not_there_is_told(yard: Yard, arguments: list[str]) -> None:
    done = yard(*arguments, "999999")
    assert (done.code, done.out) == (1, "")
    assert "there is no job 999999" in done.err


def test_a_command_that_is_missing_is_told_at_once_or_fails_with_the_reason(yard: Yard) -> None:
    refused = yard("submit", "--", "no-such-command-anywhere")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no program no-such-command-anywhere on the PATH" in refused.err
    first = yard.submit("--", "true")
    job = yard.wait(yard.submit("-d", f"afterany:{first}", "--", "no-such-command-anywhere"))
    assert (job["state"], job["exit_code"]) == ("failed", 127)
    assert job["reason"] == "command not found: no-such-command-anywhere"


@pytest.mark.parametrize(
    ("name", "text", "arguments", "told"),
    [
        ("train.sbatch", "#!/bin/sh\n", ["trian.sbatch"], "no file here; did you mean 'train.sb"),
        ("train.py", "print()\n", ["train.py"], "write: gpuyard submit -- python train.py (or chmod +x train.py"),
        ("train.py", "print()\n", ["./train.py"], "./train.py is not executable"),
        ("next.sh", "#!/bin/sh\n", ["--", "./next.sh"], "./next.sh is not executable; write what runs it"),
        ("some.yaml", "jobs: []\n", ["some.yaml"], "gpuyard submit --file some.yaml"),
        ("lines.sh", "#SBATCH --gpus=1\ntrue\n", ["lines.sh"], "begin it with #!/bin/bash"),
        ("dos.sh", "#!/bin/sh\r\ntrue\r\n", ["dos.sh"], "dos2unix dos.sh mends it"),
        ("a", "", ["-"], "save it to a file"),
        ("a", "", ["./nothing/there"], "there is no file ./nothing/there"),
    ],
)
def test_what_cannot_run_is_told_at_once(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, arguments: list[str], told: str
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    monkeypatch.setattr(yard, "cwd", tmp_path)
    done = yard("submit", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert yard.client.jobs() == []


def test_what_an_earlier_job_makes_may_be_submitted_before_it_is_there(yard: Yard) -> None:
    first = yard.submit("--hold", "--", "true")
    assert yard.submit("--dependency", f"afterok:{first}", "--", "./made-by-it")


def test_a_directory_that_goes_away_fails_the_job(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    id = yard.submit("--hold", "--chdir", tmp_path / "gone", "--", "true")
    (tmp_path / "gone").rmdir()
    assert yard("hold", id) == (0, "", f"job {id}: was held already\n")
    assert yard("release", id) == (0, "", f"job {id}: released\n")
    job = yard.wait(id)
    assert job["state"] == "failed"
    assert job["reason"] == f"the directory {tmp_path / 'gone'} does not exist"


def test_ps_shows_who_runs_and_who_waits_and_why(yard: Yard) -> None:
    running = yard.submit("--gpus", "3", "--name", "wide", "--time", "1h", "--", *ENDLESS)
    low = yard.submit("--gpus", "2", "--", *ENDLESS)
    high = yard.submit("--gpus", "4", "--priority", "5", "--", *ENDLESS)
    held = yard.submit("--hold", "--", "true")
    found = yard.json("ps")
    assert [job["id"] for job in found] == [running, high, low, held]
    assert [job["state"] for job in found] == ["running", "queued", "queued", "held"]
    assert all(list(job)[: len(JOB_KEYS)] == JOB_KEYS for job in found)
    assert len(found[0]["gpus"]) == 3
    assert found[1]["reason"].startswith("needs 4 GPUs, 1 idle; expected to fit at ")
    assert found[2]["reason"] == "needs 2 GPUs, 1 idle"
    rows = yard("ps").out.splitlines()
    assert rows[0].split()[:4] == ["ID", "NAME", "USER", "STATE"]
    assert [row.split()[0] for row in rows[1:]] == [running, high, low, held]
    wide = yard("ps", "--wide").out.splitlines()
    assert wide[0].endswith("  COMMAND")
    assert [line.endswith(f"  {shlex.join(ENDLESS)}") for line in wide[1:]] == [True, True, True, False]
    waiting = yard("ps", "--state", "waiting").out.splitlines()
    assert [row.split()[0] for row in waiting[1:]] == [high, low, held]
    for id, why in (
        (low, "queued (needs 2 GPUs, 1 idle)"),
        (held, f"held until it is released (gpuyard release {held})"),
    ):
        assert yard("logs", id) == (0, "", f"job {id}: {why}; it has no output before it starts\n")
    assert [job["id"] for job in yard.json("ps", "--name", "wide")] == [running]
    assert yard.json("ps", "--user", "nobody-of-this-name") == []


def test_ps_of_what_is_over_and_of_nothing(yard: Yard) -> None:
    assert yard("ps").err == "no job runs or waits\n"
    assert yard.json("ps") == []
    id = yard.submit("--name", "quick", "--", "true")
    yard.wait(id)
    assert id in [job["id"] for job in yard.json("ps", "--all")]
    assert [job["id"] for job in yard.json("ps", "--state", "succeeded", "--name", "quick")] == [id]
    rows = [line.split() for line in yard("history", "--name", "quick").out.splitlines()]
    assert (rows[0][-2:], rows[1][-1]) == (["COMMAND", "REASON"], "true")


def test_explain_says_what_has_to_end_first(yard: Yard) -> None:
    blocker = yard.submit("--gpus", "4", "--name", "blocker", "--time", "1h", "--", *ENDLESS)
    first = yard.submit("--gpus", "2", "--", "true")
    second = yard.submit("--", "true")
    found = yard.json("explain", second)
    assert (found["id"], found["state"], found["gpus"]) == (second, "queued", [])
    assert (found["code"], found["ahead"], found["details"]["gpus"], found["details"]["idle"]) == (
        "Resources", [first], 1, 0,
    )  # fmt: skip
    assert found["must_end_first"] == []  # who is ahead would take what becomes free
    assert [job["id"] for job in yard.json("explain", first)["must_end_first"]] == [blocker]
    assert "blocker" in yard("explain", first).out
    text = yard("explain", second).out
    assert text.startswith(f"Job {second} is queued: it needs 1 GPU, 0 idle")
    assert f"It is number 2 in line; ahead of it: 1 job ({first}).\nWhen its turn comes, any GPU will do." in text
    assert yard("explain", blocker).out == f"Job {blocker} is running on GPU 0,1,2,3; it waits for nothing.\n"
    held = yard.submit("--hold", "--", "true")
    assert yard("explain", held).out == f"Job {held} is held until it is released (gpuyard release {held}).\n"
    yard.client.cancel(blocker, grace=0)
    yard.wait(second)
    assert yard("explain", second).out == f"Job {second} has succeeded.\n"


def test_gpus_are_simulated_and_say_who_is_on_them(yard: Yard) -> None:
    id = yard.submit("--gpus", "2", "--", *ENDLESS)
    yard.client.job(id, wait=30, until="start")
    found = yard.json("gpus")
    assert all(list(gpu)[: len(GPU_KEYS)] == GPU_KEYS for gpu in found)
    assert [gpu["index"] for gpu in found] == [0, 1, 2, 3]
    assert [gpu["jobs"] for gpu in found] == [[id], [id], [], []]
    assert [gpu["state"] for gpu in found] == ["ours", "ours", "free", "free"]
    assert {gpu["memory_total"] for gpu in found} == {16 * 2**30}
    shown = yard("gpus")
    assert "4 simulated GPUs: no real GPU is used" in shown.err
    assert "Simulated GPU 16G" in shown.out
    assert "no process" not in shown.out


def test_hold_and_release(yard: Yard) -> None:
    blocker = yard.submit("--gpus", "4", "--", *ENDLESS)
    waiting = yard.submit("--", "true")
    done = yard("hold", waiting, blocker)
    assert done.code == 1
    assert done.err.splitlines() == [
        f"job {waiting}: held",
        f"gpuyard: error: job {blocker} runs already; only a waiting job can be held",
    ]
    yard.client.cancel(blocker, grace=0)
    yard.wait(blocker)
    assert yard.client.job(waiting)["state"] == "held"
    assert [job["id"] for job in yard.json("release", waiting)] == [waiting]
    assert yard.wait(waiting)["state"] == "succeeded"


def test_cancel_takes_several_and_says_what_cannot_be_done(yard: Yard) -> None:
    running = yard.submit("--gpus", "4", "--", *ENDLESS)
    waiting = yard.submit("--hold", "--", "true")
    done = yard("cancel", running, waiting, "--grace", "0", "--json")
    assert (done.code, done.err) == (0, f"job {running}: asked to end\njob {waiting}: cancelled\n")
    assert [job["id"] for job in json.loads(done.out)] == [running, waiting]
    assert yard.wait(running)["state"] == "cancelled"
    again = yard("cancel", running, waiting)
    assert again.code == 1
    assert again.err.count("it was cancelled") == 2


def test_wait_for_several_and_in_vain(yard: Yard) -> None:
    good, bad = yard.submit("--", "true"), yard.submit("--", "sh", "-c", "exit 4")
    endless = yard.submit("--", *ENDLESS)
    assert yard("wait", good, good).code == 0
    both = yard("wait", good, bad, "--json")
    assert both.code == 1
    assert [job["exit_code"] for job in json.loads(both.out)] == [0, 4]
    done = yard("wait", good, endless, "--timeout", "0.2")
    assert done.code == 124
    assert f"job {endless}: running" in done.err
    yard.client.cancel(endless, grace=0)
    assert yard("wait", endless).code == 130


def test_logs_from_the_end_and_as_they_come(yard: Yard) -> None:
    id = yard.submit("--", "sh", "-c", "seq 1 9; while [ ! -e end ]; do sleep 0.02; done; printf 'the end'")
    yard.await_output(id, b"9\n")
    assert yard("logs", id, "--tail", "2").out == "8\n9\n"
    following = yard.popen("logs", id, "--follow", "-n", "1")
    assert following.stdout is not None
    assert following.stdout.readline() == "9\n"
    (yard.cwd / "end").touch()
    assert finish(following).out == "the end"
    assert yard("logs", id, "--attempt", "1", "-n", "1").out == "the end"
    assert yard("logs", id, "-n", "0").out == ""


def test_run_is_like_running_it_here(yard: Yard) -> None:
    assert yard.process("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
    assert yard("run", "--", "sh", "-c", "kill -9 $$").code == 137
    done = yard("run", "--time", "0.2s", "--grace", "0", "--", *ENDLESS)
    assert done.code == 124
    assert "timeout (ran out of time: its limit was 0.2s)" in done.err


def test_run_says_why_it_waits(yard: Yard) -> None:
    blocker = yard.submit("--gpus", "4", "--", *ENDLESS)
    running = yard.popen("run", "--gpus", "2", "--", "echo", "at last")
    assert running.stderr is not None
    assert running.stderr.readline().endswith(": queued (needs 2 GPUs, 0 idle)\n")
    yard.client.cancel(blocker, grace=0)
    done = finish(running)
    assert (done.code, done.out) == (0, "at last\n")


def test_ctrl_c_cancels_a_job_that_waits(yard: Yard) -> None:
    """One that runs gets it itself: see `test_run_here`."""
    yard.submit("--gpus", "4", "--", *ENDLESS)
    running = yard.popen("run", "--", "true")
    assert running.stderr is not None
    assert ": queued (" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    done = finish(running)
    assert done.code == 130
    assert "asked to end; Ctrl-C again ends it at once" in done.err


def test_policies_are_shown_and_set(yard: Yard) -> None:
    before = yard.client.policy()["policy"]
    (yard.cwd / "mine.py").write_text("def longest(estimate): return -estimate\n")
    try:
        done = yard("policy", "set", "wfp3:power=2", "--discipline", "skip", "--placement", "spread")
        assert (done.code, done.err) == (0, "from now on, wfp3:power=2@skip@spread decides\n")
        assert yard("policy", "show").out.startswith("wfp3:power=2@skip@spread (since 20")
        found = yard.json("policy", "set", "./mine.py:longest")
        assert found["policy"] == f"{yard.cwd}/mine.py:longest@easy@pack"  # its own defaults, whatever was set before
    finally:
        yard.client.set_policy(before)
    assert yard.client.policy()["policy"] == before


def test_status_tells_how_the_daemon_is(yard: Yard) -> None:
    id = yard.submit("--", *ENDLESS)
    yard.client.job(id, wait=30, until="start")
    found = yard.json("status")
    assert (found["simulated"], found["gpus"], found["jobs"]["running"]) == (True, {"ours": 1, "free": 3}, 1)
    assert found["store"]["state"] == "ok"
    assert Path(f"/proc/{found['pid']}").exists()
    text = yard("status").out
    assert "4 simulated GPUs" in text
    assert "multifactor@easy@pack" in text


def test_the_history_is_a_trace(yard: Yard) -> None:
    yard.wait(yard.submit("--gpus", "3", "--", "true"))
    simulated = yard.json("simulate", "history", "--gpus", "4", "--policy", "sjf")
    ran = [job for job in yard.client.history() if job["started_at"]]
    assert simulated["completed"] == simulated["jobs"] == len(ran)


def test_completion_knows_commands_and_jobs(yard: Yard) -> None:
    id = yard.submit("--hold", "--name", "train", "--", "true")
    for words, found in (("gpuyard expl", "explain"), (f"gpuyard cancel {id[:-1]}", id)):
        asked = {"_GPUYARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert found in yard(more=asked).out.split()


def test_the_yard_may_be_named_before_or_after_the_command(yard: Yard) -> None:
    place = ("--data-dir", str(yard.data_dir))
    elsewhere = {"GPUYARD_DATA_DIR": "/nowhere"}
    for arguments in ([*place, "ps"], ["ps", *place], [*place, "policy", "show"], ["policy", *place, "show"]):
        assert yard(*arguments, more=elsewhere).code == 0, arguments
    done = yard("ps", more=elsewhere)
    assert (done.code, done.out) == (1, "")
    assert "no daemon answers at /nowhere/gpuyard.sock; start one with gpuyard up" in done.err


def test_jobs_are_chosen_by_what_they_are_like(yard: Yard) -> None:
    array = yard.submit("--hold", "--array", "1-3", "--name", "a", "--tag", "x", "--", "true")
    one = yard.submit("--hold", "--name", "b", "--tag", "x", "--", "true")
    other = yard.submit("--hold", "--name", "b", "--", "true")
    done = yard("cancel", "--name", "b", "--tag", "x", "--json")
    assert (done.code, done.err) == (0, "1 job cancelled\n")
    assert [job["id"] for job in json.loads(done.out)] == [one]
    assert yard("cancel", "--tag", "x", "--state", "running").err == "no job fits\n"
    assert yard("cancel", "--user", "nobody-here", "--all").err == "no job fits\n"
    assert yard("cancel", "--tag", "x", other).err == "no job fits\n"
    assert yard("cancel", "--tag", "x", f"{array}_1").err == "1 job cancelled\n"
    assert yard("cancel", "--tag", "x", "--state", "waiting").err == "2 jobs cancelled\n"
    assert [job["id"] for job in yard.json("ps", "--state", "waiting,running")] == [other]
    yard.submit("--gpus", "4", "--", *ENDLESS)
    assert yard("release", "--all").err == "1 job released\n"
    assert yard("hold", "--name", "b").err == "1 job held\n"
    ended = yard("cancel", "--all", "--grace", "0").err
    assert ended == "2 jobs cancelled, 1 of them asked to end since they run\n"


def test_jobs_of_a_name_are_retried_together(yard: Yard) -> None:
    array = yard.submit("--array", "1-2", "--name", "together", "--", "false")
    one = yard.submit("--name", "together", "--", "false")
    well = yard.submit("--name", "together", "--", "true")
    for id in (array, one, well):
        yard.wait(id)
    yard.submit("--gpus", "4", "--", *ENDLESS)
    done = yard("retry", "--name", "together")
    assert done.err == "3 jobs queued again\n"
    new = done.out.split()
    assert {job["id"] for job in yard.json("history", "--state", "failed,oom", "--name", "together")} == {
        one, f"{array}_1", f"{array}_2"
    }  # fmt: skip
    assert [yard.client.job(id).get("tasks", {"queued": 1}) for id in new] == [{"queued": 2}, {"queued": 1}]
    assert yard("retry", "--name", "nobody").err == "no job fits\n"
    assert yard("cancel", one).code == 1, "that is one's own mistake"


def test_one_job_in_detail(yard: Yard) -> None:
    options = ("--retries", "1", "--retry-delay", "0", "--tag", "x", "--from", "1,2", "--time", "1h")
    id = yard.submit(*options, "--", "sh", "-c", "exit 3")
    yard.wait(id)
    lines = [" ".join(line.split()) for line in yard("show", id).out.splitlines()]
    told = ("State: failed", "Reason: exit code 3", "Command: sh -c 'exit 3'", "Tags: x", "Only on GPUs: 1,2",
            "Time limit: 1h 00m", "Retries: 1", "Attempts: 2", "Failures: 1", "Exit code: 3")  # fmt: skip
    assert [line for line in told if line not in lines] == []
    events = [line.split(" ", 2)[2] for line in lines[lines.index("WHEN EVENT") + 1 :]]
    assert events[:3] == ["submitted", "attempt 1: given GPU 1", "attempt 1: started"]
    assert events[3].startswith("waits again: failed with exit code 3; retry 1 of 1")
    assert events[-1] == "attempt 2: ended, exit code 3"
    found = yard.json("show", id)
    assert (found["id"], found["events"][-1]["kind"]) == (id, "Exited")
    array = yard.submit("--hold", "--array", "1-2", "--signal", "INT@90", "--", "true")
    lines = [" ".join(line.split()) for line in yard("show", array).out.splitlines()]
    assert {"Tasks: 2 held", "Signal: INT, 1m 30s before it must end"} <= set(lines)
    assert [line.split(" ", 2)[2] for line in lines if line.endswith("submitted")] == [
        f"{array}_1 submitted", f"{array}_2 submitted"
    ]  # fmt: skip


def test_memory_without_a_unit_is_refused_wherever_it_is_asked_for(yard: Yard) -> None:
    with pytest.raises(Invalid, match="6 bytes of a GPU's memory are too few; write a unit, as in 6G"):
        yard.client.submit(["true"], gpu_memory=6)
    assert "6 bytes" in yard("acquire", "--gpu-memory", "6").err
    with pytest.raises(UserError, match="6 bytes"):
        gpuyard.acquire(memory="6", client=yard.client)
