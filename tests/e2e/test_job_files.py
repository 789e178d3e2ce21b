"""Several jobs in one file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.yard import Yard

FILE = """
defaults:
  gpus: 1
  tags: [paper]
  time: 1:30:00
jobs:
  - name: report
    command: cat parts.txt && echo "$GREETING"
    after: [train, check]
    env: {GREETING: hello}
  - name: prepare
    command: ["sh", "-c", "echo prepared >parts.txt"]
    priority: 3
  - name: train
    command: echo "part $GPUYARD_ARRAY_TASK_ID" >>parts.txt
    array: 0-2%1
    dependency: afterok:prepare
  - name: check
    script: check.sh
    args: [one, "two words"]
    from: [0, 2]
    gpus: 2
    retries: 1
"""


def write(yard: Yard, text: str, name: str = "jobs.yaml") -> str:
    (yard.cwd / name).write_text(text)
    return name


def test_jobs_of_a_file_follow_each_other(yard: Yard) -> None:
    (yard.cwd / "check.sh").write_text("#!/bin/sh\n#GPUYARD --tag scripted\necho $#\n")
    done = yard("submit", "--file", write(yard, FILE))
    assert done.code == 0, done
    prepare, train, check, report = ids = done.out.split()
    assert len(ids) == 4
    assert yard.wait(report)["state"] == "succeeded"
    assert yard("logs", report).out == "prepared\npart 0\npart 1\npart 2\nhello\n"
    assert yard("logs", check).out == "2\n"
    job = yard.client.job(check)
    assert (job["tags"], job["gpu_count"], job["retries"], job["time_limit"]) == (["paper"], 2, 1, 5400)
    assert yard.client.job(prepare)["priority"] == 3
    assert yard.client.job(f"{train}_1")["dependency"] == f"afterok:{prepare}"


def test_a_plain_list_and_the_command_line_goes_first(yard: Yard) -> None:
    text = "- command: [sleep, '1000']\n  gpus: 3\n- command: echo hi\n  hold: yes\n"
    found = yard.json("submit", "--hold", "--gpus", "2", "-f", write(yard, text))
    first, second = (yard.client.job(id) for id in found["ids"])
    assert (first["state"], first["gpu_count"], first["name"]) == ("held", 2, "sleep")
    assert (second["command"], second["name"]) == (["/bin/sh", "-c", "echo hi"], "echo")


def test_each_job_of_a_file_has_its_environment(yard: Yard) -> None:
    text = "- command: echo $A$B\n  env: {A: 1}\n- command: echo $A$B\n- command: echo $A$B\n  env: [A=2, B]\n"
    done = yard("submit", "--file", write(yard, text), more={"B": "b"})
    assert done.code == 0, done
    for id, said in zip(done.out.split(), ("1b", "b", "2b"), strict=True):
        yard.wait(id)
        assert yard("logs", id).out == f"{said}\n"


def test_jobs_of_one_file_with_one_name_are_all_followed(yard: Yard) -> None:
    yard.submit("--name", "part", "--hold", "--", "true")  # not this one
    text = 2 * "- {name: part, command: 'true', hold: true}\n" + "- {command: 'true', after: part}"
    a, b, last = yard("submit", "--file", write(yard, text)).out.split()
    assert yard.client.job(last)["dependency"] == f"afterok:{a},afterok:{b}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "jobs.yaml is empty"),
        ("jobs: []", "has no jobs"),
        ("- command: true\n- gpus: 2\n", "jobs.yaml:2: a job has a command, or a script"),
        ("- command: true\n  gpuss: 2\n", "jobs.yaml:2: there is no 'gpuss'; did you mean 'gpus'?"),
        ("- command: true\n  gpus: two\n", "jobs.yaml:2: gpus is a whole number of 1 or more, as in 1, not 'two'"),
        ("- command: true\n  hold: maybe\n", "jobs.yaml:2: hold is true or false"),
        ("- command: true\n  gpus: 1\n  gpus: 2\n", "jobs.yaml:3: 'gpus' is given twice"),
        ("- command: 'true'\n- command: 'true'\n  time: soon\n", "jobs.yaml:2: --time: 'soon' is not a duration"),
        ("- command: [true\n", "jobs.yaml:2: this is not YAML"),
        ("- just words\n", "jobs.yaml:1: keys and values are expected"),
        ("job: []\n", "jobs.yaml:1: 'job' is neither jobs nor defaults"),
        (
            "- {command: 'true', name: a, after: b}\n- {command: 'true', name: b, after: a}\n",
            "follows others that follow it",
        ),
        (
            "- command: 'true'\n- {command: 'true', gpus: 9}\n",
            "job 2 of 2 (true): this job can never run here: it wants 9 GPUs",
        ),
        ("- command: 'true'\n- script: nosuch.sh\n", "jobs.yaml:2: there is no script nosuch.sh"),
        (
            "- command: 'true'\n- {command: 'true', after: nobody-there}\n",
            "job 2 of 2 (true): there is no job nobody-there to follow",
        ),
    ],
)
def test_all_of_a_file_is_refused_if_anything_is_wrong(yard: Yard, text: str, told: str) -> None:
    done = yard("submit", "--file", write(yard, text))
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert yard.client.jobs() == []


def test_a_file_that_is_not_there_and_a_command_beside_it(yard: Yard, tmp_path: Path) -> None:
    assert "No such file" in yard("submit", "--file", tmp_path / "none.yaml").err
    assert "no command to be given" in yard("submit", "--file", "x.yaml", "--", "true").err
