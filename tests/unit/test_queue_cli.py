"""The queue's commands against a stand-in of the daemon."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.standin import Gpuyard, StandIn, job

from gpuyard.cli.table import cut, lines


def test_submit_prints_the_id_and_sends_what_was_asked(yard: StandIn, gpuyard: Gpuyard, tmp_path: Path) -> None:
    options = "--gpus 2 --from 0,1,3 --gpu-memory 6G --name n --priority 2.5 --time 90m --estimate 1h --tag a --tag b"
    done = gpuyard("submit", *options.split(), "--requeue", "--hold", "--grace", "10s", "--", "python", "x", "--gpus")
    assert done == (0, "1\n", "")
    [sent] = yard.bodies("/jobs")
    environment = sent.pop("environment")
    assert environment["PATH"] == os.environ["PATH"]
    assert sent == {
        "command": ["python", "x", "--gpus"],
        "directory": str(tmp_path),
        "name": "n",
        "tags": ["a", "b"],
        "gpus": 2,
        "from": [0, 1, 3],
        "gpu_memory": 6 * 2**30,
        "priority": 2.5,
        "estimate": 3600.0,
        "time_limit": 5400.0,
        "grace": 10.0,
        "requeue": True,
        "hold": True,
    }


def test_submit_in_another_directory_and_as_json(yard: StandIn, gpuyard: Gpuyard, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    done = gpuyard("submit", "--chdir", "below", "--time-limit", "60", "--json", "true")
    assert json.loads(done.out) == {"id": "1"}
    assert yard.bodies("/jobs")[0]["directory"] == str(tmp_path / "below")
    assert yard.bodies("/jobs")[0]["time_limit"] == 60


def test_options_after_the_commands_first_word_are_the_commands(yard: StandIn, gpuyard: Gpuyard) -> None:
    assert gpuyard("submit", "--gpus", "2", "python", "-m", "train", "--name", "x").code == 0
    [sent] = yard.bodies("/jobs")
    assert (sent["command"], sent["gpus"], sent["name"]) == (["python", "-m", "train", "--name", "x"], 2, None)


def test_a_broken_variable_is_left_out_with_a_warning(
    yard: StandIn, gpuyard: Gpuyard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "BROKEN", os.fsdecode(b"\xff"))
    done = gpuyard("submit", "--", "true")
    assert (done.code, done.out) == (0, "1\n")
    assert "warning: left out of the job's environment, not UTF-8: BROKEN" in done.err
    assert "BROKEN" not in yard.bodies("/jobs")[0]["environment"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["submit"], "there is no command to run; put it after --"),
        (["submit", "--gpus", "2", "--"], "there is no command to run"),
        (["submit", "--", "python train.py"], "sh -c 'python train.py'"),
        (["submit", "--from", "a", "--", "true"], "--from a is not a list of GPUs"),
        (["submit", "--time", "soon", "--", "true"], "'soon' is not a duration"),
        (["submit", "--time", "-1", "--", "true"], "--time must be 0 or more"),
        (["submit", "--chdir", "nowhere", "--", "true"], "there is no directory"),
        (["submit", "--priority", "nan", "--", "true"], "not finite"),
        (["submit", "--gpus", "-1", "--", "true"], "-1 is not in the range"),
        (["history", "--since", "once"], "--since 'once' is no time"),
        (["cancel"], "Missing argument"),
        (["pss"], "Did you mean 'ps'"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_sent(
    yard: StandIn, gpuyard: Gpuyard, arguments: list[str], told: str
) -> None:
    done = gpuyard(*arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert yard.asked == []


def test_a_program_whose_name_has_a_blank_may_run(yard: StandIn, gpuyard: Gpuyard, tmp_path: Path) -> None:
    (tmp_path / "my tool").write_text("#!/bin/sh\n")
    assert gpuyard("submit", "--", "./my tool").code == 0


def test_ps_shows_the_queue(yard: StandIn, gpuyard: Gpuyard) -> None:
    later = {"started_at": "2026-11-03T12:01:00+00:00", "ended_at": "2026-11-03T13:02:00+00:00", "exit_code": 0}
    yard.jobs = {
        "1": job("1", "running", name="big\x1b[31m", gpus=[0, 2], gpu_count=2, started_at=later["started_at"]),
        "2": job("2", "queued", reason="needs 2 GPUs, 1 idle", gpu_count=2, command=["/usr/bin/env"]),
        "3": job("3", "succeeded", **later),
    }
    out = gpuyard("ps").out.splitlines()
    assert out[0].split() == ["ID", "NAME", "USER", "STATE", "GPUS", "TIME", "REASON"]
    assert out[1].split()[:6] == ["1", "big", "[31m", "ada", "running", "0,2"]
    assert out[2].split()[:5] == ["2", "env", "ada", "queued", "(2)"]
    assert out[2].endswith("needs 2 GPUs, 1 idle")
    assert len(out) == 3
    assert "1h 01m" in gpuyard("ps", "--all").out
    assert [found["id"] for found in json.loads(gpuyard("ps", "--json", "--state", "queued").out)] == ["2"]


def test_ps_of_an_empty_queue(yard: StandIn, gpuyard: Gpuyard) -> None:
    assert gpuyard("ps").err == "no job runs or waits\n"
    assert json.loads(gpuyard("ps", "--json").out) == []


def test_a_terminal_shows_the_first_of_many(yard: StandIn, gpuyard: Gpuyard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.jobs = {str(n): job(str(n), "running" if n < 2 else "queued") for n in range(1000)}
    assert len(gpuyard("ps").out.splitlines()) == 1001
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = gpuyard("ps")
    assert len(done.out.splitlines()) == 43
    assert done.err == "... and 958 more (gpuyard ps | less shows them all)\n"
    assert yard.bodies("/jobs")[-1] == {"limit": "200"}


def test_tables_fit_the_terminal_and_align_wide_letters() -> None:
    found = lines(("A", "B"), [("学习", "x\ny"), ("ab", "long " * 9)], 20)
    assert found == ["A     B", "学习  x y", "ab    long long lon…"]
    assert cut("学习学习", 4) == "学…"


def test_gpus_says_that_they_are_simulated(yard: StandIn, gpuyard: Gpuyard) -> None:
    done = gpuyard("gpus")
    assert "4 simulated GPUs: no real GPU is used" in done.err
    assert done.out.splitlines()[1].split() == ["0", "Simulated", "16G", "free", "0/16G", "0%", "-", "no", "process"]
    assert [gpu["index"] for gpu in json.loads(gpuyard("gpus", "--json").out)] == [0, 1, 2, 3]


def test_logs_prints_bytes_as_they_are(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs["1"] = job("1", "running")
    yard.logs["1"] = b"one\ntwo\nthree"
    assert gpuyard("logs", "1").out == "one\ntwo\nthree"
    assert gpuyard("logs", "1", "--tail", "2").out == "two\nthree"
    assert gpuyard("logs", "1", "--tail", "0").out == ""
    assert gpuyard("logs", "1", "--tail", "9", "--attempt", "1").out == "one\ntwo\nthree"
    assert yard.asked[-1][2]["attempt"] == "1"


def test_the_tail_of_a_long_log_is_read_backwards(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs["1"] = job("1", "succeeded")
    whole = [f"line {n} " + "x" * 90 for n in range(20_000)]
    yard.logs["1"] = "\n".join(whole).encode()
    assert gpuyard("logs", "1", "--tail", "3000").out.splitlines() == whole[-3000:]
    assert sum(int(body["size"]) for body in yard.bodies("/jobs/1/log")) < len(yard.logs["1"]) / 2


def test_logs_follows_to_the_end_and_into_the_next_attempt(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs["1"] = job("1", "running")
    yard.logs["1"] = b"first\n"

    def again() -> None:
        yard.logs["1"] = b""
        yard.jobs["1"]["attempt"] = 2
        yard.logs["1"] = b"second attempt\n"

    threading.Timer(0.2, again).start()
    threading.Timer(0.5, lambda: yard.jobs["1"].update(state="succeeded")).start()
    assert gpuyard("logs", "1", "-f").out == "first\nsecond attempt\n"


def test_cancel_hold_and_release_take_several(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs = {"1": job("1"), "2": job("2", "succeeded"), "3": job("3", "running")}
    yard.on_cancel = lambda found, _: found.update(state="running" if found["state"] == "running" else "cancelled")
    assert gpuyard("hold", "1").err == "job 1: held\n"
    assert gpuyard("release", "1").err == "job 1: queued\n"
    done = gpuyard("cancel", "1", "2", "3", "--grace", "2s", "--json")
    assert done.code == 1
    assert done.err.splitlines() == [
        "job 1: cancelled",
        "gpuyard: error: job 2 is over already",
        "job 3: asked to end",
    ]
    assert [found["id"] for found in json.loads(done.out)] == ["1", "3"]
    assert yard.bodies("/jobs/3/cancel") == [{"grace": 2.0}]


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"state": "succeeded", "exit_code": 0}, 0),
        ({"state": "failed", "exit_code": 3}, 3),
        ({"state": "failed", "exit_code": -9}, 137),
        ({"state": "failed", "exit_code": None}, 1),
        ({"state": "cancelled", "exit_code": 143}, 130),
        ({"state": "timeout", "exit_code": 143}, 124),
        ({"state": "interrupted"}, 1),
    ],
)
def test_wait_ends_as_the_job_did(yard: StandIn, gpuyard: Gpuyard, facts: dict[str, Any], code: int) -> None:
    yard.jobs["1"] = job("1", "running")
    threading.Timer(0.1, lambda: yard.jobs["1"].update(facts)).start()
    done = gpuyard("wait", "1", "--json")
    assert done.code == code
    assert [found["state"] for found in json.loads(done.out)] == [facts["state"]]


def test_wait_for_several_and_in_vain(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs = {"1": job("1", "succeeded"), "2": job("2", "failed", exit_code=3), "3": job("3", "running")}
    assert gpuyard("wait", "1", "1").code == 0
    done = gpuyard("wait", "1", "2")
    assert (done.code, done.err) == (1, "job 1: succeeded\njob 2: failed (exit code 3)\n")
    assert gpuyard("wait", "1", "3", "--timeout", "0.1").code == 124
    done = gpuyard("wait", "9")
    assert (done.code, done.err) == (1, "gpuyard: error: there is no job 9; gpuyard ps lists the jobs\n")


def test_explain_tells_it_in_sentences(yard: StandIn, gpuyard: Gpuyard) -> None:
    blocker = {"id": "3", "name": None, "user": "bob", "gpus": [0, 1], "expected_at": None}
    found = {
        "id": "7",
        "state": "queued",
        "reason": "needs 2 GPUs, 1 is idle",
        "code": "Resources",
        "details": {"needed": 2, "idle": 1},
        "expected_at": "2026-11-03T12:00:00+00:00",
        "ahead": ["5", "6"],
        "must_end_first": [blocker],
    }
    yard.answers["GET", "/jobs/7/explain"] = 200, found
    out = gpuyard("explain", "7").out.splitlines()
    assert out[:5] == [
        "Job 7 is queued: needs 2 GPUs, 1 is idle.",
        "In numbers: needed 2, idle 1",
        "Ahead of it: 2 jobs (5, 6).",
        "Before it can start, these have to end:",
        "  job 3  -  bob  GPU 0,1  nobody knows until when",
    ]
    assert out[5].startswith("It is expected to start at about 2026-11-03 ")
    assert json.loads(gpuyard("explain", "7", "--json").out) == found


def test_history_lists_what_is_over(yard: StandIn, gpuyard: Gpuyard) -> None:
    times = {"started_at": "2026-11-03T12:01:00+00:00", "ended_at": "2026-11-03T12:02:30+00:00"}
    yard.jobs = {"1": job("1", "failed", exit_code=3, gpus=[1], **times)}
    done = gpuyard("history", "--since", "24h", "--user", "ada", "--limit", "5")
    assert done.out.splitlines()[1].split()[:6] == ["1", "python", "ada", "failed", "3", "1"]
    assert "1m 30s" in done.out
    sent = yard.bodies("/history")[0]
    assert (sent["limit"], sent["user"]) == ("5", "ada")
    assert sent["since"].endswith("+00:00")
    assert [found["id"] for found in json.loads(gpuyard("history", "--json", "--since", "2026-11-03").out)] == ["1"]


def test_policy_is_shown_and_set(yard: StandIn, gpuyard: Gpuyard, tmp_path: Path) -> None:
    assert gpuyard("policy").out.startswith("priority@easy@pack (since 2026-11-03 ")
    assert json.loads(gpuyard("policy", "show", "--json").out)["policy"] == "priority@easy@pack"
    done = gpuyard("policy", "set", "./mine.py:best@skip", "--placement", "pack")
    assert done.err == "from now on, priority@easy@pack decides\n"
    [sent] = [body for method, _, body in yard.asked if method == "PUT"]
    assert sent == {"policy": f"{tmp_path}/mine.py:best@skip", "discipline": None, "placement": "pack"}


def test_status_in_words_and_as_json(yard: StandIn, gpuyard: Gpuyard) -> None:
    yard.jobs["1"] = job("1", "running")
    out = gpuyard("status").out
    assert "GPUs      4 simulated GPUs: 3 free, 1 ours" in out
    assert "jobs      1 running" in out
    assert "planning  last 0.25 ms, mean 0.3 ms, max 1.5 ms" in out
    assert json.loads(gpuyard("status", "--json").out)["pid"] == yard.pid
