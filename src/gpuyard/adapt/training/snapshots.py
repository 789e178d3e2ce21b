"""Snapshots of a training, to the last bit:

random numbers, optimizer, growth, the teacher after shrinking; and their files.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.ops.forward_pass import map_tensors
from gpuyard.adapt.ops.restoration import FADING, WEIGHT
from gpuyard.client.retry import to_stderr
from gpuyard.errors import UserError
from gpuyard.files import replacing


def cpu_copy(value: Any) -> Any:
    """A copy on the CPU; tensors and plain values only."""
    return map_tensors(value, lambda tensor: tensor.detach().to("cpu", copy=True))


def random_state() -> dict[str, Any]:
    """The global random numbers: torch's, numpy's and Python's."""
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
    torch.set_rng_state(state["torch"].clone())
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.clone() for one in state["cuda"]])
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
    version, words, following = state["python"]
    random.setstate((version, tuple(words), following))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """An optimizer's groups and memory; parameters by name, since growing changes their numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        unknown = [one for one in group["params"] if id(one) not in names]
        if unknown:
            raise UserError("the optimizer has parameters that are none of the network's")
        options = {key: cpu_copy(value) for key, value in group.items() if key not in ("params", "param_names")}
        groups.append({"names": [names[id(one)] for one in group["params"]], "options": options})
    memory = {names[id(one)]: cpu_copy(dict(values)) for one, values in optimizer.state.items() if id(one) in names}
    return {"groups": groups, "memory": memory}


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, state: dict[str, Any]) -> None:
    parameters = dict(model.named_parameters())
    _check(parameters, (name for group in state["groups"] for name in group["names"]))
    optimizer.param_groups.clear()
    optimizer.state.clear()
    for group in state["groups"]:
        options = cpu_copy(group["options"])
        optimizer.param_groups.append({"params": [parameters[name] for name in group["names"]], **options})
    for name, values in state["memory"].items():
        optimizer.state[parameters[name]] = {key: _beside(one, parameters[name], key) for key, one in values.items()}


def carry_over(optimizer: Optimizer, model: nn.Module, state: dict[str, Any]) -> None:
    """Give the optimizer of another network the memory that fits: same name, same shape."""
    for name, parameter in model.named_parameters():
        values = state["memory"].get(name)
        shaped = [one for one in (values or {}).values() if isinstance(one, Tensor) and one.dim() > 0]
        if values and all(one.shape == parameter.shape for one in shaped):
            optimizer.state[parameter] = {key: _beside(one, parameter, key) for key, one in values.items()}


def _beside(value: Any, parameter: Tensor, key: str) -> Any:
    """A copy on the parameter's device; counters of steps stay on the CPU, where optimizers want them."""
    if isinstance(value, Tensor):
        return value.clone() if key == "step" else value.to(parameter.device, copy=True)
    return cpu_copy(value)


def _check(parameters: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name not in parameters:
            raise UserError(f"this state has a parameter '{name}', which the network has not; it is of another one")


LEAST_WEIGHT = 0.01  # below this weight the teacher is dropped
FORWARD_PART = 1 / 3  # cost of the teacher's forward pass, in steps


class Teacher:
    """The larger network after shrinking, as long as it has weight."""

    def __init__(self, model: nn.Module, epoch: int, steps: int = 0) -> None:
        self.model, self._epoch, self._steps = model.eval().requires_grad_(False), max(1, epoch), steps

    @property
    def weight(self) -> float:
        return WEIGHT * FADING ** (self._steps // self._epoch)

    def blend(self, loss: Tensor, outputs: Any, inputs: Any) -> Tensor:
        """The loss of a step, partly by the distance of the outputs from the larger network's."""
        weight = self.weight
        self._steps += 1
        with torch.no_grad():
            taught = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        return (1.0 - weight) * loss + weight * ops.distillation(outputs, taught)

    @property
    def an_epoch_on(self) -> bool:
        return self._steps == self._epoch

    def done(self) -> bool:
        return self.weight < LEAST_WEIGHT

    def price(self, cost: Callable[[nn.Module], float] | None) -> float:
        return FORWARD_PART * (1.0 if cost is None else cost(self.model))

    def state(self) -> dict[str, Any]:
        return {
            "growth": ops.growth_log(self.model),
            "model": cpu_copy(dict(self.model.state_dict())),
            "epoch": self._epoch,
            "steps": self._steps,
        }


@runtime_checkable
class Stateful(Protocol):
    """A decider whose answers depend on earlier ones."""

    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...


class BaseNetwork:
    """The network before it grew, from which every grown one is made."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        first = next(model.parameters(), None)
        if first is None:
            raise UserError("this network has no parameters, so there is nothing to train")
        self.device = first.device
        self._model = copy.deepcopy(model).to("cpu")
        self._log = ops.growth_log(model)
        self.batch = batch

    def facts(self) -> dict[str, Any]:
        shapes = {name: list(one.shape) for name, one in self._model.named_parameters()}
        return {"shapes": shapes, "batch": self.batch}

    def grown(self, log: list[dict[str, Any]], fresh: nn.Module | None = None) -> nn.Module:
        """A network that has grown as a log says; made of `fresh` if that has not grown yet."""
        start = fresh if fresh is not None and ops.growth_log(fresh) == self._log else copy.deepcopy(self._model)
        if log == self._log:
            return start
        if self._log:
            raise UserError("this network had grown before the training began: hand over the one that code makes")
        return ops.rebuild(start, log)


_MAGIC = b"gpuyard-checkpoint 1 "
_NAME = re.compile(r"checkpoint-(\d{8,})\.pt")
KEPT_CHECKPOINTS = 2


class Damaged(UserError):
    """This checkpoint cannot be read."""


def pack(state: dict[str, Any]) -> bytes:
    payload = io.BytesIO()
    torch.save(state, payload)
    body = payload.getvalue()
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpack(data: bytes, name: str) -> dict[str, Any]:
    """The state again; tensors and plain values only, so that a foreign file cannot run code."""
    head, _, body = data.partition(b"\n")
    if not head.startswith(_MAGIC) or head[len(_MAGIC) :] != hashlib.sha256(body).hexdigest().encode():
        raise Damaged(f"{name} is damaged or no checkpoint")
    state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return state


class Checkpoints:
    def __init__(self, directory: str | os.PathLike[str], *, say: Callable[[str], None] = to_stderr) -> None:
        self.directory = Path(directory)
        self._say = say
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"checkpoints cannot be kept in {directory}: {error.strerror}") from None

    def all(self) -> list[Path]:
        found = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=_number, reverse=True)

    def write(self, state: dict[str, Any]) -> Path:
        return self.write_by(lambda path: path.write_bytes(pack(state)))

    def write_by(self, write: Callable[[Path], object]) -> Path:
        before = self.all()
        path = self.directory / f"checkpoint-{_number(before[0]) + 1 if before else 1:08d}.pt"
        try:
            with replacing(path) as draft:
                write(draft)
            for old in [*before[KEPT_CHECKPOINTS - 1 :], *self.directory.glob(".checkpoint-*.part")]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"no checkpoint can be written in {self.directory}: {error.strerror}") from None
        return path

    def newest(self) -> Path | None:
        return next(iter(self.all()), None)

    def read(self) -> dict[str, Any] | None:
        """The newest state that is whole; None if there is none at all."""
        found = self.all()
        for path in found:
            try:
                return unpack(path.read_bytes(), str(path))
            except (Damaged, OSError) as error:
                self._say(f"warning: {error}; trying the checkpoint before it")
        if found:
            raise UserError(f"no checkpoint in {self.directory} can be read; remove them to begin anew")
        return None


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0
