"""Who is evicted, and for whom: by a plan, or because a GPU is crowded; and who could not be.

Evicting takes as long as a pod needs to end. So who is to run in its place is promised the GPUs, and started when these
are free (`core.promises`). An eviction that a disruption budget does not allow takes the promise back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gpuyard.core.events import Edited, Promised, Recalled, Spared, Unpromised
from gpuyard.core.model import Phase
from gpuyard.core.plan import Plan, Start
from gpuyard.kubernetes.calls import about
from gpuyard.kubernetes.pods import Pod

if TYPE_CHECKING:
    from gpuyard.kubernetes.scheduler import Scheduler

log = logging.getLogger("gpuyard.kubernetes")
_SPARED = 60.0  # seconds for which a pod that could not be evicted is left alone


class Evictions:
    """Evictions that are under way, and those that were refused."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._heirs: dict[str, str] = {}
        """Pods that are being evicted, and for which job."""
        self._spared: dict[str, float] = {}
        """Pods that are left alone, and until when."""

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._heirs.pop(uid, None)

    def evict(self, plan: Plan, later: list[Start], now: float) -> None:
        """Evict whom a plan stops, and promise their GPUs to those who follow."""
        world = self._scheduler.world
        state = world.state
        assert state is not None
        for start in later:
            world.record(Promised(now, start.job, start.gpus))
        for job in plan.stops:
            pod, row = world.pods.get(world.uid_of.get(job, "")), state.row_of[job]
            if pod is None or state.phase[row] is not Phase.RUNNING:
                continue
            spot = set(state.spot[row].tolist())
            heir = next((start.job for start in later if not spot.isdisjoint(start.gpus)), "")
            world.record(Recalled(now, job, state.attempt[row], "preempted"))
            self._send_away(pod, f"evicted for {heir or 'others'}", heir)
            if (who := world.pods.get(world.uid_of.get(heir, ""))) is not None:
                self._scheduler.calls.nominate(who, pod.node)

    def relieve(self, pod: Pod, why: str, now: float) -> None:
        """Evict a pod that was given memory which others want now."""
        world = self._scheduler.world
        state, job = world.state, world.job_of.get(pod.uid)
        if state is None or job is None or state.row_of[job] in state.recalled or not self._scheduler.leads:
            return
        world.record(Recalled(now, job, state.attempt[state.row_of[job]], "crowded"))
        self._send_away(pod, why)

    def _send_away(self, pod: Pod, why: str, heir: str = "") -> None:
        self._heirs[pod.uid] = heir
        log.info("pod %s is %s", pod.key, why)
        calls, shadow = self._scheduler.calls, self._scheduler.shadow
        if shadow is not None:
            shadow.evicted(pod, why)
        calls.evict(pod, calls.event(about(pod), "Preempted", f"Preempted: {why}"))

    def refused(self, uid: str, now: float) -> None:
        """A pod stays: who was to have its GPUs waits like all others, and it is left alone for a time."""
        world, heir = self._scheduler.world, self._heirs.pop(uid, "")
        state, job = world.state, world.job_of.get(uid)
        if state is None or job is None:
            return
        row = state.row_of[job]
        if row in state.recalled:
            world.record(Spared(now, job, state.attempt[row]))
        world.protected.add(uid)
        self._spared[uid] = now + _SPARED
        self._tell_core(uid, now)
        if heir in state.row_of and state.row_of[heir] in state.promises:
            world.record(Unpromised(now, heir))

    def spare_no_longer(self, now: float) -> None:
        """Let pods be evicted again that were left alone for long enough."""
        for uid in [uid for uid, until in self._spared.items() if until <= now]:
            del self._spared[uid]
            self._scheduler.world.protected.discard(uid)
            self._tell_core(uid, now)

    def _tell_core(self, uid: str, now: float) -> None:
        """Let the core know whether a pod may be evicted."""
        world = self._scheduler.world
        request = world.request_of(uid)
        if request is not None:
            world.record(Edited(now, world.job_of[uid], request))
