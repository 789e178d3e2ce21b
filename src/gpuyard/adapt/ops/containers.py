"""What stands in a network where it grew: the user's own module, and behind it what was added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpuyard.adapt.ops.growths import Refused
from gpuyard.errors import suggest


class Grown(nn.Module):
    """A user's module and what grew behind it; otherwise like the module itself."""

    def __init__(self, origin: nn.Module, grown: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.origin = origin
        self.grown = nn.ModuleList(grown)
        self.train(origin.training)

    def forward(self, x: Any, *others: Any, **named: Any) -> Any:
        """The user's module, then each added one; masks and the like go to whole blocks only."""
        x = self.origin(x, *others, **named)
        for added in self.grown:
            x = added(x) if isinstance(added, nn.Sequential | Residual) else added(x, *others, **named)
        return x

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            origin = self.__dict__.get("_modules", {}).get("origin")
            if origin is None or name.startswith("__"):
                raise
            return getattr(origin, name)


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        more: Tensor = self.body(x)
        return x + more


class Gated(nn.Module):
    """x + gain * (block(x) - x), with a gain that starts as zero."""

    def __init__(self, block: nn.Module, like: Tensor) -> None:
        super().__init__()
        self.block = block
        self.gain = nn.Parameter(torch.zeros((), dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor, *others: Any, **named: Any) -> Tensor:
        made: Tensor = self.block(x, *others, **named)
        return x + self.gain * (made - x)


class Place(NamedTuple):
    parent: nn.Module
    key: str
    module: nn.Module

    def put(self, module: nn.Module) -> None:
        """Register another module instead; the order of parameters stays."""
        self.parent._modules[self.key] = module


def bare(module: nn.Module) -> nn.Module:
    """The user's module, without what grew behind it."""
    return module.origin if isinstance(module, Grown) else module


def locate(model: nn.Module, name: str) -> Place:
    """The place of a layer by the user's name; growth on the path is skipped."""
    parent, module, key = model, model, ""
    for part in name.split("."):
        parent = module if isinstance(module, Grown) and part == "grown" else bare(module)
        found = parent._modules.get(part)
        if found is None:
            known = [path for path, _ in named_layers(model)]
            raise Refused(f"the network has no layer '{name}'{suggest(name, known)}")
        module, key = found, part
    if module is model:
        raise Refused("the network is a single layer: put it in an nn.Sequential to grow it")
    return Place(parent, key, module)


def find(model: nn.Module, name: str) -> nn.Module:
    """The user's module of that name; the empty name is the network."""
    return bare(locate(model, name).module) if name else model


def canonical(model: nn.Module, path: str) -> str:
    module, parts = model, []
    for part in path.split(".") if path else []:
        if not (isinstance(module, Grown) and part == "origin"):
            parts.append(part)
        module = module._modules[part]  # type: ignore[assignment]
    return ".".join(parts)


def named_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules by the user's names, without added ones; a module at two places comes twice."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Grown):
            continue
        if not is_added(model, path):
            yield canonical(model, path), module


def is_added(model: nn.Module, path: str) -> bool:
    module = model
    for part in path.split(".") if path else []:
        if isinstance(module, Grown) and part == "grown":
            return True
        module = module._modules[part]  # type: ignore[assignment]
    return False
