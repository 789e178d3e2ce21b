"""Options of Slurm's on a command line of gpuyard's."""

from __future__ import annotations

import pytest

from gpuyard.cli.jobs.job_options import Options
from gpuyard.cli.jobs.job_script import split_line, word_for
from gpuyard.cli.jobs.submit import read_plain
from gpuyard.errors import UserError
from gpuyard.spec.fields import FIELD, FIELDS
from gpuyard.spec.kinds import SWITCH, Moment


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--partition gpu", "gpuyard has no --partition gpu: there are no partitions here; leave it out"),
        ("-p gpu", "gpuyard has no -p gpu: there are no partitions here; leave it out"),
        ("-p --", "gpuyard has no -p: there are no partitions here; leave it out"),
        ("--mem=8G", "gpuyard has no --mem=8G: host memory is not managed here; leave it out"),
        ("--gres=gpu:2", "gpuyard has no --gres=gpu:2: write --gpus 2"),
        ("--gres=shard:2", "GPUs are shared by memory here: --gpu-memory 6G is a share"),
        ("--ntasks 2", "a job is one command, which starts its processes and threads itself"),
        ("--tasks-per-node=2", "a job is one command"),
        ("-N 2", "gpuyard has no -N 2: there is one machine here"),
        ("-c 8", "CPU cores are not managed here; leave it out (--env OMP_NUM_THREADS=8 for threads)"),
        ("--wrap=ls", "gpuyard has no --wrap=ls: write -- sh -c ls"),
        ("--gres=none", "gpuyard has no --gres=none: each job has a GPU here"),
        ("--gpus-per-socket=2", "write --gpus 2"),
        ("--test-only", "each job that is submitted is queued"),
        ("-N1", "gpuyard has no -N1: leave it out"),
        ("--nice=5", "write --priority=-5"),
        ("--mail-type=END", "write --notify ADDRESS --notify-on"),
    ],
)
def test_each_is_answered_with_gpuyards_word(line: str, told: str) -> None:
    words = [*line.split(), "--", "true"]
    assert read_plain(words) is None  # typer reads it, and asks for the word
    assert told in word_for(words[0].partition("=")[0], words)


def test_what_is_no_option_of_slurms_has_no_word() -> None:
    assert word_for("--nosuch", ["--nosuch", "x"]) == ""


def test_a_line_of_sbatch_is_split_at_its_script() -> None:
    assert split_line(["-J", "x", "--hold", "--gpus=2", "a.sh", "-n", "3"]) == (
        ["-J", "x", "--hold", "--gpus=2"], ["a.sh", "-n", "3"]
    )  # fmt: skip
    assert split_line(["--wrap", "echo hi"]) == (["--wrap", "echo hi"], [])


@pytest.mark.parametrize("text", ["90", "1.5", " 90 ", "1e3", "+90"])
def test_a_time_without_a_unit_is_refused_with_both_readings(text: str) -> None:
    with pytest.raises(UserError, match=r"--time .*: .*m or .*s\? Write the unit"):
        Options(time=text).body()
    assert Options(time="90m").body() == {"time_limit": 5400.0}
    assert Options(estimate="90").body() == {"estimate": 90.0}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"retry_delay": "2h"}, "--retry-delay is a duration of at most 1h, as in 30s, not '2h'"),
        ({"estimate": "-1m"}, "--estimate must be above 0, not -1m"),
        ({"estimate": "0"}, "--estimate must be above 0, not 0"),
        ({"grace": "-1m"}, "--grace must be 0 or more, not -1m"),
        ({"time": "1e30h"}, "--time is a duration, as in 4h, not '1e30h'"),
    ],
)
def test_a_time_out_of_bounds_is_refused_before_it_is_sent(given: dict[str, str], told: str) -> None:
    with pytest.raises(UserError) as refused:
        Options(**given).body()
    assert str(refused.value) == told


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_field_has_a_sentence_with_an_example_that_it_takes(field: object) -> None:
    found = FIELD[getattr(field, "name", "")]
    assert found.complaint("x?").endswith(f", as in {found.example}, not 'x?'")
    assert found.example
    assert ", as in " in found.json_wanted
    assert found.parse(found.example, Moment(0.0)) is not None
    assert found.kind is not SWITCH or found.wanted == "true or false"
