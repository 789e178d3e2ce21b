"""The growth log: it lives with the network, and rebuilds it; and undoing."""

import copy
import io
import json
import pickle
from typing import Any

import pytest
import torch
from tests.netzoo import ConvNet2, called, network
from torch import nn

from gpuyard.adapt.ops import Refused, deepen, growth_log, rebuild, rollback, widen
from gpuyard.errors import UserError

torch.set_num_threads(1)


def grown() -> tuple[nn.Module, Any]:
    model, example = network("convnet2")
    deepen(model, "conv1", example=example)
    widen(model, "conv1", example=example, seed=3)
    deepen(model, "conv1", example=example)
    return model.eval(), example


def test_the_log_goes_where_the_network_goes() -> None:
    model, example = grown()
    log = growth_log(model)
    assert [entry["op"] for entry in log] == ["deepen", "widen", "deepen"]
    assert json.loads(json.dumps(log)) == log
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert growth_log(other) == log
        assert torch.equal(called(other, example)[0], called(model, example)[0])
    log[0]["op"] = "changed"
    assert growth_log(model)[0]["op"] == "deepen", "what is given out is a copy"


def test_code_log_and_weights_are_the_network() -> None:
    model, example = grown()
    buffer = io.BytesIO()
    torch.save({"log": growth_log(model), "weights": model.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    again = rebuild(ConvNet2(), saved["log"])
    again.load_state_dict(saved["weights"], strict=True)
    assert isinstance(again, ConvNet2)
    assert torch.equal(called(again.eval(), example)[0], called(model, example)[0])
    assert growth_log(again) == saved["log"]
    with pytest.raises(UserError, match="has grown already"):
        rebuild(again, saved["log"])


def test_a_log_that_does_not_fit_is_told() -> None:
    deeper, wider, _ = growth_log(grown()[0])
    unfit: list[tuple[Any, str]] = [
        ([{"op": "explode"}], "not known"),
        (["deepen"], "not known"),
        ([{"op": "deepen"}], "without a proper 'site'"),
        ([{**deeper, "weight": "3"}], "without a proper 'weight'"),
        ([{**deeper, "weight": [1, 2, 3, 3]}], "of another network: 'conv1' is a Conv2d with a weight of"),
        ([{**deeper, "anchor": "bn9"}], "no layer 'bn9'; did you mean"),
        ([{**deeper, "activation": ["system", {}]}], "activation"),
        ([{**deeper, "activation": [3]}], "of another network"),
        ([{**wider, "into": [["conv2", 3]]}], "'conv2' takes 32 channels, not 96"),
        ([{**wider, "copies": [99]}], "channels that it does not have"),
        ([{**wider, "copies": []}], "channels that it does not have"),
    ]
    for log, reason in unfit:
        with pytest.raises(UserError, match=reason):
            rebuild(ConvNet2(), log)
    with pytest.raises(UserError, match="of another network"):
        rebuild(nn.Sequential(nn.Linear(3, 3)), [deeper])


def test_a_block_of_another_size_is_told() -> None:
    model, example = network("resnet")
    deepen(model, "layer2.0", example=example)
    other = nn.Module()
    other.layer2 = nn.Sequential(nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(UserError, match="is a Sequential of 12 parameters, not a BasicBlock"):
        rebuild(other, growth_log(model))


def test_growth_is_undone_in_reverse() -> None:
    model, example = network("convnet2")
    first = deepen(model, "conv1", example=example)
    second = deepen(model, "conv2", example=example)
    with pytest.raises(Refused, match="has grown since, last at 'conv2'"):
        rollback(model, first)
    rollback(model, second)
    with pytest.raises(Refused, match="undone before"):
        rollback(model, second)
    rollback(model, first)
    assert growth_log(model) == []


def test_what_was_trained_meanwhile_stays_and_copies_are_folded() -> None:
    model, example = network("convnet2", torch.float64)
    growth = widen(model, "conv1", example=example, to=40)
    assert isinstance(model, ConvNet2)
    with torch.no_grad():
        model.fc.weight += 1.0
        model.conv2.weight *= 2.0
    before = called(model.eval(), example)[0]
    rollback(model, growth)
    # Copies of channels were still equal, so that folding them changes nothing.
    assert model.conv1.weight.shape[0] == 32
    assert torch.allclose(called(model, example)[0], before, atol=1e-12)
