"""Trained policies in a daemon: which may decide, and what is remembered of them.

What was loaded decides until another policy is set, whatever becomes of its file. A daemon that restarts reads the file
again: a forced policy stays so for as long as the file has the same hash.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpuyard.config import Settings
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policy import LEARNED, parse_spec
from gpuyard.policies.guard import DIGITS, LIMIT, Guard, Guarded, check_gate, guarded
from gpuyard.policies.resolver import make_planner
from gpuyard.policies.trained_policy import load


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
