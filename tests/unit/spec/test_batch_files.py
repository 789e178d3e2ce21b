"""Files of a batch as people write them, and what is told of those that cannot be read."""

from __future__ import annotations

import codecs
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.cli.jobs.job_file import read_jobs
from gpuyard.cli.jobs.submit import Request
from gpuyard.errors import UserError
from gpuyard.spec.batch_files import (
    Filling,
    Row,
    Turn,
    combinations,
    merged,
    read_commands,
    read_parameters,
    together,
    turns,
    urgencies,
)

Make = Callable[..., str]
HEAD = "Directory,Executable,Filename,Epochs,Priority\n"


def plain(rows: list[Row]) -> list[tuple[object, ...]]:
    return [tuple(row[2:7]) for row in rows]


# -- files of commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "a,-1,x.py,5,2\nb,python3,y.py,1,1\n",
        "a,-1,x.py,5,2\nb,python3,y.py,1,1\n",
        "\ufeff" + HEAD.upper() + "a , -1,x.py, 5 ,2\r\n\r\nb,python3,y.py,1,1",
        "# what to run\n\n" + HEAD + '"a",-1,"x.py",5.0,+2\n,,,,\n  \nb,python3,y.py,1,1,,\n',
        HEAD.replace(",", ";") + "a;-1;x.py;5;2\nb;python3;y.py;1;1\n",
        HEAD.replace(",", "\t") + "a\t-1\tx.py\t5\t2\nb\tpython3\ty.py\t1\t1\n",
        "priority,File Name,EPOCHS,executable,note,directory\n2,x.py,5,-1,hi,a\n1,y.py,1,python3,,b\n",
        codecs.BOM_UTF16_LE + (HEAD + "a,-1,x.py,5,2\nb,python3,y.py,1,1\n").encode("utf-16-le"),
    ],
)
def test_a_file_of_commands_is_read_as_it_is(trace_file: Make, text: str | bytes) -> None:
    rows = read_commands(trace_file(text, "c.csv"))
    assert plain(rows) == [("a", "-1", "x.py", 5, 2.0), ("b", "python3", "y.py", 1, 1.0)]
    assert [row.number for row in rows] == [1, 2]
    assert rows[0].command("/bin/python") == ["/bin/python", "x.py", "--epochs=5", "--id={id}"]
    assert rows[1].command("/bin/python") == ["python3", "y.py", "--epochs=1", "--id={id}"]


def test_the_header_may_be_said(trace_file: Make) -> None:
    path = trace_file("some words,,,,\n" + HEAD + "a,-1,x.py,5,2\n", "c.csv")
    assert plain(read_commands(path, "1")) == [("a", "-1", "x.py", 5, 2.0)]
    path = trace_file("Directory,-1,x.py,5,2\n", "c.csv")
    assert plain(read_commands(path, "none")) == [("Directory", "-1", "x.py", 5, 2.0)]


