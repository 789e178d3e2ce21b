"""A trained policy where it counts: only one that passed its gate, and only while what it says can be trusted.

Each time the queue is ranked, the base heuristic ranks it instead, exactly as it would by itself, if

- a score is not a finite number (`not-a-number`);
- the queue is far from what the policy was trained on (`unusual`). A feature is far if it is outside of the range that
  it had in training by more than a quarter of that range, and by more than 0.1 (most features are between 0 and 1). One
  that is the same for all waiting jobs counts for all of them; of those that differ between jobs, it takes more than
  a tenth of the jobs: a single odd job cannot do much harm, since no job starves;
- recent rankings took too long (`late`): then it is not tried for a second, and for twice as long each time that it is
  too late again, up to ten minutes.

One decision holds for an instant: a plan never goes by both. The simulator and training use the policy without this.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gpuyard.config import Settings
from gpuyard.core.columns import COLUMNS
from gpuyard.core.loops.formulas import ENDLESS
from gpuyard.core.loops.pool import Floats, Ints
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import LEARNED, Policy, parse_spec
from gpuyard.core.state import State
from gpuyard.errors import UserError
from gpuyard.policies import features
from gpuyard.policies.network import ALL_FEATURES, JOB_FEATURES, score_queue, starves
from gpuyard.policies.resolver import make_planner
from gpuyard.policies.trained_policy import Learned, load
from gpuyard.spec.notation import describe_gate

log = logging.getLogger("gpuyard")

NOT_A_NUMBER, UNUSUAL, LATE = KINDS = ("not-a-number", "unusual", "late")
"""Why a queue was ranked by the base heuristic."""
LIMIT = 0.05  # seconds that a ranking may take
MARGIN, LEAST_MARGIN = 0.25, 0.1
"""How far outside of its range in training a feature may be: a part of that range, and this much in any case."""
SHARE = 0.1  # the part of the jobs that may be unusual
REST, LONGEST_REST = 1.0, 600.0
"""Seconds for which nothing is tried after a ranking that was late: the first time, and at most."""
DIGITS = 12  # of its hash, which tell one policy from another
_LARGE = 2**23  # bytes
_MANY = 10_000  # jobs that were put ahead: then those that are gone are forgotten

_WHY = {
    NOT_A_NUMBER: "it gave a score that is no finite number",
    UNUSUAL: "the queue is far from what it was trained on",
    LATE: "it took longer than {limit:g} s to rank the queue",
}


class NotPassed(UserError):
    """This trained policy was not shown to be better than the best heuristic."""


@dataclass(slots=True)
class Counts:
    plans: int = 0  # instants for which the queue was ranked, to plan or to tell why jobs wait
    fallbacks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    """How many of them were ranked by the base heuristic, by kind."""
    starved: int = 0  # jobs that were put ahead since they had waited too long, each once

    def add(self, other: Counts) -> None:
        self.plans += other.plans
        self.starved += other.starved
        for kind, count in other.fallbacks.items():
            self.fallbacks[kind] += count


class Guard:
    """Ranks by the network where it can be trusted, by the base heuristic elsewhere, and counts."""

    def __init__(
        self, name: str, learned: Learned, clock: Callable[[], float], *, limit: float = LIMIT, forced: bool = False
    ) -> None:
        if len(learned.low) != ALL_FEATURES or len(learned.high) != ALL_FEATURES:
            raise UserError(f"{name} does not say what it was trained on: train it anew with gpuyard learn train")
        self.name, self.learned, self.forced = name, learned, forced
        self.hash = learned.hash[:DIGITS]
        self.counts = Counts()
        self._clock, self._limit = clock, limit or math.inf
        self._base = POLICIES[learned.network.base]
        self._weights = learned.network.weights
        margin = np.maximum(MARGIN * (learned.high - learned.low), LEAST_MARGIN)
        self._low, self._high = learned.low - margin, learned.high + margin
        self._instant: tuple[int, float] | None = None
        self._kind = ""  # why the base heuristic ranks at this instant; empty: it does not
        self._rest, self._until = REST, -math.inf
        self._starving: set[str] = set()
        self._logged: set[str] = set()
        # After each ranking glibc gives what it took back to the system, and to fetch it again takes longer than the
        # network does; not so once something larger has been given back.
        np.empty(_LARGE, dtype=np.uint8)

    def rank(self, state: State, rows: Ints, now: float) -> Floats:
        if (state.version, now) != self._instant:
            self._instant, self._kind = (state.version, now), ""
            self.counts.plans += 1
            if self._clock() < self._until:
                self._fall_back(LATE)
        if not self._kind and len(rows):
            began = self._clock()
            scores, kind = self._scored(state, rows, now)
            kind = kind or self._lateness(began)
            if not kind:
                return scores
            self._fall_back(kind)
        return self._base.rank(state, rows, now)

    def _scored(self, state: State, rows: Ints, now: float) -> tuple[Floats, str]:
        values = [COLUMNS[name].values(state, rows, now) for name in features.COLUMNS]
        with np.errstate(all="ignore"):
            found = features.features(*values)
            scores = score_queue(values, found, self._weights)
            if not np.isfinite(scores).all():
                return scores, NOT_A_NUMBER
            if self._is_unusual(np.array(found)):
                return scores, UNUSUAL
        self._count_starving(state, rows, dict(zip(features.COLUMNS, values, strict=True)))
        return scores, ""

    def _is_unusual(self, found: Floats) -> bool:
        of_all = found[JOB_FEATURES:, 0]
        if ((of_all < self._low[JOB_FEATURES:]) | (of_all > self._high[JOB_FEATURES:])).any():
            return True
        own = found[:JOB_FEATURES]
        far = (own < self._low[:JOB_FEATURES, None]) | (own > self._high[:JOB_FEATURES, None])
        return bool(np.count_nonzero(far.any(axis=0)) > SHARE * far.shape[1])

    def _lateness(self, began: float) -> str:
        """Whether a ranking took too long; then there is none for a while."""
        ended = self._clock()
        if ended - began <= self._limit:
            self._rest = REST
            return ""
        self._until = ended + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)
        return LATE

    def _fall_back(self, kind: str) -> None:
        """Let the base heuristic rank at this instant; log it the first time."""
        self._kind = kind
        self.counts.fallbacks[kind] += 1
        if kind not in self._logged:
            self._logged.add(kind)
            why = _WHY[kind].format(limit=self._limit)
            log.warning(
                "policy %s is not used for now: %s; %s ranks the queue (this is told once, and counted)",
                self.name, why, self._base.name,
            )  # fmt: skip

    def _count_starving(self, state: State, rows: Ints, of: Mapping[str, Floats]) -> None:
        length = np.minimum(of["estimate"], ENDLESS)
        bound = self.learned.network.starvation
        starving = starves(length, of["wait"], of["opening"], of["queue_work"], of["capacity"], bound)
        if not starving.any():
            return
        new = {state.ids[row] for row in rows[starving].tolist()} - self._starving
        self.counts.starved += len(new)
        self._starving |= new
        if len(self._starving) > _MANY:
            self._starving = {job for job in self._starving if job in state.row_of}

    def report(self) -> dict[str, Any]:
        return {
            "file": self.name.removeprefix(LEARNED),
            "hash": self.hash,
            "base": self._base.name,
            "forced": self.forced,
            "gate": gate_of(self.learned),
            "plans": self.counts.plans,
            "fallbacks": dict(self.counts.fallbacks),
            "starved": self.counts.starved,
        }

    def details(self) -> dict[str, Any]:
        return {"hash": self.hash, "base": self._base.name, "forced": self.forced}


@dataclass(frozen=True, slots=True)
class Guarded(Policy):
    guard: Guard = field(kw_only=True)

    def rank(self, state: State, rows: Ints, now: float) -> Floats:
        return self.guard.rank(state, rows, now)


def guarded(
    name: str, learned: Learned, clock: Callable[[], float], *, limit: float = LIMIT, forced: bool = False
) -> Guarded:
    """The policy with a guard of its own; `limit`: seconds that a ranking may take, 0: no limit."""
    policy = learned.policy(name)
    guard = Guard(name, learned, clock, limit=limit, forced=forced)
    return Guarded(**{one.name: getattr(policy, one.name) for one in fields(Policy)}, guard=guard)


def check_gate(name: str, learned: Learned) -> None:
    """Refuse a policy that was not shown to be better than the best heuristic."""
    if learned.deployable:
        return
    file, gate = name.removeprefix(LEARNED), gate_of(learned)
    why = describe_gate(gate)
    if gate is not None and gate["reasons"]:
        why += f": {'; '.join(gate['reasons'])}"
    raise NotPassed(
        f"{name} may not decide, since {why}. gpuyard learn evaluate {file} TRACE --record judges it; with --force "
        "(in the API force: true) it decides all the same"
    )


def gate_of(learned: Learned) -> dict[str, Any] | None:
    """The held-out evaluation, as far as users see it; None: there was none."""
    gate = learned.gate
    if not gate:
        return None
    numbers = ("ratio", "ratio_low", "ratio_high", "mean_ratio", "p99_ratio")
    best, reasons = gate.get("best_heuristic"), gate.get("reasons")
    return {
        "passed": learned.deployable,
        **{key: _number(gate.get(key)) for key in numbers},
        "best_heuristic": best if isinstance(best, str) else None,
        "reasons": [str(reason) for reason in reasons] if isinstance(reasons, list) else [],
    }


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def serve_policy(
    text: str,
    *,
    discipline: str | None = None,
    placement: str = "first",
    lenient: bool = False,
    force: bool = False,
    forced_before: str = "",
    limit: float = LIMIT,
) -> OrderedPlanner:
    """A planner for a live queue: a trained policy must have passed its gate, or be forced, and is guarded.

    With `lenient`, `discipline` is the current one and not a choice of the user, so a trained policy has the one that
    it was trained for. `forced_before` is the hash of a policy that a user forced.
    """
    spec = parse_spec(text)
    if not spec.name.startswith(LEARNED):
        return make_planner(text, discipline=discipline, placement=placement, lenient=lenient)
    learned = load(spec.name.removeprefix(LEARNED))
    forced = not learned.deployable and (force or learned.hash[:DIGITS] == forced_before)
    if not forced:
        check_gate(spec.name, learned)
    policy = guarded(spec.name, learned, time.perf_counter, limit=limit, forced=forced)
    usual = (policy.discipline or discipline) if lenient else (discipline or policy.discipline)
    return ordered(policy, spec.discipline or usual or None, spec.placement or placement)


def policy_of_settings(settings: Settings, **how: Any) -> OrderedPlanner:
    return serve_policy(
        settings.policy,
        discipline=settings.discipline or "easy",
        placement=settings.placement,
        lenient=not settings.discipline,
        force=settings.force_policy,
        limit=settings.learned_limit,
        **how,
    )


def guard_of(planner: OrderedPlanner) -> Guard | None:
    return planner.policy.guard if isinstance(planner.policy, Guarded) else None


def details_of(planner: OrderedPlanner) -> dict[str, Any]:
    guard = guard_of(planner)
    return {} if guard is None else {"learned": guard.details()}


def forced_hash(details: Mapping[str, Any]) -> str:
    """The hash of the policy that was forced, by what the log kept of it; empty: it was not."""
    learned = details.get("learned") or {}
    return str(learned.get("hash", "")) if learned.get("forced") else ""
