"""`gpuyard submit` reads plain command lines without typer: as typer would, or not at all."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.standin import StandIn
from tests.yard import PATIENCE

from gpuyard.cli.app import Commands
from gpuyard.cli.jobs.submit import _BY_FLAG, _PLACE, Request, read_plain
from gpuyard.cli.parser import LazyCommand

LEFT_TO_TYPER = {"--file", "-f", "--json", "--host", "--ca-file", "--help", "--profile"}


def _command() -> Any:
    return LazyCommand("submit", Commands.headings["Jobs"]["submit"]).load()


@pytest.mark.parametrize("line", [
    "-- true",
    "true",
    "-- python train.py --gpus 2 -- x",
    "a -- b",
    "- x",
    "",
    "--",
    "--socket /s -- true",
    "--data-dir=/d --socket= -- true",
    "-g 2 --time 4h --tag a --tag b -n x -- true",
    "--gpus=3 --gpus 4 --priority -1.5 -- true",
    "--preemptible --no-requeue --hold -H -- true",
    "--env A=1 --env=B=2 --name= -- true",
    "--comment -- -- true",
    "--name --gpus -- true",
    "--oom-retries 0 --thread-percentage 100 -- true",
    "--slurm-variables --chdir /tmp train.sh --epochs 2",
])  # fmt: skip
def test_it_reads_what_typer_reads(line: str) -> None:
    words = shlex.split(line)
    params = _command().make_context("gpuyard submit", list(words)).params
    read = read_plain(words)
    assert read is not None
    place, options, command = read
    for name in _PLACE.values():
        assert place.get(name) == params[name]
    found = vars(Request(**options, command=command))
    nothing: tuple[Any, ...] = (None, [], ())
    assert {name: value for name, value in found.items() if value not in nothing} == {
        name: params[name] for name in found if params[name] not in nothing
    }


@pytest.mark.parametrize("line", [
    "--help", "-h", "--file jobs.yaml", "--json -- true", "--host box -- true", "--profile -- true", "--gpu 2 -- true",
    "--gpus", "--gpus two -- true", "--gpus 0 -- true", "--gpus 1.5 -- true", "-g2 -- true", "-g=2 -- true",
    "--hold=yes -- true", "--thread-percentage 101 -- true", "--thread-percentage nan -- true", "-Hg 2 -- true",
    "--version -- true",
])  # fmt: skip
def test_all_else_is_left_to_typer(line: str) -> None:
    assert read_plain(shlex.split(line)) is None


def test_it_knows_all_options_but_those_that_are_named_here() -> None:
    command = _command()
    options = [one for one in command.params if one.param_type_name == "option"]
    names = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    assert names - LEFT_TO_TYPER == {*_BY_FLAG, *_PLACE, "--no-wait"} - LEFT_TO_TYPER


def test_both_ways_send_the_same_and_the_plain_one_without_typer(tmp_path: Path) -> None:
    code = (
        "import sys; from gpuyard.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('typer', 'dataclasses', 'inspect', 'gpuyard.client.client') if m in sys.modules])"
    )
    words = ["--gpus", "2", "--time", "90m", "--begin", "2030-01-01", "--tag", "a", "--env", "A=1", "--", "true"]
    with StandIn(tmp_path / "s") as yard:
        yard.answers["POST", "/jobs"] = 201, {"id": "7"}
        start, socket = [sys.executable, "-c", code], ["--socket", str(yard.path)]
        for line in (["submit", *socket, *words], [*socket, "submit", *words]):
            done = subprocess.run([*start, *line], capture_output=True, text=True, check=True, cwd=tmp_path)
            id, modules = done.stdout.splitlines()
            assert id == "7"
            assert (modules == "[]") == (line[0] == "submit"), modules
        first, second = (body for method, _, body in yard.asked if method == "POST")
    assert first == second
    assert first["gpus"] == 2
    assert first["time_limit"] == 5400


def test_without_a_daemon_it_says_the_same(tmp_path: Path) -> None:
    told = set()
    place = ["--socket", str(tmp_path / "none")]
    for line in (["submit", *place, "--", "true"], [*place, "submit", "--", "true"]):
        done = subprocess.run([sys.executable, "-m", "gpuyard", *line], capture_output=True, text=True, check=False)
        told.add((done.returncode, done.stdout, done.stderr))
    [(code, _, error)] = told
    assert code == 1
    assert "no daemon answers" in error


def test_who_does_not_want_to_wait_for_a_daemon_is_told_at_once(tmp_path: Path) -> None:
    """On the quick path and on typer's: the socket of a daemon that was killed is there, and nobody listens."""
    place = str(tmp_path / "left")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(place)
    for line in (["submit", "--no-wait", "--socket", place], ["--socket", place, "submit", "--no-wait"]):
        words = [sys.executable, "-m", "gpuyard", *line, "--", "true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no daemon answers" in done.stderr
        assert "waits" not in done.stderr
