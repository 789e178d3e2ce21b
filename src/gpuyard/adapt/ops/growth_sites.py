"""Sites where a network can grow: layers, residual and transformer blocks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops.channels import standard_entries, widen_entry
from gpuyard.adapt.ops.containers import Grown, canonical, is_added
from gpuyard.adapt.ops.forward_pass import Call, Inputs, guessed, inputs, parameters
from gpuyard.adapt.ops.graph import Piece, Survey, activation, is_call, shape_of, survey, traced
from gpuyard.adapt.ops.growths import Entry, Refused, Site
from gpuyard.adapt.ops.layers import (
    ADDITIONS,
    DROPOUTS,
    NORMS,
    check_own,
    has_computed_weight,
    layer_entry,
    layer_kind,
    width,
)
from gpuyard.errors import UserError, suggest

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_SHAPING = frozenset(("view", "reshape", "transpose", "permute", "contiguous", "flatten", "squeeze", "unsqueeze"))
_SHAPING_CALLS = frozenset(
    (torch.reshape, torch.transpose, torch.permute, torch.flatten, F.dropout, F.dropout2d, torch.dropout)
)
_ATTENTION = frozenset((F.scaled_dot_product_attention, F.softmax, torch.softmax))


@dataclass(slots=True)
class _BlockPath:
    """What must be changed in a copy so that its output is its input."""

    zeroed: list[str] = field(default_factory=list)
    bypassed: list[str] = field(default_factory=list)  # modules of the shortcut that become an nn.Identity


def block_entries(survey: Survey) -> dict[str, Entry | Refused]:
    """How each block can be followed by a copy, by its name; of nested blocks, the innermost."""
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
    name: str, module: nn.Module, kind: str, style: str, way: _BlockPath, convs: dict[str, int] | None = None
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
        "parameters": parameters(module),
    }


def _standard_layer(name: str, module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Entry:
    """A layer of torch itself; where norms come last, a copy fades in behind a gate."""
    if not module.norm_first:
        return _entry(name, module, "transformer", "gated", _BlockPath())
    zeroed = ["self_attn.out_proj", "linear2"]
    if isinstance(module, nn.TransformerDecoderLayer):
        zeroed.insert(1, "multihead_attn.out_proj")
    return _entry(name, module, "transformer", "copy", _BlockPath(zeroed))


def _read_block(survey: Survey, name: str, module: nn.Module, call: Call) -> Entry | Refused | None:
    """The same for a user's own block, by its graph; None if it is no block."""
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
        named = _BlockPath([names[path] for path in way.zeroed], [names[path] for path in way.bypassed])
        try:
            convs = _reshaped(piece, way, call) if way.bypassed else {}
        except Refused as refusal:
            return Refused(f"'{name}': {refusal}")
        return _tried(survey, name, module, _entry(name, module, kind, "copy", named, convs))
    if not _is_trunk(piece, end):
        return None
    if call.input == shape_of(call):
        return _tried(survey, name, module, _entry(name, module, kind, "gated", _BlockPath()))
    return Refused(f"'{name}' changes the shape of its input in a way that a copy cannot do without")


def _is_sum(piece: Piece, node: Any) -> bool:
    """Whether a block's output is a sum, maybe with an activation, a norm or dropout behind."""
    while isinstance(node, fx.Node) and not _adds(node):
        node = node.args[0] if _passes(piece, node) and node.args else None
    return isinstance(node, fx.Node) and all(isinstance(part, fx.Node) for part in node.args[:2])


def _is_trunk(piece: Piece, node: Any) -> bool:
    """Whether the block's first input reaches a node only through sums, norms and activations."""
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


def _identity(piece: Piece, node: Any) -> _BlockPath | None:
    """What to change so that a node's value is the block's input."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "placeholder":
        return _BlockPath() if node is next(iter(piece.graph.nodes)) else None
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
                return _BlockPath([*way.zeroed, *zeroed], way.bypassed)
        return None
    if isinstance(module, (*_CONVS, *NORMS, *_POOLS)) and isinstance(node.args[0], fx.Node):
        way = _identity(piece, node.args[0])
        if way is not None and not way.zeroed:
            return _BlockPath([], [*way.bypassed, str(node.target)])
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
    if is_call(node, frozenset((operator.mul, operator.imul, torch.mul)), frozenset(("mul", "mul_"))):
        return next((way for part in node.args[:2] if (way := _zero(piece, part)) is not None), None)
    if is_call(node, _SHAPING_CALLS, _SHAPING) or _is_item(node):
        return _zero(piece, first)
    return None


def _is_item(node: fx.Node) -> bool:
    return is_call(node, frozenset((operator.getitem,)), frozenset()) and bool(node.args[1] == 0)


def _reshaped(piece: Piece, way: _BlockPath, call: Call) -> dict[str, int]:
    """Convolutions that must take the block's output instead of its input: their channels, by name."""
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


OPS = ("deepen", "widen")


@dataclass(frozen=True, slots=True)
class Found:
    """A site, and the entry that would be logged; None where it is refused."""

    site: Site
    entry: Entry | None


def sites(model: nn.Module, example: Any = None, *, ops: Sequence[str] = ("deepen",)) -> list[Site]:
    """Where a network can grow, in order of execution; also where it cannot, with the reason.

    It is looked at by an example, a batch of its inputs; without one, by what its first layer seems to take.
    """
    if unknown := [op for op in ops if op not in OPS]:
        raise UserError(f"there is no operation '{unknown[0]}'{suggest(unknown[0], OPS)} ({', '.join(OPS)})")
    check_model(model)
    given = guessed(model) if example is None else inputs(example)
    return [found.site for op in OPS if op in ops for found in explored(model, given, op)]


