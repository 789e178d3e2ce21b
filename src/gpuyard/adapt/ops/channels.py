"""Channels: who takes what a layer gives, and so must change with it when it becomes wider."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops.graph import Piece, Survey, activation, is_call, shape_of
from gpuyard.adapt.ops.growths import Entry, Refused
from gpuyard.adapt.ops.layers import ADDITIONS, DROPOUT_CALLS, DROPOUTS, check_own, depth_in, layer_kind, width

_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Upsample,
)  # fmt: skip
_POOL_CALLS = frozenset((
    F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, torch.avg_pool1d,
    torch.max_pool1d, torch.max_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d,
    F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.interpolate, torch.adaptive_avg_pool1d,
))  # fmt: skip
_SCALINGS = frozenset((operator.mul, operator.truediv, operator.add, operator.sub, torch.mul, torch.add))


@dataclass(frozen=True, slots=True)
class _Value:
    """Position of the channels in a value: the axis, the number of axes, and whether a channel has several numbers."""

    node: fx.Node
    axis: int
    axes: int
    flat: bool = False


@dataclass(slots=True)
class _Reached:
    survey: Survey
    piece: Piece
    name: str
    channels: int
    through: list[list[Any]] = field(default_factory=list)
    into: list[list[Any]] = field(default_factory=list)

    def follow(self, value: _Value) -> None:
        for user in value.node.users:
            after = self._taken(value, user)
            if after is not None:
                self.follow(replace(after, node=user))

    def _taken(self, value: _Value, user: fx.Node) -> _Value | None:
        """The value that a user makes of the channels; None where they end there."""
        module = self.piece.module(user)
        if user.op == "output":
            where = f"the outputs of '{self.piece.prefix}'" if self.piece.prefix else "the network's outputs"
            raise Refused(f"the channels of '{self.name}' reach {where}")
        if module is not None:
            return self._by_module(value, user, module)
        if activation(self.piece, user) is not None or is_call(user, DROPOUT_CALLS, frozenset(("contiguous", "clone"))):
            return value
        if is_call(user, _POOL_CALLS, frozenset()) and value.axis == 1 and value.axes > 2:
            return value
        if is_call(user, _SCALINGS, frozenset()) and isinstance(user.args[1], int | float):
            return value
        if (moved := _moved(value, user, f"the channels of '{self.name}' reach '{user.name}'")) is not None:
            return moved
        if _reads_other_axes(value, user):
            return None
        raise Refused(f"the channels of '{self.name}' reach {_words(user)}")

    def _by_module(self, value: _Value, user: fx.Node, module: nn.Module) -> _Value | None:
        name = self.survey.name(self.piece, user)
        reached = f"the channels of '{self.name}' reach '{name}', a {type(module).__name__}"
        if isinstance(module, (*DROPOUTS, nn.Identity)) or activation(self.piece, user) is not None:
            return value
        if isinstance(module, nn.PReLU) and module.num_parameters == 1:
            return value
        if isinstance(module, _POOLS) and value.axis == 1 and value.axes > 2:
            return value
        if isinstance(module, nn.Flatten):
            return _flattened(value, module.start_dim, module.end_dim, reached)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and value.axis == 1:
            self._check(name, module)
            self.through.append([name, module.num_features // self.channels])
            return value
        if isinstance(module, nn.PReLU) and value.axis == 1 and not value.flat:
            self._check(name, module)
            self.through.append([name, 1])
            return value
        if not layer_kind(module):
            raise Refused(reached)
        self._check(name, module)
        if isinstance(module, nn.Linear):
            if value.axis != value.axes - 1:
                raise Refused(f"{reached} that takes them on another axis")
            self.into.append([name, depth_in(module) // self.channels])
            return None
        if value.axis != 1 or value.flat:
            raise Refused(f"{reached} that takes them on another axis")
        if module.groups == module.in_channels == module.out_channels:
            self.through.append([name, 1])
            return value
        if module.groups != 1:
            raise Refused(f"{reached} in {module.groups} groups")
        self.into.append([name, 1])
        return None

    def _check(self, name: str, module: nn.Module) -> None:
        check_own(self.survey, name, module)
        check_untied(self.survey, name, module)


def widen_entry(survey: Survey, piece: Piece, node: fx.Node) -> Entry:
    """Layers that change when a layer gets more channels; the number is open."""
    layer, name = piece.module(node), survey.name(piece, node)
    assert layer is not None
    check_own(survey, name, layer)
    check_untied(survey, name, layer)
    if not isinstance(layer, nn.Linear) and layer.groups != 1:
        raise Refused(f"'{name}' works in {layer.groups} groups: its channels cannot be copied one by one")
    shape = shape_of(survey.calls.get(id(layer)))
    if shape is None or len(shape) < 2:
        raise Refused(f"'{name}' was called without a batch")
    axis = len(shape) - 1 if isinstance(layer, nn.Linear) else 1
    reached = _Reached(survey, piece, name, width(layer))
    reached.follow(_Value(node, axis, len(shape)))
    if not reached.into:
        raise Refused(f"nobody takes the channels of '{name}'")
    return split_entry(name, layer, reached.through, reached.into)


def standard_entries(survey: Survey) -> dict[str, Entry | Refused]:
    """The inner layers of torch's own transformer layers, whose channels go to their second layer alone."""
    found: dict[str, Entry | Refused] = {}
    for name, module in survey.layers.items():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) and id(module) in survey.calls:
            inner = f"{name}.linear1" if name else "linear1"
            into = f"{name}.linear2" if name else "linear2"
            try:
                for path, layer in ((inner, module.linear1), (into, module.linear2)):
                    check_untied(survey, path, layer)
                if survey.calls[id(module)].count > 1:
                    raise Refused(f"'{name}' is used several times in one pass")
                found[inner] = split_entry(inner, module.linear1, [], [[into, 1]])
            except Refused as refusal:
                found[inner] = refusal
    return found


