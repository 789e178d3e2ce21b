"""Back to a smaller network that learns from the larger one."""

import copy

import pytest
import torch
from tests.netzoo import called, network
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops import compare_down, deepen, distil, distillation, growth_log, shrink, widen
from gpuyard.errors import UserError

torch.set_num_threads(1)


def test_shrinking_takes_back_the_last_growths_and_leaves_the_larger_network() -> None:
    model, example = network("convnet2", torch.float64)
    before = called(model.eval(), example)[0]
    deepen(model, "conv1", example=example)
    widen(model, "conv2", example=example)
    deepen(model, "conv2", example=example)
    log, names = growth_log(model), list(model.state_dict())
    smaller = shrink(model)
    assert growth_log(smaller) == log[:2]
    smallest = shrink(model, 3)
    assert growth_log(smallest) == []
    assert sum(parameter.numel() for parameter in smallest.parameters()) == 10_602
    assert torch.allclose(called(smallest, example)[0], before, atol=1e-12)
    assert growth_log(model) == log
    assert list(model.state_dict()) == names
    for steps in (0, 4):
        with pytest.raises(UserError, match="has grown 3 times"):
            shrink(model, steps)


def test_layers_in_common_keep_what_they_learned() -> None:
    model, example = network("resnet")
    deepen(model, "layer1.0", example=example)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    smaller = shrink(model)
    kept = {name.replace("layer1.0.", "layer1.0.origin."): p for name, p in smaller.named_parameters()}
    larger = dict(model.named_parameters())
    assert all(torch.equal(parameter, larger[name]) for name, parameter in kept.items())


def test_the_loss_mixes_cross_entropy_and_the_larger_networks_word() -> None:
    torch.manual_seed(0)
    student, teacher = nn.Linear(6, 4), nn.Linear(6, 4).train()
    x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
    ours, theirs = student(x), teacher(x)
    kl = F.kl_div(F.log_softmax(ours / 2, 1), F.softmax(theirs / 2, 1), reduction="batchmean") * 4
    assert torch.allclose(distillation(ours, theirs), kl)
    for epoch, weight in ((0, 0.75), (1, 0.1875), (2, 0.046875)):
        expected = (1 - weight) * F.cross_entropy(ours, y) + weight * kl
        assert torch.allclose(distil(student, teacher, (x, y), epoch=epoch), expected)
    assert torch.allclose(distil(student, teacher, (x, y), weight=0.0), F.cross_entropy(ours, y))
    distil(student, teacher, (x, y)).backward()  # type: ignore[no-untyped-call]
    assert student.weight.grad is not None
    assert teacher.weight.grad is None
    assert teacher.training
    with pytest.raises(UserError, match="weight from 0 to 1"):
        distil(student, teacher, (x, y), weight=1.5)


def test_a_network_that_was_made_smaller_is_ahead_of_a_restart() -> None:
    torch.manual_seed(1)
    truth = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 5)).requires_grad_(False)

    def rows(count: int) -> list[tuple[Tensor, Tensor]]:
        drawn = [torch.randn(32, 10) for _ in range(count)]
        return [(x, (truth(x) * 4).argmax(1)) for x in drawn]

    batches, held_out = rows(25), rows(10)
    small = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))
    model = copy.deepcopy(small)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    deepen(model, "0", example=batches[0][0], optimizer=optimizer)
    for x, y in batches * 5:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = compare_down(model, small, batches, held_out, optimizer=lambda held: torch.optim.Adam(held, lr=0.01))
    assert found["accuracy_after_down"] > found["accuracy_after_restart"] + 0.05
    assert found["accuracy_large"] > 0.7
    assert found["parameters_large"] - found["parameters_small"] == 16 * 17
    with pytest.raises(UserError, match="of the same size"):
        compare_down(model, nn.Linear(10, 5), batches, held_out)
