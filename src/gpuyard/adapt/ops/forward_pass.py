"""Forward passes on an example without side effects, and the check that a network still computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from gpuyard.adapt.ops.growths import NotPreserved, Refused
from gpuyard.errors import UserError

FEW = 8  # rows of an example that are enough where no statistics are taken
SEED = 12  # of random numbers that a network draws in trial runs
DROPOUTS = frozenset(
    (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
)


class Inputs(NamedTuple):
    args: tuple[Any, ...]
    named: dict[str, Any]


def inputs(example: Any) -> Inputs:
    """A tensor, a tuple of inputs, a dict of named ones, or a tuple that ends with such a dict; not empty."""
    given = _inputs(example)
    if any(isinstance(value, Tensor) and value.numel() == 0 for value in (*given.args, *given.named.values())):
        raise UserError("the example has no rows: give a batch of the network's inputs")
    if torch.is_inference_mode_enabled():
        raise UserError("networks cannot grow in torch.inference_mode(): what is added could not be trained")
    return given


def _inputs(example: Any) -> Inputs:
    if isinstance(example, Inputs):
        return example
    if isinstance(example, Mapping):
        return Inputs((), dict(example))
    if isinstance(example, tuple | list):
        if not example:
            raise UserError("the example is empty: give a batch of the network's inputs")
        if isinstance(example[-1], Mapping) and all(isinstance(key, str) for key in example[-1]):
            return Inputs(tuple(example[:-1]), dict(example[-1]))
        return Inputs(tuple(example), {})
    if not isinstance(example, Tensor):
        raise UserError(
            f"the example is a {type(example).__name__}: give a tensor, a tuple of inputs or a dict of them"
        )
    return Inputs((example,), {})


def guessed(model: nn.Module) -> Inputs:
    """Inputs that a network may accept, by its first layer: enough to inspect it."""
    layer = next((one for one in model.modules() if isinstance(one, _FIRST)), None)
    if layer is None:
        raise UserError("it cannot be guessed what this network takes: give an example, a batch of its inputs")
    if isinstance(layer, nn.Embedding):
        example = torch.zeros(2, 8, dtype=torch.long, device=layer.weight.device)
    elif isinstance(layer, nn.Linear):
        example = layer.weight.new_zeros((2, layer.in_features))
    else:
        example = layer.weight.new_zeros((2, layer.in_channels, *[32] * (layer.weight.dim() - 2)))
    try:
        with evaluating(model):
            model(example)
    except Exception as error:  # a guess: whatever is wrong with it, the user knows better
        shape = tuple(example.shape)
        raise UserError(f"this network does not take the shape {shape}, a guess: give an example ({error})") from None
    return Inputs((example,), {})


_FIRST = (nn.Embedding, nn.Linear, nn.Conv1d, nn.Conv2d)


def few(example: Inputs) -> Inputs:
    held = [value for value in (*example.args, *example.named.values()) if isinstance(value, Tensor)]
    rows = {value.shape[0] if value.dim() else 0 for value in held}
    if len(rows) != 1 or max(rows) <= FEW or any(isinstance(value, tuple | list | dict) for value in example.args):
        return example
    args = tuple(value[:FEW] if isinstance(value, Tensor) else value for value in example.args)
    return Inputs(args, {key: v[:FEW] if isinstance(v, Tensor) else v for key, v in example.named.items()})


@dataclass(slots=True)
class Call:
    order: int
    count: int
    args: tuple[Any, ...]  # shapes where tensors were given; other values as they are
    named: dict[str, Any]
    output: Any  # its shape, if it is a tensor

    @property
    def input(self) -> torch.Size | None:
        """The shape of its only tensor, or of the first."""
        given = [value for value in (*self.args, *self.named.values()) if isinstance(value, torch.Size)]
        return given[0] if given else None


class _WithoutDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        if func is F.multi_head_attention_forward:
            kwargs["training"] = False  # this switches its dropout, and nothing else
        return func(*args, **kwargs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without gradients and in the mode for evaluations; in the end each module gets the mode that it had."""
    was = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in was.items():
            module.training = training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores attributes, buffers, modes and random numbers at the end, also after an exception."""
    attributes = [(module, dict(module.__dict__)) for module in model.modules()]
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (table, dict(table)) for module in model.modules() for table in (module._parameters, module._buffers)
    ]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {tensor.device.index or 0 for tensor in model.parameters() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        try:
            yield
        finally:
            for module, before in attributes:
                _restored(module.__dict__, before)
            for table, entries in tables:
                _restored(table, entries)
            with torch.no_grad():
                for buffer, values in buffers:
                    buffer.copy_(values)


def _restored(table: dict[str, Any], before: dict[str, Any]) -> None:
    """Restore a dict; unchanged entries are not touched, since a signal may come between."""
    for key in [key for key in table if key not in before]:
        del table[key]
    for key, value in before.items():
        if key not in table or table[key] is not value:
            table[key] = value


def run(model: nn.Module, example: Inputs, *, train: bool) -> Any:
    """The network's output on the example in a mode, with dropout off; the caller keeps it undisturbed."""
    model.train(train)
    torch.manual_seed(SEED)
    args, named = _copied(example.args), _copied(example.named)
    with torch.no_grad(), _WithoutDropout():
        return model(*args, **named)


def watched(model: nn.Module, example: Inputs, *, train: bool = False) -> dict[int, Call]:
    calls: dict[int, Call] = {}
    mine = {id(module) for module in model.modules()}

    def note(module: nn.Module, args: Any, named: Any, output: Any) -> None:
        if id(module) not in mine:
            return
        if id(module) in calls:
            calls[id(module)].count += 1
        else:
            calls[id(module)] = Call(len(calls), 1, _shapes(args), _shapes(named), _shapes(output))

    handle = register_module_forward_hook(note, with_kwargs=True)
    try:
        with undisturbed(model):
            run(model, example, train=train)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise Refused(f"the network does not run on the example: {error}") from error
    finally:
        handle.remove()
    return calls


def outputs(model: nn.Module, example: Inputs, *, train: bool) -> list[Tensor]:
    with undisturbed(model):
        return [tensor.detach().clone() for tensor in tensors(run(model, example, train=train))]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors(vars(value))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """A copy of nested dicts, lists and tuples, with a function applied to each tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(part, function) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map_tensors(part, function) for part in value)
    return value


def _shapes(value: Any) -> Any:
    """Shapes instead of tensors, so that no activations are held."""
    return map_tensors(value, lambda tensor: tensor.shape)


def _copied(value: Any) -> Any:
    """Copies of inputs, so that in-place operations do not reach the user's tensors."""
    return map_tensors(value, lambda tensor: tensor.detach().clone())


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Allowed change of outputs, relative to the largest of them where that is above 1."""
_BROKEN = (RuntimeError, ValueError, TypeError, IndexError)
Seen = dict[str, tuple[Inputs, list[Tensor]]]  # by mode, what a network was given and what it made of that


def seen(model: nn.Module, example: Inputs) -> Seen:
    """Outputs on the example by mode; without training where the network cannot train on such a batch."""
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
    """The largest difference, and the largest in units of the tolerance; strictly, half of it and not scaled."""
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
    """The largest difference by mode; raises where it is too large, or where an added module is not used."""
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
