"""Sites, growths and refusals, and the growth log that is kept with a network."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gpuyard.errors import GpuyardError, UserError

Entry = dict[str, Any]  # one line of a growth log: plain JSON values, enough to grow a fresh network in the same way


class Refused(UserError):
    """The network cannot grow there."""


class NotPreserved(GpuyardError):
    """The operation changed what the network computes; it was undone."""


@dataclass(frozen=True, slots=True)
class Site:
    name: str
    op: str  # deepen or widen
    kind: str  # conv1d, conv2d, conv3d, linear, residual, transformer; of what is refused, the class in lower case
    origin: str  # the user's layer; what grew from it belongs to it
    position: float  # 0 is the first layer that is called, 1 the last
    style: str  # identity, residual, copy, gated or split: how the function is kept
    why_not: str = ""
    head: bool = False  # its values are the network's own outputs


@dataclass(slots=True)
class Growth:
    entry: Entry
    site: Site
    parameters_before: int
    parameters_after: int
    difference: dict[str, float] = field(default_factory=dict)  # the largest difference of outputs, by mode
    kept: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # widened parameters, before and after

    @property
    def op(self) -> str:
        return self.site.op

    @property
    def style(self) -> str:
        return str(self.entry["style"])

    @property
    def added(self) -> int:
        return self.parameters_after - self.parameters_before


_KEPT = "_gpuyard_growth"


def growth_log(model: nn.Module) -> list[Entry]:
    """What was done to a network, in order; plain JSON values."""
    return copy.deepcopy(log_entries(model))


def log_entries(model: nn.Module) -> list[Entry]:
    log: list[Entry] = model.__dict__.get(_KEPT, [])
    return log


def append_entry(model: nn.Module, entry: Entry) -> None:
    model.__dict__[_KEPT] = [*log_entries(model), entry]


def drop_last_entry(model: nn.Module) -> None:
    model.__dict__[_KEPT] = log_entries(model)[:-1]
    if not model.__dict__[_KEPT]:
        del model.__dict__[_KEPT]
