"""`ordered` makes a planner of a policy, a discipline and a placement.

For more (elastic sizes, auctions) write a class with the two methods of `plan.Planner`; the engine validates every
plan.
"""

from __future__ import annotations

from dataclasses import replace

from gpuyard.core.colocation import considerate
from gpuyard.core.disciplines import DISCIPLINE_FUNCTIONS
from gpuyard.core.draft import Draft
from gpuyard.core.explanation import explain
from gpuyard.core.limits.gates import Gates, gated
from gpuyard.core.limits.reservations import in_the_way, next_change, restricted
from gpuyard.core.loops.placement import fits
from gpuyard.core.loops.pool import RANDOM, Demand, Site, salted
from gpuyard.core.model import Cluster, Request, suits
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.policy import CONSIDERATE, PLACEMENTS, Policy, check_discipline, check_placement
from gpuyard.core.preemption import preempt, reclaim
from gpuyard.core.state import State
from gpuyard.core.usage.overcommit import admit
from gpuyard.errors import UserError
from gpuyard.units import format_size


def ordered(policy: Policy, discipline: str | None = None, placement: str = "first") -> OrderedPlanner:
    """A planner from a policy; its default discipline is `skip` if it preempts, else `strict`."""
    check_discipline(discipline)
    check_placement(placement)
    return OrderedPlanner(policy, discipline or ("skip" if policy.preemptive else "strict"), placement)


class OrderedPlanner:
    """Rank the queue by a policy, let a discipline choose from it, and place what may start."""

    def __init__(self, policy: Policy, discipline: str, placement: str) -> None:
        if policy.preemptive and discipline not in ("strict", "skip"):
            raise UserError(
                f"policy {policy.name} preempts, so its discipline is skip or strict, not {discipline}: "
                "a reservation means nothing where a running job can be stopped"
            )
        if policy.sliced and policy.quantum <= 0:
            raise UserError(f"policy {policy.name} needs a time slice above 0; give --quantum in seconds")
        self.policy = policy
        self.discipline = discipline
        self.placement = placement
        self.code = PLACEMENTS[placement]
        # Only these decide anything while no GPU is idle: they stop jobs, or choose the next head.
        self._needs_idle = not (policy.preemptive or self.stepwise)
        self._refusals: dict[tuple[object, ...], str | None] = {}
        self._refused_on: Cluster | None = None

    @property
    def text(self) -> str:
        return f"{self.policy.text}@{self.discipline}@{self.placement}"

    @property
    def stepwise(self) -> bool:
        """Whether events of one instant are taken one at a time, arrivals first (RLScheduler's way)."""
        return self.discipline in ("commit", "easy-shadow")

    def plan(self, snapshot: Snapshot) -> Plan:
        state, now = snapshot.state, snapshot.now
        if not len(state.waiting) and not state.bookings:
            return Plan()
        gates = Gates(state, now) if gated(state, now) else None
        draft = self._draft(snapshot if gates is None else replace(snapshot, may=gates.may))
        while gates is not None and gates.too_many([row for row, _ in draft.found]):
            draft = self._draft(replace(snapshot, may=gates.may))
        plan = draft.plan
        if gates is not None:
            plan.wake_at = min(plan.wake_at, gates.wake_at)
        if state.bookings:
            plan.stops += [state.ids[row] for row in in_the_way(state, now) if row not in draft.victims]
            plan.wake_at = min(plan.wake_at, next_change(state, now))
        reasons = "skip" if self.policy.preemptive else self.discipline
        refused = admit(draft, snapshot.usage, reasons, gates) if snapshot.usage is not None else {}
        version = state.version
        plan.explain = lambda: explain(draft, reasons, version, refused) | (gates.reasons() if gates else {})
        return plan

    def _draft(self, snapshot: Snapshot) -> Draft:
        state = snapshot.state
        limits = restricted(state, snapshot.now) if state.bookings else None
        if self.placement != CONSIDERATE or not state.harms:
            return self._draft_with(snapshot, limits)
        discipline = "skip" if self.policy.preemptive else self.discipline
        return considerate(state, limits, lambda demand: self._draft_with(snapshot, demand), discipline)

    def _draft_with(self, snapshot: Snapshot, restricted_to: Demand | None) -> Draft:
        state = snapshot.state
        salt = salted(state.seed, state.starts) if self.code == RANDOM else 0
        draft = Draft(snapshot, self.policy, self.code, salt, restricted_to)
        if not len(snapshot.waiting):
            return draft
        if self.policy.preemptive:
            preempt(draft, stop=self.discipline == "strict")
        elif not self._needs_idle or draft.fine or state.pool.idle.any():
            DISCIPLINE_FUNCTIONS[self.discipline](draft)
        draft.finish()
        if state.rules is not None and not self.policy.preemptive:
            reclaim(draft, keeps_idle=self.discipline != "skip")
        return draft

    def refuses(self, state: State, request: Request) -> str | None:
        """Why a request can never run on this cluster under this placement; None if it can."""
        key = (
            request.gpus, request.memory, request.compute, request.scope,
            request.cpus, request.host_memory, request.gpu_types, request.parts,
        )  # fmt: skip
        if state.cluster is not self._refused_on:  # nodes came or went: others may fit now
            self._refusals, self._refused_on = {}, state.cluster
        if key not in self._refusals:
            self._refusals[key] = never_fits(state.cluster, request, self.code, self.placement)
        return self._refusals[key]


