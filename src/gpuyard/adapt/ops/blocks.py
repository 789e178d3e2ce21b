"""Residual and transformer blocks: how a copy can come behind one that at first adds nothing."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops.activations import activation
from gpuyard.adapt.ops.containers import Grown, canonical
from gpuyard.adapt.ops.growths import Entry, Refused
from gpuyard.adapt.ops.layers import ADDITIONS, DROPOUTS, NORMS, has_computed_weight, layer_kind, width
from gpuyard.adapt.ops.tracing import Piece, Survey, is_call, shape_of, traced
from gpuyard.adapt.ops.trying import Call

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_SHAPING = frozenset(("view", "reshape", "transpose", "permute", "contiguous", "flatten", "squeeze", "unsqueeze"))
_SHAPING_CALLS = frozenset(
    (torch.reshape, torch.transpose, torch.permute, torch.flatten, F.dropout, F.dropout2d, torch.dropout)
)
_ATTENTION = frozenset((F.scaled_dot_product_attention, F.softmax, torch.softmax))


@dataclass(slots=True)
class _Way:
    """What must be changed in a copy so that its output is its input."""

    zeroed: list[str] = field(default_factory=list)
    bypassed: list[str] = field(default_factory=list)
    """Modules of the shortcut that become an nn.Identity."""


def block_entries(survey: Survey) -> dict[str, Entry | Refused]:
    """How each block can be followed by a copy, by its name; of blocks within blocks, the innermost."""
    found: dict[str, Entry | Refused] = {}
    for name, module in survey.layers.items():
        call = survey.calls.get(id(module))
        if not name or call is None or isinstance(module, nn.Sequential | nn.ModuleList):
            continue
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            found[name] = _tried(survey, name, module, _standard_layer(name, module))
        elif module.__module__.startswith("torch.nn") or not list(module.children()):
            continue
        elif (entry := _read_block(survey, name, module, call)) is not None:
            found[name] = entry
    return {name: entry for name, entry in found.items() if not _holds_another(name, found)}


def _holds_another(name: str, found: dict[str, Entry | Refused]) -> bool:
    return any(other.startswith(f"{name}.") and isinstance(entry, dict) for other, entry in found.items())


def _tried(survey: Survey, name: str, module: nn.Module, entry: Entry) -> Entry | Refused:
    """The entry, or why it will not do."""
    call = survey.calls[id(module)]
    try:
        if call.count > 1:
            raise Refused(f"'{name}' is used {call.count} times in one pass: a copy behind it would be used as often")
        if sum(1 for _, other in survey.model.named_modules(remove_duplicate=False) if other is module) > 1:
            raise Refused(f"'{name}' stands at several places of the network: it cannot be replaced at one of them")
        if shape_of(call) is None:
            raise Refused(f"'{name}' gives more than one tensor")
        if any(has_computed_weight(part) for part in module.modules()):
            raise Refused(
                f"a weight in '{name}' is computed from others (weight norm, a parametrization): remove that first"
            )
    except Refused as refusal:
        return refusal
    return entry


def _entry(
    name: str, module: nn.Module, kind: str, style: str, way: _Way, convs: dict[str, int] | None = None
) -> Entry:
    return {
        "op": "deepen",
        "site": name,
        "kind": kind,
        "style": style,
        "anchor": name,
        "block": type(module).__name__,
        "zeroed": way.zeroed,
        "bypassed": way.bypassed,
        "convs": convs or {},
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }


def _standard_layer(name: str, module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Entry:
    """A layer of torch itself; where norms come last, a copy fades in behind a gate."""
    if not module.norm_first:
        return _entry(name, module, "transformer", "gated", _Way())
    zeroed = ["self_attn.out_proj", "linear2"]
    if isinstance(module, nn.TransformerDecoderLayer):
        zeroed.insert(1, "multihead_attn.out_proj")
    return _entry(name, module, "transformer", "copy", _Way(zeroed))


def _read_block(survey: Survey, name: str, module: nn.Module, call: Call) -> Entry | Refused | None:
    """The same of a user's own block, by its graph; None where it is none."""
    closed = {id(part) for grown in module.modules() if isinstance(grown, Grown) for part in grown.grown}
    graph, _ = traced(module, call, closed)
    if graph is None:
        return None
    piece = Piece("", module, graph)
    end = next(node for node in graph.nodes if node.op == "output").args[0]
    if not _is_sum(piece, end):
        return None
    kind = "transformer" if _attends(piece) else "residual"
    way = _identity(piece, end)
    if way is not None and len(set(way.zeroed)) == len(way.zeroed):
        names = {path: canonical(module, path) for path in (*way.zeroed, *way.bypassed)}
        named = _Way([names[path] for path in way.zeroed], [names[path] for path in way.bypassed])
        try:
            convs = _reshaped(piece, way, call) if way.bypassed else {}
        except Refused as refusal:
            return Refused(f"'{name}': {refusal}")
        return _tried(survey, name, module, _entry(name, module, kind, "copy", named, convs))
    if not _is_trunk(piece, end):
        return None
    if call.input == shape_of(call):
        return _tried(survey, name, module, _entry(name, module, kind, "gated", _Way()))
    return Refused(f"'{name}' changes the shape of its input in a way that a copy cannot do without")


