"""What can be chosen on the page to be simulated."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from gpuyard.page.simulations.choices import FORMATS, Choices, gpu_count, split_policies
from gpuyard.sim import traces

KNOWN: dict[str, Any] = {"policies": [{"name": "fcfs"}, {"name": "wfp3"}, {"name": "las"}], "aliases": {"best-fit": {}}}
USUAL = Choices(policies=("fcfs",), gpus="4")


def test_the_formats_are_those_of_the_simulator() -> None:
    assert tuple(traces.FORMATS) == FORMATS


def test_an_address_says_what_is_chosen_and_nothing_else() -> None:
    chosen = replace(USUAL, source="workload", jobs="50", policies=("fcfs", "las:queues=1/2,quantum=3"), gpus="2x4")
    query = chosen.query(USUAL)
    assert "seed" not in query
    assert Choices.of_query(QueryParams(query), USUAL) == chosen
    assert USUAL.query(USUAL) == ""


def test_an_address_that_makes_no_sense_leaves_what_is_usual() -> None:
    assert Choices.of_query(QueryParams("source=moon&kind=x&days=3&nothing=1"), USUAL) == USUAL


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", "0"), ("gpus", "many"), ("gpus", "/etc/passwd"), ("gpus", "999999x999999"), ("memory", "1"),
        ("memory", "big"), ("seed", "-1"), ("estimate", "psychic"), ("policies", ()), ("policies", ("fcsf",)),
        ("policies", ("/tmp/mine.py:fcfs",)), ("policies", ("mine.py:fcfs",)),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(field: str, value: Any) -> None:
    assert list(replace(USUAL, **{field: value}).problems(KNOWN)) == [field]


@pytest.mark.parametrize("field", ["jobs", "load"])
def test_a_workloads_fields_matter_where_there_is_one(field: str) -> None:
    given: dict[str, Any] = {field: "x"}
    wrong = replace(USUAL, **given)
    assert wrong.problems(KNOWN) == {}
    assert list(replace(wrong, source="workload").problems(KNOWN)) == [field]


def test_what_can_be_is_taken() -> None:
    policies = ("wfp3:power=2@easy@pack", "best-fit", "las:queues=1/2,quantum=5", "fcfs@skip")
    assert replace(USUAL, gpus="4x8,2x4", policies=policies, estimate="noisy:0.5").problems(KNOWN) == {}


def test_the_command_line_is_the_same_comparison() -> None:
    chosen = Choices(
        source="upload", upload="x", name="my trace; rm.swf", gpus="4x8", discipline="easy", policies=("a", "b")
    )
    assert shlex.split(chosen.commands()[0]) == [
        "gpuyard", "compare", "my trace; rm.swf", "--policies", "a,b", "--nodes", "4x8", "--discipline", "easy",
    ]  # fmt: skip
    assert "trace" not in chosen.request()["setup"]  # the file is handed over, its name is not


def test_a_workload_is_made_first() -> None:
    chosen = Choices(source="workload", jobs="20", load="1.5", gpus="2x4", seed="7", policies=("fcfs",))
    made, compared = chosen.commands()
    assert made == "gpuyard workload generate --kind poisson --seed 7 --jobs 20 --gpus 8 --load 1.5 --out jobs.csv"
    assert compared == "gpuyard compare jobs.csv --policies fcfs --nodes 2x4 --seed 7"
    assert chosen.request()["workload"] == {
        "kind": "poisson", "seed": 7, "jobs": 20, "gpus": 8, "load": 1.5, "gpu_memory": 16 * 2.0**30,
    }  # fmt: skip


def test_gpus_are_counted() -> None:
    assert (gpu_count("8"), gpu_count("4x8,2x4")) == (8, 40)


def test_policies_are_told_apart_by_spaces_and_commas() -> None:
    assert split_policies("a,b  las:queues=1,quantum=2 a") == ("a", "b", "las:queues=1,quantum=2")


@pytest.mark.parametrize(("gpus", "said"), [("1", "on 1 GPU"), ("8", "on 8 GPUs"), ("4x8", "on 4x8 GPUs")])
def test_one_gpu_is_not_several(gpus: str, said: str) -> None:
    assert Choices(policies=("fcfs",), gpus=gpus).title().endswith(said)
