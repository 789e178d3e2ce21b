"""Batsim workloads: what is read from them, and what is said about those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.sim.traces import read

BATSIM = {
    "nb_res": 4,
    "jobs": [
        {"id": "a", "subtime": 0, "res": 1, "walltime": 5, "profile": "long"},
        {"id": 2, "subtime": 1.5, "res": 4, "profile": "long"},
    ],
    "profiles": {"long": {"type": "delay", "delay": 10}, "mpi": {"type": "parallel_homogeneous", "cpu": 1}},
}


def saved(folder: Path, text: str) -> Path:
    path = folder / "a.json"
    path.write_text(text)
    return path


def problem(folder: Path, text: str) -> str:
    """What is said about this workload, from the file's name on."""
    with pytest.raises(UserError) as caught:
        read(saved(folder, text))
    return str(caught.value).removeprefix(f"{folder}/")


@pytest.mark.parametrize("indent", [None, 2])
def test_batsim_kills_at_the_walltime(tmp_path: Path, indent: int | None) -> None:
    trace = read(saved(tmp_path, json.dumps(BATSIM, indent=indent)))
    assert trace.ids == ["a", "2"]
    assert trace.run.tolist() == [5, 10]
    assert trace.requested.tolist()[0] == 5
    assert np.isnan(trace.requested[1])
    assert (trace.capacity, trace.format) == (4, "batsim")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"profile": "mpi"},
            "job x: profile 'mpi' has the type 'parallel_homogeneous', and only delay profiles",
        ),
        ({"profile": "none"}, "job x: there is no profile 'none'"),
        ({"res": 0}, "job x: res must be 1 or more, not 0"),
        ({"res": 1.5}, "job x: res must be a whole number, not 1.5"),
        ({"res": None}, "job x: res is missing"),
        ({"subtime": -1}, "job x: subtime must be 0 or more, not -1"),
        ({"walltime": 0}, "job x: walltime must be above 0, not 0"),
        ({"subtime": [1]}, "job x: subtime must be a number or text"),
        ({"id": "a"}, "two jobs have the id 'a'"),
        ({"id": None}, "jobs[2]: id is missing"),
    ],
)
def test_batsim_mistakes(tmp_path: Path, change: dict[str, object], said: str) -> None:
    job = {"id": "x", "subtime": 0, "res": 1, "profile": "long", **change}
    workload = {**BATSIM, "jobs": [*BATSIM["jobs"], job]}  # type: ignore[misc]
    message = problem(tmp_path, json.dumps(workload, indent=1))
    assert message.startswith("a.json")
    assert said in message


def test_batsim_broken_json(tmp_path: Path) -> None:
    assert problem(tmp_path, '{"jobs": [\n1,,\n').startswith("a.json, line 2: not valid JSON")
    assert "a list 'jobs'" in problem(tmp_path, '{\n"profiles": {}}')
    assert "too deep" in problem(tmp_path, '{"jobs":\n' + "[" * 100_000)
