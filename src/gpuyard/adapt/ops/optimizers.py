"""Optimizers when a network grows: new parameters join those that they are like, and states move along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from gpuyard.errors import UserError

Kin = Iterable[tuple[nn.Parameter, list[nn.Parameter]]]


def check_optimizer(optimizer: Optimizer | None, model: nn.Module) -> None:
    """Refuse an optimizer of another network, or one that cannot take other parameters."""
    if optimizer is None:
        return
    if isinstance(optimizer, LBFGS):
        raise UserError("LBFGS keeps all parameters in one vector: make a new one after growing")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise UserError("the optimizer holds none of the network's parameters: give the one that trains this network")


def join(optimizer: Optimizer, model: nn.Module, kin: Kin) -> None:
    groups: list[dict[str, Any]] = optimizer.param_groups
    place = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    ordered = [_in_order(group["params"], place) for group in groups]
    for new, alike in kin:
        number, at = _home(groups, alike)
        groups[number]["params"].insert(at, new)
    for group, was_ordered in zip(groups, ordered, strict=True):
        if was_ordered:
            # Then an optimizer made from the rebuilt network has the same order, and can load this one's state.
            group["params"].sort(key=lambda parameter: place[id(parameter)])


def leave(optimizer: Optimizer, gone: Iterable[Tensor]) -> None:
    ids = {id(parameter) for parameter in gone}
    for group in optimizer.param_groups:
        group["params"][:] = [parameter for parameter in group["params"] if id(parameter) not in ids]
    for parameter in [parameter for parameter in optimizer.state if id(parameter) in ids]:
        del optimizer.state[parameter]


def exchange(
    optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, resized: Callable[[Tensor], Tensor] | None
) -> None:
    """Replace a parameter; states of its shape are resized, others are taken over."""
    for group in optimizer.param_groups:
        group["params"][:] = [new if parameter is old else parameter for parameter in group["params"]]
    if old not in optimizer.state:
        return
    state = optimizer.state.pop(old)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == old.shape and resized is not None:
            state[name] = resized(value)
    optimizer.state[new] = state


def _in_order(held: list[nn.Parameter], place: dict[int, int]) -> bool:
    numbers = [place.get(id(parameter), -1) for parameter in held]
    return -1 not in numbers and numbers == sorted(numbers)


def _home(groups: list[dict[str, Any]], alike: list[nn.Parameter]) -> tuple[int, int]:
    """Group and position behind the first of these that is held; the end of the first group if none is."""
    for relative in alike:
        for number, group in enumerate(groups):
            for at, parameter in enumerate(group["params"]):
                if parameter is relative:
                    return number, at + 1
    return 0, len(groups[0]["params"])
