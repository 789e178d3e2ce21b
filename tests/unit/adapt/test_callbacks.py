"""Budgets within Lightning's Trainer and Hugging Face's, the real ones, on tiny networks."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.smalltraining import PassingClock, data
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.clocks import Clock, VirtualClock
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.signals import Interrupted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what these libraries do when they are imported
    from lightning.pytorch import LightningModule, Trainer
    from transformers import BertConfig, BertForSequenceClassification, TrainerCallback, TrainingArguments
    from transformers import Trainer as HuggingFaceTrainer

    from gpuyard.adapt.huggingface import BudgetCallback as HuggingFaceBudget
    from gpuyard.adapt.lightning import BudgetCallback as LightningBudget

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.*isinstance\(treespec, LeafSpec\).*"),
    pytest.mark.filterwarnings(r"ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings(r"ignore:.*You're resuming from a checkpoint that ended before the epoch ended.*"),
    pytest.mark.filterwarnings(r"ignore:.*`max_epochs` was not set.*"),
    pytest.mark.filterwarnings(r"ignore:.*have no `val_dataloader`.*"),
    pytest.mark.filterwarnings(r"ignore:.*'pin_memory' argument is set as true but no accelerator.*"),
]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("GPUYARD_JOB_ID", raising=False)
    level = logging.getLogger("lightning.pytorch").level
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield
    logging.getLogger("lightning.pytorch").setLevel(level)


class Module(LightningModule):
    """A tiny one that notes the rate of every step, and does what a test wants at some of them."""

    def __init__(self, at: dict[int, Any] | None = None, clock: Clock | None = None, dear: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.rates, self.validated = nn.Linear(12, 4), list[float](), 0
        self.at, self.clock, self.dear = at or {}, clock, dear

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.rates.append(self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        if do := self.at.get(len(self.rates)):
            do()
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += 1
        if self.clock is not None:
            self.clock.charge(self.dear)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(callback: LightningBudget, module: Module, validate: bool = False, resume: str | None = None) -> None:
    rows = DataLoader(TensorDataset(*data(160)), batch_size=16)
    trainer = Trainer(
        max_epochs=-1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, rows, rows if validate else None, ckpt_path=resume)


def test_lightning_ends_in_time_with_a_rate_of_nothing() -> None:
    budget, module = Budget(57, "virtual"), Module()
    lightning(LightningBudget(budget, RatePlan(warmup=0.0)), module)
    assert len(module.rates) == 57
    assert module.rates[0] == pytest.approx(0.1 * 56 / 57)
    assert module.rates[-1] == 0.0


@pytest.mark.parametrize("change", [40, -30])
def test_lightning_follows_a_changed_grant(change: int) -> None:
    budget = Budget(100, "virtual")
    module = Module({30: lambda: budget.set_total(100 + change)})
    lightning(LightningBudget(budget), module)
    assert len(module.rates) == 100 + change
    assert module.rates[-1] <= 0.1 * 0.01
    assert 0 < module.rates[29] - module.rates[30] < 0.005


def test_lightning_keeps_time_for_the_last_validation() -> None:
    clock = VirtualClock()
    budget, module = Budget(100, clock), Module(clock=clock, dear=0.5)
    lightning(LightningBudget(budget), module, validate=True)
    assert module.validated >= 30
    assert budget.used <= 100
    assert module.rates[-1] <= 0.1 * 0.01


def test_lightning_is_within_a_budget_of_a_clock_that_passes_by_itself() -> None:
    budget, module = Budget(0.8, PassingClock()), Module()
    lightning(LightningBudget(budget), module, validate=True)
    step = budget.times.high
    assert budget.used <= 0.8 * 1.01 + step
    assert module.rates[-1] <= 0.1 * 0.01


def test_lightning_saves_when_told_to_end_and_goes_on_later(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    budget, module = Budget(60, "virtual"), Module({25: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    callback = LightningBudget(budget, checkpoints=tmp_path)
    assert callback.newest() is None
    with pytest.raises(Interrupted) as caught:
        lightning(callback, module)
    assert caught.value.code == 75
    assert len(module.rates) == 25
    assert signal.getsignal(signal.SIGTERM) is before
    later = Module()
    callback = LightningBudget(Budget(60, "virtual"), checkpoints=tmp_path)
    lightning(callback, later, resume=callback.newest())
    whole = Module()
    lightning(LightningBudget(Budget(60, "virtual")), whole)
    assert module.rates + later.rates == whole.rates


def test_lightning_writes_a_checkpoint_on_request_and_goes_on(tmp_path: Path) -> None:
    module = Module({10: lambda: os.kill(os.getpid(), signal.SIGUSR1)})
    lightning(LightningBudget(Budget(40, "virtual"), checkpoints=tmp_path), module)
    assert len(module.rates) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.pt"]


class Noting(TrainerCallback):
    """Notes the rate of every step, and does what a test wants at some of them."""

    def __init__(self, at: dict[int, Any] | None = None) -> None:
        self.rates, self.at, self.logged = list[float](), at or {}, list[float]()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rates.append(kwargs["optimizer"].param_groups[0]["lr"])
        if do := self.at.get(len(self.rates)):
            do()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "learning_rate" in logs:
            self.logged.append(logs["learning_rate"])


def huggingface(
    callback: HuggingFaceBudget, noting: Noting, folder: Path, resume: bool = False, **settings: Any
) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8,
    )  # fmt: skip
    rows = [{"input_ids": torch.full((4,), k % 20), "labels": torch.tensor(k % 2)} for k in range(40)]
    chosen: dict[str, Any] = {
        "max_steps": 100_000,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 10,
        **settings,
    }
    arguments = TrainingArguments(output_dir=str(folder), **chosen)
    trainer = HuggingFaceTrainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[callback, noting],
    )
    trainer.train(resume_from_checkpoint=resume)


def test_hugging_face_ends_in_time_with_a_rate_of_nothing(tmp_path: Path) -> None:
    noting = Noting()
    huggingface(HuggingFaceBudget(Budget(50, "virtual"), RatePlan(warmup=0.0)), noting, tmp_path)
    assert len(noting.rates) == 50
    assert noting.rates[0] == pytest.approx(1e-2 * 49 / 50)
    assert noting.rates[-1] == 0.0
    assert noting.logged == pytest.approx([noting.rates[k] for k in (9, 19, 29, 39, 49)])
    assert list(tmp_path.glob("checkpoint-*")) == []


@pytest.mark.parametrize("change", [20, -15])
def test_hugging_face_follows_a_changed_grant(change: int, tmp_path: Path) -> None:
    budget = Budget(50, "virtual")
    noting = Noting({15: lambda: budget.set_total(50 + change)})
    huggingface(HuggingFaceBudget(budget, save_at_end=True), noting, tmp_path)
    assert len(noting.rates) == 50 + change
    assert noting.rates[-1] <= 1e-4
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{50 + change}"]


def test_hugging_face_is_within_a_budget_of_a_clock_that_passes_by_itself(tmp_path: Path) -> None:
    budget, noting = Budget(1.0, PassingClock()), Noting()
    huggingface(HuggingFaceBudget(budget), noting, tmp_path, eval_strategy="steps", eval_steps=20)
    assert budget.used <= 1.0 * 1.01 + budget.times.high
    assert noting.rates[-1] <= 1e-4
    assert budget.kept("evaluation") > 0


def test_hugging_face_saves_when_told_to_end_and_goes_on_later(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    noting = Noting({20: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Interrupted) as caught:
        huggingface(HuggingFaceBudget(Budget(50, "virtual")), noting, tmp_path)
    assert caught.value.code == 75
    assert len(noting.rates) == 20
    assert signal.getsignal(signal.SIGTERM) is before
    later, whole = Noting(), Noting()
    huggingface(HuggingFaceBudget(Budget(50, "virtual")), later, tmp_path, resume=True)
    huggingface(HuggingFaceBudget(Budget(50, "virtual")), whole, tmp_path / "other")
    assert noting.rates + later.rates == pytest.approx(whole.rates)


def test_hugging_face_writes_a_checkpoint_on_request_and_goes_on(tmp_path: Path) -> None:
    noting = Noting({10: lambda: os.kill(os.getpid(), signal.SIGUSR1)})
    huggingface(HuggingFaceBudget(Budget(30, "virtual")), noting, tmp_path)
    assert len(noting.rates) == 30
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]
