"""What a former life of the daemon left in the log that matters to the next one."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.config import Settings
from gpuyard.core.events import Opened, PolicySet
from gpuyard.core.model import Cluster, Rules
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.policy import LEARNED, parse_spec
from gpuyard.core.state import State
from gpuyard.daemon.journal import Record
from gpuyard.daemon.serving import configured, details_of, forced_hash, served
from gpuyard.daemon.store import Store
from gpuyard.errors import UserError
from gpuyard.policyfile import make_planner

if TYPE_CHECKING:
    from gpuyard.daemon.yard import Yard

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


class Configured(NamedTuple):
    """The policy that the settings ask for, or what stands in for it."""

    planner: OrderedPlanner
    in_place_of: str = ""
    """The one that cannot be used; empty: it can."""
    because: str = ""

    def details(self) -> dict[str, Any]:
        """What the log is to keep of it besides its text."""
        other = {"in_place_of": self.in_place_of, "because": self.because} if self.in_place_of else {}
        return {"configured": True, **other, **details_of(self.planner)}


def configured_policy(store: Store, settings: Settings) -> Configured:
    """The policy that the settings ask for; if it decided before and cannot any more, the queue goes on without it."""
    before = next((record for record in store.latest("PolicySet") if record.details.get("configured")), None)
    try:
        return Configured(configured(settings, forced_before=forced_hash(before.details) if before else ""))
    except UserError as error:
        if before is None or not isinstance(before.event, PolicySet):
            raise
        wanted = before.details.get("in_place_of") or before.event.policy
        spec = parse_spec(wanted)
        if not spec.name.startswith(LEARNED) or spec.name != parse_spec(settings.policy).name:
            raise  # it has never decided here: rather a mistake than an accident
        base = (before.details.get("learned") or {}).get("base")
        text = f"{base}@{spec.discipline}@{spec.placement}" if base else before.event.policy
        log.warning("policy %s cannot be used any more; going on with %s: %s", wanted, text, error)
        return Configured(make_planner(text), wanted, str(error))


def take_up_policy(yard: Yard, now: float) -> None:
    """Plan by the policy that people chose since the configured one was last changed; else by that one."""
    found, latest = yard.planning.configured, None
    for record in yard.store.latest("PolicySet"):
        latest = latest or record
        if record.details.get("configured") and isinstance(record.event, PolicySet):
            before = record.details.get("in_place_of") or record.event.policy
            if before == (found.in_place_of or found.planner.text):
                if latest is not record and _chosen(yard, latest, now):
                    return
                if latest is record and record.event.policy == found.planner.text and _same(found.planner, record):
                    return
            break
    yard.record(PolicySet(now, found.planner.text), **found.details())


def _chosen(yard: Yard, record: Record, now: float) -> bool:
    """Take up a policy that somebody chose; False if it cannot be used any more."""
    assert isinstance(record.event, PolicySet)
    text = record.event.policy
    try:
        planner = served(text, forced_before=forced_hash(record.details), limit=yard.settings.learned_limit)
    except UserError as error:  # its file is gone, say: the queue must go on
        log.warning("policy %s cannot be used any more; going on with the configured one: %s", text, error)
        yard.planning.trouble = f"policy {text} cannot be used any more, so {yard.planner.text} decides: {error}"
        return False
    yard.planning.planner = planner
    if not _same(planner, record):
        log.warning("the file of policy %s has changed since it was set", text)
        yard.record(PolicySet(now, planner.text), because="its file has changed", **details_of(planner))
    return True


def _same(planner: OrderedPlanner, record: Record) -> bool:
    """Whether what was loaded is what the log says."""
    return details_of(planner).get("learned") == record.details.get("learned")


def rules_to_set(state: State, settings: Settings) -> Rules | None:
    """The rules to share by, if the settings say otherwise than the log; quotas and shares stay as they were set."""
    former = state.rules or Rules()
    rules = replace(former, half_life=settings.half_life or math.inf, preempts=settings.preempt)
    return rules if rules != state.rules else None
