"""Growing keeps the function: every operation at every site of many networks, in both modes and precisions."""

import copy
import itertools
import json
import random
from typing import Any

import pytest
import torch
from tests.netzoo import ZOO, called, network
from torch import Tensor, nn

from gpuyard.adapt.ops import (
    Growth,
    NotPreserved,
    Refused,
    Site,
    deepen,
    depth,
    growth_log,
    rebuild,
    rollback,
    sites,
    widen,
)
from gpuyard.adapt.ops.containers import Grown

torch.set_num_threads(1)
ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-12}
BOTH = ("deepen", "widen")


def without_dropout(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def seen(model: nn.Module, example: Any) -> list[Tensor]:
    """What a network gives in evaluation, then in training."""
    model = without_dropout(model)
    with torch.no_grad():
        return [*called(model.eval(), example), *called(model.train(), example)]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(one, other, strict=True))


def grow(model: nn.Module, site: Site, example: Any, **more: Any) -> Growth:
    return (deepen if site.op == "deepen" else widen)(model, site, example=example, **more)


def usable(model: nn.Module, example: Any) -> list[Site]:
    return [site for site in sites(model, example, ops=BOTH) if not site.why_not]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float64) for name in ZOO), *((name, torch.float32) for name in list(ZOO)[::2])],
)
def test_growing_once_at_every_site(name: str, dtype: torch.dtype) -> None:
    model, example = network(name, dtype)
    before, names = seen(model, example), list(model.state_dict())
    count = [len(sites(model, example, ops=(op,))) for op in BOTH]
    for site in usable(model, example):
        grown = copy.deepcopy(model)
        growth = grow(grown, site, example)
        after = seen(grown, example)
        assert apart(before, after) <= ALLOWED[dtype], site
        assert growth.added > 0
        assert growth.added == sum(p.numel() for p in grown.parameters()) - sum(p.numel() for p in model.parameters())
        assert set(growth.difference) == {"eval", "train"}
        if dtype is torch.float32:
            assert [len(sites(grown, example, ops=(op,))) for op in BOTH] == count, site

        again, _ = network(name, dtype)
        rebuild(again, json.loads(json.dumps(growth_log(grown)))).load_state_dict(grown.state_dict(), strict=True)
        assert all(map(torch.equal, seen(again, example), after)), site

        rollback(grown, growth)
        assert list(grown.state_dict()) == names
        assert all(map(torch.equal, grown.state_dict().values(), model.state_dict().values())), site
        assert growth_log(grown) == []


def test_the_zoo_has_enough_cases_of_every_style() -> None:
    cases = [site for name in ZOO for site in usable(*network(name))]
    assert len(cases) >= 100
    styles = {style: sum(site.style == style for site in cases) for style in {site.style for site in cases}}
    assert all(styles[style] >= 2 for style in ("identity", "residual", "copy", "gated", "split")), styles
    assert {site.kind for site in cases} == {"conv1d", "conv2d", "linear", "residual", "transformer"}


@pytest.mark.parametrize(
    ("name", "seed"), [*itertools.product(["convnet2", "mlp", "resnet", "masked", "untraceable"], range(2))]
)
def test_growing_again_and_again_and_all_the_way_back(name: str, seed: int) -> None:
    draw = random.Random(seed)
    model, example = network(name, torch.float64)
    start, before = copy.deepcopy(model.state_dict()), seen(model, example)
    optimizer = torch.optim.AdamW(model.parameters())
    done = []
    for _ in range(5):
        done.append(grow(model, draw.choice(usable(model, example)), example, optimizer=optimizer))
        assert all(x is y for x, y in zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True))
    assert apart(before, seen(model, example)) <= 1e-12
    assert [entry["site"] for entry in growth_log(model)] == [growth.site.name for growth in done]
    while done:
        rollback(model, done.pop(), optimizer)
    assert all(map(torch.equal, model.state_dict().values(), start.values()))
    assert all(x is y for x, y in zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True))


