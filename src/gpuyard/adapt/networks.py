"""Networks to try adaptation on: the two of the published study, and smaller ones; or a user's own, out of a file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

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
    """Two convolutions of stride 2: quick on images, and short-sighted until it is deepened."""
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
    """Linear layers of one width, with ReLU between them."""
    if layers < 1:
        raise UserError(f"an mlp needs at least one hidden layer, not {layers}")
    parts: list[nn.Module] = [nn.Flatten()]
    for layer in range(layers):
        parts += [nn.Linear(features if layer == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, classes))


BUILT_IN: Mapping[str, Network] = {
    "cnn1": cnn1, "cnn2": cnn2, "strided": strided, "conv1d": conv1d, "flat1d": flat1d, "mlp": mlp,
}  # fmt: skip


def make_network(name: str, settings: Mapping[str, Any], folder: Path) -> nn.Module:
    """The network of a job: one of ours, or what `file.py:function` returns; files are looked for in a folder."""
    make = from_file(name, folder) if ".py:" in name else BUILT_IN.get(name)
    if make is None:
        raise UserError(
            f"there is no network '{name}'{suggest(name, BUILT_IN)} (there are {', '.join(BUILT_IN)}; "
            "or write file.py:function for one of yours)"
        )
    network = call(make, settings, f"network {name}")
    if not isinstance(network, nn.Module):
        raise UserError(f"network {name} must be a torch.nn.Module, not {type(network).__name__}")
    return network


def call(function: Callable[..., Any], settings: Mapping[str, Any], what: str) -> Any:
    """Call a function with settings out of a file; those that it does not have are told."""
    try:
        inspect.signature(function).bind(**settings)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters)
        raise UserError(f"{what} cannot be made of these settings: {error} (it takes {known or 'none'})") from None
    try:
        return function(**settings)
    except UserError:
        raise
    except Exception as error:  # settings that make no sense, or somebody's own code: anything may come out of it
        raise UserError(f"{what} cannot be made of these settings: {type(error).__name__}: {error}") from error


def from_file(text: str, folder: Path) -> Callable[..., Any]:
    """The function that `path/to/file.py:name` stands for."""
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
    except Exception as error:  # somebody's own code: anything may come out of it
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(f"{path} has no function '{name}'{suggest(name, known)}")
    return found  # type: ignore[no-any-return]
