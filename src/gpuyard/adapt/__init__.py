"""Growing a network within the time that the scheduler grants.

from gpuyard import adapt

budget = adapt.Budget.from_environment()              # the job's --time, and what the scheduler grants later
trainer = adapt.BudgetedTrainer(model, (x, y), (x_val, y_val), budget, decider=adapt.make_decider("cost-rule"))
print(trainer.fit().accuracy)

Nothing here imports torch before something is used that needs it: budgets, clocks, rate plans and deciders do without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard.adapt.budget import Budget as Budget
    from gpuyard.adapt.clocks import CpuClock as CpuClock
    from gpuyard.adapt.clocks import VirtualClock as VirtualClock
    from gpuyard.adapt.clocks import WallClock as WallClock
    from gpuyard.adapt.deciders import make_decider as make_decider
    from gpuyard.adapt.decisions import Asking as Asking
    from gpuyard.adapt.decisions import Decision as Decision
    from gpuyard.adapt.decisions import Situation as Situation
    from gpuyard.adapt.ops import deepen as deepen
    from gpuyard.adapt.ops import growth_log as growth_log
    from gpuyard.adapt.ops import rebuild as rebuild
    from gpuyard.adapt.ops import rollback as rollback
    from gpuyard.adapt.ops import sites as sites
    from gpuyard.adapt.ops import widen as widen
    from gpuyard.adapt.rates import RatePlan as RatePlan
    from gpuyard.adapt.signals import Interrupted as Interrupted
    from gpuyard.adapt.training.trainer import BudgetedTrainer as BudgetedTrainer

_WHERE = {
    "Asking": "decisions", "Budget": "budget", "BudgetedTrainer": "training.trainer", "CpuClock": "clocks",
    "Decision": "decisions",
    "Interrupted": "signals", "RatePlan": "rates", "Situation": "decisions", "VirtualClock": "clocks",
    "WallClock": "clocks", "deepen": "ops", "growth_log": "ops", "make_decider": "deciders", "rebuild": "ops",
    "rollback": "ops", "sites": "ops", "widen": "ops",
}  # fmt: skip


__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
