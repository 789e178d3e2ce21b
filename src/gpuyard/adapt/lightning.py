"""A budget for Lightning's Trainer.

from gpuyard.adapt.lightning import BudgetCallback

callback = BudgetCallback(Budget.from_environment(), checkpoints="checkpoints")
trainer = Trainer(max_epochs=-1, callbacks=[callback])
trainer.fit(module, data, ckpt_path=callback.newest())
"""

from __future__ import annotations

import os
import time
from typing import Any

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.signals import Interrupted, Signals
from gpuyard.adapt.torchrates import agreed, set_rates
from gpuyard.adapt.training.snapshots import Checkpoints
from gpuyard.errors import UserError

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise UserError("this needs Lightning: pip install lightning") from error


class BudgetCallback(Callback):
    """Ends a training in time, with the last validation in it; sets the learning rate; heeds SIGTERM and SIGUSR1.

    With a directory, a checkpoint is written every `checkpoint_every` seconds and when a signal asks for it; after
    SIGTERM `Interrupted` is raised then, which ends the process with code 75. The budget is part of each checkpoint.
    """

    def __init__(
        self,
        budget: Budget,
        plan: RatePlan | None = None,
        *,
        checkpoints: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 600.0,
    ) -> None:
        self.budget, self.plan, self.watch = budget, plan or RatePlan(), Signals()
        self.scale = 1.0  # the part of the full rate that holds now
        self._checkpoints = None if checkpoints is None else Checkpoints(checkpoints)
        self._every, self._saved, self._validating = checkpoint_every, time.monotonic(), 0.0

    def newest(self) -> str | None:
        """The file to go on from, for `fit(ckpt_path=...)`; None if there is none."""
        path = None if self._checkpoints is None else self._checkpoints.newest()
        return None if path is None else str(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.watch.__enter__()  # now, since Lightning has set its own by then
        if not agreed(self.budget.step()):
            trainer.should_stop = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.scale = agreed(self.plan.scale(self.budget))
        for optimizer in trainer.optimizers:
            set_rates(optimizer, self.scale)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._expect_validation(trainer)
        due = self._checkpoints is not None and time.monotonic() - self._saved >= self._every
        ending = self.watch.end
        go = not ending and self.budget.step()
        go, ending, due = agreed((go, ending or self.budget.stopped, due or self.watch.any))
        if due or ending:
            self._save(trainer)
        if ending:
            raise Interrupted(ending)
        if not go:
            trainer.should_stop = True

    def _expect_validation(self, trainer: Trainer) -> None:
        """Before the first validation: assume that its batches take as long as training batches."""
        if self.budget.times and not self.budget.kept("evaluation") and trainer.enable_validation:
            batches = sum(number for number in trainer.num_val_batches if number != float("inf"))
            self.budget.keep("evaluation", batches * self.budget.times.typical)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validating = self.budget.clock.now()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        took = self.budget.clock.now() - self._validating
        if trainer.sanity_checking:
            seen, whole = sum(trainer.num_sanity_val_batches), sum(trainer.num_val_batches)
            self.budget.keep("evaluation", took * whole / max(1, seen))
        else:
            self.budget.spent(took, "evaluation")

    def _save(self, trainer: Trainer) -> None:
        if self._checkpoints is not None:
            with self.budget.aside():
                if trainer.is_global_zero:
                    self._checkpoints.write_by(trainer.save_checkpoint)
                else:
                    trainer.save_checkpoint(self._checkpoints.directory / "unused")  # all take part, the first writes
        self._saved = time.monotonic()
        self.watch.saved()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.watch.__exit__(None, None, None)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.watch.__exit__(None, None, None)

    def state_dict(self) -> dict[str, Any]:
        return {"budget": self.budget.state(), "plan": self.plan.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.budget.load_state(state_dict["budget"])
        self.plan.load_state(state_dict["plan"])
