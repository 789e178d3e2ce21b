"""Arrays: many jobs under one id."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.yard import Yard, until

PREFIX = "GPUYARD_ARRAY"
SHOW = ["printenv", *(f"{PREFIX}_{name}" for name in ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX"))]


def test_tasks_know_which_they_are(yard: Yard) -> None:
    id = yard.submit("--array", "1,5-9:2", "--name", "sweep", "--", *SHOW)
    assert id.isdigit()
    assert yard("wait", id).code == 0
    for task in (1, 5, 7, 9):
        assert yard("logs", f"{id}_{task}").out.split() == [id, str(task), "4", "1", "9"]
        job = yard.client.job(f"{id}_{task}")
        assert (job["array"], job["task"], job["name"]) == (id, task, "sweep")
    assert int(yard.submit("--", "true")) == int(id) + 1


def test_an_array_is_waited_for_as_one(yard: Yard) -> None:
    id = yard.submit("--array", "0-3", "--", "sh", "-c", "exit $GPUYARD_ARRAY_TASK_ID")
    done = yard("wait", id)
    assert done.code == 3  # the worst
    assert "1 succeeded" in done.err
    assert "3 failed" in done.err
    job = yard.client.job(id)
    assert (job["state"], job["exit_code"], job["tasks"]) == ("failed", 3, {"succeeded": 1, "failed": 3})


def test_no_more_tasks_run_at_once_than_are_allowed(yard: Yard) -> None:
    id = yard.submit("--array", "0-5%2", "--", "sleep", "1000")
    until(lambda: yard.client.job(id).get("tasks", {}).get("running") == 2)
    found = yard.json("explain", id)
    assert found["code"] == "ArrayLimit"
    assert found["tasks"] == {"running": 2, "queued": 4}
    yard("cancel", f"{id}_0", "--grace", "0")
    until(lambda: yard.client.job(f"{id}_2")["state"] == "running")
    assert yard.client.job(id)["tasks"] == {"running": 2, "queued": 3, "cancelled": 1}


def test_what_is_done_to_an_array_is_done_to_its_tasks(yard: Yard) -> None:
    id = yard.submit("--array", "0-9", "--hold", "--", "sleep", "1000")
    assert yard.client.job(id)["state"] == "held"
    assert yard("release", f"{id}_[3-5]") == (0, "", f"job {id}_[3-5]: released\n")
    until(lambda: yard.client.job(id)["tasks"] == {"held": 7, "running": 3})
    assert yard("cancel", f"{id}_[0,3]", "--grace", "0").code == 0
    assert {yard.wait(f"{id}_{n}")["state"] for n in (0, 3)} == {"cancelled"}
    assert yard("cancel", id, "--grace", "0").code == 0
    assert yard.wait(id)["tasks"] == {"cancelled": 10}
    again = yard("cancel", id)
    assert again.code == 1
    assert "is over" in again.err
    assert yard("logs", id).code == 2
    assert "say which, as in" in yard("logs", id).err


def test_a_job_follows_all_tasks_of_an_array(yard: Yard) -> None:
    id = yard.submit("--array", "0-2", "--hold", "--name", "parts", "--", "true")
    last = yard.submit("-d", "afterok:parts", "--", "true")
    assert yard.client.job(last)["dependency"] == f"afterok:{id}_0,afterok:{id}_1,afterok:{id}_2"
    yard("release", id)
    assert yard.wait(last)["state"] == "succeeded"


def test_a_terminal_shows_waiting_tasks_in_one_row(yard: Yard) -> None:
    yard.submit("--gpus", "4", "--", "sleep", "1000")
    id = yard.submit("--array", "0-299%4", "--", "true")
    assert len(yard.json("ps")) == 301
    assert yard("ps").out.count(f"{id}_") == 300
    folded = _on_a_terminal(yard, "ps")
    assert f"{id}_[0-299%4]" in folded
    assert folded.count(f"{id}_") == 1
    yard("cancel", f"{id}_[1-3]")
    assert f"{id}_[0,4-299%4]" in _on_a_terminal(yard, "ps")
    yard("cancel", id)  # all at once


def _on_a_terminal(yard: Yard, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuyard", *arguments], cwd=yard.cwd, env={**yard.environment, "COLUMNS": "160"},
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(theirs)
    found = b""
    while True:
        try:
            piece = os.read(ours, 2**16)
        except OSError:  # how Linux tells that the other end is closed
            break
        found += piece
    os.close(ours)
    process.communicate(timeout=60)
    return found.decode()


def test_ten_thousand_tasks_are_one_request(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve()
    id = yard.submit("--array", "0-9999", "--hold", "--", "true")
    assert yard.client.job(id)["tasks"] == {"held": 10_000}
    yard("edit", id, "--priority", "2")
    assert yard.client.job(f"{id}_9999")["priority"] == 2
    yard("cancel", id)
    assert yard.client.job(id)["state"] == "cancelled"


def test_an_array_that_makes_no_sense_is_refused(yard: Yard) -> None:
    for text, told in (("0-100000", "100,000"), ("5-1", "goes backwards"), ("x", "is not an array")):
        done = yard("submit", "--array", text, "--", "true")
        assert done.code == 2
        assert told in done.err
    assert "run follows one job" in yard("run", "--array", "0-1", "--", "true").err


def test_ids_go_on_after_a_restart(own_yard: Yard) -> None:
    own_yard.serve()
    id = own_yard.submit("--array", "0-1", "--", "true")
    own_yard.wait(id)
    own_yard.end()
    for name in ("gpuyard.db", "gpuyard.mark"):  # the directories of its tasks are all that is left
        (own_yard.data_dir / name).unlink()
    own_yard.serve("--accept-loss")
    assert own_yard.submit("--", "true") == str(int(id) + 1)