def split_entry(name: str, layer: nn.Module, through: list[list[Any]], into: list[list[Any]]) -> Entry:
    weight = layer._parameters["weight"]
    assert weight is not None
    return {
        "op": "widen",
        "site": name,
        "kind": layer_kind(layer),
        "style": "split",
        "weight": list(weight.shape),
        "channels": width(layer),
        "copies": [],
        "through": through,
        "into": into,
    }


def check_untied(survey: Survey, name: str, layer: nn.Module) -> None:
    mine = {id(parameter) for parameter in layer.parameters(recurse=False)}
    for other, module in survey.model.named_modules():
        if module is not layer and mine & {id(parameter) for parameter in module.parameters(recurse=False)}:
            raise Refused(f"'{name}' shares its weights with '{other}'")


def _words(node: fx.Node) -> str:
    if is_call(node, ADDITIONS, frozenset(("add", "add_"))):
        return f"an addition ('{node.name}')"
    if is_call(node, frozenset((torch.cat, torch.concat, torch.stack)), frozenset()):
        return f"a concatenation ('{node.name}')"
    return (
        f"'{node.name}' ({getattr(node.target, '__name__', node.target)}), of which is not known what it does with them"
    )


def _flattened(value: _Value, start: int, end: int, reached: str) -> _Value:
    if start != 1 or end not in (-1, value.axes - 1) or (value.axis != 1 and value.axes > 2):
        raise Refused(f"{reached}, which puts them on one axis with others")
    return value if value.axes == 2 else replace(value, axis=1, axes=2, flat=True)


def _moved(value: _Value, user: fx.Node, reached: str) -> _Value | None:
    """The value after its axes were flattened, averaged or exchanged; None if they were not."""
    name = user.target if user.op == "call_method" else getattr(user.target, "__name__", "")
    given: list[Any] = list(user.args[1:])
    if name == "flatten" and (given or user.kwargs):
        start, end = (*given, *(-1,) * (2 - len(given)))[:2] if given else (user.kwargs.get("start_dim", 0), -1)
        return _flattened(value, int(start), int(user.kwargs.get("end_dim", end)), reached)
    if name in ("view", "reshape") and _keeps_batch(given) and value.axis == 1:
        return value if value.axes == 2 else replace(value, axis=1, axes=2, flat=True)
    if name == "permute":
        order = list(given[0]) if given and isinstance(given[0], tuple | list) else given
        if len(order) == value.axes and all(isinstance(axis, int) for axis in order):
            return replace(value, axis=[axis % value.axes for axis in order].index(value.axis))
    if name == "transpose" and len(given) == 2 and all(isinstance(axis, int) for axis in given):
        one, other = (axis % value.axes for axis in given)
        return replace(value, axis={one: other, other: one}.get(value.axis, value.axis))
    if name in ("mean", "amax", "squeeze"):
        return _reduced(value, given[0] if given else user.kwargs.get("dim"), keeps=user.kwargs.get("keepdim") is True)
    return None


def _reduced(value: _Value, axes: Any, *, keeps: bool) -> _Value | None:
    """The value without axes behind the channels' own."""
    listed = [axes] if isinstance(axes, int) else axes
    if not isinstance(listed, tuple | list) or not all(isinstance(axis, int) for axis in listed):
        return None
    gone = {axis % value.axes for axis in listed}
    if 0 in gone or value.axis in gone or any(axis < value.axis for axis in gone):
        return None
    return value if keeps else replace(value, axes=value.axes - len(gone))


def _keeps_batch(given: list[Any]) -> bool:
    """Whether sizes of a view are those of a batch of flat vectors, however long."""
    sizes = list(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return len(sizes) == 2 and sizes[1] == -1 and sizes[0] != -1


def _reads_other_axes(value: _Value, user: fx.Node) -> bool:
    """Whether a user only reads the size of other axes."""
    if user.op == "call_method" and user.target == "size":
        if len(user.args) > 1:
            return isinstance(user.args[1], int) and user.args[1] % value.axes != value.axis
        asked = list(user.users)
    elif user.op == "call_function" and user.target is getattr:
        asked = list(user.users) if user.args[1] == "shape" else []
    else:
        return user.op == "call_method" and user.target in ("dim", "numel")
    items = [node.args[1] if is_call(node, frozenset((operator.getitem,)), frozenset()) else None for node in asked]
    return all(isinstance(item, int) and item % value.axes != value.axis for item in items)
