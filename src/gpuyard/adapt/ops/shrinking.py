"""Down: back to a smaller network that keeps what it can of what the larger one has learned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Adam, Optimizer

from gpuyard.adapt.ops.activations import idempotent
from gpuyard.adapt.ops.containers import Grown, Residual, bare, locate
from gpuyard.adapt.ops.growthlog import forgotten, kept
from gpuyard.adapt.ops.growths import Entry
from gpuyard.adapt.ops.inserting import take_out
from gpuyard.adapt.ops.trying import Inputs, inputs, parameters, run, undisturbed
from gpuyard.adapt.ops.widening import unwiden
from gpuyard.errors import UserError

TEMPERATURE = 2.0
WEIGHT = 0.75
FADING = 0.25
"""What the larger network's word counts in the first epoch, and how much of that is left an epoch later."""
Batches = Iterable[tuple[Any, Tensor]]


def shrink(model: nn.Module, steps: int = 1, *, example: Any = None) -> nn.Module:
    """A new network without the last growths; with an example, what a dropped layer did on average is taken over."""
    log = kept(model)
    if not 0 < steps <= len(log):
        raise UserError(f"the network has grown {len(log)} times: it cannot shrink by {steps} steps")
    smaller = copy.deepcopy(model)
    for _ in range(steps):
        entry = kept(smaller)[-1]
        if entry["op"] == "widen":
            unwiden(smaller, entry, {}, None)
        else:
            if example is not None and "layer" in entry:
                _absorb(smaller, entry, inputs(example))
            take_out(smaller, entry)
        forgotten(smaller)
    return smaller


def distillation(outputs: Tensor, told: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """How far a network's classes are from what a larger one says: KL divergence of softened probabilities."""
    ours = F.log_softmax(outputs / temperature, dim=-1).flatten(0, -2)
    theirs = F.log_softmax(told.detach() / temperature, dim=-1).flatten(0, -2)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


def distil(
    student: nn.Module,
    teacher: nn.Module,
    batch: tuple[Any, Tensor],
    *,
    epoch: int = 0,
    temperature: float = TEMPERATURE,
    weight: float | None = None,
) -> Tensor:
    """The loss of a smaller network on a batch: cross entropy, and less with each epoch what the larger one says."""
    given, targets = inputs(batch[0]), batch[1]
    share = WEIGHT * FADING**epoch if weight is None else weight
    if not 0.0 <= share <= 1.0:
        raise UserError(f"the larger network's word cannot count {share:g}: give a weight from 0 to 1")
    outputs: Tensor = student(*given.args, **given.named)
    loss = F.cross_entropy(outputs, targets)
    if not share:
        return loss
    training = teacher.training
    teacher.eval()
    try:
        with torch.no_grad():
            told: Tensor = teacher(*given.args, **given.named)
    finally:
        teacher.train(training)
    return (1.0 - share) * loss + share * distillation(outputs, told, temperature)


def accuracy(model: nn.Module, batches: Batches) -> float:
    """The share of rows whose class a network gets right."""
    right = rows = 0
    with undisturbed(model), torch.no_grad():
        model.eval()
        for given, targets in batches:
            call = inputs(given)
            right += int((model(*call.args, **call.named).argmax(-1) == targets).sum())
            rows += targets.numel()
    return right / max(1, rows)


def compare_down(
    large: nn.Module,
    fresh: nn.Module,
    batches: Batches,
    held_out: Batches,
    *,
    steps: int | None = None,
    example: Any = None,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = Adam,
) -> dict[str, float]:
    """One epoch of the smaller network under the larger one, against one epoch of a restart; on the same batches."""
    batches, held_out = list(batches), list(held_out)
    student = shrink(large, len(kept(large)) if steps is None else steps, example=example)
    if parameters(fresh) != parameters(student):
        raise UserError(
            f"the fresh network has {parameters(fresh)} parameters and the smaller one {parameters(student)}: "
            "a restart is compared with a network of the same size"
        )
    restart = copy.deepcopy(fresh)
    found = {"accuracy_large": accuracy(large, held_out), "accuracy_before_epoch": accuracy(student, held_out)}
    _train(student, batches, optimizer, lambda batch: distil(student, large, batch))
    _train(restart, batches, optimizer, lambda batch: distil(restart, large, batch, weight=0.0))
    found["accuracy_after_down"] = accuracy(student, held_out)
    found["accuracy_after_restart"] = accuracy(restart, held_out)
    return {**found, "parameters_large": parameters(large), "parameters_small": parameters(student)}


def _train(
    model: nn.Module,
    batches: Batches,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    loss: Callable[[Any], Tensor],
) -> None:
    """One epoch."""
    model.train()
    trained = optimizer(model.parameters())
    for batch in batches:
        trained.zero_grad()
        loss(batch).backward()  # type: ignore[no-untyped-call]
        trained.step()


def _absorb(model: nn.Module, entry: Entry, example: Inputs) -> None:
    """Scales and shifts each channel before a layer that will be dropped, as that layer did on average."""
    grown = locate(model, entry["anchor"]).module
    assert isinstance(grown, Grown)
    before = _last(grown.grown[-2]) if len(grown.grown) > 1 else bare(grown)
    if before is None:
        return
    caught: list[tuple[Tensor, Tensor]] = []
    handle = grown.grown[-1].register_forward_hook(lambda _, given, made: caught.append((given[0], made)))
    try:
        with undisturbed(model):
            run(model, example, train=False)
    finally:
        handle.remove()
    axis = -1 if isinstance(before, nn.Linear) else 1
    x, y = (values.transpose(0, axis).flatten(1).double() for values in caught[0])
    # What an activation clips in both does not matter.
    counted = ((x > 0) | (y > 0)) if idempotent(entry["activation"]) else torch.ones_like(x, dtype=torch.bool)
    scale, shift = _fitted(x, y, counted.double())
    _scale(before, scale, shift)


def _last(stage: nn.Module) -> nn.Module | None:
    """The module of a stage that gives its values; none where they are added to others."""
    return None if isinstance(stage, Residual) else list(stage.children())[-1]


def _fitted(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The line through each channel's values by least squares; as they are where there is nothing to go by."""
    total = weights.sum(1).clamp(min=1.0)
    mean_x, mean_y = (weights * x).sum(1) / total, (weights * y).sum(1) / total
    apart = x - mean_x[:, None]
    variance = (weights * apart**2).sum(1)
    slope = (weights * apart * (y - mean_y[:, None])).sum(1) / variance.clamp(min=1e-12)
    slope = torch.where(variance > 1e-12, slope, torch.ones_like(slope))
    shift = torch.where(weights.sum(1) > 0, mean_y - slope * mean_x, torch.zeros_like(slope))
    return slope, shift


def _scale(module: nn.Module, scale: Tensor, shift: Tensor) -> None:
    """Lets a layer or norm give scale * x + shift; only where it has both a weight and a bias."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or bias is None or weight.shape[0] != scale.shape[0]:
        return
    with torch.no_grad():
        weight.mul_(scale.view(-1, *[1] * (weight.dim() - 1)).to(weight.dtype))
        bias.copy_(bias.double() * scale + shift)