@pytest.mark.parametrize("name", ["convnet2", "resnet", "transformer", "encoder", "post-norm", "branches"])
def test_all_that_was_added_learns(name: str) -> None:
    model, example = network(name)
    for site in usable(model, example):
        if site.op == "widen":
            continue
        grown = without_dropout(model)
        known = {id(parameter) for parameter in grown.parameters()}
        deepen(grown, site, example=example)
        added = [(path, p, p.detach().clone()) for path, p in grown.named_parameters() if id(p) not in known]
        optimizer = torch.optim.Adam(grown.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            sum(part.square().sum() for part in called(grown, example)).backward()  # type: ignore[union-attr]
            optimizer.step()
        still = [path for path, parameter, was in added if torch.equal(parameter, was)]
        assert not still, (site, still)


def test_copies_of_channels_do_not_learn_the_same() -> None:
    model, example = network("convnet2")
    growth = widen(model, "conv1", example=example, to=64)
    called(model, example)[0].square().sum().backward()  # type: ignore[no-untyped-call]
    layer = model.conv1
    assert isinstance(layer, nn.Conv2d)
    assert layer.weight.grad is not None
    for number, source in enumerate(growth.entry["copies"]):
        one, other = layer.weight.grad[source], layer.weight.grad[32 + number]
        assert torch.equal(layer.weight[source], layer.weight[32 + number])
        cosine = torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)
        assert not torch.allclose(one, other)
        assert cosine < 0.9999, "copies whose gradients are proportional stay alike under Adam"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_grows_too(dtype: torch.dtype) -> None:
    model, example = network("convnet2", dtype)
    for site in usable(model, example):
        grown = copy.deepcopy(model)
        grow(grown, site, example)
        assert {parameter.dtype for parameter in grown.parameters()} == {dtype}


def test_a_batch_of_one_is_enough_for_evaluation() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double().eval()
    example = torch.randn(1, 6, dtype=torch.float64)
    before = model(torch.ones(3, 6, dtype=torch.float64))
    assert set(deepen(model, "0", example=example).difference) == {"eval"}
    assert torch.allclose(model(torch.ones(3, 6, dtype=torch.float64)), before, atol=1e-12)


def test_dead_and_constant_channels_stay_what_they_are() -> None:
    model, example = network("convnet2", torch.float64)
    norm = model.bn2
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.bias[:4] = -100.0  # dead behind the ReLU
        norm.weight[5], norm.bias[5] = 0.0, 3.0  # always 3
    before = seen(model, example)
    deepen(model, "conv2", example=example)
    assert apart(before, seen(model, example)) <= 1e-12
    grown = model.bn2
    assert isinstance(grown, Grown)
    new = grown.grown[0].norm
    assert isinstance(new, nn.BatchNorm2d)
    assert float(new.weight.detach()[:4].min()) > 0.01, "a dead channel that wakes up is not squeezed to nothing"


def test_an_operation_that_changes_the_function_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = network("convnet2")
    before, optimizer = copy.deepcopy(model.state_dict()), torch.optim.Adam(model.parameters())
    held = list(optimizer.param_groups[0]["params"])
    monkeypatch.setattr(depth, "calibrate", lambda *_: None)
    with pytest.raises(NotPreserved, match=r"changed the outputs by .* in train mode|in eval mode"):
        deepen(model, "conv1", example=example, style="identity", optimizer=optimizer)
    assert list(model.state_dict()) == list(before)
    assert all(map(torch.equal, model.state_dict().values(), before.values()))
    assert growth_log(model) == []
    assert all(x is y for x, y in zip(held, optimizer.param_groups[0]["params"], strict=True))
    # Left the choice, it does without the norm.
    growth = deepen(model, "conv1", example=example)
    assert (growth.style, growth.entry["norm"], growth.added) == ("identity", "", 9248)


def test_the_style_can_be_chosen() -> None:
    model, example = network("convnet2", torch.float64)
    before = seen(model, example)
    assert deepen(model, "conv1", example=example, style="residual").entry["style"] == "residual"
    assert deepen(model, "conv1", example=example, style="identity").entry["style"] == "identity"
    assert apart(before, seen(model, example)) <= 1e-12
    with pytest.raises(Refused, match="no activation that is idempotent"):
        deepen(model, "fc", example=example, style="identity")


def test_training_that_uses_a_value_elsewhere_is_met_by_a_residual() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.other = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(x)
            out: Tensor = self.two(torch.relu(h))
            return out + self.other(h) if self.training else out

    model, example = Auxiliary(), torch.randn(16, 8)
    assert sites(model, example)[0].style == "identity"
    assert deepen(model, "one", example=example).style == "residual"
    with pytest.raises(NotPreserved, match="in train mode"):
        deepen(model, "one", example=example, style="identity")
    with pytest.raises(Refused, match="no longer ran after growing at 'one', so that was undone"):
        widen(Auxiliary(), "one", example=example)


def test_dropout_before_batch_norm_is_met_by_an_identity_that_holds_whatever_is_drawn() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()
    example = torch.randn(16, 8, dtype=torch.float64)
    torch.manual_seed(1)
    before = model(example)
    assert deepen(model, "1", example=example).entry["norm"] == ""
    torch.manual_seed(1)
    assert torch.allclose(model(example), before, atol=1e-12)
