"""Deepening: another layer or block behind one, at first without any effect."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gpuyard.adapt.ops.growthlog import noted
from gpuyard.adapt.ops.growths import Entry, Growth, NotPreserved, Refused, Site
from gpuyard.adapt.ops.inserting import calibrate, insert, kin, take_out
from gpuyard.adapt.ops.optimizers import check_optimizer, join
from gpuyard.adapt.ops.sites import Found, check_model, chosen
from gpuyard.adapt.ops.trying import Inputs, inputs, parameters
from gpuyard.adapt.ops.verifying import Seen, check, seen
from gpuyard.errors import UserError, suggest

STYLES = ("auto", "identity", "residual")


def deepen(
    model: nn.Module,
    site: Site | str,
    *,
    example: Any,
    optimizer: Optimizer | None = None,
    style: str = "auto",
    verify: bool = True,
) -> Growth:
    """Puts a layer behind a site, or a copy behind a block, in place; the function stays, or nothing is changed."""
    if style not in STYLES:
        raise UserError(f"there is no style '{style}'{suggest(style, STYLES)} ({', '.join(STYLES)})")
    check_model(model)
    check_optimizer(optimizer, model)
    given = inputs(example)
    found = chosen(model, given, "deepen", site)
    before = seen(model, given) if verify else None
    first = _styled(found, style)
    tried = [first]
    if style == "auto" and first["style"] == "identity":
        # Not exact where products are rounded, or where training does what evaluation does not; the last always is.
        tried += [{**first, "norm": ""}] if first["norm"] else []
        tried += [{**first, "style": "residual"}]
    for entry in tried[:-1]:
        with suppress(NotPreserved):
            return _grown(model, found, entry, given, before, optimizer, strict=True)
    return _grown(model, found, tried[-1], given, before, optimizer)


def _styled(found: Found, style: str) -> Entry:
    """The entry in the style that is wanted."""
    assert found.entry is not None
    entry = copy.deepcopy(found.entry)
    if style == "identity" and entry["style"] != "identity":
        why = "a block is deepened by a copy"
        if "layer" in entry:
            why = "no activation that is idempotent (ReLU, ReLU6, Hardtanh) takes its values, and nobody else does"
        raise Refused(f"'{found.site.name}' cannot be deepened by an identity: {why}")
    if style == "residual" and "layer" in entry:
        entry["style"] = "residual"
    return entry


def _grown(
    model: nn.Module,
    found: Found,
    entry: Entry,
    example: Inputs,
    before: Seen | None,
    optimizer: Optimizer | None,
    *,
    strict: bool = False,
) -> Growth:
    """Inserts, calibrates, verifies and only then tells the optimizer and the log."""
    had, added = parameters(model), None
    try:
        added = insert(model, entry)
        calibrate(model, added, example)
        differences = check(model, before, added, found.site.name, strict=strict) if before is not None else {}
        if optimizer is not None:
            join(optimizer, model, kin(model, entry, added))
    except BaseException as error:
        if added is not None:
            take_out(model, entry)
        if isinstance(error, RuntimeError | ValueError | TypeError):
            raise Refused(f"nothing can be put behind '{found.site.name}': {error}") from error
        raise
    noted(model, entry)
    return Growth(entry, found.site, had, parameters(model), differences)
