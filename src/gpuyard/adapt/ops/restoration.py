"""Back to an earlier or smaller network: rollback, rebuild by the growth log, shrink with distillation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Adam, Optimizer

from gpuyard.adapt.ops.containers import Grown, find
from gpuyard.adapt.ops.depth import insert, take_out
from gpuyard.adapt.ops.forward_pass import evaluating, inputs, parameters, undisturbed
from gpuyard.adapt.ops.growths import Entry, Growth, Refused, append_entry, drop_last_entry, log_entries
from gpuyard.adapt.ops.layers import check_weight
from gpuyard.adapt.ops.optimizers import leave
from gpuyard.adapt.ops.width import replay_widen, unwiden
from gpuyard.errors import UserError

_FIELDS: dict[str, dict[str, type]] = {
    "layer": {"site": str, "style": str, "layer": str, "anchor": str, "norm": str, "activation": list, "weight": list},
    "block": {"site": str, "style": str, "anchor": str, "block": str, "zeroed": list, "bypassed": list, "convs": dict,
              "parameters": int},
    "widen": {"site": str, "style": str, "weight": list, "channels": int, "copies": list, "through": list,
              "into": list},
}  # fmt: skip


def rebuild(model: nn.Module, log: Sequence[Entry]) -> nn.Module:
    """Grows a fresh network as the log tells, so that weights of the grown one can be loaded; the same network."""
    if log_entries(model) or any(isinstance(module, Grown) for module in model.modules()):
        raise UserError("the network has grown already: rebuild takes a fresh one")
    doing: dict[str, Callable[[nn.Module, Entry], Any]] = {"deepen": _replay_deepen, "widen": replay_widen}
    for entry in log:
        _check_form(entry)
        try:
            doing[entry["op"]](model, entry)
        except (UserError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise UserError(f"the growth log is of another network: {error}") from error
        append_entry(model, copy.deepcopy(dict(entry)))
    return model


def _check_form(entry: Any) -> None:
    """Refuse what no version of gpuyard has written."""
    if not isinstance(entry, dict) or entry.get("op") not in ("deepen", "widen"):
        raise UserError(f"the growth log has an entry that is not known: {entry!r}")
    form = "widen" if entry["op"] == "widen" else "layer" if "layer" in entry else "block"
    for name, kind in _FIELDS[form].items():
        if not isinstance(entry.get(name), kind):
            raise UserError(f"the growth log has an entry without a proper '{name}': {entry!r}")


def _replay_deepen(model: nn.Module, entry: Entry) -> None:
    if "layer" in entry:
        check_weight(model, entry["layer"], entry["weight"])
        if entry["norm"]:
            find(model, entry["norm"])
    else:
        block = find(model, entry["anchor"])
        count = parameters(block)
        if type(block).__name__ != entry["block"] or count != entry["parameters"]:
            raise Refused(
                f"'{entry['anchor']}' is a {type(block).__name__} of {count} parameters, "
                f"not a {entry['block']} of {entry['parameters']}"
            )
    insert(model, entry)


def rollback(model: nn.Module, growth: Growth, optimizer: Optimizer | None = None) -> None:
    """Undoes the last growth of a network; what stays keeps the weights that it has now."""
    if not isinstance(growth, Growth):
        raise UserError(f"rollback takes what deepen or widen returned, not a {type(growth).__name__}")
    log = log_entries(model)
    if growth.entry not in log:
        raise Refused(f"the network has not grown at '{growth.site.name}' in that way, or that was undone before")
    if log[-1] != growth.entry:
        raise Refused(f"the network has grown since, last at '{log[-1]['site']}': undo that first")
    _undo(model, growth.entry, growth.kept, optimizer)


def _undo(model: nn.Module, entry: Entry, kept: dict[str, tuple[Tensor, Tensor]], optimizer: Optimizer | None) -> None:
    if entry["op"] == "widen":
        unwiden(model, entry, kept, optimizer)
    else:
        added = take_out(model, entry)
        if optimizer is not None:
            leave(optimizer, added.parameters())
    drop_last_entry(model)


TEMPERATURE = 2.0
WEIGHT = 0.75
FADING = 0.25  # weight of the larger network in the first epoch, and the part of it that is left an epoch later
Batches = Iterable[tuple[Any, Tensor]]


def shrink(model: nn.Module, steps: int = 1) -> nn.Module:
    """A new network without the last growths; what is left keeps its weights, and copies of channels are folded."""
    log = log_entries(model)
    if not 0 < steps <= len(log):
        raise UserError(f"the network has grown {len(log)} times: it cannot shrink by {steps} steps")
    smaller = copy.deepcopy(model)
    for _ in range(steps):
        _undo(smaller, log_entries(smaller)[-1], {}, None)
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
    with evaluating(teacher):
        taught: Tensor = teacher(*given.args, **given.named)
    return (1.0 - share) * loss + share * distillation(outputs, taught, temperature)


def accuracy(model: nn.Module, batches: Batches) -> float:
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
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = Adam,
) -> dict[str, float]:
    """One epoch of the smaller network under the larger one, against one epoch of a restart; on the same batches."""
    batches, held_out = list(batches), list(held_out)
    student = shrink(large, len(log_entries(large)) if steps is None else steps)
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
    model.train()
    trained = optimizer(model.parameters())
    for batch in batches:
        trained.zero_grad()
        loss(batch).backward()  # type: ignore[no-untyped-call]
        trained.step()
