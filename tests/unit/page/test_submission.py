"""The form of a job: what it says, what is wrong with it, and where."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.page.views import shell_syntax
from gpuyard.page.views.job_form import (
    Machine,
    Moment,
    clone_body,
    clone_line,
    command_line,
    errors_by_field,
    form_of,
    parse_form,
)
from gpuyard.page.views.submit import load_text, start_text

NOW = 1_794_823_200.0  # a Monday, 10:00 in UTC
HERE = Moment(NOW, ZoneInfo("Asia/Kathmandu"))
EIGHT = Machine(tuple(range(8)), 24 * 2**30)


def wrong(**form: str | bool) -> dict[str, str]:
    return parse_form({"command": "python train.py", **form}, HERE, EIGHT).errors


def test_the_common_case_is_a_command() -> None:
    assert parse_form({"command": "python train.py --lr 0.1"}, HERE).body == {
        "command": ["python", "train.py", "--lr", "0.1"], "gpus": 1, "directory": "~",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("gpus", "two", "It is a whole number of 1 or more, as in 1, not 'two'"),
        ("gpus", "0", "of 1 or more"),
        ("gpus", "9", "This machine has 8 GPUs"),
        ("gpu_memory", "6", "too few; write a unit"),
        ("gpu_memory", "30G", "The largest GPU here has 24G"),
        ("from", "7,8", "There is no GPU 8 here; there are 0 to 7."),
        ("time", "4 hourz", "'4 hourz' is not a duration"),
        ("time", "0", "more than 0; leave it empty"),
        ("time", "90", "90m or 90s?"),
        ("estimate", "-1h", "more than 0"),
        ("begin", "whenever", "'whenever' is not a time"),
        ("deadline", "2020-01-01", "in the past"),
        ("priority", "high", "It is a number, as in 0"),
        ("priority", "inf", "as in 0, not 'inf'"),
        ("dependency", "afterk:12", "did you mean 'afterok'?"),
        ("array", "9-0", "goes backwards; write 0-9"),
        ("retries", "1001", "from 0 to 1,000"),
        ("retry_delay", "2h", "at most an hour"),
        ("signal", "KILL", "is not a signal to stop by"),
        ("variables", "A=1\nnonsense", "each line is NAME=VALUE"),
        ("notify_on", "finsh", "some of start, finish"),
        ("directory", "project", "Write a path from the root"),
        ("name", "x" * 201, "200 characters at most"),
    ],
)
def test_what_is_wrong_is_a_sentence_at_its_field(name: str, text: str, told: str) -> None:
    [(place, sentence)] = wrong(**{name: text}).items()
    assert place == name
    assert told.lower() in sentence.lower()
    assert not sentence[0].islower()
    assert sentence.endswith((".", "?"))


def test_fields_are_checked_together() -> None:
    assert "before the job begins" in wrong(signal="USR1@2h", time="1h")["signal"]
    assert "Only 2 are named" in wrong(gpus="3", **{"from": "0,1"})["gpus"]
    late = parse_form({"command": "x", "deadline": "+1h", "estimate": "2h"}, HERE)
    assert "cannot be done by then" in late.warnings["deadline"]
    assert not late.errors


def test_a_time_of_day_is_of_the_viewers_clock() -> None:
    assert parse_form({"command": "x", "begin": "2026-11-20 08:00"}, HERE).body["begin"] == 1_795_140_900.0
    elsewhere = Moment(NOW, ZoneInfo("UTC"))
    assert parse_form({"command": "x", "begin": "2026-11-20 08:00"}, elsewhere).body["begin"] == 1_795_161_600.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python -c 'print(1); x'", ["python", "-c", "print(1); x"]),
        ("python a.py \\\n  --b c", ["python", "a.py", "--b", "c"]),
        ('echo "it\'s" a\\ b', ["echo", "it's", "a b"]),
    ],
)
def test_a_command_is_split_as_a_shell_would(text: str, words: list[str]) -> None:
    found = parse_form({"command": text}, HERE)
    assert (found.body["command"], found.errors) == (words, {})


@pytest.mark.parametrize(
    ("text", "told", "offered"),
    [
        ("a | b", "| would mean nothing", "bash -c 'a | b'"),
        ("cd x && python y", "&& would", "bash -c 'cd x && python y'"),
        ("python x > log 2>&1", "> would", "bash -c 'python x > log 2>&1'"),
        ("one\ntwo", "in one line", "bash -c 'one\ntwo'"),
        ("A=1 python x", "A=1 is no program", "bash -c 'A=1 python x'"),
        ("python 'x", "that begins at 'x is not closed; add another '", ""),
        ("python x \\", "ends with a backslash", ""),
        ("'python train.py'", "There is no program 'python train.py'", ""),
        ("  ", "Say what to run", ""),
    ],
)
def test_what_only_a_shell_understands_is_told_and_a_shell_offered(text: str, told: str, offered: str) -> None:
    found = parse_form({"command": text}, HERE)
    assert told in found.errors["command"]
    assert found.wrap == offered
    if offered:
        again = parse_form({"command": found.wrap}, HERE)
        assert (again.errors, again.warnings, again.body["command"][:2]) == ({}, {}, ["bash", "-c"])


@pytest.mark.parametrize("text", ["ls *.py", "python $SCRIPT", 'echo "$HOME"', "ls ~/x"])
def test_what_a_shell_would_replace_is_a_warning(text: str) -> None:
    found = parse_form({"command": text}, HERE)
    assert not found.errors
    assert "stays as it is written" in found.warnings["command"]


@pytest.mark.parametrize("text", ["echo '*.py $HOME'", "bash -c 'echo $HOME'", "get http://x/?a=1", "x --only=*.py"])
def test_what_is_meant_as_it_is_written_is_no_warning(text: str) -> None:
    assert not parse_form({"command": text}, HERE).warnings
    assert not shell_syntax.shell_operator(text)


def test_a_refusal_of_the_daemon_finds_its_field() -> None:
    errors = [{"where": "time_limit", "message": "must be above 0"}, {"where": "umask", "message": "is odd"}]
    assert errors_by_field("", errors) == {"time": "Must be above 0.", "": "Is odd."}
    assert list(errors_by_field("priority 20 is more than you may ask for", [])) == ["priority"]
    assert list(errors_by_field("job 3 failed, so a job that is to follow it could never start", [])) == ["dependency"]
    assert list(errors_by_field("the disk is full", [])) == [""]


JOB: dict[str, Any] = {
    "id": "17", "name": "train.py", "command": ["/x/train.py", "a b"], "gpu_count": 2, "gpu_memory": 6 * 2**30,
    "priority": 5.0, "directory": "/data", "tags": ["paper"], "estimate": 5400.0, "time_limit": 5400.0, "retries": 2,
    "retry_delay": 30.0, "output": "x.log", "error": None, "open_mode": None, "among": [0, 1], "grace": 10.0,
    "requeue": True, "signal": "USR1", "notice": 90.0, "preemptible": False, "adaptive": False,
    "notify": ["url"], "notify_on": [],
    "gpu_memory_asked": 6 * 2**30, "profile": None, "thread_percentage": 30.0, "cap": True, "mps": True,
}  # fmt: skip


def test_a_form_is_filled_from_a_job_and_says_the_same() -> None:
    assert command_line(form_of(JOB), HERE) == (
        "gpuyard submit --gpus 2 --gpu-memory 6G --thread-percentage 30 --from 0,1 --time 90m --priority 5 --tag paper "
        "--retries 2 --signal USR1@90s --chdir /data --output x.log --requeue --cap --mps -- /x/train.py 'a b'"
    )


def test_a_copy_names_only_what_is_different() -> None:
    former = form_of(JOB)
    form = former | {"gpus": "1", "time": "", "tags": "", "priority": "", "requeue": False, "command": "./y -v"}
    assert clone_line("17", former, former, HERE) == "gpuyard clone 17"
    assert clone_line("17", form, former, HERE) == (
        "gpuyard clone 17 --gpus 1 --time none --priority 0 --tag none --no-requeue -- ./y -v"
    )
    assert clone_body(form, former, HERE) == {
        "command": ["./y", "-v"], "gpus": 1, "time_limit": None, "priority": 0.0, "tags": [], "requeue": False,
    }  # fmt: skip


def test_the_outlook_is_what_the_yard_says() -> None:
    gpus = [{"index": 0, "state": "free"}, {"index": 1, "state": "ours"}]
    calm, busy = {"jobs": {"running": 1}, "policy": "fcfs@easy"}, {"jobs": {"queued": 3}, "policy": "fcfs@easy"}
    assert load_text(calm, gpus) == "1 of 2 GPUs is free, and no job waits."
    assert load_text(busy, gpus) == "1 of 2 GPUs is free, and 3 jobs wait; fcfs@easy decides who is next."
    assert start_text({"gpus": 1}, calm, gpus) == "It would start at once."
    assert start_text({"gpus": 1, "from": [1]}, calm, gpus).startswith("With a time limit")
    assert "4h 00m on 2 GPUs" in start_text({"gpus": 2, "time_limit": 14400.0}, calm, gpus)
    assert start_text({"gpus": 1, "hold": True}, calm, gpus) == "It would wait until it is released."