@pytest.mark.parametrize(
    ("text", "header", "told"),
    [
        ("", "auto", "c.csv is empty; write a line for each job, as in: models,-1,train.py,5,1"),
        (HEAD, "auto", "c.csv has a header and no rows"),
        (HEAD + "a,-1,x.py,5\n", "auto", "c.csv:2: there are 4 columns here, not 5; write Directory, Executable"),
        ("a,-1,x.py,5,1,7\n", "auto", "c.csv:1, column 6: there are 5 columns; quote a cell that holds a comma"),
        (HEAD + "\n# x\na,-1,x.py,many,1\n", "auto", "c.csv:4, column 4 (Epochs): 'many' is no number of epochs"),
        (HEAD + "a,-1,x.py,0,1\n", "auto", "c.csv:2, column 4 (Epochs): '0' is no number of epochs"),
        (HEAD + "a,-1,x.py,1.5,1\n", "auto", "write a whole number of 1 or more, as in 5"),
        (HEAD + "a,-1,x.py,5,high\n", "auto", "c.csv:2, column 5 (Priority): 'high' is no priority; write a number"),
        (HEAD + "a,-1,x.py,5,nan\n", "auto", "column 5 (Priority): 'nan' is no priority"),
        (
            HEAD + "a,-1,x.py,5,-5000000000\n",
            "auto",
            "-5000000000 is too far from 0; write a number from -1,000,000,000",
        ),
        (
            HEAD + "a,-1,x.py,5000000000,1\n",
            "auto",
            "5000000000 are too many epochs; write a number up to 1,000,000,000",
        ),
        (HEAD + "a,,x.py,5,1\n", "auto", "c.csv:2, column 2 (Executable) is empty; write what runs the file"),
        ("Directory,Executable,Filename,Epochs\na,-1,x.py,5\n", "auto", "c.csv:1: there is no column Priority; the"),
        ("Directory,Executable,Filenam,Epochs,Priority\n", "auto", "there is no column Filename; is it 'Filenam'?"),
        ("Directory,Epochs,Filename,Epochs,Priority\n", "auto", "c.csv:1, column 4: the column Epochs is there twice"),
        (HEAD + "a,-1,x.py,5,1\n", "none", "c.csv:1, column 4 (Epochs): 'Epochs' is no number of epochs"),
        (HEAD + "a,-1,x.py,5,1\n", "7", "--header 7: write none, or the number of the line with the names"),
        (HEAD + "a,-1,x.py,5,1\n", "first", "--header first: write none"),
        (HEAD + 'a,-1,"x.py,5,1\n', "auto", "c.csv:2: this line cannot be read"),
        (b"a,-1,\xff\xff.py,5,1\n", "auto", "c.csv:1: a letter here is not UTF-8; save the file as CSV in UTF-8"),
        ("a,-1,x\0.py,5,1\n", "auto", "c.csv:1: there is a NUL character here"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(trace_file: Make, text: str | bytes, header: str, told: str) -> None:
    path = trace_file(text, "c.csv")
    with pytest.raises(UserError) as error:
        read_commands(path, header)
    assert told in str(error.value)


def test_all_that_is_wrong_is_told_at_once(trace_file: Make) -> None:
    path = trace_file(HEAD + "a,-1,x.py,ten,1\n,-1,x.py,5,1\na,-1,x.py,5,1\na,-1,x.py,5,high\n", "c.csv")
    with pytest.raises(UserError) as error:
        read_commands(path)
    places = [line.partition(")")[0] for line in str(error.value).splitlines()]
    assert places == [
        f"{path}:{there}" for there in ("2, column 4 (Epochs", "3, column 1 (Directory", "5, column 5 (Priority")
    ]
    path = trace_file(HEAD + "a,-1,x.py,ten,1\n" * 25, "c.csv")
    with pytest.raises(UserError) as error:
        read_commands(path)
    assert str(error.value).splitlines()[19:] == [
        f"{path}:21, column 4 (Epochs): 'ten' is no number of epochs; write a whole number of 1 or more, as in 5",
        "... and 5 more such mistakes",
    ]


# -- waves ---------------------------------------------------------------------------------------------


def test_rows_start_by_wave_then_priority_then_place() -> None:
    urgent = urgencies([5, 1, 2, 4, 1])
    assert urgent == [-4, 0, -1, -3, 0]
    assert turns(urgent, 3) == [Turn(1, 1), Turn(2, 1), Turn(0, 1), Turn(4, 2), Turn(3, 2)]
    assert [turn.place for turn in turns(urgent, 0)] == [1, 4, 2, 3, 0]


@given(st.lists(st.integers(-3, 3), max_size=60), st.integers(0, 25))
def test_every_row_has_its_turn_and_waves_are_full(priorities: list[int], size: int) -> None:
    found = turns(urgencies(priorities), size)
    assert sorted(turn.place for turn in found) == list(range(len(priorities)))
    keys = [(turn.wave, priorities[turn.place], turn.place) for turn in found]
    assert keys == sorted(keys)
    assert all(turn.wave == (turn.place // size + 1 if size else 1) for turn in found)


# -- parameters ----------------------------------------------------------------------------------------


def test_parameters_are_filled_in() -> None:
    filling = Filling(["lr", "learning rate"])
    values = {"lr": "0.1", "learning rate": "{lr}"}
    assert (
        filling.fill("a{lr}b{learning rate} {{lr}} ${lr} {x} '{print}'", values) == "a0.1b{lr} {lr} ${lr} {x} '{print}'"
    )
    assert not filling.unused
    assert Filling([]).fill("{lr}", {}) == "{lr}"


def test_combinations() -> None:
    lists = {"a": ["1", "2"], "b": ["x", "y"]}
    assert [(c["a"], c["b"]) for c in combinations(lists)] == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]
    assert list(together(lists)) == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
    assert merged([[{"a": "1"}], [{"b": "2"}, {"a": "3"}]]) == [{"a": "1", "b": "2"}, {"a": "3"}]
    assert merged([]) == [{}]


def test_a_file_of_parameters(trace_file: Make) -> None:
    path = trace_file('lr,note\n0.1,"two, words"\n# no\n\n1e-3,\n', "s.csv")
    found = [choice.values for choice in read_parameters(path)]
    assert found == [{"lr": "0.1", "note": "two, words"}, {"lr": "1e-3", "note": ""}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lr\n", "s.csv needs a line with the names of its columns, and a line of values"),
        ("lr,lr\n1,2\n", "s.csv:1, column 2: the name lr is there twice"),
        ("lr,,x\n1,2,3\n", "s.csv:1, column 2: a name is missing"),
        ("{lr}\n1\n", "s.csv:1, column 1: a name has no braces"),
        ("lr,seed\n1,2\n3\n", "s.csv:3: there is 1 value here, and 2 columns; write a value for each"),
        ("lr,seed\n1,2,3\n", "s.csv:2: there are 3 values here, and 2 columns; write a value for each, and quote one"),
    ],
)
def test_a_file_of_parameters_that_cannot_be_read(trace_file: Make, text: str, told: str) -> None:
    path = trace_file(text, "s.csv")
    with pytest.raises(UserError) as error:
        read_parameters(path)
    assert told in str(error.value)


# -- sweeps in job files -------------------------------------------------------------------------------

YAML = """
defaults: {gpu-memory: 2G}
grid: {lr: [0.10, 1e-3]}
jobs:
  - name: train-{lr}-{seed}
    command: [python, train.py, "--lr={lr}", "--seed={seed}", "{id}"]
    env: {SEED: "{seed}"}
    zip: {seed: [1, 2], host: [a, b]}
    tags: ["{host}"]
  - command: echo ${lr} {lr}
"""
TOML = """
[defaults]
gpu-memory = "2G"
[grid]
lr = [0.10, 1e-3]
[[jobs]]
name = "train-{lr}-{seed}"
command = ["python", "train.py", "--lr={lr}", "--seed={seed}", "{id}"]
env = {SEED = "{seed}"}
zip = {seed = [1, 2], host = ["a", "b"]}
tags = ["{host}"]
[[jobs]]
command = "echo ${lr} {lr}"
"""


@pytest.mark.parametrize(("name", "text"), [("jobs.yaml", YAML), ("jobs.toml", TOML)])
def test_one_job_becomes_many(trace_file: Make, name: str, text: str) -> None:
    jobs = read_jobs(trace_file(text, name), Request())
    assert [job["command"][2:4] for job in jobs[:4]] == [
        ["--lr=0.10", "--seed=1"], ["--lr=0.10", "--seed=2"], ["--lr=1e-3", "--seed=1"], ["--lr=1e-3", "--seed=2"],
    ]  # fmt: skip
    assert [job.get("name") for job in jobs[:2]] == ["train-0.10-1", "train-0.10-2"]
    assert (jobs[1]["tags"], jobs[1]["environment"]["SEED"], jobs[1]["gpu_memory"]) == (["b"], "2", 2**31)
    assert [job["command"][-1] for job in jobs[4:]] == ["echo ${lr} 0.10", "echo ${lr} 1e-3"]


def test_one_job_alone_and_its_choices(trace_file: Make) -> None:
    text = "command: echo {a} {b}\nparams:\n  - {a: 1, b: 2}\n  - {a: 3, b: 4}\n"
    jobs = read_jobs(trace_file(text, "j.yaml"), Request())
    assert [job["command"][-1] for job in jobs] == ["echo 1 2", "echo 3 4"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("j.yaml", "- {command: 'echo {lrr}', grid: {lr: [1]}}", "j.yaml:1: nothing has the parameter lr in it, but"),
        ("j.yaml", "grid: {x: [1]}\njobs:\n  - command: 'true'", "j.yaml:1: nothing has the parameter x in it"),
        ("j.yaml", "- command: echo {a}{b}\n  zip: {a: [1], b: [1, 2]}", "j.yaml:2: lists of zip have as many values"),
        ("j.yaml", "- command: echo {a}\n  params: []", "j.yaml:2: params is a list of choices"),
        ("j.yaml", "- command: echo {a}\n  params: [{a: 1}, {b: 1}]", "j.yaml:2: each choice names the same"),
        ("j.yaml", "- command: echo {a}\n  grid: {a: []}", "j.yaml:2: a is a list of values"),
        ("j.yaml", "- command: echo {a}\n  grid: {}", "j.yaml:2: grid is empty"),
        (
            "j.yaml",
            f"- command: echo {{a}}{{b}}{{c}}\n  grid: {{{', '.join(f'{n}: {list(range(50))}' for n in 'abc')}}}",
            "j.yaml:1: this makes 125,000 jobs, more than 100,000",
        ),
        ("j.toml", "jobs = 3", "j.toml, jobs: jobs is to be a list"),
        ("j.toml", "[[jobs]]\ncommand = 'a'\n[[jobs]]\ngpus = 2", "j.toml, jobs[2]: a job has a command, or a script"),
        ("j.toml", "[[jobs]]\ncommand = 'a'\ngpus = 'two'", "j.toml, jobs[1].gpus: gpus is a whole number of 1 or"),
        ("j.toml", "[[jobs", "j.toml is not TOML"),
        ("j.toml", "", "j.toml is empty"),
    ],
)  # fmt: skip
def test_a_sweep_that_makes_no_sense(trace_file: Make, name: str, text: str, told: str) -> None:
    path = trace_file(text, name)
    with pytest.raises(UserError) as error:
        read_jobs(path, Request())
    assert told in str(error.value)
