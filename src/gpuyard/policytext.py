"""What is written of policies that are in files, for whoever asks the daemon or shows its answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

LEARNED = "learned:"
"""Before the file that a trained policy is in, or the name of one that comes with gpuyard."""


def absolute(text: str) -> str:
    """The policy's text with the whole path of its file, if it has one: the daemon is somewhere else."""
    if text.strip().startswith(LEARNED):
        name, at, rest = text.strip().removeprefix(LEARNED).partition("@")
        return LEARNED + _whole(name) + at + rest
    path, ending, rest = text.partition(".py:")
    return os.path.abspath(os.path.expanduser(path)) + ending + rest if ending else text


def _whole(name: str) -> str:
    """A file's whole path; a bare word that is no file is the name of a policy that the daemon has."""
    path = os.path.expanduser(name)
    is_path = os.sep in path or path.endswith(".json") or os.path.isfile(path)
    return os.path.abspath(path) if name and is_path else name


def describe_gate(gate: Mapping[str, Any] | None) -> str:
    """How a trained policy fared against the best heuristic, in a few words."""
    if gate is None:
        return "nobody has evaluated it"
    found = "its gate is passed" if gate["passed"] else "its gate is not passed"
    if gate["ratio"] is None:
        return found
    bounds = ""
    if gate["ratio_low"] is not None and gate["ratio_high"] is not None:
        bounds = f", {gate['ratio_low']:.3g} to {gate['ratio_high']:.3g}"
    return f"{found} ({gate['ratio']:.3g} times {gate['best_heuristic'] or 'the best heuristic'}{bounds})"


def describe_learned(learned: Mapping[str, Any]) -> str:
    """What the daemon tells of the trained policy that decides, as a line."""
    base, fallbacks = learned["base"], {kind: n for kind, n in learned["fallbacks"].items() if n}
    plans = f"{learned['plans']:,} plan{'s' * (learned['plans'] != 1)}"
    if fallbacks:
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in fallbacks.items())
        plans += f", {sum(fallbacks.values()):,} of them by {base} ({kinds})"
    starved = learned["starved"]
    ahead = f"{starved:,} job{'s' * (starved != 1)} put ahead for having waited too long" if starved else ""
    parts = (
        f"{learned['hash']}, on top of {base}",
        describe_gate(learned["gate"]) + (", and it was forced" if learned["forced"] else ""),
        plans,
        ahead,
    )
    return "; ".join(part for part in parts if part)
