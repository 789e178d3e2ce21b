"""A trained policy: a heuristic's order with nothing added, the same for numbers and arrays, whole in its file."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.policies import POLICIES
from gpuyard.errors import UserError
from gpuyard.policies import features as f
from gpuyard.policies.network import BASES, SIZES, Network, parameter_count, score, untrained
from gpuyard.policies.resolver import make_planner, resolve
from gpuyard.policies.trained_policy import Learned, load, shipped

Queue = dict[str, np.ndarray]


def queue(seed: int, n: int = 40) -> Queue:
    rng = np.random.default_rng(seed)
    columns = {name: 10.0 ** rng.uniform(0.0, 5.0, n) for name in f.COLUMNS}
    columns["gpus"] = rng.integers(1, 9, n).astype(np.float64)
    for name in ("usage_share", "shorter"):
        columns[name] = rng.uniform(0.0, 1.0, n)
    columns["suitable"] = rng.integers(0, 6, n).astype(np.float64)
    columns["opening"] = np.where(rng.random(n) < 0.5, 0.0, columns["opening"])
    for name, value in (("capacity", 16.0), ("idle", 5.0), ("hole", 3.0), ("queue", float(n)), ("queue_work", 1e6)):
        columns[name] = np.full(n, value)
    return columns


def scored(columns: Queue, weights: np.ndarray) -> np.ndarray:
    found: np.ndarray = score(*(*columns.values(), weights))
    return found


def trained(seed: int, hidden: int, base: str = "saf") -> Network:
    parameters = np.random.default_rng(seed).normal(0.0, 1.0, parameter_count(hidden))
    return Network(base, hidden, 1e9, parameters)


def learned(network: Network | None = None) -> Learned:
    count = len(f.NAMES)
    return Learned(network or trained(0, 4), np.zeros(count), np.ones(count), "easy", {"recipe": {}})


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("hidden", SIZES)
def test_with_nothing_added_it_is_the_heuristic(base: str, hidden: int) -> None:
    columns = queue(1)
    network = untrained(base, hidden, 1e12, np.random.default_rng(0))
    ours = scored(columns, network.weights)
    theirs = POLICIES[base](*(columns[name] for name in POLICIES[base].columns))
    if base == "fcfs":
        theirs = -columns["wait"]
    np.testing.assert_array_equal(np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable"))


@pytest.mark.parametrize("hidden", SIZES)
def test_numbers_and_arrays_alike(hidden: int) -> None:
    columns = queue(2)
    weights = trained(3, hidden).weights
    together = scored(columns, weights)
    for i in range(len(together)):
        one = scored({name: values[i] for name, values in columns.items()}, weights)
        assert float(one) == pytest.approx(together[i], rel=1e-12)


def test_features_are_finite_and_bounded() -> None:
    columns = queue(3)
    columns["estimate"][0], columns["wait"][1], columns["opening"][2] = np.inf, 0.0, 1e7
    for name, values in zip(f.NAMES, f.features(*columns.values()), strict=True):
        assert np.isfinite(values).all(), name
        if name != "length":
            assert (values >= 0.0).all(), name
            assert (values <= 1.0).all(), name


def test_who_starves_goes_first_by_load() -> None:
    columns = queue(4)
    columns["wait"][7] = 1e9
    weights = Network("saf", 0, 5.0, np.zeros(parameter_count(0))).weights
    assert int(np.argmin(scored(columns, weights))) == 7
    busy = dict(columns, queue_work=np.full(len(columns["wait"]), 1e12))
    patient = scored(busy, weights)
    assert patient[7] > patient.min()


def test_a_file_says_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    policy = learned()
    policy.save(path)
    again = load(str(path))
    assert again.facts() == policy.facts()
    assert again.hash == policy.hash == json.loads(path.read_text())["hash"]
    assert not again.deployable
    assert again.with_gate({"passed": True}).deployable


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    learned().save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x04]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"damaged|no trained policy|version|cannot be read"):
            load(str(path))


def test_features_of_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.json"
    learned().save(path)
    monkeypatch.setattr(f, "VERSION", 2)
    with pytest.raises(UserError, match=r"version 1 of the features, and this gpuyard has version 2: train it anew"):
        load(str(path))


@pytest.mark.parametrize("name", ["single-box", "small-cluster"])
def test_what_comes_with_gpuyard_is_whole(name: str) -> None:
    assert name in shipped()
    policy = load(name)
    assert policy.gate["passed"] is policy.deployable
    report = Path(str(resources.files("gpuyard.policies") / "trained" / f"{name}.md")).read_text()
    assert ("It passes the gate." in report) is policy.deployable
    assert f"{policy.gate['ratio']:.3f}" in report
    assert make_planner(f"learned:{name}").discipline == policy.discipline


def test_what_is_no_policy_is_told(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"some": "thing"}')
    with pytest.raises(UserError, match="no trained policy"):
        load(str(path))
    with pytest.raises(UserError, match="is a directory"):
        load(str(tmp_path))
    with pytest.raises(UserError, match="there is no trained policy"):
        load(str(tmp_path / "nowhere"))


def test_it_is_a_policy_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    learned().save(path)
    policy, spec = resolve(f"learned:{path}@skip@pack")
    assert (spec.discipline, spec.placement, policy.text) == ("skip", "pack", f"learned:{path}")
    assert policy.looks_around
    assert make_planner(f"learned:{path}").discipline == "easy"  # as it was trained
    assert make_planner(f"learned:{path}", discipline="strict").discipline == "strict"


def test_a_network_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(UserError, match="has 14 weights, not 3"):
        Network("saf", 0, 1.0, np.zeros(3))
    with pytest.raises(UserError, match="cannot be trained on top of 'safe'"):
        replace(trained(0, 0), base="safe")
