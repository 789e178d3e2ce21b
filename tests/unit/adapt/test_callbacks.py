"""Budgets within Lightning's Trainer and Hugging Face's, the real ones, on tiny networks."""

from __future__ import annotations

import importlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.smalltraining import PassingClock

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.clocks import VirtualClock
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.signals import Interrupted

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


@pytest.fixture
def on() -> ModuleType:
    return importlib.import_module("tests.frameworks")


def test_lightning_ends_in_time_with_a_rate_of_nothing(on: ModuleType) -> None:
    budget, module = Budget(57, "virtual"), on.Module()
    on.lightning(on.LightningBudget(budget, RatePlan(warmup=0.0)), module)
    assert len(module.rates) == 57
    assert module.rates[0] == pytest.approx(0.1 * 56 / 57)
    assert module.rates[-1] == 0.0


@pytest.mark.parametrize("change", [40, -30])
def test_lightning_follows_a_changed_grant(on: ModuleType, change: int) -> None:
    budget = Budget(100, "virtual")
    module = on.Module({30: lambda: budget.set_total(100 + change)})
    on.lightning(on.LightningBudget(budget), module)
    assert len(module.rates) == 100 + change
    assert module.rates[-1] <= 0.1 * 0.01
    assert 0 < module.rates[29] - module.rates[30] < 0.005


def test_lightning_keeps_time_for_the_last_validation(on: ModuleType) -> None:
    clock = VirtualClock()
    budget, module = Budget(100, clock), on.Module(clock=clock, dear=0.5)
    on.lightning(on.LightningBudget(budget), module, validate=True)
    assert module.validated >= 30
    assert budget.used <= 100
    assert module.rates[-1] <= 0.1 * 0.01


def test_lightning_is_within_a_budget_of_a_clock_that_passes_by_itself(on: ModuleType) -> None:
    budget, module = Budget(0.8, PassingClock()), on.Module()
    on.lightning(on.LightningBudget(budget), module, validate=True)
    step = budget.times.high
    assert budget.used <= 0.8 * 1.01 + step
    assert module.rates[-1] <= 0.1 * 0.01


def test_lightning_saves_when_told_to_end_and_goes_on_later(on: ModuleType, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    budget, module = Budget(60, "virtual"), on.Module({25: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    callback = on.LightningBudget(budget, checkpoints=tmp_path)
    assert callback.newest() is None
    with pytest.raises(Interrupted) as caught:
        on.lightning(callback, module)
    assert caught.value.code == 75
    assert len(module.rates) == 25
    assert signal.getsignal(signal.SIGTERM) is before
    later = on.Module()
    callback = on.LightningBudget(Budget(60, "virtual"), checkpoints=tmp_path)
    on.lightning(callback, later, resume=callback.newest())
    whole = on.Module()
    on.lightning(on.LightningBudget(Budget(60, "virtual")), whole)
    assert module.rates + later.rates == whole.rates


def test_lightning_writes_a_checkpoint_on_request_and_goes_on(on: ModuleType, tmp_path: Path) -> None:
    module = on.Module({10: lambda: os.kill(os.getpid(), signal.SIGUSR1)})
    on.lightning(on.LightningBudget(Budget(40, "virtual"), checkpoints=tmp_path), module)
    assert len(module.rates) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.pt"]


def test_hugging_face_ends_in_time_with_a_rate_of_nothing(on: ModuleType, tmp_path: Path) -> None:
    noting = on.Noting()
    on.huggingface(on.HuggingFaceBudget(Budget(50, "virtual"), RatePlan(warmup=0.0)), noting, tmp_path)
    assert len(noting.rates) == 50
    assert noting.rates[0] == pytest.approx(1e-2 * 49 / 50)
    assert noting.rates[-1] == 0.0
    assert noting.logged == pytest.approx([noting.rates[k] for k in (9, 19, 29, 39, 49)])
    assert list(tmp_path.glob("checkpoint-*")) == []


@pytest.mark.parametrize("change", [20, -15])
def test_hugging_face_follows_a_changed_grant(on: ModuleType, change: int, tmp_path: Path) -> None:
    budget = Budget(50, "virtual")
    noting = on.Noting({15: lambda: budget.set_total(50 + change)})
    on.huggingface(on.HuggingFaceBudget(budget, save_at_end=True), noting, tmp_path)
    assert len(noting.rates) == 50 + change
    assert noting.rates[-1] <= 1e-4
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{50 + change}"]


def test_hugging_face_is_within_a_budget_of_a_clock_that_passes_by_itself(on: ModuleType, tmp_path: Path) -> None:
    budget, noting = Budget(1.0, PassingClock()), on.Noting()
    on.huggingface(on.HuggingFaceBudget(budget), noting, tmp_path, eval_strategy="steps", eval_steps=20)
    assert budget.used <= 1.0 * 1.01 + budget.times.high
    assert noting.rates[-1] <= 1e-4
    assert budget.kept("evaluation") > 0


def test_hugging_face_saves_when_told_to_end_and_goes_on_later(on: ModuleType, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    noting = on.Noting({20: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Interrupted) as caught:
        on.huggingface(on.HuggingFaceBudget(Budget(50, "virtual")), noting, tmp_path)
    assert caught.value.code == 75
    assert len(noting.rates) == 20
    assert signal.getsignal(signal.SIGTERM) is before
    later, whole = on.Noting(), on.Noting()
    on.huggingface(on.HuggingFaceBudget(Budget(50, "virtual")), later, tmp_path, resume=True)
    on.huggingface(on.HuggingFaceBudget(Budget(50, "virtual")), whole, tmp_path / "other")
    assert noting.rates + later.rates == pytest.approx(whole.rates)


def test_hugging_face_writes_a_checkpoint_on_request_and_goes_on(on: ModuleType, tmp_path: Path) -> None:
    noting = on.Noting({10: lambda: os.kill(os.getpid(), signal.SIGUSR1)})
    on.huggingface(on.HuggingFaceBudget(Budget(30, "virtual")), noting, tmp_path)
    assert len(noting.rates) == 30
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]
