"""The growth log: what was done to a network, kept with it."""

from __future__ import annotations

import copy

from torch import nn

from gpuyard.adapt.ops.growths import Entry

_KEPT = "_gpuyard_growth"


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
