"""Growing touches nothing but the place where it grows."""

import copy
from typing import Any

import torch
from tests.netzoo import ConvNet2, called, network
from torch import Tensor, nn

from gpuyard.adapt.ops import deepen, sites, widen

torch.set_num_threads(1)


def test_statistics_modes_random_numbers_gradients_and_hooks_stay() -> None:
    model, example = network("convnet2")
    model.train()
    assert isinstance(model, ConvNet2)
    model.bn2.eval()
    model.conv1.weight.requires_grad_(False)
    called(model, example)[0].sum().backward()  # type: ignore[no-untyped-call]
    calls: list[str] = []
    model.conv2.register_forward_hook(lambda *_: calls.append("conv2"))
    before = copy.deepcopy(dict(model.named_buffers()))
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    random = torch.get_rng_state()
    given = example.clone()

    sites(model, example, ops=("deepen", "widen"))
    deepen(model, "conv1", example=example)

    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(example, given)
    now = dict(model.named_buffers())
    renamed = {name: name.replace("bn1.", "bn1.origin.") for name in before}
    assert all(torch.equal(now[renamed[name]], value) for name, value in before.items())
    for name, parameter in model.named_parameters():
        if ".grown." in name:
            assert parameter.grad is None
            assert parameter.requires_grad
            continue
        was = grads[name.replace("bn1.origin.", "bn1.")]
        assert (parameter.grad is None) == (was is None)
        assert was is None or torch.equal(parameter.grad, was)  # type: ignore[arg-type]
    assert not model.conv1.weight.requires_grad
    assert all(model.get_submodule(name.replace("bn1", "bn1.origin")).training == mode for name, mode in modes.items())
    assert all(module.training for module in model.bn1.grown.modules())  # type: ignore[union-attr]
    calls.clear()
    called(model, example)
    assert calls == ["conv2"]


def test_attributes_that_a_forward_writes_are_as_before() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 2)
            self.count = 0
            self.last: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.last = torch.relu(self.one(x))
            return self.two(self.last)  # type: ignore[no-any-return]

    model, example = Writing(), torch.randn(4, 8)
    deepen(model, "one", example=example)
    widen(model, "one", example=example)
    assert (model.count, model.last) == (0, None)
    copy.deepcopy(model)


def test_a_users_code_still_reads_the_layer_that_stood_there() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.relu(self.one(x))) * self.one.out_features + self.one.weight.sum()  # type: ignore[no-any-return]

    model, example = Reading(), torch.randn(4, 8)
    before = model(example)
    deepen(model, "one", example=example)
    assert torch.equal(model(example), before)


def test_an_activation_in_place_does_not_spoil_what_is_added_to() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(x)
            return self.two(torch.nn.functional.silu(h, inplace=True) + h)  # type: ignore[no-any-return]

    model, example = InPlace(), torch.randn(4, 8)
    with torch.no_grad():
        before = model(example)
        assert deepen(model, "one", example=example).style == "residual"
        assert torch.equal(model(example), before)


def test_outputs_may_be_anything_that_holds_tensors() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor, scale: float = 1.0) -> Any:
            h = torch.relu(self.one(x))
            return [h * scale, {"logits": (self.two(h), None)}, 3]

    growth = deepen(Many(), "one", example={"x": torch.randn(4, 8), "scale": 2.0})
    assert growth.difference["eval"] == 0.0
