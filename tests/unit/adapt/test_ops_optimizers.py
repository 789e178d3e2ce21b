"""Optimizers go on after growing, and come back from a checkpoint."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tests.netzoo import called, network
from torch import nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from gpuyard.adapt.ops import deepen, growth_log, rebuild, rollback, widen
from gpuyard.errors import UserError

torch.set_num_threads(1)
MAKERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "sgd": lambda held: SGD(held, lr=0.01, momentum=0.9),
    "adam": lambda held: Adam(held, lr=0.01, amsgrad=True),
    "adamw": lambda held: AdamW(held, lr=0.01),
    "rmsprop": lambda held: RMSprop(held, lr=0.01, momentum=0.5),
    "adagrad": lambda held: Adagrad(held, lr=0.01),
}


def step(model: nn.Module, optimizer: Optimizer, example: Any) -> None:
    optimizer.zero_grad()
    called(model, example)[0].square().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("maker", MAKERS)
def test_a_rebuilt_network_and_optimizer_go_on_alike(maker: str) -> None:
    model, example = network("convnet2")
    optimizer = MAKERS[maker](model.parameters())
    for _ in range(2):
        step(model, optimizer, example)
    deepen(model, "conv1", example=example, optimizer=optimizer)
    step(model, optimizer, example)
    widen(model, "conv2", example=example, optimizer=optimizer)
    deepen(model, "fc", example=example, optimizer=optimizer)
    step(model, optimizer, example)

    again, _ = network("convnet2")
    rebuild(again, growth_log(model)).load_state_dict(model.state_dict())
    fresh = MAKERS[maker](again.parameters())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(2):
        step(model, optimizer, example)
        step(again, fresh, example)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.parametrize("maker", MAKERS)
def test_states_of_widened_parameters_are_mapped_and_come_back(maker: str) -> None:
    model, example = network("convnet2")
    optimizer = MAKERS[maker](model.parameters())
    step(model, optimizer, example)
    before = copy.deepcopy(optimizer.state_dict())
    growth = widen(model, "conv1", example=example, to=40, optimizer=optimizer)
    copies = [*range(32), *growth.entry["copies"]]
    # conv1.weight, conv1.bias, bn1.weight, bn1.bias, conv2.weight
    for number, parameter in list(enumerate(model.parameters()))[:5]:
        for name, value in optimizer.state[parameter].items():
            old = before["state"][number][name]
            if not isinstance(value, torch.Tensor) or not value.dim():
                assert value == old
                continue
            assert value.shape == parameter.shape
            assert torch.equal(value, old[:, copies] if number == 4 else old[copies])
    rollback(model, growth, optimizer)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, state in before["state"].items():
        assert all(torch.equal(torch.as_tensor(state[k]), torch.as_tensor(after["state"][number][k])) for k in state)
    step(model, optimizer, example)


def test_new_parameters_join_the_group_of_those_they_are_like() -> None:
    model, example = network("convnet2")
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    growth = deepen(model, "conv2", example=example, optimizer=optimizer)
    for group, dims in zip(optimizer.param_groups, ({2, 4}, {1}), strict=True):
        assert {parameter.dim() for parameter in group["params"]} == dims
        names = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        order = [names[id(parameter)] for parameter in group["params"]]
        assert order == sorted(order)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    rollback(model, growth, optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [len(decayed), len(others)]


def test_a_users_own_order_is_kept_and_new_parameters_come_behind_their_kin() -> None:
    model, example = network("convnet2")
    held = list(model.parameters())[::-1]
    optimizer = SGD(held, lr=0.1)
    deepen(model, "conv1", example=example, optimizer=optimizer)
    now = optimizer.param_groups[0]["params"]
    kept = [parameter for parameter in now if any(parameter is one for one in held)]
    assert all(x is y for x, y in zip(kept, held, strict=True))
    at = next(number for number, parameter in enumerate(now) if parameter is model.conv1.weight)  # type: ignore[union-attr]
    assert now[at + 1].shape == (32, 32, 3, 3)


def test_frozen_layers_stay_frozen_and_what_is_new_is_trained() -> None:
    model, example = network("convnet2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("fc"))
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    deepen(model, "conv2", example=example, optimizer=optimizer)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {
        f"{part}.{kind}" for part in ("conv1", "bn1", "conv2", "bn2.origin") for kind in ("weight", "bias")
    }
    assert len(optimizer.param_groups[0]["params"]) == 6


def test_optimizers_that_do_not_fit_are_refused_before_anything_is_done() -> None:
    model, example = network("convnet2")
    before = list(model.state_dict())
    with pytest.raises(UserError, match="holds none of the network's parameters"):
        deepen(model, "conv1", example=example, optimizer=SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(UserError, match="LBFGS"):
        deepen(model, "conv1", example=example, optimizer=LBFGS(model.parameters()))
    assert list(model.state_dict()) == before
