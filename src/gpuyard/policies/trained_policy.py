"""Trained policies as files: weights, training data, held-out results and a hash."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.core.loops.pool import Floats
from gpuyard.core.policy import LEARNED, Policy
from gpuyard.errors import UserError, suggest
from gpuyard.files import content_hash, write_hashed
from gpuyard.policies import features
from gpuyard.policies.network import Network

FORMAT = "gpuyard-policy"
LARGEST = 10_000_000  # bytes that a file may have; those of the largest networks are far smaller
_REQUIRED = (
    "format", "features", "base", "hidden", "starvation", "parameters", "low", "high", "discipline", "training", "gate",
    "hash",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Learned:
    network: Network
    low: Floats
    high: Floats  # between which values each feature was, nearly always, in training
    discipline: str
    training: dict[str, Any]  # what it was trained on, and how; no times, so that the same training gives the same file
    gate: dict[str, Any] = field(default_factory=dict)
    """Its held-out results against the best heuristic; empty: not evaluated."""

    @property
    def deployable(self) -> bool:
        return bool(self.gate.get("passed"))

    def policy(self, source: str) -> Policy:
        return self.network.policy(source, self.discipline)

    def facts(self) -> dict[str, Any]:
        network = self.network
        return {
            "format": FORMAT,
            "features": features.VERSION,
            "base": network.base,
            "hidden": network.hidden,
            "starvation": network.starvation,
            "parameters": network.parameters.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "discipline": self.discipline,
            "training": self.training,
            "gate": self.gate,
        }

    @property
    def hash(self) -> str:
        return content_hash(self.facts())

    def with_gate(self, gate: dict[str, Any]) -> Learned:
        return replace(self, gate=gate)

    def save(self, path: Path) -> None:
        write_hashed(path, self.facts(), indent=1)


def load(name: str) -> Learned:
    try:
        path = _find(name)
        if path.stat().st_size > LARGEST:  # a daemon must not choke on it
            raise UserError(f"{name} is too large to be a trained policy; name another file")
        text = path.read_text()
    except (UnicodeDecodeError, OSError, RuntimeError) as error:  # the last: no such user's home
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read: {why}") from None
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{name} is damaged, or no trained policy: {_advice()}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise UserError(f"{name} is no trained policy of gpuyard; gpuyard learn train makes one")
    if facts.get("features") != features.VERSION:
        raise UserError(
            f"{name} was trained on version {facts.get('features')} of the features, and this gpuyard has "
            f"version {features.VERSION}: {_advice()}"
        )
    if facts.pop("hash", None) != content_hash(facts) or any(key not in facts for key in _REQUIRED[:-1]):
        raise UserError(f"{name} is damaged: what it holds is not what was written ({_advice()})")
    try:
        return _read(facts)
    except (TypeError, ValueError, OverflowError):  # the hash is right, so it was written so
        raise UserError(f"{name} is no trained policy: what it holds is of other kinds ({_advice()})") from None


def _read(facts: dict[str, Any]) -> Learned:
    network = Network(
        str(facts["base"]), int(facts["hidden"]), float(facts["starvation"]), np.array(facts["parameters"], dtype=float)
    )
    if not np.isfinite(network.parameters).all() or not math.isfinite(network.starvation):
        raise UserError(f"this policy has weights that are no numbers: {_advice()}")
    return Learned(
        network, np.array(facts["low"]), np.array(facts["high"]), str(facts["discipline"]), dict(facts["training"]),
        dict(facts["gate"]),
    )  # fmt: skip


def _advice() -> str:
    return "train it anew with gpuyard learn train, or take a copy that is whole"


def shipped() -> list[str]:
    folder = resources.files("gpuyard.policies") / "trained"
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def _find(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name in shipped():
        return Path(str(resources.files("gpuyard.policies") / "trained" / f"{name}.json"))
    if path.is_dir():
        raise UserError(f"{name} is a directory; name the file of a trained policy")
    known = shipped()
    also = f"; those that come with gpuyard are {', '.join(known)}" if known else ""
    raise UserError(f"there is no trained policy {name}{suggest(name, known)} (a file{also})")


def learned_policy(name: str) -> Policy:
    """The policy that `learned:FILE` names."""
    return load(name.removeprefix(LEARNED)).policy(name)
