"""Whether a network still computes what it did."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from gpuyard.adapt.ops.growths import NotPreserved, Refused
from gpuyard.adapt.ops.trying import Inputs, few, outputs

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""How far outputs may move, relative to the largest of them where that is above 1."""
_BROKEN = (RuntimeError, ValueError, TypeError, IndexError)
Seen = dict[str, tuple[Inputs, list[Tensor]]]
"""By mode, what a network was given and what it made of that."""


def seen(model: nn.Module, example: Inputs) -> Seen:
    """What a network makes of the example, by mode; training is left out where it cannot train on such a batch."""
    small = few(example)
    try:
        found = {"eval": (small, outputs(model, small, train=False))}
    except _BROKEN:
        found = {"eval": (example, outputs(model, example, train=False))}
    try:
        found["train"] = (example, outputs(model, example, train=True))
    except ValueError:  # batch norm wants more than one value for each channel
        return found
    return found


def compare(before: Sequence[Tensor], after: Sequence[Tensor], strict: bool = False) -> tuple[float, float]:
    """The largest difference, and the largest in units of what is allowed; strictly, that is half and not scaled."""
    largest = worst = 0.0
    if [x.shape for x in before] != [x.shape for x in after]:
        return float("inf"), float("inf")
    for x, y in zip(before, after, strict=True):
        if not x.numel() or torch.equal(x, y):
            continue
        # Where a network gives infinities or no numbers, it must give the same.
        apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x.double() - y.double()).abs())
        difference = float(apart.max())
        scale = max(1.0, float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 1.0)
        allowed = TOLERANCES.get(x.dtype, 1e-5) * (0.5 if strict else scale)
        ratio = difference / allowed
        largest, worst = max(largest, difference), max(worst, ratio if ratio == ratio else float("inf"))
    return largest, worst


def check(
    model: nn.Module, before: Seen, added: nn.Module | None, name: str, *, strict: bool = False
) -> dict[str, float]:
    """The largest difference by mode; raises where it is too large, or where what was added is not used."""
    reached: list[bool] = []
    handle = register_module_forward_hook(lambda module, *_: reached.append(True) if module is added else None)
    try:
        after = {mode: outputs(model, given, train=mode == "train") for mode, (given, _) in before.items()}
    except _BROKEN as error:
        raise Refused(f"the network no longer ran after growing at '{name}', so that was undone: {error}") from error
    finally:
        handle.remove()
    if added is not None and not reached:
        raise Refused(f"the network does not use what stands at '{name}' by that name, so growing there was undone")
    differences = {}
    for mode, (_, values) in before.items():
        differences[mode], ratio = compare(values, after[mode], strict)
        if not ratio <= 1.0:
            raise NotPreserved(
                f"growing at '{name}' changed the outputs by {differences[mode]:.3g} in {mode} mode, "
                f"{ratio:.3g} times what is allowed; it was undone"
            )
    return differences
