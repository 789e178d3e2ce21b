"""How good a network is on data that it is not trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from gpuyard.adapt.batches import pair, to_device
from gpuyard.errors import UserError

CHUNK = 250
"""Samples at a time."""

Metric = Callable[[Any, Any], float]


@dataclass(frozen=True)
class Score:
    """What came out, and of how many samples."""

    accuracy: float
    loss: float
    samples: int


def accuracy(outputs: Any, targets: Any) -> float:
    """The share of samples whose class is right."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        raise UserError("accuracy needs classes: one score for each, and whole numbers as targets; give a metric=")
    return int((outputs.argmax(1) == targets).sum()) / max(1, len(targets))


class Validation:
    """Data to validate with: tensors (x, y), a dataset, a DataLoader, or anything that gives batches."""

    def __init__(
        self, data: Any, loss: Callable[[Any, Any], Tensor], metric: Metric, device: torch.device, chunk: int = CHUNK
    ) -> None:
        self._loss, self._metric, self._device, self._chunk = loss, metric, device, chunk
        if isinstance(data, TensorDataset):
            data = data.tensors
        tensors = isinstance(data, tuple | list) and len(data) >= 2 and all(isinstance(one, Tensor) for one in data)
        self._tensors = [one.to(device) for one in data] if tensors else None
        self._data = data
        if hasattr(data, "__len__") and len(self._tensors[0] if self._tensors else data) == 0:
            raise UserError("there is nothing to validate with: the data are empty")

    @property
    def samples(self) -> int:
        """How many there are; 0 if that is not known."""
        if self._tensors is not None:
            return len(self._tensors[0])
        data = self._data.dataset if isinstance(self._data, DataLoader) else self._data
        return len(data) if isinstance(data, Dataset) and hasattr(data, "__len__") else 0

    def _batches(self, most: int) -> Iterable[Any]:
        if self._tensors is not None:
            stride = max(1, len(self._tensors[0]) // most) if most else 1  # some of all: they may be in an order
            parts = [one[::stride].split(self._chunk) for one in self._tensors]
            return zip(*parts, strict=True)
        if isinstance(self._data, DataLoader) and not isinstance(self._data.dataset, IterableDataset):
            return _in_order(self._data.dataset, self._data.batch_size or self._chunk, self._data.collate_fn)
        if isinstance(self._data, Dataset) and not isinstance(self._data, IterableDataset):
            return _in_order(self._data, self._chunk, default_collate)
        stream: Iterable[Any] = self._data
        return stream

    def score(self, model: nn.Module, late: Callable[[int], bool] | None = None, most: int = 0) -> Score:
        """Look at all samples, or at about `most` of them, or at as many as were seen when it is late."""
        training, right, lost, seen = model.training, 0.0, 0.0, 0
        model.eval()
        try:
            with torch.no_grad():
                for batch in self._batches(most):
                    if seen and ((late is not None and late(seen)) or 0 < most <= seen):
                        break
                    inputs, targets = pair(to_device(batch, self._device))
                    outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
                    number = len(targets)
                    right += number * self._metric(outputs, targets)
                    lost += number * float(self._loss(outputs, targets))
                    seen += number
        finally:
            model.train(training)
        if not seen:
            raise UserError("there is nothing to validate with: the data are empty")
        return Score(right / seen, lost / seen, seen)


def _in_order(data: Dataset[Any], chunk: int, collate: Callable[[list[Any]], Any]) -> Iterator[Any]:
    """A dataset in chunks, without a DataLoader, which would draw from everybody's random numbers."""
    number = len(data)  # type: ignore[arg-type]
    for first in range(0, number, chunk):
        yield collate([data[k] for k in range(first, min(first + chunk, number))])
