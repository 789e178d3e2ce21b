"""What of a state is carried over into another one, when the nodes of a cluster have changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuyard.core.events import Promised, Recalled, RulesSet
from gpuyard.core.model import Phase, Rules
from gpuyard.core.state import State
from gpuyard.core.transitions import apply

if TYPE_CHECKING:
    from gpuyard.kubernetes.world import World

Place = tuple[str, int]
"""A node, and the index of a GPU there."""


@dataclass(frozen=True, slots=True)
class Former:
    """What namespaces have had, who is being evicted, and what is kept for whom; pods and nodes tell the rest."""

    state: State | None
    recalled: frozenset[str] = frozenset()
    """Pods that are being evicted."""
    promised: dict[str, list[Place]] = field(default_factory=dict)
    """GPUs that are kept for pods."""

    @classmethod
    def of(cls, world: World) -> Former:
        """What is to be carried over."""
        state, uid_of, layout = world.state, world.uid_of, world.layout
        if state is None:
            return cls(None)
        promised = dict[str, list[Place]]()
        for row, gpus in state.promises.items():
            if (uid := uid_of.get(state.ids[row])) is not None:
                places = [layout.where(gpu) for gpu in gpus]
                promised[uid] = [(layout.nodes[n].name, index) for n, index in places]
        return cls(state, frozenset(uid_of.get(state.ids[row], "") for row in state.recalled), promised)

    def carry_over(self, state: State, rules: Rules, now: float) -> None:
        """Let a new state know what namespaces have had."""
        former = self.state
        if former is not None:
            state.user_of, state.used = former.user_of, former.used
            state.last_finish, state.group_of = former.last_finish, former.group_of
        apply(state, RulesSet(now, rules))
        if former is not None:
            state.ledger = former.ledger

    def renew(self, world: World, now: float) -> None:
        """Once all pods are in the new state: remember who is being evicted, and promise again what was promised."""
        state = world.state
        if state is None:
            return
        for uid in self.recalled & set(world.job_of):
            job = world.job_of[uid]
            if world.holds(job) and state.row_of[job] not in state.recalled:
                world.record(Recalled(now, job, state.attempt[state.row_of[job]], "preempted"))
        for uid, places in {**_nominated(world, state), **self.promised}.items():
            gpus = [world.layout.gpus(node, [index]) for node, index in places]
            job = world.job_of.get(uid, "")
            if job in state.row_of and state.phase[state.row_of[job]] is Phase.QUEUED and None not in gpus:
                world.record(Promised(now, job, tuple(gpu[0] for gpu in gpus if gpu)))


def _nominated(world: World, state: State) -> dict[str, list[Place]]:
    """GPUs that others are leaving for pods, as a leader before us wrote on those: nobody else need be evicted."""
    waiting = [pod for pod in world.pods.values() if pod.nominated and pod.waits and pod.uid in world.job_of]
    found = dict[str, list[Place]]()
    for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.created)):
        n = world.layout.number.get(pod.nominated)
        ending = {i for one in world.pods.values() if one.deleting and one.node == pod.nominated for i in one.indices}
        if n is None or not ending:
            continue
        idle = {gpu - world.layout.first[n] for gpu in world.layout.all_of(n) if state.pool.tenants[gpu] == 0}
        taken = {index for places in found.values() for node, index in places if node == pod.nominated}
        left = [index for index in (*sorted(ending), *sorted(idle)) if index not in taken]
        if len(left) >= pod.gpus:
            found[pod.uid] = [(pod.nominated, index) for index in left[: pod.gpus]]
    return found
