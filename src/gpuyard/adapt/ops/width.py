"""Widening: channels are doubled, and their consumers split weights over the copies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuyard.adapt.ops.containers import find
from gpuyard.adapt.ops.forward_pass import check, inputs, parameters, seen
from gpuyard.adapt.ops.growth_sites import check_model, chosen
from gpuyard.adapt.ops.growths import Entry, Growth, Refused, Site, append_entry
from gpuyard.adapt.ops.layers import check_weight, depth_in, width
from gpuyard.adapt.ops.optimizers import check_optimizer, exchange
from gpuyard.errors import UserError

Resized = Callable[[Tensor], Tensor]


class _Change(NamedTuple):
    module: nn.Module
    name: str
    tensor: str  # its full name, by which it is kept
    values: Resized
    state: Resized  # the same of an optimizer's state


def widen(
    model: nn.Module,
    site: Site | str,
    *,
    example: Any,
    factor: float = 1.5,
    to: int | None = None,
    optimizer: Optimizer | None = None,
    seed: int = 0,
    verify: bool = True,
) -> Growth:
    """Gives a layer more channels, in place; the function stays, or nothing is changed."""
    check_model(model)
    check_optimizer(optimizer, model)
    given = inputs(example)
    found = chosen(model, given, "widen", site)
    assert found.entry is not None
    entry = copy.deepcopy(found.entry)
    entry["copies"] = _copies(entry["channels"], _wanted(entry["channels"], factor, to), seed)
    before = seen(model, given) if verify else None
    had = parameters(model)
    kept = _resize(model, entry, _widened(model, entry, seed), optimizer)
    growth = Growth(entry, found.site, had, parameters(model), kept=kept)
    try:
        if before is not None:
            growth.difference = check(model, before, None, found.site.name)
    except BaseException:
        unwiden(model, entry, kept, optimizer)
        raise
    append_entry(model, entry)
    return growth


def replay_widen(model: nn.Module, entry: Entry) -> None:
    """Make a fresh network as wide as a log entry says; its weights are loaded later."""
    layer = check_weight(model, entry["site"], entry["weight"])
    copies = entry["copies"]
    if not copies or not all(isinstance(index, int) and 0 <= index < entry["channels"] for index in copies):
        raise Refused(f"'{entry['site']}' cannot have copies of channels that it does not have")
    if entry["channels"] != width(layer):
        raise Refused(f"'{entry['site']}' has not {entry['channels']} channels")
    for name, factor in entry["into"]:
        taken = depth_in(find(model, name))
        if taken != entry["channels"] * factor:
            raise Refused(f"'{name}' takes {taken} channels, not {entry['channels'] * factor}")
    _resize(model, entry, _widened(model, entry, 0), None)


def unwiden(
    model: nn.Module, entry: Entry, kept: dict[str, tuple[Tensor, Tensor]], optimizer: Optimizer | None
) -> None:
    """Fold copies together; what was not trained meanwhile becomes exactly what it was."""
    _resize(model, entry, _narrowed(model, entry, kept), optimizer)


def _wanted(channels: int, factor: float, to: int | None) -> int:
    wanted = to
    if wanted is None and 1.0 < factor < math.inf:
        wanted = max(round(channels * factor), channels + 1)
    if wanted is None or wanted <= channels:
        raise UserError(f"the layer has {channels} channels: widening wants more, by a factor above 1 or with to=")
    return wanted


def _copies(channels: int, wanted: int, seed: int) -> list[int]:
    """The source channel of each new one: all in turn, in random order."""
    generator = torch.Generator().manual_seed(seed)
    copies: list[int] = []
    while len(copies) < wanted - channels:
        copies += torch.randperm(channels, generator=generator).tolist()
    return copies[: wanted - channels]


def _spread(entry: Entry, factor: int) -> Tensor:
    """The source of each number of the widened axis, with `factor` numbers for each channel."""
    index = torch.tensor([*range(entry["channels"]), *entry["copies"]])
    return (index[:, None] * factor + torch.arange(factor)).flatten()


def _parts(model: nn.Module, entry: Entry) -> Iterator[tuple[nn.Module, str, str, Tensor, bool]]:
    """Every tensor with a channel axis: module, name, full name, copies, whether the axis is its input."""
    for path, factor in [[entry["site"], 1], *entry["through"]]:
        module = find(model, path)
        index = _spread(entry, factor)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.dim() > 0:
                yield module, name, f"{path}.{name}", index.to(tensor.device), False
    for path, factor in entry["into"]:
        module = find(model, path)
        yield module, "weight", f"{path}.weight", _spread(entry, factor).to(_weight(module).device), True


def _widened(model: nn.Module, entry: Entry, seed: int) -> Iterator[_Change]:
    generator = torch.Generator().manual_seed(seed)
    for module, name, tensor, index, takes in _parts(model, entry):
        if takes:
            yield _Change(module, name, tensor, _shared_out(index, generator), partial(_selected, index=index, axis=1))
        else:
            copied = partial(_selected, index=index, axis=0)
            yield _Change(module, name, tensor, copied, copied)


def _selected(values: Tensor, index: Tensor, axis: int) -> Tensor:
    return values.index_select(axis, index)


def _shared_out(index: Tensor, generator: torch.Generator) -> Resized:
    """Weights of copies add up to that of the channel, unevenly, so that copies learn different things."""

    def share(weight: Tensor) -> Tensor:
        wide = weight[:, index].double()
        parts = torch.rand(wide.shape, generator=generator, dtype=torch.float64).to(weight.device) + 0.5
        whole = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device).index_add(1, index, parts)
        return (wide * (parts / whole[:, index])).to(weight.dtype)

    return share


def _narrowed(model: nn.Module, entry: Entry, kept: dict[str, tuple[Tensor, Tensor]]) -> Iterator[_Change]:
    """What each tensor becomes when copies are folded: inputs are added up, outputs averaged."""
    for module, name, tensor, index, takes in _parts(model, entry):
        axis, size = int(takes), int(index.max()) + 1
        folded = _folded(index, axis, size, takes, kept.get(tensor))
        first = torch.arange(size, device=index.device)
        yield _Change(module, name, tensor, folded, partial(_selected, index=first, axis=axis))


def _folded(index: Tensor, axis: int, size: int, takes: bool, kept: tuple[Tensor, Tensor] | None) -> Resized:
    def fold(values: Tensor) -> Tensor:
        if kept is not None and torch.equal(values, kept[1].to(values.device)):
            return kept[0].to(values.device).clone()
        shape = [*values.shape]
        shape[axis] = size
        summed = torch.zeros(shape, dtype=torch.float64, device=values.device).index_add(axis, index, values.double())
        if not takes:
            count = torch.bincount(index, minlength=size).to(values.device)
            summed /= count.view(-1, *[1] * (values.dim() - 1))
        return summed.to(values.dtype)

    return fold


def _resize(
    model: nn.Module, entry: Entry, changes: Iterator[_Change], optimizer: Optimizer | None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Put the resized tensors in place, in modules and in the optimizer; each before and after."""
    kept = {}
    with torch.no_grad():
        for change in list(changes):
            old = getattr(change.module, change.name)
            new = change.values(old.detach())
            kept[change.tensor] = (old.detach().clone(), new.clone())
            if isinstance(old, nn.Parameter):
                parameter = nn.Parameter(new, requires_grad=old.requires_grad)
                setattr(change.module, change.name, parameter)
                if optimizer is not None:
                    exchange(optimizer, old, parameter, change.state)
            else:
                setattr(change.module, change.name, new)
    for path in (entry["site"], *(path for path, _ in (*entry["through"], *entry["into"]))):
        _update_sizes(find(model, path))
    return kept


def _weight(module: nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def _update_sizes(module: nn.Module) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        known = module.running_mean if module.running_mean is not None else module.weight
        if known is not None:
            module.num_features = int(known.shape[0])
        return
    weight = _weight(module)
    if isinstance(module, nn.PReLU):
        module.num_parameters = int(weight.shape[0])
        return
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
        return
    out = int(weight.shape[0])
    if module.groups == module.in_channels == module.out_channels and module.groups > 1:  # type: ignore[operator]
        module.groups = out  # type: ignore[assignment]
    module.out_channels = out  # type: ignore[assignment]
    module.in_channels = int(weight.shape[1]) * int(module.groups)  # type: ignore[assignment,arg-type]
