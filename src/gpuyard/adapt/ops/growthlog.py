"""The growth log: what was done to a network, kept with it, and enough to do the same to a fresh one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gpuyard.adapt.ops.containers import Grown, find
from gpuyard.adapt.ops.growths import Entry, Refused
from gpuyard.adapt.ops.inserting import insert
from gpuyard.adapt.ops.layers import layer_kind
from gpuyard.errors import UserError

_KEPT = "_gpuyard_growth"
_FIELDS: dict[str, dict[str, type]] = {
    "layer": {"site": str, "style": str, "layer": str, "anchor": str, "norm": str, "activation": list, "weight": list},
    "block": {"site": str, "style": str, "anchor": str, "block": str, "zeroed": list, "bypassed": list, "convs": dict,
              "parameters": int},
    "widen": {"site": str, "style": str, "weight": list, "channels": int, "copies": list, "through": list,
              "into": list},
}  # fmt: skip


def growth_log(model: nn.Module) -> list[Entry]:
    """What was done to a network, in order; plain JSON values."""
    return copy.deepcopy(kept(model))


def kept(model: nn.Module) -> list[Entry]:
    """The log itself, which lives with the network and goes where it is copied or pickled."""
    log: list[Entry] = model.__dict__.get(_KEPT, [])
    return log


def noted(model: nn.Module, entry: Entry) -> None:
    """Writes an entry behind the others."""
    model.__dict__[_KEPT] = [*kept(model), entry]


def forgotten(model: nn.Module) -> None:
    """Takes the last entry away."""
    model.__dict__[_KEPT] = kept(model)[:-1]
    if not model.__dict__[_KEPT]:
        del model.__dict__[_KEPT]


def rebuild(model: nn.Module, log: Sequence[Entry]) -> nn.Module:
    """Grows a fresh network as the log tells, so that weights of the grown one can be loaded; the same network."""
    from gpuyard.adapt.ops.widening import widen_as_told

    if kept(model) or any(isinstance(module, Grown) for module in model.modules()):
        raise UserError("the network has grown already: rebuild takes a fresh one")
    doing: dict[str, Callable[[nn.Module, Entry], Any]] = {"deepen": _deepen_as_told, "widen": widen_as_told}
    for entry in log:
        _check_form(entry)
        try:
            doing[entry["op"]](model, entry)
        except (UserError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise UserError(f"the growth log is of another network: {error}") from error
        noted(model, copy.deepcopy(dict(entry)))
    return model


def _check_form(entry: Any) -> None:
    """Refuses what no version of ours has written."""
    if not isinstance(entry, dict) or entry.get("op") not in ("deepen", "widen"):
        raise UserError(f"the growth log has an entry that is not known: {entry!r}")
    form = "widen" if entry["op"] == "widen" else "layer" if "layer" in entry else "block"
    for name, kind in _FIELDS[form].items():
        if not isinstance(entry.get(name), kind):
            raise UserError(f"the growth log has an entry without a proper '{name}': {entry!r}")


def _deepen_as_told(model: nn.Module, entry: Entry) -> None:
    """Checks that the network is the one that was meant, and inserts."""
    if "layer" in entry:
        check_weight(model, entry["layer"], entry["weight"])
        if entry["norm"]:
            find(model, entry["norm"])
    else:
        block = find(model, entry["anchor"])
        count = sum(parameter.numel() for parameter in block.parameters())
        if type(block).__name__ != entry["block"] or count != entry["parameters"]:
            raise Refused(
                f"'{entry['anchor']}' is a {type(block).__name__} of {count} parameters, "
                f"not a {entry['block']} of {entry['parameters']}"
            )
    with torch.no_grad():
        insert(model, entry)


def check_weight(model: nn.Module, name: str, shape: Sequence[int]) -> nn.Module:
    """The layer of that name, if its weight is as large as told."""
    layer = find(model, name)
    weight = layer._parameters.get("weight")
    if not layer_kind(layer) or weight is None or list(weight.shape) != list(shape):
        is_now = list(weight.shape) if weight is not None else "none"
        raise Refused(f"'{name}' is a {type(layer).__name__} with a weight of {is_now}, not {list(shape)}")
    return layer
