"""Convolutions and linear layers: what follows them, and how another one can come behind without changing anything."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops.containers import find
from gpuyard.adapt.ops.graph import Activation, Piece, Survey, activation, idempotent, is_call, uses
from gpuyard.adapt.ops.growths import Entry, Refused

KINDS: dict[type[nn.Module], str] = {nn.Conv1d: "conv1d", nn.Conv2d: "conv2d", nn.Conv3d: "conv3d", nn.Linear: "linear"}
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMS = (
    *BATCH_NORMS,
    nn.SyncBatchNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.RMSNorm,
)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
DROPOUT_CALLS = frozenset((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout))
_PASSING = (*DROPOUTS, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.Flatten, nn.Unflatten, nn.Identity)
_PASSING_CALLS = DROPOUT_CALLS | frozenset((
    torch.flatten, torch.reshape, torch.permute, torch.transpose, F.max_pool1d, F.max_pool2d, F.max_pool3d,
    torch.max_pool1d, torch.max_pool2d,
))  # fmt: skip
_PASSING_METHODS = frozenset(("flatten", "view", "reshape", "permute", "transpose", "contiguous", "unflatten"))


def layer_kind(module: nn.Module | None) -> str:
    """conv1d, conv2d, conv3d or linear; empty for other classes, also for a user's own."""
    return KINDS.get(type(module), "") if module is not None else ""


def width(layer: nn.Module) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]


def depth_in(layer: nn.Module) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)  # type: ignore[arg-type]


def check_layer(survey: Survey, name: str, layer: nn.Module) -> None:
    check_own(survey, name, layer)
    sizes = tuple(layer.kernel_size) if not isinstance(layer, nn.Linear) else ()  # type: ignore[arg-type]
    if any(size % 2 == 0 for size in sizes):
        raise Refused(
            f"'{name}' has a kernel of {'x'.join(str(size) for size in sizes)}: "
            "an identity needs a middle, so every side of the kernel must be odd"
        )


def check_own(survey: Survey, name: str, layer: nn.Module) -> None:
    """Refuse a layer that is not called exactly once, or whose weight is not its own."""
    call = survey.calls.get(id(layer))
    if call is None:
        raise Refused(f"'{name}' is not called when the network runs on the example")
    if call.count > 1:
        raise Refused(f"'{name}' is used {call.count} times in one pass: what grew there would be used as often")
    places = sum(1 for _, module in survey.model.named_modules(remove_duplicate=False) if module is layer)
    if places > 1:
        raise Refused(f"'{name}' stands at {places} places of the network: it cannot be replaced at one of them")
    if has_computed_weight(layer):
        raise Refused(
            f"the weight of '{name}' is computed from others (weight norm, a parametrization): remove that first"
        )


def has_computed_weight(layer: nn.Module) -> bool:
    """Whether a layer's weight is not a parameter of its own."""
    return nn.utils.parametrize.is_parametrized(layer) or (
        "weight" in layer.__dict__ and "weight_g" in layer._parameters
    )


def check_weight(model: nn.Module, name: str, shape: Sequence[int]) -> nn.Module:
    layer = find(model, name)
    weight = layer._parameters.get("weight")
    if not layer_kind(layer) or weight is None or list(weight.shape) != list(shape):
        is_now = list(weight.shape) if weight is not None else "none"
        raise Refused(f"'{name}' is a {type(layer).__name__} with a weight of {is_now}, not {list(shape)}")
    return layer