def check_model(model: Any) -> None:
    """Refuse what is no network, or is wrapped so that growing would not reach what runs."""
    if not isinstance(model, nn.Module):
        raise UserError(f"a {type(model).__name__} cannot grow: give a torch.nn.Module")
    kind = type(model).__name__
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise Refused("the network is compiled: grow the one that was given to torch.compile, and compile it again")
    if kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
        raise Refused(f"the network is wrapped in {kind}: grow its .module on every rank alike, and wrap it again")
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        raise Refused("the network has layers that do not know their sizes yet: run it once before it grows")
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise Refused("the network's parameters are sharded: grow it before that, on every rank alike")
    if "ScriptModule" in kind or kind == "TopLevelTracedModule":
        raise Refused("the network is a script: grow the one that it was made from")


def explored(model: nn.Module, example: Inputs, op: str) -> list[Found]:
    known = survey(model, example, through=op == "widen")
    if op == "deepen":
        blocks = block_entries(known)
        found = [_site(known, name, op, entry) for name, entry in blocks.items()]
        found += [_layer_site(known, piece, node, blocks) for piece, node in _layer_nodes(known)]
    else:
        found = [_site(known, name, op, entry) for name, entry in standard_entries(known).items()]
        found += [
            _site(known, known.name(piece, node), op, _attempt(widen_entry, known, piece, node))
            for piece, node in _layer_nodes(known)
        ]
    found += _left_over(known, op, {each.site.name for each in found})
    order = {name: known.calls[id(layer)].order for name, layer in known.layers.items() if id(layer) in known.calls}
    return sorted(found, key=lambda each: order.get(each.site.name, len(order)))


def chosen(model: nn.Module, example: Inputs, op: str, site: Site | str) -> Found:
    name = site.name if isinstance(site, Site) else site
    if isinstance(site, Site) and site.op != op:
        raise UserError(f"the site '{name}' is one to {site.op}, not to {op}")
    found = explored(model, example, op)
    for each in found:
        if each.site.name == name:
            if each.entry is None:
                raise Refused(each.site.why_not)
            return each
    known = [each.site.name for each in found]
    raise Refused(
        f"there is no site '{name}'{suggest(str(name), known)} ({', '.join(known) or 'the network has none'})"
    )


def _attempt(plan: Any, *given: Any) -> Entry | Refused:
    try:
        entry: Entry = plan(*given)
    except Refused as refusal:
        return refusal
    return entry


def _layer_nodes(known: Survey) -> list[tuple[Piece, fx.Node]]:
    """Calls of the user's own convolutions and linear layers in the graph, each once."""
    seen: set[str] = set()
    found = []
    for piece in known.pieces:
        for node in piece.graph.nodes:
            if layer_kind(piece.module(node)) and not is_added(known.model, piece.path(node)):
                name = known.name(piece, node)
                if name not in seen:
                    seen.add(name)
                    found.append((piece, node))
    return found


def _layer_site(known: Survey, piece: Piece, node: fx.Node, blocks: dict[str, Entry | Refused]) -> Found:
    name = known.name(piece, node)
    block = next((other for other in blocks if name.startswith(f"{other}.")), "")
    try:
        entry, head = layer_entry(known, piece, node, block)
    except Refused as refusal:
        return _site(known, name, "deepen", refusal)
    return _site(known, name, "deepen", entry, head=head)


def _site(known: Survey, name: str, op: str, entry: Entry | Refused, *, head: bool = False) -> Found:
    layer = known.layers[name]
    position = _position(known, layer)
    if isinstance(entry, Refused):
        kind = layer_kind(layer) or type(layer).__name__.lower()
        return Found(Site(name, op, kind, name, position, "", str(entry), head), None)
    return Found(Site(name, op, entry["kind"], name, position, entry["style"], "", head), entry)


def _position(known: Survey, layer: nn.Module) -> float:
    """The position of a layer among the user's layers with weights, 0 to 1."""
    orders = sorted(
        known.calls[id(module)].order
        for module in known.layers.values()
        if id(module) in known.calls and any(True for _ in module.parameters(recurse=False))
    )
    call = known.calls.get(id(layer))
    if call is None or len(orders) < 2:
        return 0.0
    return min(sum(order < call.order for order in orders) / (len(orders) - 1), 1.0)


def _left_over(known: Survey, op: str, named: set[str]) -> list[Found]:
    """Layers with weights that are no site in any graph, each with the reason."""
    found = []
    inside = tuple(f"{name}." for name, module in known.layers.items() if _closed(module))
    for name, module in known.layers.items():
        if not name or name in named or isinstance(module, (*NORMS, nn.PReLU)) or name.startswith(inside):
            continue
        if any(True for _ in module.parameters(recurse=False)) or layer_kind(module):
            found.append(_site(known, name, op, _reason(known, name, module, op)))
    return found


def _closed(module: nn.Module) -> bool:
    return module.__module__.startswith("torch.nn") and not isinstance(
        module, nn.Sequential | nn.ModuleList | nn.ModuleDict
    )


def _reason(known: Survey, name: str, module: nn.Module, op: str) -> Refused:
    if not layer_kind(module) and not has_computed_weight(module):
        return Refused(f"'{name}' is a {type(module).__name__}: that is not a layer we know how to {op}")
    try:
        check_own(known, name, module)
    except Refused as refusal:
        return refusal
    where = next((path for path in sorted(known.untraced, key=len, reverse=True) if name.startswith(path)), "")
    return Refused(
        f"torch.fx cannot trace {f'{where!r}' if where else 'the network'}, which calls '{name}': "
        "put the layer into an nn.Sequential with what follows it"
    )
