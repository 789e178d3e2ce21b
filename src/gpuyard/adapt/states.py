"""What a training's state is made of: random numbers, and an optimizer's memory by names of parameters."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuyard.errors import UserError


def copied(value: Any) -> Any:
    """The same on the CPU, sharing nothing; tensors and plain values only."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(one) for one in value)
    return value


def random_state() -> dict[str, Any]:
    """Everybody's random numbers: torch's, numpy's and Python's."""
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, following = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(place),
            int(has_gauss),
            float(gauss),
        ],
        "python": [version, list(words), following],
    }


def load_random_state(state: dict[str, Any]) -> None:
    """Go on with those."""
    torch.set_rng_state(state["torch"].clone())
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.clone() for one in state["cuda"]])
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
    version, words, following = state["python"]
    random.setstate((version, tuple(words), following))


def seed_all(seed: int) -> None:
    """Begin all of them anew."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """An optimizer's groups and memory; parameters by name, since growing gives them other numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        unknown = [one for one in group["params"] if id(one) not in names]
        if unknown:
            raise UserError("the optimizer has parameters that are none of the network's")
        options = {key: copied(value) for key, value in group.items() if key not in ("params", "param_names")}
        groups.append({"names": [names[id(one)] for one in group["params"]], "options": options})
    memory = {names[id(one)]: copied(dict(values)) for one, values in optimizer.state.items() if id(one) in names}
    return {"groups": groups, "memory": memory}


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, state: dict[str, Any]) -> None:
    """Give a new optimizer of the same kind those groups, in that order, and that memory."""
    parameters = dict(model.named_parameters())
    _check(parameters, (name for group in state["groups"] for name in group["names"]))
    optimizer.param_groups.clear()
    optimizer.state.clear()
    for group in state["groups"]:
        options = copied(group["options"])
        optimizer.param_groups.append({"params": [parameters[name] for name in group["names"]], **options})
    for name, values in state["memory"].items():
        optimizer.state[parameters[name]] = {key: _beside(one, parameters[name], key) for key, one in values.items()}


def carry_over(optimizer: Optimizer, model: nn.Module, state: dict[str, Any]) -> None:
    """Let an optimizer of another network remember what fits: same name, same shape."""
    for name, parameter in model.named_parameters():
        values = state["memory"].get(name)
        shaped = [one for one in (values or {}).values() if isinstance(one, Tensor) and one.dim() > 0]
        if values and all(one.shape == parameter.shape for one in shaped):
            optimizer.state[parameter] = {key: _beside(one, parameter, key) for key, one in values.items()}


def _beside(value: Any, parameter: Tensor, key: str) -> Any:
    """A copy where the parameter is; counters of steps stay on the CPU, where optimizers want them."""
    if isinstance(value, Tensor):
        return value.clone() if key == "step" else value.to(parameter.device, copy=True)
    return copied(value)


def _check(parameters: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name not in parameters:
            raise UserError(f"this state has a parameter '{name}', which the network has not; it is of another one")
