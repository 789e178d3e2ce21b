"""One training from its job description: build the trainer, run it in a folder (`gpuyard adapt run`)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.budget import CAUTION, Budget
from gpuyard.adapt.deciders import make_decider
from gpuyard.adapt.decisions import Asking
from gpuyard.adapt.ops.forward_pass import evaluating
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.training.data_batches import Validation, accuracy
from gpuyard.adapt.training.networks import Data, Split, make_data, make_network, relative_cost
from gpuyard.adapt.training.trainer import BudgetedTrainer
from gpuyard.adapt.training.training_state import Decides, Event, Listener
from gpuyard.adapt.training_job import Job, Training
from gpuyard.errors import UserError
from gpuyard.files import replace_file
from gpuyard.grants import Grants

_KINDS: Mapping[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


@dataclass(frozen=True)
class Built:
    trainer: BudgetedTrainer
    test: Validation
    test_samples: int
    validation_samples: int

    def tested(self) -> float:
        return self.test.score(self.trainer.model).accuracy


def build(job: Job, decider: Decides | None, budget: Budget | None = None, **settings: Any) -> Built:
    """A job's trainer; `settings` are further ones of the trainer."""
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
    return str(table["name"]), {key: value for key, value in table.items() if key != "name"}


def _pair(split: Split) -> tuple[Any, Any]:
    return split.inputs, split.labels


def _optimizer(training: Training) -> Any:
    given: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "sgd":
        given["momentum"] = 0.9
    return partial(_KINDS[training.optimizer], **given)


def _try(job: Job, network: nn.Module, data: Data) -> None:
    """Check that the network accepts the data, before any time is spent."""
    device = next((one.device for one in network.parameters()), torch.device("cpu"))
    try:
        with evaluating(network):
            outputs = network(data.train.inputs[:2].to(device))
    except (RuntimeError, ValueError, TypeError) as error:
        shape = tuple(data.train.inputs.shape[1:])
        raise UserError(
            f"network {job.network['name']} does not take the data {job.data['name']}, of which each has the shape "
            f"{shape}: {error}"
        ) from None
    classes = int(data.train.labels.max()) + 1
    if outputs.dim() != 2 or outputs.shape[1] < classes:
        raise UserError(
            f"network {job.network['name']} gives {tuple(outputs.shape[1:])} numbers for each of the data "
            f"{job.data['name']}, which need {classes} classes"
        )


RESULT, JOB, LOG, NETWORK = "result.json", "job.json", "log.jsonl", "network.pt"
_EXIT = 0.5  # seconds that a process of torch takes to end: in the queue that must be within its time, too


@dataclass(frozen=True, slots=True)
class RunFolder:
    folder: Path

    def check(self, job: Job, force: bool) -> None:
        """Refuse a folder of something else, or of a finished run; with `force`, remove that."""
        known = self.folder / JOB
        if force and known.exists():
            shutil.rmtree(self.folder)
        if (self.folder / RESULT).exists():
            raise UserError(f"{self.folder} holds a finished run; name another --out, or replace it with --force")
        if self.folder.exists() and any(self.folder.iterdir()) and not known.exists():
            raise UserError(f"{self.folder} holds something else; name another --out")
        if known.exists() and json.loads(known.read_text()).get("hash") != job.hash:
            raise UserError(f"{self.folder} holds a run of other settings; name another --out, or use --force")

    def build(self, job: Job, decider: Decides, budget: Budget, callbacks: list[Listener]) -> Built:
        """A trainer that continues what was begun there; nothing is left of a job that cannot be built."""
        fresh, log = not self.folder.exists(), self.folder / LOG
        checkpoints = self.folder / "checkpoints"
        if log.exists() and not any(checkpoints.glob("*")):
            log.unlink()  # it ended before anything could be kept
        try:
            built = build(job, decider, budget, checkpoints=checkpoints, log=log, callbacks=callbacks)
        except BaseException:
            if fresh and self.folder.exists():
                shutil.rmtree(self.folder)
            raise
        replace_file(self.folder / JOB, json.dumps({**job.facts(), "hash": job.hash}, indent=1).encode())
        return built


def run(job: Job, folder: Path, *, force: bool = False, say: Listener | None = None) -> dict[str, Any]:
    """Train a job to the end of its budget, or from where it was interrupted; returns the result."""
    place = RunFolder(folder)
    decider = make_decider(job.decider)
    grants = Grants.from_environment()
    budget = granted(job, grants)
    tests = _Tests(budget)
    place.check(job, force)
    built = place.build(job, decider, budget, [tests.heard, *([say] if say else [])])
    tests.known(built)
    before = built.trainer.parameters
    result = built.trainer.fit()
    facts = {
        "name": job.name,
        "decider": job.decider,
        "seed": job.seed,
        "accuracy": built.tested(),
        "validation": result.accuracy,
        "parameters_before": before,
        "parameters": result.parameters,
        "actions": list(result.actions),
        "decisions": [_decision_line(event) for event in result.events if event["event"] == "decision"],
        "steps": result.steps,
        "clock": job.clock,
        "budget": budget.total,
        "used": budget.used,
        "hash": job.hash,
    }
    torch.save(
        {"growth": ops.growth_log(built.trainer.model), "weights": built.trainer.model.state_dict()}, folder / NETWORK
    )
    replace_file(folder / RESULT, json.dumps(facts, indent=1).encode())
    if grants is not None:
        grants.flush(_EXIT / 2)
    return facts


def granted(job: Job, grants: Grants | None) -> Budget:
    """The budget of a job: what the scheduler grants to it, or else what its file says."""
    if job.clock != "wall":
        return Budget(job.budget, job.clock, grants=grants)
    budget = Budget.from_environment(job.budget, grants=grants)
    if os.environ.get("GPUYARD_JOB_ID"):
        budget.keep("exit", _EXIT)
    return budget


def _decision_line(event: Event) -> dict[str, Any]:
    keys = ("time", "time_left", "action", "site", "op", "probabilities", "reason", "predicted_gain", "accuracy",
            "parameters_before", "parameters")  # fmt: skip
    return {key: event.get(key) for key in keys}


class _Tests:
    """Keeps time for the final test: as long for each sample as the last evaluation took."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._times = budget, 0.0

    def known(self, built: Built) -> None:
        self._times = built.test_samples / built.validation_samples

    def heard(self, event: Event) -> None:
        if event["event"] == "evaluation" and self._times:
            self._budget.keep("test", self._times * self._budget.kept("evaluation") / CAUTION)
