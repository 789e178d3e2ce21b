"""Training data in batches, in an order that can be resumed at any batch; evaluations on validation data within
the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.ops.forward_pass import evaluating
from gpuyard.errors import UserError


class Batches(Protocol):
    @property
    def per_epoch(self) -> int: ...
    def next(self) -> tuple[Any, Any]: ...
    def example(self, most: int) -> tuple[Any, Any]: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...


def to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple | list):
        return tuple(to_device(one, device) for one in value)
    return value


def pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch; of more than two parts the last is the target."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise UserError("a batch must be inputs and targets, as in (x, y)")
    return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]


class _Order:
    def __init__(self, number: int, batch: int, seed: int) -> None:
        if number < 1:
            raise UserError("there is nothing to train with: the data are empty")
        if batch < 1:
            raise UserError(f"a batch has at least 1 sample, not {batch}")
        self.number, self.batch = number, min(batch, number)
        self.per_epoch = max(1, number // self.batch)  # the rest waits for another epoch
        self._generator = torch.Generator().manual_seed(seed)
        self.epoch, self.place = 0, 0
        self._before = self._generator.get_state()
        self.permutation = self._shuffled()

    def _shuffled(self) -> Tensor:
        self._before = self._generator.get_state()
        return torch.randperm(self.number, generator=self._generator)

    def next(self) -> Tensor:
        if self.place == self.per_epoch:
            self.epoch, self.place = self.epoch + 1, 0
            self.permutation = self._shuffled()
        first = self.place * self.batch
        self.place += 1
        return self.permutation[first : first + self.batch]

    def state(self) -> dict[str, Any]:
        """The generator before this epoch's permutation, and the position."""
        return {"generator": self._before.clone(), "epoch": self.epoch, "place": self.place}

    def load_state(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"].clone())
        self.permutation = self._shuffled()
        self.epoch, self.place = state["epoch"], state["place"]


class _Ordered:
    """Batches in a random order that can be resumed."""

    _order: _Order

    @property
    def per_epoch(self) -> int:
        return self._order.per_epoch

    def state(self) -> dict[str, Any]:
        return self._order.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._order.load_state(state)


class TensorBatches(_Ordered):
    """Data as tensors: the fastest, since no sample is touched one by one."""

    def __init__(self, tensors: Sequence[Tensor], batch: int, seed: int, device: torch.device) -> None:
        if len({len(tensor) for tensor in tensors}) > 1:
            raise UserError("inputs and targets differ in number: " + ", ".join(str(len(t)) for t in tensors))
        self._order = _Order(len(tensors[0]), batch, seed)
        self._tensors = [tensor.to(device) for tensor in tensors]
        self._inputs, self._targets = self._tensors[:-1], self._tensors[-1]
        self._one = len(self._inputs) == 1
        self.device = device

    def next(self) -> tuple[Any, Any]:
        return self._at(self._order.next())

    def _at(self, index: Tensor) -> tuple[Any, Any]:
        index = index.to(self.device)
        if self._one:
            return self._inputs[0].index_select(0, index), self._targets.index_select(0, index)
        return tuple(one.index_select(0, index) for one in self._inputs), self._targets.index_select(0, index)

    def example(self, most: int) -> tuple[Any, Any]:
        step = max(1, len(self._targets) // most)
        return self._at(torch.arange(0, len(self._targets), step)[:most])


class DatasetBatches(_Ordered):
    """A dataset, or that of a DataLoader, which keeps its workers and its collate function."""

    def __init__(
        self, data: Dataset[Any], batch: int, seed: int, device: torch.device, loader: DataLoader[Any] | None = None
    ) -> None:
        self._data, self._loader, self._seed, self.device = data, loader, seed, device
        self._collate = default_collate if loader is None else loader.collate_fn
        self._order = _Order(len(data), batch, seed)  # type: ignore[arg-type]
        self._coming: Iterator[Any] | None = None

    def next(self) -> tuple[Any, Any]:
        if self._loader is None or self._loader.num_workers == 0:
            return self._at(self._order.next().tolist())
        if self._coming is None or self._order.place == self._order.per_epoch:
            self._coming = self._workers()
        else:
            self._order.next()
        return pair(to_device(next(self._coming), self.device))

    def _workers(self) -> Iterator[Any]:
        assert self._loader is not None
        first = self._order.next()
        rest, size = self._order.permutation[(self._order.place) * self._order.batch :], self._order.batch
        batches = [first.tolist(), *(rest[k : k + size].tolist() for k in range(0, len(rest) - size + 1, size))]
        return iter(
            DataLoader(
                self._data,
                batch_sampler=batches,
                num_workers=self._loader.num_workers,
                collate_fn=self._collate,
                worker_init_fn=self._loader.worker_init_fn,
                generator=torch.Generator().manual_seed(self._seed + self._order.epoch),
            )
        )

    def _at(self, numbers: list[int]) -> tuple[Any, Any]:
        return pair(to_device(self._collate([self._data[number] for number in numbers]), self.device))

    def example(self, most: int) -> tuple[Any, Any]:
        return self._at(list(range(0, self._order.number, max(1, self._order.number // most)))[:most])

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._coming = None


class StreamBatches:
    """Any repeatable iterable; a resumed training skips what it had before."""

    def __init__(self, stream: Iterable[Any], device: torch.device) -> None:
        self._stream, self.device = stream, device
        self._coming: Iterator[Any] = iter(())
        self._epoch, self._place = -1, 0
        self._length = len(stream) if isinstance(stream, Sized) else 0

    @property
    def per_epoch(self) -> int:
        return max(1, self._length or self._place)

    def next(self) -> tuple[Any, Any]:
        batch = next(self._coming, None)
        if batch is None:
            self._length = self._place or self._length
            self._epoch, self._place, self._coming = self._epoch + 1, 0, iter(self._stream)
            batch = next(self._coming, None)
        if batch is None:
            raise UserError("there is nothing to train with: the data are empty, or can be read only once")
        self._place += 1
        return pair(to_device(batch, self.device))

    def example(self, most: int) -> tuple[Any, Any]:
        batch = next(iter(self._stream), None)
        if batch is None:
            raise UserError("there is nothing to train with: the data are empty")
        inputs, targets = pair(to_device(batch, self.device))
        return (inputs[:most] if isinstance(inputs, Tensor) else tuple(one[:most] for one in inputs)), targets[:most]

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "place": self._place, "length": self._length}

    def load_state(self, state: dict[str, Any]) -> None:
        self._epoch, self._place, self._length = state["epoch"], state["place"], state["length"]
        self._coming = iter(self._stream) if self._epoch >= 0 else iter(())
        for _ in range(self._place):
            next(self._coming, None)


def make_batches(data: Any, batch: int, seed: int, device: torch.device) -> Batches:
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list) and len(data) >= 2 and all(isinstance(one, Tensor) for one in data):
        return TensorBatches(data, batch, seed, device)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return DatasetBatches(data.dataset, data.batch_size or batch, seed, device, data)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DatasetBatches(data, batch, seed, device)
    if isinstance(data, Iterable):
        return StreamBatches(data, device)
    raise UserError("training data are tensors (x, y), a dataset, or a DataLoader")


CHUNK = 250  # samples at a time

Metric = Callable[[Any, Any], float]


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float
    samples: int


def accuracy(outputs: Any, targets: Any) -> float:
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        raise UserError("accuracy needs classes: one score for each, and whole numbers as targets; give a metric=")
    return int((outputs.argmax(1) == targets).sum()) / max(1, len(targets))


class Validation:
    """Data to validate with: tensors (x, y), a dataset, a DataLoader, or a repeatable iterable of batches."""

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
        """Number of samples; 0 if unknown."""
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
        """Score all samples, or about `most` of them, or as many as were seen when it is late."""
        right, lost, seen = 0.0, 0.0, 0
        with evaluating(model):
            for batch in self._batches(most):
                if seen and ((late is not None and late(seen)) or 0 < most <= seen):
                    break
                inputs, targets = pair(to_device(batch, self._device))
                outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
                number = len(targets)
                right += number * self._metric(outputs, targets)
                lost += number * float(self._loss(outputs, targets))
                seen += number
        if not seen:
            raise UserError("there is nothing to validate with: the data are empty")
        return Score(right / seen, lost / seen, seen)


def _in_order(data: Dataset[Any], chunk: int, collate: Callable[[list[Any]], Any]) -> Iterator[Any]:
    """A dataset in chunks, without a DataLoader, which would draw from the global random numbers."""
    number = len(data)  # type: ignore[arg-type]
    for first in range(0, number, chunk):
        yield collate([data[k] for k in range(first, min(first + chunk, number))])


KEPT = "evaluation"  # the name under which a budget keeps time for it
ROOM = 0.03  # part of the budget that must be left after an evaluation, for the learning rate to come to its end
SHARE = 0.05  # part of the time for evaluations on the way; if all samples would take more, some are used
GLANCE = 0.02  # part of the time left for an evaluation before a decision
FEWEST = 100  # samples that tell something


class Evaluator:
    def __init__(self, validation: Validation, budget: Budget) -> None:
        self._validation, self._budget = validation, budget
        self.points: list[tuple[float, float]] = []  # time and accuracy of each evaluation
        self.samples, self.loss, self.step = 0, math.nan, -1  # samples, loss and step of the last one
        self._most = 0

    @property
    def accuracy(self) -> float:
        """The last one; nan if there is none."""
        return self.points[-1][1] if self.points else math.nan

    def plan(self, interval: float) -> float:
        """Set the interval of evaluations; returns a longer one if even the fewest samples take too long."""
        self._most = self._affordable(SHARE * interval)
        return self._takes(self._most) / SHARE

    def _affordable(self, seconds: float) -> int:
        """Samples that can be evaluated in that time, but no fewer than are meaningful; 0: all."""
        whole, number = self._budget.kept(KEPT), self._validation.samples
        if whole <= seconds or not number:
            return 0
        some = max(FEWEST, int(number * seconds / whole))
        return some if some < number else 0

    def _takes(self, most: int) -> float:
        return self._budget.kept(KEPT) * (most / self._validation.samples if most else 1.0)

    def room(self) -> bool:
        budget = self._budget
        left = budget.end - budget.used - self._takes(self._most)
        return budget.exact or left > max(ROOM * budget.total, 5 * budget.times.high)

    def probe(self, model: nn.Module) -> None:
        """Measure the time of an evaluation by a part of it; on a virtual clock it takes none."""
        if not self._budget.exact:
            self._timed(model, min(FEWEST, self._validation.samples))

    def _timed(self, model: nn.Module, most: int, late: Callable[[int], bool] | None = None) -> Score:
        began = self._budget.clock.now()
        with self._budget.aside():
            score = self._validation.score(model, late, most)
        took = self._budget.clock.now() - began
        self._budget.keep(KEPT, took * max(1.0, self._validation.samples / score.samples))
        return score

    def evaluate(self, model: nn.Module, step: int, *, last: bool = False, decision: bool = False) -> Score:
        """Evaluate the network; at the end by all samples, as far as the time allows."""
        budget = self._budget
        began, end = budget.used, budget.total - budget.kept("checkpoint")

        def late(seen: int) -> bool:
            """Whether a further chunk would not end in time, if it takes as long as those before."""
            now = budget.used
            return now + (now - began) / seen * CHUNK > end

        most = self._affordable(GLANCE * budget.left) if decision else 0 if last else self._most
        score = self._timed(model, most, late if last and not budget.exact else None)
        self.points.append((budget.used, score.accuracy))
        self.samples, self.loss, self.step = score.samples, score.loss, step
        return score

    def state(self) -> dict[str, Any]:
        points = [list(point) for point in self.points]
        return {"points": points, "samples": self.samples, "loss": self.loss, "step": self.step}

    def load_state(self, state: dict[str, Any]) -> None:
        self.points = [(time, accuracy) for time, accuracy in state["points"]]
        self.samples, self.loss, self.step = state["samples"], state["loss"], state["step"]