def _is_sum(piece: Piece, node: Any) -> bool:
    """Whether a block's output is a sum, maybe with an activation, a norm or dropout behind."""
    while isinstance(node, fx.Node) and not _adds(node):
        node = node.args[0] if _passes(piece, node) and node.args else None
    return isinstance(node, fx.Node) and all(isinstance(part, fx.Node) for part in node.args[:2])


def _is_trunk(piece: Piece, node: Any) -> bool:
    """Whether the block's first input goes into a node by nothing but sums, norms and activations."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "placeholder":
        return node is next(iter(piece.graph.nodes))
    if _adds(node):
        return any(_is_trunk(piece, part) for part in node.args[:2])
    return _passes(piece, node) and _is_trunk(piece, node.args[0])


def _adds(node: fx.Node) -> bool:
    return is_call(node, ADDITIONS, frozenset(("add", "add_")))


def _passes(piece: Piece, node: fx.Node) -> bool:
    return activation(piece, node) is not None or isinstance(piece.module(node), (*NORMS, *DROPOUTS, nn.Identity))


def _attends(piece: Piece) -> bool:
    return any(
        isinstance(module := piece.module(node), nn.MultiheadAttention | nn.Softmax)
        or "attention" in type(module).__name__.lower()
        or is_call(node, _ATTENTION, frozenset(("softmax",)))
        for node in piece.graph.nodes
    )


def _identity(piece: Piece, node: Any) -> _Way | None:
    """What to change so that a node's value is the block's input."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "placeholder":
        return _Way() if node is next(iter(piece.graph.nodes)) else None
    module = piece.module(node)
    if isinstance(module, nn.Identity):
        return _identity(piece, node.args[0])
    if (chosen := activation(piece, node)) is not None:
        # The block's input is what such a block gave, so that one more of them changes nothing.
        return _identity(piece, node.args[0]) if chosen[0] == "ReLU" and _is_output(node) else None
    if _adds(node) and not node.kwargs and len(node.args) == 2:
        for trunk, branch in (node.args, node.args[::-1]):
            way, zeroed = _identity(piece, trunk), _zero(piece, branch)
            if way is not None and zeroed is not None:
                return _Way([*way.zeroed, *zeroed], way.bypassed)
        return None
    if isinstance(module, (*_CONVS, *NORMS, *_POOLS)) and isinstance(node.args[0], fx.Node):
        way = _identity(piece, node.args[0])
        if way is not None and not way.zeroed:
            return _Way([], [*way.bypassed, str(node.target)])
    return None


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _zero(piece: Piece, node: Any) -> list[str] | None:
    """What to set to zero so that a node's value is zero, while gradients still reach it."""
    if not isinstance(node, fx.Node):
        return None
    module = piece.module(node)
    first = node.args[0] if node.args else None
    if isinstance(module, nn.MultiheadAttention):
        return [f"{node.target}.out_proj"]
    if layer_kind(module) or (isinstance(module, NORMS) and getattr(module, "weight", None) is not None):
        return [str(node.target)]
    if isinstance(module, (*DROPOUTS, nn.Identity)):
        return _zero(piece, first)
    if _is_product(node):
        return next((way for part in node.args[:2] if (way := _zero(piece, part)) is not None), None)
    if is_call(node, _SHAPING_CALLS, _SHAPING) or _is_item(node):
        return _zero(piece, first)
    return None


def _is_product(node: fx.Node) -> bool:
    return is_call(node, frozenset((operator.mul, operator.imul, torch.mul)), frozenset(("mul", "mul_")))


def _is_item(node: fx.Node) -> bool:
    return is_call(node, frozenset((operator.getitem,)), frozenset()) and bool(node.args[1] == 0)


def _reshaped(piece: Piece, way: _Way, call: Call) -> dict[str, int]:
    """Convolutions that must take the block's own output instead of its input: channels that they take, by name."""
    output = shape_of(call)
    assert output is not None
    changed: dict[str, int] = {}
    for node in piece.graph.nodes:
        module = piece.module(node)
        if module is None or node.target in way.bypassed or not isinstance(node.args[0], fx.Node):
            continue
        first = node.args[0].op == "placeholder"
        if isinstance(module, _CONVS):
            if first and module.groups > 1 and output[1] % module.groups:
                raise Refused("its first convolution has groups that do not divide its output's channels")
            if first or set(module.stride) != {1}:
                changed[canonical(piece.root, str(node.target))] = output[1] if first else module.in_channels
        elif first:
            raise Refused(f"its shortcut changes the shape, and '{node.target}' takes its input too")
    if any(
        isinstance(conv := piece.root.get_submodule(path), _CONVS) and width(conv) != output[1] for path in way.bypassed
    ):
        raise Refused("its shortcut does not end with the channels that it gives")
    return changed
