"""Experiments in files: what they say, when their jobs come, what those ask for; and every mistake with its place."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrivals, Experiment, Scheduler, Workload, arrivals, asked
from gpuyard.experiments.experiment_file import parse_experiment, read_experiment

MIB = 2**20
YAML = """
name: seed004
gpus: 1x32510M
over_provisioning: [0, 50%, 250]
period: 2s
arrivals: {process: uniform, min: 20, max: 40s, seed: 2020, shuffle: true}
schedulers:
  - {name: exclusive, sharing: exclusive}
  - {name: usage, sharing: usage, policy: sjf@easy}
workloads:
  - name: ssd
    replicas: 30
    gpu_memory: 6994MiB
    command: [python, ssd.py]
    environment: {QUERIES: 1024}
    estimate: 3m
    behaviour: {seconds: 131.5, together: {4: 159}, overhead: 4.4, seconds_by_percent: {50%: 140}}
    kubernetes: {spec: {hostIPC: true}}
"""
TOML = """
name = "seed004"
gpus = "1x32510M"
over_provisioning = [0, "50%", 250]
period = 2
arrivals = {process = "uniform", min = "20s", max = 40, seed = 2020, shuffle = true}
schedulers = [{name = "exclusive", sharing = "exclusive"}, {name = "usage", sharing = "usage", policy = "sjf@easy"}]
[[workloads]]
name = "ssd"
replicas = 30
gpu_memory = "6994M"
command = ["python", "ssd.py"]
environment = {QUERIES = "1024"}
estimate = 180
behaviour = {seconds = 131.5, together = {4 = 159}, overhead = 4.4, seconds_by_percent = {50 = 140}}
kubernetes = {spec = {hostIPC = true}}
"""
GOOD: dict[str, Any] = {
    "workloads": [{"name": "a", "command": "sleep 1", "gpu_memory": "2G"}, {"name": "b", "command": ["true"]}],
    "schedulers": [{"name": "x"}],
}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def with_change(path: str, value: Any) -> dict[str, Any]:
    """A good experiment with one thing changed, as in `workloads.0.gpus`."""
    found = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    place: Any = found
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    place[int(last) if isinstance(place, list) else last] = value
    return found


def test_yaml_toml_and_json_say_the_same(tmp_path: Path) -> None:
    found = read_experiment(write(tmp_path, "e.yaml", YAML))
    assert found == read_experiment(write(tmp_path, "e.toml", TOML))
    plain = {"name": found.name, "schedulers": [{"name": "x"}], "workloads": [{"name": "a", "command": "true"}]}
    assert read_experiment(write(tmp_path, "e.json", json.dumps(plain))).schedulers == (Scheduler("x"),)
    assert found.over_provisioning == (0.0, 50.0, 250.0)
    assert (found.gpus, found.period, found.repeat) == ("1x32510M", 2.0, 1)
    assert found.arrivals == Arrivals("uniform", 20.0, 40.0, 0.0, 2020, True)
    assert found.schedulers[1] == Scheduler("usage", "usage", "sjf@easy")
    (ssd,) = found.workloads
    assert (ssd.gpu_memory, ssd.estimate, ssd.environment) == (6994 * MIB, 180.0, {"QUERIES": "1024"})
    assert ssd.kubernetes == {"spec": {"hostIPC": True}}
    assert ssd.behaviour is not None
    assert (ssd.behaviour.together, ssd.behaviour.seconds_by_percent) == ({4: 159.0}, {50.0: 140.0})


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    found = parse_experiment(GOOD, tmp_path / "mine.yaml")
    assert (found.name, found.over_provisioning, found.arrivals) == ("mine", (0.0,), Arrivals())
    assert found.schedulers == (Scheduler("x", "requests", "fcfs", "local"),)
    assert found.workloads[0].command == ("/bin/sh", "-c", "sleep 1")
    assert found.workloads[1].command == ("true",)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("workloads.0.gpu_memroy", "2G", "workloads[1].gpu_memroy: there is no such key; did you mean 'gpu_memory'?"),
        ("workload", [], "workload: there is no such key; did you mean 'workloads'?"),
        ("workloads", [], "workloads: a list of at least one is expected"),
        ("workloads.1", "true", "workloads[2]: keys and values are expected here"),
        ("workloads.1", {"nmae": "x"}, "workloads[2]: name is missing (it says 'nmae')"),
        ("workloads.1", {"name": "x"}, "workloads[2]: it says neither a command nor a behaviour"),
        ("workloads.1.name", "A", "workloads[2].name: 'A' is there already"),
        ("workloads.1.name", "../x", "workloads[2].name: '../x' cannot name a file"),
        ("workloads.0.gpu_memory", 6994, "workloads[1].gpu_memory: a size is expected, as in 6994M or 16G, not 6994"),
        ("workloads.0.gpu_memory", "much", "workloads[1].gpu_memory: 'much' is not a size"),
        ("workloads.0.replicas", 1.5, "workloads[1].replicas: a whole number from 1 to"),
        ("workloads.0.estimate", "-3", "workloads[1].estimate: a time is expected"),
        ("workloads.0.command", [], "workloads[1].command: the command is empty"),
        ("workloads.0.environment", {"A B": 1}, "workloads[1].environment: 'A B' is not a variable's name"),
        ("workloads.0.behaviour", {"ramp": 3}, "workloads[1].behaviour: seconds is missing"),
        ("workloads.0.behaviour", {"seconds": 9, "together": {4: 8}}, "behaviour.together: the more there are"),
        ("workloads.0.behaviour", {"seconds": 9, "utilization": 101}, "behaviour.utilization: a percentage up to 100"),
        ("schedulers.0.sharing", "usages", "schedulers[1].sharing: one of exclusive, requests, usage is expected"),
        ("schedulers.0.policy", "fcsf", "schedulers[1].policy: unknown policy 'fcsf'; did you mean 'fcfs'?"),
        ("schedulers.0.engine", "slurm", "schedulers[1].engine: experiments do not run on slurm yet"),
        ("schedulers.0.engine", "locla", "there is no engine \"locla\"; did you mean 'local'?; there are local,"),
        ("schedulers.0.kubernetes", "x", "schedulers[1].kubernetes: keys and values are expected here"),
        ("arrivals", {"process": "uniform", "max": 3}, "arrivals: min is missing"),
        ("arrivals", {"process": "uniform", "min": 4, "max": 3}, "arrivals.max: it must not be below min"),
        ("arrivals", {"process": "poisson"}, "arrivals.process: one of uniform, exponential, fixed, at-once"),
        ("arrivals", {"process": "fixed", "every": 3, "mean": 2}, "arrivals.mean: there is no such key"),
        ("over_provisioning", [50, "50%"], "over_provisioning: something is there twice"),
        ("over_provisioning", [-1], "over_provisioning: a percentage is expected, as in 50 or 50%, not -1"),
        ("gpus", "many", "gpus: 'many' does not say which GPUs to simulate"),
        ("gpus", "1x1G", "workloads[1].gpu_memory: no GPU has as much (gpus: 1x1G)"),
        ("metrics", ["power", "heat"], "metrics: one of utilization,"),
        ("period", 0, "period: a time from 0.1s to an hour is expected, not 0"),
        ("name", True, "name: a text is expected, not true"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(path: str, value: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_experiment(with_change(path, value), Path("e.yaml"))
    assert str(caught.value).startswith("e.yaml: ")
    assert said in str(caught.value)


BOMB = "".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("e.yaml", "a: 1\na: 2\n", "e.yaml:2: this cannot be read as YAML: 'a' is given twice"),
        ("e.yaml", "a: [1\n", "e.yaml:2: this cannot be read as YAML"),
        ("e.yaml", "", "is empty; write what is to run"),
        ("e.toml", "a = 1\na = 2\n", "e.toml: this cannot be read"),
        ("e.json", '{"a": 1, "a": 2}', "'a' is given twice"),
        ("e.txt", "", "an experiment is written in YAML, TOML or JSON"),
        ("e.yaml", "[]\n", "keys and values are expected here, not []"),
        ("e.yaml", "[" * 5000, "its parts are nested too deeply"),
        ("e.json", "[" * 100_000, "its parts are nested too deeply"),
        ("e.yaml", "name: &a [*a]\n", "use fewer aliases"),
        ("e.yaml", BOMB, "use fewer aliases"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_experiment(write(tmp_path, name, text))
    assert said in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        read_experiment(tmp_path / "e.yaml")


def experiment(given: Arrivals, *workloads: Workload) -> Experiment:
    return Experiment("e", workloads or (Workload("a", 30),), (Scheduler("x"),), given)


def test_uniform_arrivals_by_a_seed_are_the_same_everywhere() -> None:
    found = arrivals(experiment(Arrivals("uniform", 20.0, 40.0, seed=2020)))
    assert [job.name for job in found[:2]] == ["a-01", "a-02"]
    assert [round(job.at, 6) for job in found[:4]] == [0.0, 32.393385, 55.883863, 91.253409]
    gaps = [later.at - job.at for job, later in itertools.pairwise(found)]
    assert all(20 <= gap <= 40 for gap in gaps)


def test_a_repetition_draws_anew_and_is_the_same_each_time() -> None:
    some = experiment(Arrivals("exponential", mean=5.0, seed=1))
    first, second = arrivals(some, 1), arrivals(some, 2)
    assert [job.at for job in first] != [job.at for job in second]
    assert second == arrivals(some, 2)
    assert second == arrivals(experiment(Arrivals("exponential", mean=5.0, seed=2)))


def test_shuffling_mixes_workloads_and_loses_none() -> None:
    some = Workload("a", 10), Workload("b", 10)
    plain = arrivals(experiment(Arrivals("fixed", mean=2.0), *some))
    mixed = arrivals(experiment(Arrivals("fixed", mean=2.0, seed=7, shuffle=True), *some))
    assert [job.workload.name for job in plain] == ["a"] * 10 + ["b"] * 10
    assert [job.workload.name for job in mixed] != ["a"] * 10 + ["b"] * 10
    assert {job.name for job in mixed} == {job.name for job in plain}
    assert [job.at for job in mixed] == [2.0 * number for number in range(20)]


def test_all_at_once() -> None:
    assert {job.at for job in arrivals(experiment(Arrivals()))} == {0.0}


@pytest.mark.parametrize(
    ("percent", "mib"), [(0, 6994), (50, 10491), (100, 13988), (150, 17485), (200, 20982), (250, 24479), (400, 32510)]
)
def test_over_provisioned_requests_are_those_of_the_seed(percent: float, mib: int) -> None:
    assert asked(Workload("ssd", gpu_memory=6994.0 * MIB), percent, 32510.0 * MIB) == mib * MIB


def test_whole_gpus_stay_whole_gpus() -> None:
    assert asked(Workload("a"), 100, 32510.0 * MIB) == 0


def test_ten_percent_of_ten_is_one() -> None:
    assert asked(Workload("a", gpu_memory=10.0 * MIB), 10) == 11 * MIB
