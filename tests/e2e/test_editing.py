"""Jobs that are changed, copied and tried again."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from pathlib import Path

import pytest
from tests.yard import Yard, until

ENDLESS = ("sleep", "1000")


def test_a_waiting_job_can_ask_for_anything_else(yard: Yard) -> None:
    first = yard.submit("--hold", "--", "true")
    id = yard.submit("--hold", "--time", "1h", "--", "true")
    options = "--priority 5 --name new --gpus 2 --gpu-memory 2G --from 0,1,2 --begin now+1h --tag a --tag b --retries 2"
    done = yard("edit", id, *options.split(), "--dependency", f"afterany:{first}", "--estimate", "10m")
    assert done.code == 0, done
    assert done.err.startswith(f"job {id}: changed name, tags, gpus, from, gpu memory, priority, estimate")
    job = yard.client.job(id)
    assert (job["priority"], job["name"], job["gpu_count"], job["gpu_memory"]) == (5, "new", 2, 2 * 2**30)
    assert (job["tags"], job["retries"], job["time_limit"], job["estimate"]) == (["a", "b"], 2, 3600, 600)
    assert job["dependency"] == f"afterany:{first}"
    assert job["begin_at"] is not None
    clear = ("--begin", "none", "--dependency", "none", "--time", "none", "--tag", "none", "--from", "none")
    assert yard("edit", id, *clear, "--gpu-memory", "none", "--gpus", "1").code == 0
    job = yard.client.job(id)
    assert (job["begin_at"], job["dependency"], job["time_limit"], job["tags"]) == (None, None, None, [])
    assert (job["gpu_memory"], job["estimate"]) == (None, 600)
    yard("release", id)
    assert yard.wait(id)["state"] == "succeeded"


def test_the_order_follows_a_changed_priority(yard: Yard) -> None:
    yard.submit("--gpus", "4", "--", *ENDLESS)
    low, high = yard.submit("--gpus", "4", "--", "true"), yard.submit("--gpus", "4", "--", "true")
    assert [job["id"] for job in yard.json("ps")][1:] == [low, high]
    yard("edit", high, "--priority", "1")
    assert [job["id"] for job in yard.json("ps")][1:] == [high, low]


def test_a_running_job_can_have_another_limit(yard: Yard) -> None:
    id = yard.submit("--time", "1h", "--grace", "0", "--", *ENDLESS)
    until(lambda: yard.client.job(id)["started_at"])
    done = yard("edit", id, "--time", "0.1s", "--name", "short", "--priority", "3")
    assert done.code == 0, done
    job = yard.wait(id)
    assert (job["state"], job["name"], job["priority"]) == ("timeout", "short", 3)


def test_a_limit_that_is_taken_back_ends_nobody(yard: Yard) -> None:
    id = yard.submit("--time", "0.6s", "--", *ENDLESS)
    until(lambda: yard.client.job(id)["started_at"])
    assert yard("edit", id, "--time", "none").code == 0
    time.sleep(0.8)
    job = yard.client.job(id)
    assert (job["state"], job["time_limit"]) == ("running", None)


def test_what_a_running_job_cannot_change_is_told(yard: Yard) -> None:
    id = yard.submit("--", *ENDLESS)
    until(lambda: yard.client.job(id)["started_at"])
    done = yard("edit", id, "--gpus", "2", "--begin", "now+1h")
    assert done.code == 1
    assert f"job {id} runs already, so its begin, gpus cannot change any more; what can is adaptive, " in done.err
    assert yard.client.job(id)["gpu_count"] == 1
    over = yard.submit("--", "true")
    yard.wait(over)
    assert "is over" in yard("edit", over, "--priority", "1").err


def test_an_edit_that_makes_no_sense_is_refused(yard: Yard) -> None:
    id = yard.submit("--hold", "--", "true")
    for options, told in (
        (("--gpus", "9"), "could never run here: it wants 9 GPUs"),
        (("--dependency", f"afterok:{id}"), "cannot follow itself"),
        (("--time", "0"), "--time must be above 0"),
    ):
        done = yard("edit", id, *options)
        assert done.code == 2
        assert told in done.err
    assert yard("edit", "999999", "--priority", "1").code == 1


def test_all_open_tasks_of_an_array_are_edited(yard: Yard) -> None:
    id = yard.submit("--array", "0-2", "--hold", "--", "true")
    yard("cancel", f"{id}_1")
    yard("edit", id, "--priority", "7")
    assert [yard.client.job(f"{id}_{n}")["priority"] for n in range(3)] == [7, 0, 7]


def test_an_edit_outlives_the_daemon_and_keeps_the_time_of_a_retry(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve()
    id = yard.submit("--retries", "1", "--retry-delay", "1h", "--", "false")
    until(lambda: yard.client.job(id)["failures"] == 1)
    assert yard("edit", id, "--priority", "2").code == 0
    yard.end(9)
    yard.serve()
    job = yard.client.job(id)
    assert (job["state"], job["priority"]) == ("queued", 2)
    assert (job["reason"] or "").startswith("failed with exit code 1; retry 1 of 1 at ")


def test_a_description_is_edited_in_the_users_editor(yard: Yard, tmp_path: Path) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import sys\npath = sys.argv[1]\ntext = open(path).read()\nopen(path + '.seen', 'w').write(text)\n"
        "text = text.replace('priority: 0', 'priority: 4').replace('tags: []', 'tags: [x, y]')\n"
        "text = text.replace('from: null', 'from: 0,1').replace('preemptible: false', 'preemptible: true')\n"
        "text = text.replace('signal: TERM', 'signal: USR1@90').replace('grace: 10s', 'grace: 5s')\n"
        "text = text.replace('time: 3600s', 'time: null').replace('begin: null', 'begin: tomorrow 8:00')\n"
        "open(path, 'w').write(text)\n"
    )
    id = yard.submit("--hold", "--time", "1h", "--", "true")
    done = yard("edit", id, more={"EDITOR": f"{sys.executable} {editor}"})
    assert done.code == 0, done
    job = yard.client.job(id)
    assert (job["priority"], job["tags"], job["time_limit"]) == (4, ["x", "y"], None)
    assert "T08:00:00" in (job["begin_at"] or "")
    assert (job["among"], job["preemptible"], job["gpu_count"]) == ([0, 1], True, 1)
    assert (job["signal"], job["notice"], job["grace"]) == ("USR1", 90, 5)
    assert yard("edit", id, more={"VISUAL": "true"}).err == f"job {id}: nothing changed\n"
    assert "nothing was changed" in yard("edit", id, more={"VISUAL": "false"}).err
    editor.write_text("import sys\nopen(sys.argv[1], 'w').write('name: [much: work\\n')\n")
    wrong = yard("edit", id, more={"EDITOR": f"{sys.executable} {editor}", "TMPDIR": str(tmp_path)})
    assert wrong.code == 2
    kept = wrong.err.partition("what you wrote is kept in ")[2].splitlines()[0]
    assert Path(kept).read_text() == "name: [much: work\n"


def test_a_clone_has_the_same_command_environment_and_options(yard: Yard, tmp_path: Path) -> None:
    line = 'echo "$WHO $PWD $GPUYARD_GPUS"'
    first = yard.submit("--gpus", "2", "--name", "n", "--env", "WHO=me", "-D", tmp_path, "--", "sh", "-c", line)
    yard.wait(first)
    second = yard("clone", first).out.strip()
    yard.wait(second)
    assert yard("logs", second).out.split()[:2] == ["me", str(tmp_path)]
    third = yard("clone", first, "--gpus", "1", "--", "sh", "-c", "echo other $WHO").out.strip()
    job = yard.wait(third)
    assert (job["name"], job["gpu_count"], yard("logs", third).out) == ("n", 1, "other me\n")
    assert yard("clone", "999999").code == 1


def test_a_script_is_cloned_as_it_was(yard: Yard) -> None:
    script = yard.cwd / "cloned.sh"
    script.write_text("#!/bin/sh\necho as it was\n")
    first = yard.submit("--hold", "cloned.sh")
    script.unlink()
    second = yard("clone", first).out.strip()
    yard.wait(second)
    assert yard("logs", second).out == "as it was\n"


def test_only_what_is_over_is_retried_and_of_an_array_what_failed(yard: Yard) -> None:
    id = yard.submit("--array", "0-3%2", "--", "sh", "-c", "exit $((GPUYARD_ARRAY_TASK_ID % 2))")
    yard.wait(id)
    again = yard("retry", id).out.strip()
    assert yard.wait(again)["tasks"] == {"failed": 2}
    assert yard.client.job(f"{again}_3")["state"] == "failed"
    single = yard("retry", f"{id}_1").out.strip()
    assert yard.wait(f"{single}_1")["exit_code"] == 1
    held = yard.submit("--hold", "--", "true")
    assert "is not over; gpuyard clone" in yard("retry", held).err


@pytest.mark.parametrize("command", ["ps", "history"])
def test_jobs_are_found_by_their_tags(yard: Yard, command: str) -> None:
    hold = ("--hold",) if command == "ps" else ()
    tag = f"for-{command}"
    id = yard.submit(*hold, "--tag", tag, "--tag", "big", "--", "true")
    yard.submit(*hold, "--tag", f"{tag}-too", "--", "true")
    if not hold:
        yard.wait(id)
    assert [job["id"] for job in yard.json(command, "--tag", tag)] == [id]
    assert yard.json(command, "--tag", "of-nobody") == []


def test_a_script_that_is_not_kept_any_more_fails_its_job_and_nothing_else(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve()
    (yard.cwd / "lost.sh").write_text("#!/bin/sh\ntrue\n")
    id = yard.submit("--hold", "lost.sh")
    yard.end()
    with contextlib.closing(sqlite3.connect(yard.data_dir / "gpuyard.db")) as store, store:
        store.execute("DELETE FROM environments WHERE content LIKE '%#!/bin/sh%'")
    yard.serve()
    assert "not kept any more" in yard("clone", id).err
    yard("release", id)
    job = yard.wait(id)
    assert (job["state"], job["reason"]) == (
        "failed", "its environment, or its script, is not kept any more; submit it anew",
    )  # fmt: skip
    assert yard.wait(yard.submit("--", "true"))["state"] == "succeeded"
