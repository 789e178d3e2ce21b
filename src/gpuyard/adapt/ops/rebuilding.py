"""Rebuilding: a fresh network grows as a log tells."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gpuyard.adapt.ops.containers import Grown, find
from gpuyard.adapt.ops.growthlog import kept, noted
from gpuyard.adapt.ops.growths import Entry, Refused
from gpuyard.adapt.ops.inserting import insert
from gpuyard.adapt.ops.layers import check_weight
from gpuyard.adapt.ops.widening import widen_as_told
from gpuyard.errors import UserError

_FIELDS: dict[str, dict[str, type]] = {
    "layer": {"site": str, "style": str, "layer": str, "anchor": str, "norm": str, "activation": list, "weight": list},
    "block": {"site": str, "style": str, "anchor": str, "block": str, "zeroed": list, "bypassed": list, "convs": dict,
              "parameters": int},
    "widen": {"site": str, "style": str, "weight": list, "channels": int, "copies": list, "through": list,
              "into": list},
}  # fmt: skip


def rebuild(model: nn.Module, log: Sequence[Entry]) -> nn.Module:
    """Grows a fresh network as the log tells, so that weights of the grown one can be loaded; the same network."""
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
    insert(model, entry)
