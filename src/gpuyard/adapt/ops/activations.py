"""Activations: which one a node of the graph applies, and a module that does the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops.tracing import Piece
from gpuyard.errors import UserError

Activation = list[Any]
"""Name of the class in torch.nn, and its settings: plain JSON values."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "ReLU": (),
    "ReLU6": (),
    "Hardtanh": ("min_val", "max_val"),
    "LeakyReLU": ("negative_slope",),
    "ELU": ("alpha",),
    "CELU": ("alpha",),
    "SELU": (),
    "GELU": ("approximate",),
    "SiLU": (),
    "Mish": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": ("beta", "threshold"),
    "Softsign": (),
    "Hardswish": (),
    "Hardsigmoid": (),
    "LogSigmoid": (),
}
IDEMPOTENT = frozenset(("ReLU", "ReLU6", "Hardtanh"))
"""Applied twice, they do what they do once; and they never turn an order around, so they may go before a maximum."""
FUNCTIONS: dict[Any, str] = {
    F.relu: "ReLU",
    F.relu_: "ReLU",
    torch.relu: "ReLU",
    torch.relu_: "ReLU",
    F.relu6: "ReLU6",
    F.hardtanh: "Hardtanh",
    F.leaky_relu: "LeakyReLU",
    F.elu: "ELU",
    F.celu: "CELU",
    F.selu: "SELU",
    F.gelu: "GELU",
    F.silu: "SiLU",
    F.mish: "Mish",
    F.tanh: "Tanh",
    torch.tanh: "Tanh",
    F.sigmoid: "Sigmoid",
    torch.sigmoid: "Sigmoid",
    F.softplus: "Softplus",
    F.softsign: "Softsign",
    F.hardswish: "Hardswish",
    F.hardsigmoid: "Hardsigmoid",
    F.logsigmoid: "LogSigmoid",
}
METHODS = {"relu": "ReLU", "relu_": "ReLU", "tanh": "Tanh", "tanh_": "Tanh", "sigmoid": "Sigmoid"}


def activation(piece: Piece, node: Any) -> Activation | None:
    """What a node applies, if that is an activation we know."""
    module = piece.module(node)
    if module is not None:
        return of_module(module)
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method" and node.target in METHODS:
        return [METHODS[str(node.target)], {}]
    if node.op != "call_function" or node.target not in FUNCTIONS:
        return None
    name = FUNCTIONS[node.target]
    given = {**dict(zip(SETTINGS[name], node.args[1:], strict=False)), **node.kwargs}
    settings = {key: given[key] for key in SETTINGS[name] if key in given}
    return None if any(isinstance(value, fx.Node) for value in settings.values()) else [name, settings]


def of_module(module: nn.Module) -> Activation | None:
    """The same of a module; a class that a user derived may do anything."""
    name = type(module).__name__
    if name not in SETTINGS or type(module) is not getattr(nn, name):
        return None
    return [name, {key: getattr(module, key) for key in SETTINGS[name]}]


def idempotent(chosen: Activation | None) -> bool:
    """Whether applying it once more changes nothing."""
    if chosen is None or chosen[0] not in IDEMPOTENT:
        return False
    return chosen[0] != "Hardtanh" or float(chosen[1].get("min_val", -1.0)) < float(chosen[1].get("max_val", 1.0))


def made(chosen: Activation) -> nn.Module:
    """A module that applies it, never in place: what it gets may be needed again."""
    name, settings = chosen
    if name not in SETTINGS or not set(settings) <= set(SETTINGS[name]):
        raise UserError(f"the growth log names an activation '{name}' {settings} that is not known")
    module: nn.Module = getattr(nn, name)(**settings)
    return module
