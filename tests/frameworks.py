"""Lightning's Trainer and Hugging Face's on tiny networks. To import them takes seconds: tests do it when they run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gpuyard.adapt.clocks import Clock
from tests.smalltraining import data

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what these libraries do when they are imported
    from lightning.pytorch import LightningModule, Trainer
    from transformers import BertConfig, BertForSequenceClassification, TrainerCallback, TrainingArguments
    from transformers import Trainer as HuggingFaceTrainer

    from gpuyard.adapt.huggingface import BudgetCallback as HuggingFaceBudget
    from gpuyard.adapt.lightning import BudgetCallback as LightningBudget


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