def layer_entry(survey: Survey, piece: Piece, node: fx.Node, block: str) -> tuple[Entry, bool]:
    """How a layer can be followed by another, and whether it gives the network's outputs; `block` is what it is in."""
    layer, name = piece.module(node), survey.name(piece, node)
    assert layer is not None
    check_layer(survey, name, layer)
    normed = _norm_after(survey, piece, node)
    norm, anchor = (piece.module(normed), normed) if normed is not None else (None, node)
    if norm is not None:
        check_anchor(survey, survey.name(piece, anchor), norm)
    end = beyond(survey, piece, anchor)
    chosen = _activation_after(piece, end)
    head = not any(_has_weights(piece.module(later)) for later in downstream(end)) and not piece.prefix
    if head and width(layer) > depth_in(layer):
        raise Refused(
            f"'{name}' gives the network's {width(layer)} outputs from {depth_in(layer)} features: "
            "a layer behind it would be larger than itself"
        )
    if chosen is None and block and not head:
        raise Refused(f"no activation follows '{name}': deepen its block '{block}' instead")
    identity = idempotent(chosen)
    # A norm that cannot be an identity is left out of one: that learns faster than a sum that starts as zero.
    normed_too = norm is not None and (not identity or _can_be_calibrated(survey, piece, anchor, norm))
    entry: Entry = {
        "op": "deepen",
        "site": name,
        "kind": layer_kind(layer),
        "style": "identity" if identity else "residual",
        "layer": name,
        "anchor": survey.name(piece, anchor),
        "norm": survey.name(piece, anchor) if normed_too else "",
        "activation": chosen or _usual(piece, node),
        "weight": list(layer.weight.shape),  # type: ignore[arg-type]
    }
    return entry, head


def check_anchor(survey: Survey, name: str, norm: nn.Module) -> None:
    call = survey.calls.get(id(norm))
    if call is None or call.count > 1:
        raise Refused(f"'{name}' is used {call.count if call else 0} times in one pass: nothing can come behind it")


def beyond(survey: Survey, piece: Piece, node: fx.Node) -> fx.Node:
    while len(following := uses(node)) == 1 and survey.added(piece, following[0]):
        node = following[0]
    return node


def downstream(node: fx.Node) -> Iterator[fx.Node]:
    seen, waiting = {node}, list(node.users)
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting.extend(at.users)
            yield at


def _norm_after(survey: Survey, piece: Piece, node: fx.Node) -> fx.Node | None:
    following = uses(node)
    if len(following) != 1 or survey.added(piece, following[0]):
        return None
    return following[0] if isinstance(piece.module(following[0]), NORMS) else None


def _activation_after(piece: Piece, node: fx.Node) -> Activation | None:
    """The only activation of a value, also behind operations that commute with activations."""
    while len(following := uses(node)) == 1:
        node = following[0]
        if (chosen := activation(piece, node)) is not None:
            return chosen
        if not isinstance(piece.module(node), _PASSING) and not is_call(node, _PASSING_CALLS, _PASSING_METHODS):
            return None
    return None


def _has_weights(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters()) and not isinstance(module, NORMS)


def _can_be_calibrated(survey: Survey, piece: Piece, anchor: fx.Node, norm: nn.Module) -> bool:
    """Whether a norm of the same kind can be an identity in both modes: batch norm, with nothing random before it."""
    if not isinstance(norm, BATCH_NORMS) or not norm.track_running_stats or norm.running_mean is None:
        return False
    order = survey.calls[id(norm)].order
    for module in survey.model.modules():
        call = survey.calls.get(id(module))
        if _random(module) and (call is None or call.order < order):
            return False
    for node in piece.graph.nodes:
        if node is anchor:
            return True
        if is_call(node, DROPOUT_CALLS, frozenset()):
            return False
    return True


def _random(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout) > 0.0
    return isinstance(module, nn.modules.dropout._DropoutNd) and float(module.p) > 0.0


def _usual(piece: Piece, node: fx.Node) -> Activation:
    before: Activation | None = None
    seen = False
    for other in piece.graph.nodes:
        seen = seen or other is node
        chosen = activation(piece, other)
        if chosen is not None and chosen[0] not in ("Sigmoid", "Softplus", "LogSigmoid"):
            if seen and before is not None:
                break
            before = chosen
            if seen:
                break
    return before or ["ReLU", {}]


ADDITIONS: frozenset[Any] = frozenset((operator.add, operator.iadd, torch.add))