def never_fits(cluster: Cluster, request: Request, code: int, placement: str) -> str | None:
    """Why a request would not even fit on the empty cluster; None if it would."""
    wants = f"wants {request.gpus} GPU{'s' if request.gpus > 1 else ''}"
    least = max(request.parts) if request.parts and not request.whole else request.gpus  # parts may share a GPU
    if least > cluster.gpus:
        return f"{wants}, the cluster has {cluster.gpus}"
    if request.memory > cluster.most_memory:
        return f"wants {format_size(request.memory)} on each GPU, a GPU has {format_size(cluster.most_memory)}"
    if outside := [g for g in request.scope if not 0 <= g < cluster.gpus]:
        return f"wants GPU {outside[0]}, the cluster has GPUs 0 to {cluster.gpus - 1}"
    if request.scope and least > len(request.scope):
        return f"{wants}, and `from` names {len(request.scope)}"
    if cluster.gpu_memory and (few := _large_enough(cluster, request)) < least:
        return f"wants {format_size(request.memory)} on each of {request.gpus} GPUs, and {few} of those have as much"
    picky = request.scope or request.cpus or request.host_memory or request.gpu_types or request.parts
    if request.gpus <= max(cluster.nodes) and not picky and not cluster.gpu_memory:
        return None  # every placement puts it on the largest node, if nowhere else
    empty = State(cluster)
    row = empty.table.add(0.0, request, 0)
    parts = {row: request.parts} if request.parts else None
    if fits(Site(empty.table.demand, empty.pool, code, 0, True, parts=parts), row):
        return None
    return _lacking(cluster, request, wants) or (
        f"{wants}, which placement {placement} never puts on nodes of {max(cluster.nodes)}"
    )


def _large_enough(cluster: Cluster, request: Request) -> int:
    return sum(cluster.gpu_memory[gpu] >= request.memory for gpu in request.scope or range(cluster.gpus))


def _lacking(cluster: Cluster, request: Request, wants: str) -> str | None:
    if request.gpu_types and cluster.models:
        suited = suits(request.gpu_types, [model.casefold() for model in cluster.models])
        gpus = sum(size for size, right in zip(cluster.nodes, suited, strict=True) if right)
        if gpus < request.gpus:
            return f"wants {request.gpus} of {request.gpu_types}, the cluster has {gpus}"
    if cluster.cpus and all(cluster.cpus) and request.cpus > max(cluster.cpus):
        return f"wants {request.cpus:g} CPUs, no node has more than {max(cluster.cpus):g}"
    if cluster.host_memory and all(cluster.host_memory) and request.host_memory > max(cluster.host_memory):
        most = format_size(max(cluster.host_memory))
        return f"wants {format_size(request.host_memory)} of host memory, no node has more than {most}"
    if (request.cpus and any(cluster.cpus)) or (request.host_memory and any(cluster.host_memory)):
        memory = format_size(request.host_memory)
        return f"{wants}, {request.cpus:g} CPUs and {memory} of host memory together, no node has that"
    return None
