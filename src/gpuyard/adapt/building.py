"""From a job's description to a trainer that is ready to go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from gpuyard.adapt.asking import Asking
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.costs import relative_cost
from gpuyard.adapt.data import Data, Split, make_data
from gpuyard.adapt.evaluating import Validation, accuracy
from gpuyard.adapt.jobfile import Job, Training
from gpuyard.adapt.networks import make_network
from gpuyard.adapt.outcomes import Decides
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.trainer import BudgetedTrainer
from gpuyard.errors import UserError

_KINDS: Mapping[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


@dataclass(frozen=True)
class Built:
    """A trainer, and what its network is judged by in the end."""

    trainer: BudgetedTrainer
    test: Validation
    test_samples: int
    validation_samples: int

    def tested(self) -> float:
        """Accuracy on what nobody has seen before."""
        return self.test.score(self.trainer.model).accuracy


def build(job: Job, decider: Decides | None, budget: Budget | None = None, **settings: Any) -> Built:
    """A job's trainer; `settings` are further ones of its."""
    torch.set_num_threads(job.training.threads)
    data = make_data(*_named(job.data), job.folder)
    torch.manual_seed(job.seed)
    network = make_network(*_named(job.network), job.folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network.to(device)
    example = data.train.inputs[:1].to(device)
    _try(job, network, data)
    virtual = job.clock == "virtual"
    trainer = BudgetedTrainer(
        network,
        _pair(data.train),
        _pair(data.validation),
        budget or Budget(job.budget, job.clock),
        optimizer=_optimizer(job.training),
        plan=RatePlan(job.training.rate),
        cost=relative_cost(network, example) if virtual else None,
        decider=decider,
        asking=Asking(fractions=job.decide_at, most=job.decisions),
        gpu_changes=job.gpu_changes,
        grow_by=job.grow_by,
        restart_rate=job.training.restart_rate,
        evaluate_every=job.training.evaluate_every,
        batch_size=job.training.batch_size,
        seed=job.seed,
        **settings,
    )
    test = Validation(_pair(data.test), trainer.loss, accuracy, device)
    return Built(trainer, test, len(data.test), len(data.validation))


def _named(table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A name, and the other settings."""
    return str(table["name"]), {key: value for key, value in table.items() if key != "name"}


def _pair(split: Split) -> tuple[Any, Any]:
    return split.inputs, split.labels


def _optimizer(training: Training) -> Any:
    given: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "sgd":
        given["momentum"] = 0.9
    return partial(_KINDS[training.optimizer], **given)


def _try(job: Job, network: nn.Module, data: Data) -> None:
    """See whether the network takes the data at all, before any time is spent."""
    device = next((one.device for one in network.parameters()), torch.device("cpu"))
    was = network.training
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(data.train.inputs[:2].to(device))
    except (RuntimeError, ValueError, TypeError) as error:
        shape = tuple(data.train.inputs.shape[1:])
        raise UserError(
            f"network {job.network['name']} does not take the data {job.data['name']}, of which each has the shape "
            f"{shape}: {error}"
        ) from None
    finally:
        network.train(was)
    classes = int(data.train.labels.max()) + 1
    if outputs.dim() != 2 or outputs.shape[1] < classes:
        raise UserError(
            f"network {job.network['name']} gives {tuple(outputs.shape[1:])} numbers for each of the data "
            f"{job.data['name']}, which need {classes} classes"
        )
