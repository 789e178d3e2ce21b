"""What a former life of the daemon left in the log that matters to the next one."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from gpuyard.config import Settings
from gpuyard.core.events import Opened, PolicySet
from gpuyard.core.model import Cluster, Rules
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.daemon.store import Store
from gpuyard.errors import UserError
from gpuyard.policyfile import make_planner

log = logging.getLogger("gpuyard")


def check_gpus(store: Store, state: State, cluster: Cluster, gpus: tuple[str, ...]) -> None:
    """Refuse other GPUs than before while jobs run on those."""
    before = next((r.event for r in store.latest("Opened") if isinstance(r.event, Opened)), None)
    if before is None or not len(state.running) or (before.cluster == cluster and before.gpus == gpus):
        return
    jobs = ", ".join(state.ids[row] for row in state.running.array)
    raise UserError(
        f"job {jobs} still runs on GPUs that the daemon would not have now ({cluster.gpus} in all, before "
        f"{state.cluster.gpus}); start it with the former GPUs, or end the job first"
    )


def policy_in_force(store: Store, configured: str) -> OrderedPlanner | None:
    """The policy that people chose since the configured one was last changed; None where that one is to be set."""
    latest = ""
    for record in store.latest("PolicySet"):
        if not isinstance(record.event, PolicySet):
            continue
        latest = latest or record.event.policy
        if record.details.get("configured"):
            return _remade(latest) if record.event.policy == configured else None
    return None


def rules_to_set(state: State, settings: Settings) -> Rules | None:
    """The rules to share by, if the settings say otherwise than the log; quotas and shares stay as they were set."""
    former = state.rules or Rules()
    rules = replace(former, half_life=settings.half_life or math.inf, preempts=settings.preempt)
    return rules if rules != state.rules else None


def _remade(text: str) -> OrderedPlanner | None:
    try:
        return make_planner(text)
    except UserError as error:  # its file is gone, say: the queue must go on
        log.warning("policy %s cannot be used any more; going on with the configured one: %s", text, error)
        return None
