"""What a step of a network costs, in multiply-accumulates: exact, and the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def operations(model: nn.Module, example: Tensor) -> int:
    """Multiply-accumulates of a forward pass over the example; the model is left as it is."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(example)
    finally:
        model.train(was)
    return max(int(counter.get_total_flops()) // 2, 1)


def relative_cost(base: nn.Module, example: Tensor) -> Callable[[nn.Module], float]:
    """A function that gives what a step of a network costs in steps of the base, as that is now."""
    unit = operations(base, example)
    return lambda model: operations(model, example) / unit
