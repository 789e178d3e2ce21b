"""Undoing: a network becomes what it was before it grew."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from gpuyard.adapt.ops.growthlog import forgotten, kept
from gpuyard.adapt.ops.growths import Growth, Refused
from gpuyard.adapt.ops.inserting import take_out
from gpuyard.adapt.ops.optimizers import leave
from gpuyard.adapt.ops.widening import unwiden
from gpuyard.errors import UserError


def rollback(model: nn.Module, growth: Growth, optimizer: Optimizer | None = None) -> None:
    """Undoes the last growth of a network; what stays keeps the weights that it has now."""
    if not isinstance(growth, Growth):
        raise UserError(f"rollback takes what deepen or widen returned, not a {type(growth).__name__}")
    log = kept(model)
    if growth.entry not in log:
        raise Refused(f"the network has not grown at '{growth.site.name}' in that way, or that was undone before")
    if log[-1] != growth.entry:
        raise Refused(f"the network has grown since, last at '{log[-1]['site']}': undo that first")
    if growth.op == "widen":
        unwiden(model, growth.entry, growth.kept, optimizer)
    else:
        added = take_out(model, growth.entry)
        if optimizer is not None:
            leave(optimizer, added.parameters())
    forgotten(model)
