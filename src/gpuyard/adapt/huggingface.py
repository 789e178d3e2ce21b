"""A budget for the Trainer of Hugging Face's transformers.

from gpuyard.adapt.huggingface import BudgetCallback

trainer = Trainer(model, args, train_dataset=data, callbacks=[BudgetCallback(Budget.from_environment())])
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.rates import RatePlan
from gpuyard.adapt.signals import Interrupted, Signals
from gpuyard.adapt.torchrates import agreed, set_rates
from gpuyard.errors import UserError
from gpuyard.files import replace_file

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise UserError("this needs Hugging Face's Trainer: pip install transformers accelerate") from error

_FILE = "gpuyard_budget.json"  # beside what the Trainer puts into a checkpoint


class BudgetCallback(TrainerCallback):
    """Ends a training in time; sets the learning rate; on SIGTERM and SIGUSR1 has the Trainer write a checkpoint.

    After SIGTERM `Interrupted` is raised once the checkpoint is written, which ends the process with code 75. With
    `save_at_end` the Trainer writes one as well when the time is over.
    """

    def __init__(self, budget: Budget, plan: RatePlan | None = None, *, save_at_end: bool = False) -> None:
        self.budget, self.plan, self.watch, self._save_at_end = budget, plan or RatePlan(), Signals(), save_at_end
        self.scale = 1.0  # the part of the full rate that holds now
        self._mark, self._ending = 0.0, ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        file = _beside(args, state) / _FILE
        if state.global_step and file.exists():
            found = json.loads(file.read_text())
            self.budget.load_state(found["budget"])
            self.plan.load_state(found["plan"])
        self._ending = ""
        self.watch.__enter__()
        if not agreed(self.budget.step()):
            control.should_training_stop = True

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.scale = agreed(self.plan.scale(self.budget))
        set_rates(kwargs["optimizer"], self.scale)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        ending = self.watch.end
        go = not ending and self.budget.step()
        go, self._ending, asked = agreed((go, ending or self.budget.stopped, self.watch.any))
        if not go or self._ending:
            control.should_training_stop = True
        if asked or self._ending or (not go and self._save_at_end):
            control.should_save = True
            self.watch.saved()
        self._mark = self.budget.clock.now()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._mark = self.budget.clock.now()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._aside("evaluation")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._aside("checkpoint" if self._save_at_end else "")
        if not state.is_world_process_zero:
            return
        state_now = json.dumps({"budget": self.budget.state(), "plan": self.plan.state()})
        replace_file(_beside(args, state) / _FILE, state_now.encode())

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if logs and "learning_rate" in logs:  # the Trainer tells its own plan's, which does not hold
            logs["learning_rate"] = args.learning_rate * self.scale

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.watch.__exit__(None, None, None)
        if self._ending:
            raise Interrupted(self._ending)

    def _aside(self, name: str) -> None:
        """Count the time since the last step as no part of the next."""
        now = self.budget.clock.now()
        self.budget.spent(now - self._mark, name)
        self._mark = now


def _beside(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
