"""What a job gets, and what becomes of it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.yard import Yard, until

ENDLESS = ("sleep", "1000")


def test_a_job_has_the_surroundings_of_its_submitter(yard: Yard, tmp_path: Path) -> None:
    show = "import os; e = os.environb; os.write(1, b'|'.join([os.getcwdb(), e[b'COLOUR'], e[b'ODD']]))"
    odd = os.fsdecode(b"caf\xe9 \xff")
    done = yard("submit", "--chdir", tmp_path, "--", sys.executable, "-c", show, more={"COLOUR": "grün", "ODD": odd})
    id = done.out.strip()
    assert yard.wait(id)["state"] == "succeeded"
    assert yard.client.log(id).data == os.fsencode(tmp_path) + "|grün|".encode() + b"caf\xe9 \xff"


def test_a_command_may_have_a_name_that_is_no_utf8(yard: Yard) -> None:
    tool = yard.cwd / os.fsdecode(b"t\xff")
    tool.write_text('#!/bin/sh\nprintf %s "$1"\n')
    tool.chmod(0o755)
    id = yard.submit("--", f"./{tool.name}", os.fsdecode(b"\xfe"))
    assert yard.wait(id)["state"] == "succeeded"
    assert yard.client.log(id).data == b"\xfe"
    assert yard("history", "--limit", "1").out.splitlines()[1].split()[:2] == [id, "t\ufffd"]
    assert yard.json("history", "--limit", "1")[0]["command"] == [f"./{tool.name}", os.fsdecode(b"\xfe")]


def test_a_job_is_told_its_gpus_and_its_name(yard: Yard) -> None:
    show = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPUYARD_JOB_ID $GPUYARD_ATTEMPT $GPUYARD_GPUS"
    id = yard.submit("--gpus", "2", "--from", "1,3", "--", "sh", "-c", show)
    yard.wait(id)
    assert yard.client.log(id).data.decode().split() == ["1,3", "PCI_BUS_ID", id, "1", "1,3"]


def test_jobs_share_a_gpu_by_memory(yard: Yard) -> None:
    small = [yard.submit("--gpu-memory", "6G", "--", *ENDLESS) for _ in range(2)]
    whole = yard.submit("--gpus", "3", "--", *ENDLESS)
    third = yard.submit("--gpu-memory", "6G", "--", *ENDLESS)
    until(lambda: all(yard.client.job(id)["started_at"] for id in (*small, whole)), "the start of three jobs")
    assert yard.client.job(small[0])["gpus"] == yard.client.job(small[1])["gpus"]
    assert yard.client.job(third)["state"] == "queued"
    assert yard.client.gpus()["gpus"][0]["jobs"] == small


def test_100_mb_of_output_do_not_keep_a_job_from_ending(yard: Yard) -> None:
    id = yard.submit("--", "sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo done")
    assert yard("wait", id).code == 0
    assert yard("logs", id, "--tail", "1").out == "done\n"
    assert len(yard("logs", id).out) == 100_000_006


def test_nothing_is_left_of_a_cancelled_job_with_200_children(yard: Yard) -> None:
    script = (
        "import subprocess, time\n"
        "for n in range(200):\n"
        "    print(subprocess.Popen(['sleep', '1000'], start_new_session=n % 2 == 1).pid, flush=True)\n"
        "print('all', flush=True); time.sleep(1000)"
    )
    id = yard.submit("--", sys.executable, "-c", script)
    yard.await_output(id, b"all\n")
    children = re.findall(r"\d+", yard.client.log(id).data.decode())
    assert len(children) == 200
    yard("cancel", id)
    assert yard.wait(id)["state"] == "cancelled"
    assert [pid for pid in children if _command(pid).startswith("sleep")] == []


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_job_that_runs_too_long_is_ended(yard: Yard) -> None:
    job = yard.wait(yard.submit("--time", "0.2s", "--", *ENDLESS))
    assert (job["state"], job["reason"]) == ("timeout", "ran out of time: its limit was 0.2s")


def test_a_job_gets_its_grace_and_no_more(yard: Yard) -> None:
    saving = yard.submit("--grace", "1h", "--", "sh", "-c", "trap 'echo saved; exit 5' TERM; echo on; sleep 1000")
    stubborn = yard.submit("--grace", "0.1", "--", "sh", "-c", "trap '' TERM; echo on; sleep 1000")
    for id in (saving, stubborn):
        yard.await_output(id, b"on\n")
    assert yard("cancel", saving, stubborn).code == 0
    assert [yard.wait(id)["state"] for id in (saving, stubborn)] == ["cancelled", "cancelled"]
    assert yard.client.log(saving).data.endswith(b"saved\n")
    assert [yard.client.job(id)["exit_code"] for id in (saving, stubborn)] == [5, 137]


def test_a_waiting_job_starts_when_there_is_room(yard: Yard) -> None:
    first = yard.submit("--gpus", "4", "--", "sh", "-c", "while [ ! -e free ]; do sleep 0.02; done; rm free")
    second = yard.submit("--gpus", "4", "--", "true")
    assert yard.client.job(second)["state"] == "queued"
    (yard.cwd / "free").touch()
    assert yard.wait(second)["state"] == "succeeded"
    ended, started = yard.client.job(first)["ended_at"], yard.client.job(second)["started_at"]
    assert ended is not None
    assert started is not None
    assert ended <= started
