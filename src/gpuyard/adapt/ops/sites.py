"""Where a network can grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from gpuyard.adapt.ops.blocks import block_entries
from gpuyard.adapt.ops.channels import standard_entries, widen_entry
from gpuyard.adapt.ops.containers import is_added
from gpuyard.adapt.ops.growths import Entry, Refused, Site
from gpuyard.adapt.ops.layers import NORMS, check_own, has_computed_weight, layer_entry, layer_kind
from gpuyard.adapt.ops.tracing import Piece, Survey, survey
from gpuyard.adapt.ops.trying import Inputs, guessed, inputs
from gpuyard.errors import UserError, suggest

OPS = ("deepen", "widen")


@dataclass(frozen=True, slots=True)
class Found:
    """A site, and what would be done there; nothing where it is refused."""

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
    """Refuses what is not a network, or is wrapped so that growing would not reach what runs."""
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
    """All sites of an operation."""
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
    """The site of that name, if the network can grow there."""
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
    """What a plan gives, or its refusal."""
    try:
        entry: Entry = plan(*given)
    except Refused as refusal:
        return refusal
    return entry


def _layer_nodes(known: Survey) -> list[tuple[Piece, fx.Node]]:
    """Where the graph calls the user's own convolutions and linear layers, each once."""
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
    """Where a layer is among those of the user that have weights, 0 to 1."""
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
    """Layers with weights that no graph shows as a site, each with the reason."""
    found = []
    inside = tuple(f"{name}." for name, module in known.layers.items() if _closed(module))
    for name, module in known.layers.items():
        if not name or name in named or isinstance(module, (*NORMS, nn.PReLU)) or name.startswith(inside):
            continue
        if any(True for _ in module.parameters(recurse=False)) or layer_kind(module):
            found.append(_site(known, name, op, _reason(known, name, module, op)))
    return found


def _closed(module: nn.Module) -> bool:
    """Whether a module is torch's own and calls its parts as it likes."""
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
